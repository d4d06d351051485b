//! A hostile virtual machine monitor.

use crate::connection::connected;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use vhost_edge::features::virtio::{EVENT_IDX, INDIRECT_DESC, MRG_RXBUF, VERSION_1};
use vhost_edge::testing::driver::Descriptor;
use vhost_edge::testing::front::GPA;
use vhost_edge::testing::{Remote, Session as _};

/// Number of attacks per connection.
const STEPS: u64 = 20_000;
const RING: u16 = 64;

/// Attacks forever.
pub(crate) fn run(socket: &Path, seed: u64) -> anyhow::Result<()> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
    loop {
        let mut vm = Remote::new(socket, 1, RING);
        let features = VERSION_1 | MRG_RXBUF | EVENT_IDX | INDIRECT_DESC;
        connected(&mut vm, features);
        attack(&mut vm, socket, &mut random);
    }
}

/// Attacks on one connection.
fn attack(vm: &mut Remote, socket: &Path, random: &mut Xoshiro256PlusPlus) {
    for _ in 0..STEPS {
        let (choice, word) = (random.next_u64(), random.next_u64());
        let ring = (choice >> 8 & 1) as usize;
        let driver = &mut vm.front.rings[ring].ring;
        match choice % 100 {
            0..60 => {
                driver.describe(
                    (word % 64) as u16,
                    Descriptor {
                        gpa: GPA.wrapping_add(word >> (choice >> 16 & 63)),
                        bytes: (random.next_u64() >> (choice >> 24 & 63)) as u32,
                        flags: (choice >> 32 & 7) as u16,
                        next: (choice >> 40 & 63) as u16,
                    },
                );
                driver.offer((word >> 8 & 63) as u16);
                driver.publish();
            }
            60..90 => {
                vm.front.kick(ring);
            }
            90..96 => {
                // Overwrite random words of the ring's memory, including its indices.
                driver.put(word as usize & 0xfff, &random.next_u64().to_le_bytes());
            }
            96 => {
                // Truncate and extend the memory while the shim copies.
                let bytes = vm.front.bytes();
                for bytes in [word % bytes, bytes] {
                    let _failed = rustix::fs::ftruncate(&vm.front.file, bytes);
                }
            }
            97 => {
                // Connect as another monitor that sends half a message.
                if let Ok(other) = UnixStream::connect(socket) {
                    let half = [1_u8, 0, 0, 0, 1];
                    let _full = rustix::io::write(&other, &half);
                }
            }
            98 => {
                let fds = [vm.front.file.as_fd(); 3];
                let words = [word, word >> 7, random.next_u64(), word << 12];
                let payload: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
                let request = (choice >> 16) as u32 % 48;
                let count = (choice >> 48) as usize % 4;
                vm.front.send(request, 0, &payload, &fds[..count]);
            }
            _ => {
                vm.words(18, [ring as u32, (word & 1) as u32]);
            }
        }
    }
}
