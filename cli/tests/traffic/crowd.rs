//! Guests that take everything from a wire with queues for them, and a sender whose frames say for
//! whom they are.

use crate::machine::{Machine, Running};

/// What every frame says, before the two digits of its guest's number.
pub(crate) const MARK: &[u8] = b"FOR-GUEST-";

/// A configuration of guests g0, g1 and so on; `wire` are keys of the wire, and `vif` makes further
/// ones of a guest's interface.
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

/// One frame for each guest, and sending some of them.
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

/// Sends to `guests` guests as `turns` says, which goes on for ever.
pub(crate) fn sender(machine: &Machine, guests: usize, turns: &str) -> Running {
    let program = format!("{FRAMES}{turns}");
    machine.spawn(0, "python3", &["-c", &program, &guests.to_string()])
}

/// The digits of the guests whose frames lie in these pages.
pub(crate) fn for_whom(pages: &[u8]) -> impl Iterator<Item = &[u8]> {
    // A mark every 20 bytes of a frame: looking at every buffer's middle would miss short
    // leftovers, looking everywhere takes too long to catch what is soon written over.
    pages.chunks(512).filter_map(|line| {
        let at = line.windows(MARK.len()).position(|window| window == MARK)?;
        line.get(at + MARK.len()..at + MARK.len() + 2)
    })
}
