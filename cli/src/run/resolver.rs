//! Selects the command's name servers: those of this system that another network namespace can
//! reach. A server on the loopback is unreachable from there.

use super::network::HostFamilies;
use std::net::IpAddr;

/// The result of the selection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Resolver {
    /// The command can use the system's resolv.conf.
    System,
    /// The command needs this resolv.conf.
    Own(String),
    /// No name server is reachable, for this reason.
    None(String),
}

/// Returns a resolv.conf with the servers `dns`, and with the other options of the system's
/// resolv.conf.
pub(super) fn with(dns: &[IpAddr], system: &str) -> Resolver {
    Resolver::Own(text(dns, system))
}

/// Selects reachable servers from the text of `system`, the system's resolv.conf, or else of
/// `upstream`, systemd-resolved's file with its upstream servers, if it exists.
pub(super) fn find(system: &str, upstream: Option<&str>, families: HostFamilies) -> Resolver {
    let all: Vec<IpAddr> = servers(system).collect();
    let usable = |text: &str| -> Vec<IpAddr> {
        let reached = |ip: &IpAddr| match ip {
            IpAddr::V4(_) => families.ipv4,
            IpAddr::V6(_) => families.ipv6,
        };
        servers(text)
            .filter(|ip| !ip.is_loopback() && reached(ip))
            .collect()
    };
    let mut found = usable(system);
    if !found.is_empty() && found == all {
        return Resolver::System;
    }
    let is_local = all.iter().all(IpAddr::is_loopback);
    if found.is_empty() && is_local {
        found = upstream.map(usable).unwrap_or_default();
    }
    if !found.is_empty() {
        return Resolver::Own(text(&found, system));
    }
    let names: Vec<String> = all.iter().map(ToString::to_string).collect();
    Resolver::None(match (all.is_empty(), is_local) {
        (true, _) => "this system's resolv.conf has no name server".to_owned(),
        (_, true) => format!(
            "this system's name server ({}) listens only on the loopback",
            names.join(", ")
        ),
        _ => format!(
            "this system's name servers ({}) have addresses of a family that the command \
             cannot reach",
            names.join(", ")
        ),
    })
}

fn servers(text: &str) -> impl Iterator<Item = IpAddr> {
    text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let is_server = words.next() == Some("nameserver");
        // A link-local server is skipped, because its interface does not exist in the command's
        // namespace.
        is_server.then(|| words.next()?.parse().ok()).flatten()
    })
}

/// Returns a resolv.conf with these servers and the search and option lines of `system`.
fn text(servers: &[IpAddr], system: &str) -> String {
    let kept = system.lines().filter(|line| {
        let first = line.split_whitespace().next();
        matches!(first, Some("search" | "domain" | "options" | "sortlist"))
    });
    let servers = servers.iter().map(|ip| format!("nameserver {ip}"));
    let lines = kept.map(str::to_owned).chain(servers);
    lines.fold(String::new(), |text, line| text + &line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const IPV4: HostFamilies = HostFamilies {
        ipv4: true,
        ipv6: false,
    };

    #[test]
    fn reachable_name_servers_are_kept() {
        let system = "# by hand\nnameserver 192.0.2.1\noptions edns0\n";
        assert_eq!(find(system, None, IPV4), Resolver::System);
    }

    #[test]
    fn a_stub_on_the_loopback_is_bypassed() {
        let system = "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch example.org\n";
        let upstream = "nameserver 192.0.2.1\nnameserver fd00::1\nnameserver fe80::1%eth0\n";
        let Resolver::Own(text) = find(system, Some(upstream), IPV4) else {
            panic!()
        };
        assert_eq!(
            text,
            "options edns0 trust-ad\nsearch example.org\nnameserver 192.0.2.1\n"
        );
        let Resolver::None(why) = find(system, None, IPV4) else {
            panic!()
        };
        assert!(
            why.contains("127.0.0.53") && why.contains("loopback"),
            "{why}"
        );
    }

    #[test]
    fn servers_of_another_family_are_skipped() {
        let system = "nameserver fd00::1\nnameserver 192.0.2.1\nnameserver ::1\n";
        assert_eq!(
            find(system, None, IPV4),
            Resolver::Own("nameserver 192.0.2.1\n".to_owned())
        );
        let Resolver::None(why) = find("nameserver fd00::1\n", None, IPV4) else {
            panic!()
        };
        assert!(why.contains("of a family that"), "{why}");
        let Resolver::None(why) = find("", Some("nameserver fd00::1"), IPV4) else {
            panic!()
        };
        assert!(why.contains("no name server"), "{why}");
    }

    #[test]
    fn requested_servers_replace_the_system_servers() {
        let dns = ["192.0.2.9".parse().unwrap()];
        let Resolver::Own(text) = with(&dns, "nameserver 127.0.0.1\nsearch a b\n") else {
            panic!()
        };
        assert_eq!(text, "search a b\nnameserver 192.0.2.9\n");
    }
}
