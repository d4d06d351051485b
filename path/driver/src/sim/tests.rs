//! Tests of TCP over a NIC with a device in software, in one thread and with a virtual clock.

use super::SimWire;
use crate::soft::SoftPort;
use config::Cable;
use config::domain::{
    BUFFER_BYTES, CableConfig, NicConfig, NicKindConfig, NicSettings, Rings, StackApp, StackConfig,
    VmqConfig,
};
use nic::dma::SoftNic;
use nic::dma::soft::{InterruptModeration, SoftSetup};
use nic::sim::SimCable;
use nic::{Buffers, Caps, Checksum, Frame, Nic, Piece, Pool, TxReport};
use serde_json::Value;
use shmem::{Area, Span};
use stack::StackEndpoint;
use stack::cable::forward_batch;
use std::net::SocketAddr;

const MTU: usize = 1500;
const STEP_NS: u64 = 20_000;
const SINK_PORT: u16 = 5201;

fn memory(bytes: usize) -> Area {
    Area::anonymous(bytes).unwrap()
}

fn pool() -> Pool {
    Pool::new(memory(1024 * BUFFER_BYTES as usize), BUFFER_BYTES as usize)
}

/// Returns the description of a station that receives a stream, and sends a stream for one second.
fn description(own: &str, other: &str) -> StackConfig {
    StackConfig {
        addresses: vec![format!("{own}/24").parse().unwrap()],
        gateway: None,
        apps: vec![
            StackApp::TcpSink { port: SINK_PORT },
            StackApp::TcpSource {
                to: SocketAddr::new(other.parse().unwrap(), SINK_PORT),
                seconds: 1,
                after_s: 0,
                file_kb: None,
            },
        ],
    }
}

/// Returns a counter of a station's first application.
fn number(report: &Value, key: &str) -> u64 {
    report["apps"][0][key].as_u64().unwrap()
}

/// A guest's station. It checks the metadata and the checksum of each received TCP packet.
struct CheckedStation {
    station: StackEndpoint,
    /// Memory for a copy of the received frame.
    copy: Span,
    valid: u64,
}

impl Nic for CheckedStation {
    fn caps(&self) -> Caps {
        self.station.caps()
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        self.station.rx(now_ns, budget, buffers, out)
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        for frame in frames {
            let bytes = frame.to_vec().unwrap();
            if bytes[12..14] == [8, 0] && bytes[23] == 6 {
                assert_eq!(frame.offload.checksum, Checksum::Valid);
                self.valid += 1;
                // The station verifies checksums only of frames that the device has not verified.
                self.copy.write(&bytes).unwrap();
                let piece = Piece {
                    span: self.copy,
                    buffer: nic::BufferId::NONE,
                };
                let unknown = Frame::new(piece, bytes.len()).unwrap();
                self.station.tx(now_ns, &[unknown], &[0]);
            } else {
                self.station.tx(now_ns, std::slice::from_ref(frame), &[0]);
            }
        }
        TxReport {
            sent: pick.len() as u32,
            ..TxReport::default()
        }
    }
}

/// Streams pass in both directions, and both ends find all checksums correct. The sender computes
/// the checksums of frames to the guest; the device computes the checksums of frames to the wire.
#[test]
fn tcp_passes_a_software_device_with_valid_checksums() {
    let cable = SimCable {
        delay_ns: 50_000,
        ..SimCable::default()
    };
    let (near, far) = cable.ends();
    let setup = SoftSetup {
        entries: 256,
        queues: 0,
        mtu: MTU,
        interrupts: InterruptModeration {
            delay_ns: 100_000,
            frames: 32,
        },
    };
    let buffers = memory(1024 * BUFFER_BYTES as usize);
    let mut pool_of_nic = Pool::new(buffers, BUFFER_BYTES as usize);
    let window = memory(4096);
    let soft = SoftNic::new(setup, near, memory(setup.bytes()), buffers, window).unwrap();
    let soft = SoftPort::new("wire".into(), soft);
    let station = StackEndpoint::new([2; 6], MTU, &description("10.0.0.1", "10.0.0.2"));
    let mut wire = SimWire::new(soft, far, station, pool());
    let own = description("10.0.0.2", "10.0.0.1");
    let mut guest = CheckedStation {
        station: StackEndpoint::with_offloads([4; 6], MTU, &own, true, false),
        copy: memory(2048).span(),
        valid: 0,
    };
    let (mut frames, mut pick, mut pool_of_guest) = (Vec::new(), Vec::new(), pool());
    for step in 0..60_000 {
        let now_ns = step * STEP_NS;
        let nic_buffers = &mut pool_of_nic;
        forward_batch(
            &mut wire,
            &mut guest,
            now_ns,
            nic_buffers,
            &mut frames,
            &mut pick,
        );
        let of_guest = &mut pool_of_guest;
        forward_batch(
            &mut guest,
            &mut wire,
            now_ns,
            of_guest,
            &mut frames,
            &mut pick,
        );
    }
    for report in [guest.station.report(), wire.far.station().report()] {
        assert!(number(&report, "bytes") > 1 << 20, "{report}");
    }
    let bad = |counters: Vec<(&str, u64)>| {
        let bad = counters
            .iter()
            .find(|(name, _)| *name == "stack_bad_checksum");
        bad.unwrap().1
    };
    assert_eq!(
        bad(guest.station.counters()) + bad(wire.far.station().counters()),
        0
    );
    assert!(guest.valid > 700);
    let counters = wire.counters();
    let count = |name: &str| counters.iter().find(|(found, _)| *found == name).unwrap().1;
    for name in [
        "missed",
        "io_faults",
        "empty_buffers",
        "rx_io_error",
        "tx_io_error",
        "closed",
    ] {
        assert_eq!(count(name), 0, "{name}");
    }
    assert!(count("interrupts") > 100 && count("interrupts") < guest.valid);
}

/// The configuration reserves exactly the pages that the rings need.
#[test]
fn config_reserves_exact_pages_for_rings() {
    for (descriptors, queues, mtu) in [(64, 0, 576), (256, 8, 1500), (4096, 64, 9000)] {
        let config = NicConfig {
            name: "wire".into(),
            kind: NicKindConfig::Soft {
                cable: CableConfig {
                    mac: [2; 6],
                    cable: Cable {
                        station: description("10.0.0.1", "10.0.0.2"),
                        ..Cable::default()
                    },
                },
                rings: Rings {
                    descriptors,
                    ..Rings::default()
                },
            },
            settings: NicSettings {
                mtu,
                buffers: 2 * descriptors,
                vmq: (queues > 0).then_some(VmqConfig {
                    queues,
                    rebalance_ms: 0,
                }),
                ..NicSettings::default()
            },
            addresses: Vec::new(),
            gateways: Vec::new(),
        };
        let setup = SoftSetup {
            entries: descriptors,
            queues: queues as usize,
            mtu: mtu as usize,
            interrupts: InterruptModeration::default(),
        };
        assert_eq!(config.ring_pages() as usize * abi::PAGE, setup.bytes());
    }
}
