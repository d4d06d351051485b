//! Guests that accept all frames from a wire with dedicated queues, and a sender whose frames name
//! their receivers.

use crate::machine::Machine;
use testing::Running;

/// Start of every frame's payload. The two digits of the receiving guest's number follow.
pub(crate) const MARK: &[u8] = b"FOR-GUEST-";

/// Returns a configuration with guests g0, g1 and so on. `wire` holds keys of the wire, and `vif`
/// returns additional keys of a guest's interface.
pub(crate) fn config(
    switches: &str,
    netns: &str,
    wire: &str,
    guests: usize,
    vif: impl Fn(usize) -> String,
) -> String {
    let wire = format!(
        "{switches}[[nic]]\nname = \"wire\"\nifname = \"wire\"\nnetns = \"{netns}\"\n\
         queues = \"vmq\"\n{wire}"
    );
    let guest = |n| {
        format!(
            "[[guest]]\nname = \"g{n}\"\nrestart = false\n[[guest.vif]]\n\
             mac = \"02:00:00:00:00:{:02x}\"\nendpoint = \"sink\"\n{}",
            n + 1,
            vif(n)
        )
    };
    wire + &(0..guests).map(guest).collect::<String>()
}

/// Code that creates a frame for each guest and can send some of them.
const FRAMES: &str = r#"
import socket, sys, time
guests = int(sys.argv[1])
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.bind(("wire", 0))
frames = []
for n in range(guests):
    mark = b"FOR-GUEST-%02d-ALONE " % n
    frames.append(bytes([2, 0, 0, 0, 0, n + 1, 2, 0, 0, 0, 0, 0xbb, 0x88, 0xb5]) + mark * 60)

def send(some):
    for frame in some:
        try:
            for _ in range(8):
                s.send(frame)
        except OSError:
            pass
"#;

/// Starts a program that sends to `guests` guests forever, in the order that the code `turns`
/// determines.
pub(crate) fn sender(machine: &Machine, guests: usize, turns: &str) -> Running {
    let program = format!("{FRAMES}{turns}");
    machine.spawn(0, "python3", &["-c", &program, &guests.to_string()])
}

/// Returns the digits of the guests whose frames are in these pages.
pub(crate) fn receivers(pages: &[u8]) -> impl Iterator<Item = &[u8]> {
    // Frames have a mark every 20 bytes. A check of only the middle of each buffer would miss short
    // remains, and a check of every byte is too slow to find data that is soon overwritten.
    pages.chunks(512).filter_map(|line| {
        let at = line.windows(MARK.len()).position(|window| window == MARK)?;
        line.get(at + MARK.len()..at + MARK.len() + 2)
    })
}
