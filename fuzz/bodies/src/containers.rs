//! Container runtimes and IPAM plugins: JSON that mostly has the right keys.

use crate::input::Input;

/// Pieces of JSON of which calls and answers are made.
const PIECES: [&str; 30] = [
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

/// Has a call of CNI, a call of netavark and an answer of an IPAM plugin read. Each is accepted or
/// refused in words.
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
}
