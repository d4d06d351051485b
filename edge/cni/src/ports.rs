//! Published ports: calls CNI's `portmap` as if it were chained after this plugin.

use crate::call::CniCall;
use crate::error::CniError;
use crate::ipam::Delegate;
use crate::request::PluginRequest;
use crate::result::CniResult;
use crate::version::CniVersion;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Folders in which distributions install CNI plugins.
const PLUGINS: &str = "/usr/lib/cni:/opt/cni/bin:/usr/libexec/cni";

/// A published port of a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortMapping {
    /// The port of the host.
    pub host_port: u16,
    /// The port of the container.
    pub container_port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// The address of the host; empty: all.
    pub host_ip: String,
}

/// The published ports of a container.
pub(crate) struct PublishedPorts {
    call: CniCall,
    conf: Value,
    version: CniVersion,
}

impl PublishedPorts {
    /// Returns the ports that a container publishes, or `None` if it publishes none.
    pub(crate) fn of(mappings: &[PortMapping], request: &PluginRequest) -> Option<Self> {
        let each = |mapping: &PortMapping| {
            json!({
                "hostPort": mapping.host_port,
                "containerPort": mapping.container_port,
                "protocol": mapping.protocol,
                "hostIP": mapping.host_ip,
            })
        };
        let mut call = request.call.clone();
        let path = call.env.entry("CNI_PATH".to_owned());
        path.or_insert_with(|| PLUGINS.to_owned());
        let conf = json!({
            "cniVersion": request.version.text(),
            "name": request.network.name,
            "type": "portmap",
            "snat": true,
            "runtimeConfig": {
                "portMappings": mappings.iter().map(each).collect::<Vec<_>>(),
            },
        });
        (!mappings.is_empty()).then_some(Self {
            call,
            conf,
            version: request.version,
        })
    }

    pub(crate) fn open(&self, result: &CniResult) -> Result<(), CniError> {
        let mut conf = self.conf.clone();
        conf["prevResult"] = json!(result);
        self.plugin(&conf)?.add().map(drop)
    }

    pub(crate) fn close(&self) -> Result<(), CniError> {
        self.plugin(&self.conf)?.del()
    }

    fn plugin<'a>(&'a self, conf: &'a Value) -> Result<Delegate<'a>, CniError> {
        Delegate::of("portmap", &self.call, conf, self.version)
    }
}
