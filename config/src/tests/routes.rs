//! Tests of routes of kernel interfaces.

use super::*;
use abi::machine::Device;

#[test]
fn wrong_routes_are_named_with_a_remedy() {
    const VIA: &str = "10.0.0.1";
    for (keys, line, message) in [
        (
            format!("routes = [\"10.1.0.0/16 by {VIA}\"]"),
            14,
            "`routes` is \"10.1.0.0/16 by 10.0.0.1\"; write it like [\"10.1.0.0/16 via 10.0.0.1\"]",
        ),
        (
            format!("routes = [\"10.1.2.0/16 via {VIA}\"]"),
            14,
            "`routes` has \"10.1.2.0/16 via 10.0.0.1\", but the network is 10.1.0.0/16; write the \
             bits after the prefix as 0",
        ),
        (
            "routes = [\"::/0\", \"::/0\"]".to_owned(),
            14,
            "`routes` has \"::/0\", but it appears twice; leave one of them out",
        ),
        (
            format!("gateway = \"{VIA}\"\nroutes = [\"0.0.0.0/0 via {VIA}\"]"),
            15,
            "`routes` has \"0.0.0.0/0 via 10.0.0.1\", but `gateway` is set; leave one of them \
             out",
        ),
        (
            format!("routes = [\"::/0 via {VIA}\"]"),
            14,
            "`routes` has \"::/0 via 10.0.0.1\", but 10.0.0.1 is of the other address family; \
             choose a neighbour of the network's address family",
        ),
        (
            "routes = [\"0.0.0.0/0 via 10.9.0.1\"]".to_owned(),
            14,
            "`routes` has \"0.0.0.0/0 via 10.9.0.1\", but 10.9.0.1 is in none of the networks of \
             `addresses`; choose a neighbour, or write a route to it, without `via`, before this \
             one",
        ),
    ] {
        let text = mistake("netns = \"a\"\n", &format!("netns = \"a\"\n{keys}\n"));
        let wanted = format!("f.toml:{line}: [[guest]] 1, vif 1: {message}");
        assert_eq!(text.trim_end(), wanted);
    }
    let bridge = "uplink = \"br0\"\nroutes = [\"10.1.0.0/16\"]";
    let text = mistake("addresses = [\"10.0.0.1/24\"]", bridge);
    assert!(text.contains("the NIC has addresses or routes"), "{text}");
}

#[test]
fn routes_keep_their_order() {
    let text = SMALL.replace(
        "addresses = [\"10.0.0.2/24\"]",
        "addresses = [\"10.0.0.2/24\"]\n\
         routes = [\"192.0.2.1/32\", \"0.0.0.0/0 via 192.0.2.1\"]",
    );
    let machine = parse("f", &text).unwrap().machine().unwrap();
    let devices = machine.domains.iter().flat_map(|domain| &domain.devices);
    let taps = devices.filter_map(|device| match device {
        Device::Tap(tap) => Some(tap),
        _ => None,
    });
    let routes = taps.flat_map(|tap| &tap.routes);
    let found: Vec<_> = routes
        .map(|route| (route.to.to_string(), route.prefix, route.via.is_some()))
        .collect();
    let wanted = [("192.0.2.1", 32, false), ("0.0.0.0", 0, true)];
    assert_eq!(
        found,
        wanted.map(|(to, prefix, via)| (to.to_owned(), prefix, via))
    );
}
