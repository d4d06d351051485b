//! Helpers of the domains' tests: packets of TCP streams, and the monitor's side of a call page.

mod fake_monitor;

pub use fake_monitor::FakeMonitor;

use config::domain::LroConfig;
use config::lro::{FlushConfig, Placement};
use net::packet::checksum::{Sum, pseudo_v4};
use nic::Frame;

/// Header bytes of every test packet: Ethernet, IPv4 and TCP.
pub const HEADERS: usize = 54;
/// TCP payload bytes of every test packet.
pub const PAYLOAD: usize = 1460;
/// TCP's flag ACK.
pub const ACK: u8 = 0x10;
/// TCP's flag PSH.
pub const PSH: u8 = 0x08;

/// Returns packet number `n` of stream `flow`, with the full length and valid checksums.
#[must_use]
pub fn packet(flow: u8, n: u32) -> Vec<u8> {
    packet_with(flow, n, ACK)
}

/// Returns a packet like [`packet`], with these TCP flags.
#[must_use]
pub fn packet_with(flow: u8, n: u32, flags: u8) -> Vec<u8> {
    let len = HEADERS + PAYLOAD;
    let mut bytes = vec![0; len];
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00]);
    let ip = [
        0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    ];
    bytes[14..34].copy_from_slice(&ip);
    bytes[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    bytes[18..20].copy_from_slice(&(n as u16).to_be_bytes());
    let mut sum = Sum::default();
    sum.add_bytes(&bytes[14..34]);
    let sum = !sum.folded();
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    bytes[35] = flow;
    bytes[38..42].copy_from_slice(&(n * PAYLOAD as u32).to_be_bytes());
    bytes[46] = 5 << 4;
    bytes[47] = flags;
    for (at, byte) in bytes[HEADERS..].iter_mut().enumerate() {
        *byte = (at as u32 * 7 + n + u32::from(flow)) as u8;
    }
    let pseudo = pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, len - 34);
    let mut sum = Sum::new(pseudo);
    sum.add_bytes(&bytes[34..]);
    let sum = sum.finish();
    bytes[50..52].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// Returns a configuration with large receive offload in both places and the flush policy `flush`.
#[must_use]
pub fn config(flush: FlushConfig) -> LroConfig {
    LroConfig {
        at: Placement::Both,
        flush,
        ..LroConfig::default()
    }
}

/// Returns the concatenated payloads of frames.
#[must_use]
pub fn payloads(frames: &[Frame]) -> Vec<u8> {
    let payload = |frame: &Frame| frame.to_vec().unwrap().split_off(HEADERS);
    frames.iter().flat_map(payload).collect()
}
