//! A call with its configuration.

use crate::call::CniCall;
use crate::error::CniError;
use crate::ipam::Delegate;
use crate::key::AttachmentKey;
use crate::machine::MachineClient;
use crate::network::NetworkConfig;
use crate::pending::PendingCleanups;
use crate::version::CniVersion;
use serde_json::Value;

/// A call with its configuration.
#[derive(Debug)]
pub(crate) struct PluginRequest {
    pub(crate) call: CniCall,
    /// Standard input.
    pub(crate) conf: Value,
    pub(crate) network: NetworkConfig,
    pub(crate) version: CniVersion,
}

impl PluginRequest {
    pub(crate) fn new(call: CniCall, conf: Value) -> Result<Self, CniError> {
        let (network, version) = NetworkConfig::of(&conf)?;
        Ok(Self {
            call,
            conf,
            network,
            version,
        })
    }

    /// Returns the identity of the attachment.
    pub(crate) fn key(&self) -> AttachmentKey<'_> {
        AttachmentKey {
            network: &self.network.name,
            container: &self.call.container,
            ifname: &self.call.ifname,
        }
    }

    pub(crate) fn machine(&self) -> Result<MachineClient, CniError> {
        let socket = self.network.socket()?;
        Ok(MachineClient { socket })
    }

    pub(crate) fn pending(&self) -> PendingCleanups {
        let folder = self.network.state_dir.clone();
        PendingCleanups { folder }
    }

    /// Returns the plugin that assigns addresses, if any.
    pub(crate) fn ipam(&self) -> Result<Option<Delegate<'_>>, CniError> {
        let name = self.network.ipam();
        let delegate = |name| Delegate::of(name, &self.call, &self.conf, self.version);
        name.map(delegate).transpose()
    }
}
