//! Checks of a kernel interface's routes.

use super::findings::Findings;
use super::neighbour::non_neighbour_reason;
use crate::model::KernelPort;
use crate::problem::ConfigPart;
use crate::route::RouteConfig;
use std::net::IpAddr;

pub(super) fn routes(found: &mut Findings, part: ConfigPart, port: &KernelPort) {
    for (n, route) in port.routes.iter().enumerate() {
        let before = port.routes.get(..n).unwrap_or_default();
        if let Some((what, remedy)) = contradiction(port, before, route) {
            let what = format!("`routes` has \"{route}\", but {what}");
            found.add(part, "routes", what, remedy);
        }
    }
}

/// Returns the mistake of a route that follows the routes `before`, and a remedy.
fn contradiction(
    port: &KernelPort,
    before: &[RouteConfig],
    route: &RouteConfig,
) -> Option<(String, &'static str)> {
    let to = route.to;
    if to.network() != to.address {
        let what = format!("the network is {}/{}", to.network(), to.prefix);
        return Some((what, "write the bits after the prefix as 0"));
    }
    let is_default = |gateway: IpAddr| to.prefix == 0 && gateway.is_ipv4() == to.address.is_ipv4();
    if port.gateway.is_some_and(is_default) {
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
    let (what, _) = non_neighbour_reason(&port.addresses, via)?;
    let remedy = "choose a neighbour, or write a route to it, without `via`, before this one";
    Some((format!("{via} {what}"), remedy))
}
