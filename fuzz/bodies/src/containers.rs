//! Container runtimes, Docker and IPAM plugins: JSON with mostly valid keys.

use crate::input::Input;

/// Pieces of JSON that calls and answers are made of.
const PIECES: [&str; 35] = [
    r#"{"cniVersion":"1.0.0","name":"n","#,
    r#"{"cniVersion":"0.4.0","name":"n","machine":"m","#,
    r#""ipam":{"type":"host-local"},"#,
    r#""runtimeConfig":{"IngressRate":1,"ips":["10.0.0.2/24"],"mac":"02:00:00:00:00:01"},"#,
    r#""bandwidth":{"ingressRate":18446744073709551615,"egressBurst":-1},"#,
    r#""vif":{"rate_mbps":1e308,"netns":"x"},"#,
    r#""prevResult":{"ips":[{"address":"10.0.0.2/24","interface":18446744073709551615}]},"#,
    r#""mtu":-9223372036854775808}"#,
    r#""dns":null}"#,
    r#"{"interfaces":[{"name":"a"}],"ips":[{"address":"fd00::2/64","gateway":"fd00::1","#,
    r#""interface":1}],"routes":[{"dst":"0.0.0.0/0","mtu":1}],"dns":{"search":null}}"#,
    r#"{"container_id":"c","network":{"name":"n","internal":true,"subnets":[{"subnet":"#,
    r#""10.0.0.0/24","gateway":"10.0.0.1"}],"routes":[{"destination":"10.1.0.0/16","#,
    r#""gateway":"10.0.0.9","metric":4294967295}],"options":{"machine":"m"}},"network_options":"#,
    r#"{"interface_name":"eth0","static_ips":["10.0.0.2","fd00::2"],"static_mac":null},"#,
    r#""port_mappings":[{"container_port":65535,"host_port":65535,"host_ip":"","range":65535,"#,
    r#""protocol":"tcp,udp"}]}"#,
    r#"{"name":"n","subnets":[{"subnet":"10.0.0.0/33"}]}"#,
    concat!(
        r#"{"NetworkID":"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef","#,
        r#""EndpointID":"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef","#,
    ),
    r#""Options":{"com.docker.network.internal":true,"com.docker.network.generic":{"mtu":"9"},"#,
    r#""com.docker.network.portmap":[{"Proto":6,"Port":65535,"HostPort":1,"HostPortEnd":0}]},"#,
    r#""IPv4Data":[{"Gateway":"10.0.0.1/24"}],"IPv6Data":null}"#,
    "POST /NetworkDriver.Join HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "0",
    r#""""#,
    r#""a":"#,
    r#""1.1.0""#,
    r#""::1/129""#,
];

/// Parses a call of CNI, of netavark and of Docker, and an answer of an IPAM plugin. Each is
/// accepted or rejected with a message.
pub fn containers(bytes: &[u8]) {
    every_reader("", bytes);
    let mut input = Input::new(bytes);
    let args = String::from_utf8_lossy(input.bytes(16)).into_owned();
    let mut text = String::new();
    while !input.is_empty() && text.len() < 1 << 14 {
        match PIECES.get(input.below(PIECES.len() + 3)) {
            Some(piece) => text.push_str(piece),
            None => text.push_str(&String::from_utf8_lossy(input.bytes(2))),
        }
    }
    every_reader(
        &format!("IgnoreUnknown=1;{args};IP={args};MAC={args}"),
        text.as_bytes(),
    );
}

fn every_reader(args: &str, bytes: &[u8]) {
    cni::testing::hostile_runtime(args, bytes);
    cni::testing::hostile_podman(bytes);
    cni::testing::hostile_ipam(bytes);
    docker::testing::hostile_docker(bytes);
}
