//! A call with the configuration that it comes with.

use crate::call::Call;
use crate::failure::Failure;
use crate::ipam::Delegate;
use crate::key::Key;
use crate::machine::Machine;
use crate::network::Network;
use crate::pending::Pending;
use crate::version::Version;
use serde_json::Value;

/// A call with the configuration that it comes with.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) call: Call,
    /// What was said on standard input.
    pub(crate) conf: Value,
    pub(crate) network: Network,
    pub(crate) version: Version,
}

impl Request {
    pub(crate) fn new(call: Call, conf: Value) -> Result<Self, Failure> {
        let (network, version) = Network::of(&conf)?;
        Ok(Self {
            call,
            conf,
            network,
            version,
        })
    }

    /// What is attached by it.
    pub(crate) fn key(&self) -> Key<'_> {
        Key {
            network: &self.network.name,
            container: &self.call.container,
            ifname: &self.call.ifname,
        }
    }

    pub(crate) fn machine(&self) -> Result<Machine, Failure> {
        let socket = self.network.socket()?;
        Ok(Machine { socket })
    }

    pub(crate) fn pending(&self) -> Pending {
        let folder = self.network.state_dir.clone();
        Pending { folder }
    }

    /// What gives out addresses, if anything does.
    pub(crate) fn ipam(&self) -> Result<Option<Delegate<'_>>, Failure> {
        let name = self.network.ipam();
        let delegate = |name| Delegate::of(name, &self.call, &self.conf, self.version);
        name.map(delegate).transpose()
    }
}
