//! Frames that a guest can never send, for tests of the guests of every client.

/// A Python program that sends such frames, each of them several times. Its arguments are the
/// interface, the guest's IPv4 address, and another station's.
pub const FORGER: &str = include_str!("forge.py");

/// The number of times that the program sends each frame.
const TIMES: u64 = 20;

/// Returns the reasons for which the driver domain drops these frames, and the number of frames for
/// each reason.
pub fn forged_frame_drops() -> impl Iterator<Item = (&'static str, u64)> {
    [
        ("forged_source", 1),
        ("forged_arp", 1),
        ("forged_address", 2),
        ("forged_dhcp", 2),
        ("forged_router", 2),
        ("forged_nd", 1),
    ]
    .into_iter()
    .map(|(reason, frames)| (reason, frames * TIMES))
}
