//! After the command has exited, waits until its TCP connections have delivered their data.
//!
//! A process may close a socket or exit while data is in transit. The kernel continues to send the
//! data as long as the network namespace has an interface.

use netdev::netns::Namespace;
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time that the machine waits.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two checks of the connections.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// States in `/proc/net/tcp` of sockets whose last data or FIN the peer has not acknowledged:
/// FIN_WAIT1, LAST_ACK and CLOSING.
const UNACKNOWLEDGED: [&str; 3] = ["04", "09", "0B"];

/// Waits up to two seconds until peers have acknowledged all data that the closed TCP sockets of
/// `netns` have sent.
pub(super) fn wait(netns: &Namespace) {
    let until = Instant::now() + DRAIN_TIMEOUT;
    while Instant::now() < until && netns.enter(is_sending).unwrap_or(false) {
        thread::sleep(CHECK_INTERVAL);
    }
}

/// Returns whether a closed socket of the calling thread's namespace has unacknowledged data.
fn is_sending() -> bool {
    ["tcp", "tcp6"].iter().any(|file| {
        let sockets = fs::read_to_string(format!("/proc/thread-self/net/{file}"));
        sockets.is_ok_and(|sockets| has_unacknowledged(&sockets))
    })
}

fn has_unacknowledged(sockets: &str) -> bool {
    let state = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
    let mut states = sockets.lines().skip(1).filter_map(state);
    states.any(|state| UNACKNOWLEDGED.contains(&state.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_closed_sockets_with_data_delay_the_end() {
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when\n";
        let line = |state: &str| {
            format!("   0: 0200090A:0050 020200C0:9C40 {state} 00000010:00000000 00:00000000\n")
        };
        // The states are LISTEN, ESTABLISHED, FIN_WAIT2, TIME_WAIT and CLOSE_WAIT.
        let others: String = ["0A", "01", "05", "06", "08"].map(line).concat();
        assert!(!has_unacknowledged(&format!("{head}{others}")));
        for state in UNACKNOWLEDGED {
            assert!(has_unacknowledged(&format!(
                "{head}{others}{}",
                line(state)
            )));
        }
        assert!(!has_unacknowledged("") && !has_unacknowledged("x\ny\n"));
    }
}
