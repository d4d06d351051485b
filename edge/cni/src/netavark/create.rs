//! `podman network create`: validates a network.

use super::podman::PodmanNetwork;
use crate::error::{CniError, ErrorCode};
use crate::network::decoded;
use crate::options;
use serde_json::{Value, json};

/// Returns the network in the form that podman stores.
pub(super) fn create(mut input: Value) -> Result<Value, CniError> {
    let network: PodmanNetwork = decoded(&input)?;
    conf(&network)?;
    let wrong = |msg: &str| Err(CniError::new(ErrorCode::Config, msg));
    if network.subnets.unwrap_or_default().is_empty() {
        return wrong(
            "the subnet is missing: pass the subnet of the machine's NIC with `--subnet`",
        );
    }
    let ipam = network.ipam_options.unwrap_or_default();
    if let Some(driver) = ipam
        .get("driver")
        .filter(|driver| !["", "host-local"].contains(&driver.as_str()))
    {
        let msg = format!("unsupported: addresses by `{}`", driver.escape_debug());
        return wrong(&msg);
    }
    // aardvark-dns resolves containers' names; netavark starts it only for its own networks.
    if let Some(dns) = input.get_mut("dns_enabled") {
        *dns = json!(false);
    }
    Ok(input)
}

/// Returns the configuration of the network in CNI's form.
pub(super) fn conf(network: &PodmanNetwork) -> Result<Value, CniError> {
    let options = network.options.iter().flatten();
    options::conf(&network.name, options)
}
