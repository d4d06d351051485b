//! Hostile container runtimes and IPAM plugins, for the fuzzers: each function parses bytes as a
//! call does, without attaching anything.

use crate::call::CniCall;
use crate::commands;
use crate::error::CniError;
use crate::netavark;
use crate::request::PluginRequest;
use crate::result::CniResult;
use crate::version::CniVersion;
use std::collections::BTreeMap;

/// Parses a configuration and the variables of an ADD.
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
        // A rejection is also a valid answer.
        let _refused = read(env, conf).err();
    }
}

fn read(env: BTreeMap<String, String>, conf: serde_json::Value) -> Result<(), CniError> {
    let request = PluginRequest::new(CniCall::of(env)?, conf)?;
    commands::parse_add(&request)
}

/// Parses standard input like netavark's `create` and `setup`.
pub fn hostile_podman(input: &[u8]) {
    let (answer, _done) = netavark::run(&["create".to_owned()], &BTreeMap::new(), input);
    assert!(answer.ends_with('\n'), "an answer is a line");
    netavark::read_setup(input);
}

/// Parses the answer of an IPAM plugin, appends it to the result of the previous plugin, and writes
/// it in each version of CNI.
pub fn hostile_ipam(answer: &[u8]) {
    let Ok(result) = serde_json::from_slice::<CniResult>(answer) else {
        return;
    };
    let _refused = result.machine_routes().err();
    let interfaces = result.interfaces.len();
    let joined = result.clone().merged_with(result);
    assert_eq!(joined.interfaces.len(), 2 * interfaces);
    for version in CniVersion::ALL {
        let written = serde_json::to_vec(&joined.clone().in_version(version));
        let again = serde_json::from_slice::<CniResult>(&written.expect("a result is JSON"));
        assert!(again.is_ok(), "{again:?}");
    }
}
