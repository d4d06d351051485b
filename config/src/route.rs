//! Routes in text form.

use crate::address::{Cidr, InvalidAddress};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A route to a network, written `10.1.0.0/16 via 10.0.0.1`. Without `via`, the stations of the
/// network are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteConfig {
    /// The network.
    pub to: Cidr,
    /// The neighbour that forwards to it.
    pub via: Option<IpAddr>,
}

impl fmt::Display for RouteConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.via {
            Some(via) => write!(f, "{} via {via}", self.to),
            None => self.to.fmt(f),
        }
    }
}

impl FromStr for RouteConfig {
    type Err = InvalidAddress;

    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        let (to, via) = match text.split_once(" via ") {
            Some((to, via)) => (to, Some(via)),
            None => (text, None),
        };
        let wrong = |_| InvalidAddress {
            what: "not a route:",
            text: text.to_owned(),
            remedy: "write it like \"10.1.0.0/16 via 10.0.0.1\"".to_owned(),
        };
        Ok(Self {
            to: to.trim().parse()?,
            via: via
                .map(|via| via.trim().parse())
                .transpose()
                .map_err(wrong)?,
        })
    }
}

impl From<RouteConfig> for abi::machine::Route {
    fn from(route: RouteConfig) -> Self {
        Self {
            to: route.to.address,
            prefix: route.to.prefix,
            via: route.via,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_round_trip() {
        for text in [
            "10.1.0.0/16",
            "0.0.0.0/0 via 10.0.0.1",
            "::/0 via fd00::1",
            "fd01::/64",
        ] {
            let route: RouteConfig = text.parse().unwrap();
            assert_eq!(route.to_string(), text);
        }
    }

    #[test]
    fn invalid_routes_are_rejected_with_an_example() {
        for text in [
            "",
            "via 10.0.0.1",
            "10.1.0.0/16 via",
            "10.1.0.0/16 via x",
            "10.1.0.0",
        ] {
            let error = text.parse::<RouteConfig>().unwrap_err().to_string();
            assert!(error.contains("like"), "{error}");
        }
    }
}
