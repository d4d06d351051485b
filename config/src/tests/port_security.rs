//! Tests of identities that guests may claim, and of addresses that no station can have.

use super::*;
use crate::domain::{DriverConfig, VifConfig};

/// Returns the driver's configuration of guest `a`'s interface with these keys.
fn vif_config(keys: &str) -> VifConfig {
    let text = SMALL.replacen("netns = \"a\"\n", &format!("netns = \"a\"\n{keys}\n"), 1);
    let machine = parse("f", &text).unwrap().machine().unwrap();
    let driver: DriverConfig = serde_json::from_str(&machine.domains[0].config).unwrap();
    driver.vifs[0].clone()
}

#[test]
fn a_guest_with_addresses_is_confined_to_them() {
    let cidrs = |list: &[&str]| Some(list.iter().map(|text| text.parse().unwrap()).collect());
    let usual = vif_config("");
    assert!(usual.guard.confined && !usual.guard.dhcp_server && usual.guard.extra_macs.is_empty());
    assert_eq!(usual.guard.sources, cidrs(&[]));
    assert_eq!(vif_config("source_guard = \"off\"").guard.sources, None);
    assert_eq!(
        vif_config("source_guard = \"strict\"").guard.sources,
        cidrs(&[])
    );
    let allowed = "allowed_sources = [\"10.0.0.0/8\", \"fd00::/8\"]";
    let both = cidrs(&["10.0.0.0/8", "fd00::/8"]);
    assert_eq!(vif_config(allowed).guard.sources, both);
    assert!(!vif_config("confined = false").guard.confined);
    assert!(vif_config("dhcp_server = true").guard.dhcp_server);
    // A router forwards packets of other stations, and may be a DHCP server.
    let router = "forwards = true\n";
    let forwards = vif_config(router);
    assert!(
        forwards.guard.sources.is_none() && forwards.guard.confined && forwards.guard.dhcp_server
    );
    assert_eq!(
        vif_config(&format!("{router}{allowed}")).guard.sources,
        both
    );
    let strict = vif_config(&format!("{router}source_guard = \"strict\""));
    assert_eq!(strict.guard.sources, cidrs(&[]));
    assert!(
        !vif_config(&format!("{router}dhcp_server = false"))
            .guard
            .dhcp_server
    );
    let macs = vif_config("extra_macs = [\"02:00:00:00:07:01\", \"02:00:00:00:07:02\"]");
    assert_eq!(
        macs.guard.extra_macs,
        [1, 2].map(|n| MacAddress([2, 0, 0, 0, 7, n]))
    );
}

#[test]
fn a_guest_without_addresses_may_use_any() {
    let text = "[[guest]]\nname = \"a\"\n[[guest.vif]]\nendpoint = \"echo\"\n";
    let driver = |more: &str| -> DriverConfig {
        let machine = parse("f", &format!("{text}{more}")).unwrap().machine();
        serde_json::from_str(&machine.unwrap().domains[0].config).unwrap()
    };
    let vif = &driver("").vifs[0];
    assert!(!vif.guard.confined && vif.guard.sources.is_none());
    let vif = &driver("allowed_sources = [\"10.0.0.0/8\"]\n").vifs[0];
    assert!(!vif.guard.confined && vif.guard.sources.is_some());
    for (keys, why) in [
        ("confined = true", "`addresses` is empty"),
        ("source_guard = \"strict\"", "`addresses` and `allowed"),
        (
            "source_guard = \"off\"\nallowed_sources = [\"10.0.0.0/8\"]",
            "leave one of them out",
        ),
    ] {
        let text = errors(&format!("{text}{keys}\n"));
        assert!(
            text.starts_with("f.toml:5: ") && text.contains(why),
            "{text}"
        );
    }
}

#[test]
fn each_port_lists_the_routers_that_it_uses() {
    let text = SMALL
        .replacen(
            "netns = \"w\"",
            "netns = \"w\"\ngateway = \"10.0.0.254\"",
            1,
        )
        .replacen(
            "netns = \"a\"",
            "netns = \"a\"\ngateway = \"10.0.0.1\"\nroutes = [\"10.1.0.0/16 via 10.0.0.9\"]",
            1,
        );
    let machine = parse("f", &text).unwrap().machine().unwrap();
    let driver: DriverConfig = serde_json::from_str(&machine.domains[0].config).unwrap();
    let plain = |list: &[std::net::IpAddr]| list.iter().map(ToString::to_string).collect();
    let gateways: [Vec<String>; 3] = [
        plain(&driver.nics[0].gateways),
        plain(&driver.vifs[0].guard.gateways),
        plain(&driver.vifs[1].guard.gateways),
    ];
    assert_eq!(gateways[0], ["10.0.0.254"]);
    assert_eq!(gateways[1], ["10.0.0.1", "10.0.0.9"]);
    assert!(gateways[2].is_empty());
    assert_eq!(plain(&driver.nics[0].addresses), ["10.0.0.1"]);
}

