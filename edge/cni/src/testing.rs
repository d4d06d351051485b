//! Hostile container runtimes and IPAM plugins, for the fuzzers: each takes bytes, has them read as
//! a call reads them, and attaches nothing.

use crate::call::Call;
use crate::commands;
use crate::failure::Failure;
use crate::netavark;
use crate::request::Request;
use crate::result::CniResult;
use crate::version::Version;
use std::collections::BTreeMap;

/// Reads a configuration and the variables of an ADD as CNI's ADD does.
pub fn hostile_runtime(args: &str, conf: &[u8]) {
    let variables = [
        ("CNI_COMMAND", "ADD"),
        ("CNI_CONTAINERID", "c"),
        ("CNI_NETNS", "/run/netns/c"),
        ("CNI_IFNAME", "eth0"),
        ("CNI_ARGS", args),
    ];
    let env: BTreeMap<_, _> = variables
        .map(|(key, value)| (key.into(), value.into()))
        .into();
    if let Ok(conf) = serde_json::from_slice(conf) {
        // A refusal is an answer.
        let _refused = read(env, conf).err();
    }
}

fn read(env: BTreeMap<String, String>, conf: serde_json::Value) -> Result<(), Failure> {
    let request = Request::new(Call::of(env)?, conf)?;
    commands::read_add(&request)
}

/// Reads standard input as netavark's `create` and `setup` do.
pub fn hostile_podman(input: &[u8]) {
    let (answer, _done) = netavark::run(&["create".to_owned()], &BTreeMap::new(), input);
    assert!(answer.ends_with('\n'), "an answer is a line");
    netavark::read_setup(input);
}

/// Reads the answer of an IPAM plugin, joins it to the result of the plugin before, and writes it
/// in each version of CNI.
pub fn hostile_ipam(answer: &[u8]) {
    let Ok(result) = serde_json::from_slice::<CniResult>(answer) else {
        return;
    };
    let _refused = result.routes_told().err();
    let interfaces = result.interfaces.len();
    let joined = result.clone().and(result);
    assert_eq!(joined.interfaces.len(), 2 * interfaces);
    for version in Version::ALL {
        let written = serde_json::to_vec(&joined.clone().in_version(version));
        let again = serde_json::from_slice::<CniResult>(&written.expect("a result is JSON"));
        assert!(again.is_ok(), "{again:?}");
    }
}
