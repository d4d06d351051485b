//! Routes of a kernel interface.

use crate::address::{Cidr, InvalidAddress};
use crate::findings::Findings;
use crate::neighbour::non_neighbour_reason;
use crate::problem::ConfigPart;
use crate::text::read_as_text;
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

read_as_text!(
    RouteConfig,
    |_| "write it like \"10.1.0.0/16 via 10.0.0.1\""
);

impl From<RouteConfig> for abi::machine::Route {
    fn from(route: RouteConfig) -> Self {
        Self {
            to: route.to.address,
            prefix: route.to.prefix,
            via: route.via,
        }
    }
}

/// The addresses of the stations behind a port, as far as the file names them, and their routers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StationAddresses<'c> {
    pub(crate) addresses: &'c [Cidr],
    /// The default route.
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) routes: &'c [RouteConfig],
}

impl<'c> StationAddresses<'c> {
    /// Returns the addresses without their prefixes.
    pub(crate) fn ips(&self) -> impl Iterator<Item = IpAddr> + use<'c> {
        self.addresses.iter().map(|cidr| cidr.address)
    }

    /// Returns the routers: those of the default route and of the other routes.
    pub(crate) fn routers(&self) -> Vec<IpAddr> {
        let routes = self.routes.iter().filter_map(|route| route.via);
        let mut all: Vec<IpAddr> = self.gateway.into_iter().chain(routes).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Checks the routes of a station.
pub(crate) fn check(found: &mut Findings, part: ConfigPart, station: StationAddresses<'_>) {
    for (n, route) in station.routes.iter().enumerate() {
        let before = station.routes.get(..n).unwrap_or_default();
        if let Some((what, remedy)) = contradiction(station, before, route) {
            let what = format!("`routes` has \"{route}\", but {what}");
            found.add(part, "routes", what, remedy);
        }
    }
}

/// Returns the mistake of a route that follows the routes `before`, and a remedy.
fn contradiction(
    station: StationAddresses<'_>,
    before: &[RouteConfig],
    route: &RouteConfig,
) -> Option<(String, &'static str)> {
    let to = route.to;
    if to.network() != to.address {
        let what = format!("the network is {}/{}", to.network(), to.prefix);
        return Some((what, "write the bits after the prefix as 0"));
    }
    let is_default = |gateway: IpAddr| to.prefix == 0 && gateway.is_ipv4() == to.address.is_ipv4();
    if station.gateway.is_some_and(is_default) {
        return Some(("`gateway` is set".to_owned(), "leave one of them out"));
    }
    if before.iter().any(|other| other.to == to) {
        return Some(("it appears twice".to_owned(), "leave one of them out"));
    }
    let via = route.via?;
    if via.is_ipv4() != to.address.is_ipv4() {
        let what = format!("{via} is of the other address family");
        return Some((what, "choose a neighbour of the network's address family"));
    }
    let mut links = before.iter().filter(|other| other.via.is_none());
    if links.any(|link| link.to.contains(via)) {
        return None;
    }
    let (what, _) = non_neighbour_reason(station.addresses, via)?;
    let remedy = "choose a neighbour, or write a route to it, without `via`, before this one";
    Some((format!("{via} {what}"), remedy))
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
