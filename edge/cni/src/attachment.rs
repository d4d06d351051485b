//! An attachment of a container, for runtimes without CNI and netavark. It is created, removed and
//! repaired as by CNI, but the caller assigns the addresses.

use crate::call::CniCall;
use crate::commands::{add, del};
use crate::error::{CniError, ErrorCode};
use crate::machine::MachineClient;
use crate::network::NetworkConfig;
use crate::ports::{PortMapping, PublishedPorts};
use crate::request::PluginRequest;
use crate::result::{CniIp, CniResult, CniRoute};
use abi::machine::Program;
use serde_json::Value;
use std::collections::BTreeMap;

/// A machine that answers.
#[derive(Clone, Debug)]
pub struct MachineInfo {
    /// Its name.
    pub name: String,
    /// Process id of its core, which no other machine has had.
    pub core: u32,
    /// Number of its driver domain's processes.
    pub workers: usize,
    /// The names of its domains.
    pub domains: Vec<String>,
}

/// Returns the machine of a network.
///
/// # Errors
///
/// Returns an error if the machine does not answer, or is still starting.
pub fn machine_info(conf: &Value) -> Result<MachineInfo, CniError> {
    let (network, _) = NetworkConfig::of(conf)?;
    let machine = MachineClient {
        socket: network.socket()?,
    };
    let status = machine.status();
    let status = status.map_err(|error| machine.unavailable_error(ErrorCode::Later, error))?;
    let domains = status.domains.iter();
    let drivers = domains.filter(|domain| domain.program == Program::Driver);
    Ok(MachineInfo {
        name: status.name,
        core: status.pid,
        workers: drivers.count(),
        domains: status
            .domains
            .into_iter()
            .map(|domain| domain.report.name)
            .collect(),
    })
}

/// Addresses and routes of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceAddresses {
    /// Addresses with prefix lengths.
    pub addresses: Vec<String>,
    /// Gateways of default routes.
    pub gateways: Vec<String>,
}

impl InterfaceAddresses {
    fn result(&self) -> CniResult {
        let default = |via: &String| CniRoute {
            dst: if via.contains(':') {
                "::/0"
            } else {
                "0.0.0.0/0"
            }
            .to_owned(),
            gw: Some(via.clone()),
            ..CniRoute::default()
        };
        CniResult {
            ips: self.addresses.iter().map(|ip| CniIp::of(ip)).collect(),
            routes: self.gateways.iter().map(default).collect(),
            ..CniResult::default()
        }
    }
}

/// An interface of a container, by the configuration of its network.
#[derive(Debug)]
pub struct Attachment(PluginRequest);

impl Attachment {
    /// Returns the attachment of `ifname` in the namespace at `netns`. `conf` is the network's
    /// configuration in CNI's form.
    ///
    /// # Errors
    ///
    /// Returns an error if the configuration or a name is invalid.
    pub fn of(conf: Value, container: &str, netns: &str, ifname: &str) -> Result<Self, CniError> {
        let variables = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", container),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", ifname),
        ];
        let variables = variables.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let call = CniCall::of(BTreeMap::from(variables))?;
        PluginRequest::new(call, conf).map(Self)
    }

    /// Returns the guest's name.
    #[must_use]
    pub fn guest(&self) -> String {
        self.0.key().guest()
    }

    /// Attaches the guest completely, or not at all.
    ///
    /// # Errors
    ///
    /// Returns an error if the machine does not answer, or rejects the guest.
    pub fn attach(&self, given: &InterfaceAddresses) -> Result<(), CniError> {
        add::with(&self.0, given.result()).map(drop)
    }

    /// Detaches the guest. Succeeds if it is not attached. If the machine does not answer, a later
    /// attachment of the same configuration detaches it.
    ///
    /// # Errors
    ///
    /// Returns an error if the pending cleanup cannot be recorded.
    pub fn detach(&self) -> Result<(), CniError> {
        del::del(&self.0)
    }

    /// Detaches guests whose machine did not answer before.
    ///
    /// # Errors
    ///
    /// Returns an error if the machine's socket has no path.
    pub fn retry_pending(&self) -> Result<(), CniError> {
        let machine = self.0.machine()?;
        self.0.pending().retry_all(&machine);
        Ok(())
    }

    /// Publishes ports.
    ///
    /// # Errors
    ///
    /// Returns an error if CNI's `portmap` is not installed, or fails.
    pub fn open(&self, ports: &[PortMapping], given: &InterfaceAddresses) -> Result<(), CniError> {
        let result = given.result().in_version(self.0.version);
        PublishedPorts::of(ports, &self.0).map_or(Ok(()), |ports| ports.open(&result))
    }

    /// Withdraws published ports. Succeeds if they are not published.
    ///
    /// # Errors
    ///
    /// Returns an error if CNI's `portmap` is not installed, or fails.
    pub fn close(&self, ports: &[PortMapping]) -> Result<(), CniError> {
        PublishedPorts::of(ports, &self.0).map_or(Ok(()), |ports| ports.close())
    }
}
