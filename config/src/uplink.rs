//! Forwarded ports in text form.

use abi::machine::{Forward, PortProtocol};
use std::str::FromStr;

/// Default limit of each guest's open connections through address translation: three percent of the
/// connections that the kernel tracks by default, and more than a busy server needs.
pub const CONNECTIONS: u32 = 8192;

/// A forwarded port: `tcp:8080=10.0.0.2:80`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortForward(pub Forward);

/// Error: a text is not a forwarded port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a protocol, a port, and an address with a port")]
pub struct InvalidForward;

impl FromStr for PortForward {
    type Err = InvalidForward;

    fn from_str(text: &str) -> Result<Self, InvalidForward> {
        let (from, to) = text.split_once('=').ok_or(InvalidForward)?;
        let (transport, port) = from.split_once(':').ok_or(InvalidForward)?;
        let transport = match transport {
            "tcp" => PortProtocol::Tcp,
            "udp" => PortProtocol::Udp,
            _ => return Err(InvalidForward),
        };
        Ok(Self(Forward {
            transport,
            port: port.parse().map_err(|_| InvalidForward)?,
            to: to.parse().map_err(|_| InvalidForward)?,
        }))
    }
}

/// Returns the text form of a forwarded port.
pub(crate) fn text(forward: &Forward) -> String {
    let transport = match forward.transport {
        PortProtocol::Tcp => "tcp",
        PortProtocol::Udp => "udp",
    };
    format!("{transport}:{}={}", forward.port, forward.to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_ports_round_trip() {
        for good in ["tcp:8080=10.0.0.2:80", "udp:53=[fd00::2]:53"] {
            let PortForward(forward) = good.parse().unwrap();
            assert_eq!(text(&forward), good);
        }
        for bad in [
            "",
            "8080=10.0.0.2:80",
            "tcp:8080",
            "tcp:8080=10.0.0.2",
            "sctp:1=10.0.0.2:80",
            "tcp:65536=10.0.0.2:80",
            "tcp:-1=10.0.0.2:80",
            "tcp:1=fd00::2:80:",
        ] {
            assert_eq!(bad.parse::<PortForward>(), Err(InvalidForward), "{bad}");
        }
    }
}