#[test]
fn extra_macs_are_limited_and_unique() {
    let at = "netns = \"a\"\n";
    let expect = |keys: &str, why: &str| {
        let text = mistake(at, &format!("{at}{keys}\n"));
        assert!(
            text.starts_with("f.toml:14: [[guest]] 1, vif 1: "),
            "{text}"
        );
        assert!(text.contains(why), "{text}");
    };
    let macs = |count: u8| -> String {
        let all: Vec<_> = (0..count)
            .map(|n| format!("\"02:00:00:00:08:{n:02x}\""))
            .collect();
        format!("extra_macs = [{}]", all.join(", "))
    };
    assert_eq!(vif_config(&macs(16)).guard.extra_macs.len(), 16);
    expect(&macs(17), "`extra_macs` has 17 entries; write at most 16");
    expect(
        "extra_macs = [\"01:00:00:00:00:01\"]",
        "is a multicast address",
    );
    let twice = "extra_macs = [\"02:00:00:00:08:01\", \"02:00:00:00:08:01\"]";
    expect(twice, "is also that of [[guest]] 1, vif 1");
    let sources: Vec<_> = (0..17).map(|n| format!("\"10.{n}.0.0/16\"")).collect();
    let sources = format!("allowed_sources = [{}]", sources.join(", "));
    expect(
        &sources,
        "`allowed_sources` has 17 entries; write at most 16",
    );
    expect(
        "allowed_sources = [\"10.0.0.1/8\"]",
        "write the network, 10.0.0.0/8",
    );
    expect(
        "allowed_sources = [\"10.0.0.1\"]",
        "prefix length missing: write it like 10.0.0.1/24",
    );
}

#[test]
fn addresses_and_gateways_are_stations() {
    let own = "addresses = [\"10.0.0.2/24\"]";
    let with = |own: &str, more: &str| format!("addresses = [\"{own}\"]\n{more}");
    for (address, more, why) in [
        ("10.0.0.0/24", "", "is the address of the network itself"),
        (
            "10.0.0.255/24",
            "",
            "is the broadcast address of its network",
        ),
        ("127.0.0.5/8", "", "is a loopback address"),
        ("224.0.0.1/24", "", "is a multicast address"),
        ("0.0.0.0/24", "", "is the unspecified address"),
        (
            "::ffff:10.0.0.1/96",
            "",
            "is an IPv4 address mapped into IPv6",
        ),
        (
            "fd00::1",
            "",
            "prefix length missing: write it like fd00::1/64",
        ),
        (
            "10.0.0.2/24",
            "gateway = \"10.0.0.2\"",
            "is the station's own",
        ),
        (
            "10.0.0.2/24",
            "gateway = \"10.0.0.255\"",
            "is the broadcast address",
        ),
        (
            "10.0.0.2/24",
            "gateway = \"10.0.0.0\"",
            "of the network itself",
        ),
        (
            "10.0.0.2/24",
            "gateway = \"fe80::1\"",
            "no IPv6 address is among",
        ),
        (
            "10.0.0.2/24",
            "routes = [\"10.1.0.0/16 via 10.0.0.2\"]",
            "is the station's own",
        ),
    ] {
        let text = mistake(own, &with(address, more));
        assert!(text.contains(why), "{text}");
    }
    for (address, more) in [
        ("fd00::2/64", "gateway = \"fe80::1\""),
        ("fd00::2/64", "routes = [\"::/0 via fe80::1\"]"),
        ("fe80::2/64", "gateway = \"fe80::1\""),
        ("10.0.0.2/31", "gateway = \"10.0.0.3\""),
    ] {
        let text = SMALL.replacen(own, &with(address, more), 1);
        let text = text.replacen("10.0.0.3/24", "10.0.0.4/24", 1);
        parse("f", &text).unwrap_or_else(|wrong| panic!("{wrong}"));
    }
}
