//! Published ports: CNI's `portmap`, called as behind this plugin in a list.

use super::told::{Container, Port};
use crate::call::Call;
use crate::failure::{Code, Failure};
use crate::ipam::Delegate;
use crate::request::Request;
use crate::result::CniResult;
use crate::version::Version;
use serde_json::{Value, json};

/// Where distributions put CNI's plugins.
const PLUGINS: &str = "/usr/lib/cni:/opt/cni/bin:/usr/libexec/cni";

/// What is published for a container.
pub(super) struct Ports {
    call: Call,
    conf: Value,
    version: Version,
}

impl Ports {
    /// None: it publishes nothing.
    pub(super) fn of(container: &Container, request: &Request) -> Result<Option<Self>, Failure> {
        let ports = container.port_mappings.as_deref().unwrap_or_default();
        if ports.is_empty() {
            return Ok(None);
        }
        let mut mappings = Vec::new();
        for port in ports {
            mappings.extend(each(port)?);
        }
        let mut call = request.call.clone();
        let path = call.env.entry("CNI_PATH".to_owned());
        path.or_insert_with(|| PLUGINS.to_owned());
        let conf = json!({
            "cniVersion": request.version.text(),
            "name": request.network.name,
            "type": "portmap",
            "snat": true,
            "runtimeConfig": { "portMappings": mappings },
        });
        Ok(Some(Self {
            call,
            conf,
            version: request.version,
        }))
    }

    pub(super) fn open(&self, result: &CniResult) -> Result<(), Failure> {
        let mut conf = self.conf.clone();
        conf["prevResult"] = json!(result);
        self.plugin(&conf)?.add().map(drop)
    }

    pub(super) fn close(&self) -> Result<(), Failure> {
        self.plugin(&self.conf)?.del()
    }

    fn plugin<'a>(&'a self, conf: &'a Value) -> Result<Delegate<'a>, Failure> {
        Delegate::of("portmap", &self.call, conf, self.version)
    }
}

/// A range of ports as single ones.
fn each(port: &Port) -> Result<Vec<Value>, Failure> {
    let protocols: Vec<&str> = port.protocol.split(',').collect();
    let mut each = Vec::new();
    for n in 0..port.range.max(1) {
        let both = [port.host_port, port.container_port].map(|first| first.checked_add(n));
        let [Some(host), Some(own)] = both else {
            let (first, range) = (port.host_port, port.range);
            let msg = format!("there are not {range} ports from {first} on");
            return Err(Failure::new(Code::Config, msg));
        };
        each.extend(protocols.iter().map(|protocol| {
            json!({
                "hostPort": host,
                "containerPort": own,
                "protocol": protocol,
                "hostIP": port.host_ip,
            })
        }));
    }
    Ok(each)
}
