//! Measures the cost of a read and a write of a TAP in TSC cycles, for frames of 1514 bytes with
//! and without a virtio-net header, and for packets of 64 KB with one. Needs root.
//!
//! ```sh
//! cargo run --release -p nic-linux --example tap_cost
//! ```

use netdev::TapSpec;
use netdev::netns::Namespace;
use netdev::tool_setup::open_tap;
use nic::{Buffer, BufferId, Buffers, Checksum, Frame, Gso, GsoKind, Nic, Piece, Pool};
use nic_linux::TapNic;
use shmem::Area;
use shmem::time::tsc;
use std::error::Error;
use std::net::UdpSocket;
use std::process::Command;

const ROUNDS: usize = 500;
const BATCH: usize = 64;

/// Pools of half pages and of whole pages.
struct Supply(Pool, Pool);

impl Buffers for Supply {
    fn take(&mut self) -> Option<Buffer> {
        self.0.take()
    }
    fn take_large(&mut self) -> Option<Buffer> {
        let buffer = self.1.take()?;
        Some(Buffer {
            id: BufferId(buffer.id.0 | 1 << 31),
            span: buffer.span,
        })
    }
    fn put(&mut self, id: BufferId) {
        if id.0 >> 31 == 0 {
            self.0.put(id)
        } else {
            self.1.put(BufferId(id.0 & !(1 << 31)))
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let namespace = Namespace::new()?;
    let mut spec = TapSpec {
        ifname: "tap0".to_owned(),
        netns: Some(namespace.path().display().to_string()),
        addresses: vec!["10.9.0.1/24".to_owned()],
        mtu: 1500,
        tx_queue: 1000,
        ..TapSpec::default()
    };
    for (vnet_header, size) in [(false, 1514), (true, 1514), (true, 65_226)] {
        spec.vnet_header = vnet_header;
        (spec.checksum, spec.tso) = (vnet_header, vnet_header);
        let mut nic = TapNic::new(
            open_tap(&spec)?,
            vnet_header,
            vnet_header,
            vnet_header,
            1500,
        );
        let mut supply = Supply(
            Pool::new(Area::anonymous(1 << 18)?, 2048),
            Pool::new(Area::anonymous(1 << 20)?, 4096),
        );
        let write = write_cost(&mut nic, size)?;
        println!("write {size:>5} B, header {vnet_header:>5}: {write:>6} cycles");
        if size == 1514 {
            let read = read_cost(&namespace, &mut nic, &mut supply)?;
            println!("read  {size:>5} B, header {vnet_header:>5}: {read:>6} cycles");
        }
        let mut none = Vec::new();
        nic.rx(0, BATCH, &mut supply, &mut none);
        let start = tsc();
        for _ in 0..ROUNDS {
            nic.rx(0, BATCH, &mut supply, &mut none);
        }
        println!(
            "read  empty, header {vnet_header:>5}: {:>6} cycles",
            (tsc() - start) / ROUNDS as u64
        );
    }
    Ok(())
}

/// Measures writes of frames from a foreign network to a closed port, which the kernel drops early.
fn write_cost(nic: &mut TapNic, size: usize) -> Result<u64, Box<dyn Error>> {
    let span = Area::anonymous(1 << 17)?.span();
    let mut header = vec![0xff; 6];
    header.extend([2, 0, 0, 0, 0, 0xaa, 8, 0, 0x45, 0]);
    header.extend((size as u16 - 14).to_be_bytes());
    header.extend([0, 1, 0, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    header.extend([
        0, 5, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0,
    ]);
    span.write(&header).map_err(|_| "no memory")?;
    let mut frame = Frame::new(
        Piece {
            span,
            buffer: BufferId::NONE,
        },
        size,
    )
    .map_err(|_| "no memory")?;
    if size > 1514 {
        frame.offload.checksum = Checksum::Blank {
            start: 34,
            offset: 16,
        };
        frame.offload.gso = Some(Gso {
            kind: GsoKind::Tcp4,
            size: 1448,
        });
    }
    let frames = [frame];
    let start = tsc();
    for _ in 0..ROUNDS * 10 {
        let report = nic.tx(0, &frames, &[0]);
        if report.sent != 1 {
            return Err(format!("not sent: {report:?}").into());
        }
    }
    Ok((tsc() - start) / (ROUNDS as u64 * 10))
}

/// Measures reads of frames that a socket sends in batches of `BATCH`.
fn read_cost(
    namespace: &Namespace,
    nic: &mut TapNic,
    supply: &mut Supply,
) -> Result<u64, Box<dyn Error>> {
    let socket = namespace.enter(|| {
        let arguments = [
            "neigh",
            "replace",
            "10.9.0.2",
            "lladdr",
            "02:00:00:00:00:aa",
            "dev",
            "tap0",
        ];
        Command::new("ip").args(arguments).status()?;
        UdpSocket::bind("10.9.0.1:0")
    })??;
    let data = [0x5a; 1472];
    let (mut cycles, mut count) = (0, 0);
    let mut frames = Vec::with_capacity(BATCH * 2);
    for _ in 0..ROUNDS {
        for _ in 0..BATCH {
            socket.send_to(&data, "10.9.0.2:5")?;
        }
        let start = tsc();
        nic.rx(0, BATCH, supply, &mut frames);
        cycles += tsc() - start;
        count += frames.len() as u64;
        for mut frame in frames.drain(..) {
            frame.recycle(supply);
        }
    }
    Ok(cycles / count.max(1))
}
