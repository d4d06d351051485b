//! A hostile Docker, for the fuzzers: parses bytes as a request and as the argument of each call,
//! and changes nothing.

use crate::api::{CreateEndpoint, CreateNetwork, Join, ProgramExternalConnectivity};
use crate::http::{BODY_MAX, ParsedRequest, parse};
use crate::network::DockerNetwork;
use crate::ports::published;
use serde_json::from_slice;

/// Parses a request.
pub fn hostile_docker(bytes: &[u8]) {
    if let ParsedRequest::Call { body, .. } = parse(bytes) {
        assert!(body.len() <= BODY_MAX, "a body has a limit");
        arguments(body);
    }
    arguments(bytes);
}

fn arguments(bytes: &[u8]) {
    // A rejection is an answer, too.
    if let Ok(call) = from_slice::<CreateNetwork>(bytes)
        && let Ok(network) = DockerNetwork::of(&call)
    {
        let _conf = network.conf("02:00:00:00:00:01", "/run");
    }
    if let Ok(call) = from_slice::<ProgramExternalConnectivity>(bytes) {
        let _ports = published(call.options.as_ref());
    }
    let _refused = from_slice::<CreateEndpoint>(bytes).err();
    let _refused = from_slice::<Join>(bytes).err();
}
