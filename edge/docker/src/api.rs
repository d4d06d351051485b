//! The arguments of Docker's calls, as libnetwork writes them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// Length of an id.
const ID: usize = 64;

/// The id of a network or an endpoint: 64 hexadecimal digits, so that it can be a file's name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Id(String);

impl Id {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the first `n` digits.
    pub(crate) fn short(&self, n: usize) -> &str {
        self.0.get(..n).unwrap_or(&self.0)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Id {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_digit = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        match text.len() == ID && text.bytes().all(is_digit) {
            true => Ok(Self(text)),
            false => Err("an id has 64 hexadecimal digits".to_owned()),
        }
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.0
    }
}

/// `CreateNetwork`.
#[derive(Debug, Deserialize)]
pub(crate) struct CreateNetwork {
    #[serde(rename = "NetworkID")]
    pub(crate) network: Id,
    #[serde(rename = "Options")]
    pub(crate) options: Option<Map<String, Value>>,
    #[serde(rename = "IPv4Data")]
    pub(crate) ipv4: Option<Vec<NetworkPool>>,
    #[serde(rename = "IPv6Data")]
    pub(crate) ipv6: Option<Vec<NetworkPool>>,
}

/// Addresses of a network.
#[derive(Debug, Deserialize)]
pub(crate) struct NetworkPool {
    /// The gateway with a prefix length. Docker reserves this address.
    #[serde(rename = "Gateway", default)]
    pub(crate) gateway: String,
}

/// `DeleteNetwork`.
#[derive(Debug, Deserialize)]
pub(crate) struct DeleteNetwork {
    #[serde(rename = "NetworkID")]
    pub(crate) network: Id,
}

/// `CreateEndpoint`.
#[derive(Debug, Deserialize)]
pub(crate) struct CreateEndpoint {
    #[serde(rename = "NetworkID")]
    pub(crate) network: Id,
    #[serde(rename = "EndpointID")]
    pub(crate) endpoint: Id,
    #[serde(rename = "Interface")]
    pub(crate) interface: Option<EndpointInterface>,
}

/// The interface of an endpoint; empty texts are unset.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct EndpointInterface {
    #[serde(rename = "Address")]
    pub(crate) address: String,
    #[serde(rename = "AddressIPv6")]
    pub(crate) address_ipv6: String,
    #[serde(rename = "MacAddress")]
    pub(crate) mac: String,
}

/// `Join`.
#[derive(Debug, Deserialize)]
pub(crate) struct Join {
    #[serde(rename = "EndpointID")]
    pub(crate) endpoint: Id,
    /// The path at which Docker mounts the container's network namespace, at some later time.
    #[serde(rename = "SandboxKey")]
    pub(crate) sandbox: String,
}

/// `ProgramExternalConnectivity`.
#[derive(Debug, Deserialize)]
pub(crate) struct ProgramExternalConnectivity {
    #[serde(rename = "EndpointID")]
    pub(crate) endpoint: Id,
    #[serde(rename = "Options")]
    pub(crate) options: Option<Map<String, Value>>,
}

/// A call about an endpoint.
#[derive(Debug, Deserialize)]
pub(crate) struct EndpointCall {
    #[serde(rename = "EndpointID")]
    pub(crate) endpoint: Id,
}

/// A published port.
#[derive(Debug, Deserialize)]
pub(crate) struct PortBinding {
    /// Protocol number of IP.
    #[serde(rename = "Proto")]
    pub(crate) proto: u8,
    #[serde(rename = "Port")]
    pub(crate) port: u16,
    #[serde(rename = "HostIP", default)]
    pub(crate) host_ip: String,
    /// 0: any free port.
    #[serde(rename = "HostPort", default)]
    pub(crate) host_port: u16,
    /// The last port of a range from which Docker may choose; 0: no range.
    #[serde(rename = "HostPortEnd", default)]
    pub(crate) host_port_end: u16,
}
