//! Published ports, from the options of `ProgramExternalConnectivity`.

use crate::api::PortBinding;
use cni::PortMapping;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The key of the published ports.
const PORT_MAP: &str = "com.docker.network.portmap";

/// Returns the published ports of a container.
///
/// # Errors
///
/// Returns an error if Docker leaves the choice of a port to the driver. The driver could not
/// report its choice, because Docker reads published ports only from its own drivers.
pub(crate) fn published(options: Option<&Map<String, Value>>) -> Result<Vec<PortMapping>, String> {
    let ports = options.and_then(|options| options.get(PORT_MAP));
    let bindings: Option<Vec<PortBinding>> = match ports {
        None => None,
        Some(ports) => Option::deserialize(ports).map_err(|error| error.to_string())?,
    };
    bindings
        .unwrap_or_default()
        .into_iter()
        .map(mapping)
        .collect()
}

fn mapping(binding: PortBinding) -> Result<PortMapping, String> {
    let protocol = match binding.proto {
        6 => "tcp",
        17 => "udp",
        132 => "sctp",
        other => {
            return Err(format!(
                "unsupported: a port of the protocol number {other}"
            ));
        }
    };
    let (port, first) = (binding.port, binding.host_port);
    if first == 0 || ![0, first].contains(&binding.host_port_end) {
        return Err(format!(
            "unsupported: any free port of the host for {port}/{protocol}; write the port: \
             `-p 8080:{port}`"
        ));
    }
    Ok(PortMapping {
        host_port: first,
        container_port: port,
        protocol: protocol.to_owned(),
        host_ip: binding.host_ip,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(ports: Value) -> Result<Vec<PortMapping>, String> {
        published(json!({ PORT_MAP: ports }).as_object())
    }

    #[test]
    fn ports_of_docker_are_parsed() {
        let docker = json!([{ "Proto": 6, "IP": "", "Port": 80, "HostIP": "127.0.0.1",
            "HostPort": 8080, "HostPortEnd": 8080 }]);
        let expected = PortMapping {
            host_port: 8080,
            container_port: 80,
            protocol: "tcp".to_owned(),
            host_ip: "127.0.0.1".to_owned(),
        };
        assert_eq!(of(docker), Ok(vec![expected]));
        assert_eq!(of(Value::Null), Ok(vec![]));
        assert_eq!(published(None), Ok(vec![]));
    }

    #[test]
    fn ports_that_docker_cannot_show_are_rejected() {
        for (ports, why) in [
            (json!([{ "Proto": 6, "Port": 80 }]), "-p 8080:80"),
            (
                json!([{ "Proto": 17, "Port": 53, "HostPort": 53, "HostPortEnd": 60 }]),
                "53/udp",
            ),
            (
                json!([{ "Proto": 1, "Port": 1, "HostPort": 1 }]),
                "protocol number 1",
            ),
            (json!([{ "Proto": 6, "Port": 70000 }]), "70000"),
            (json!("8080:80"), "sequence"),
        ] {
            let error = of(ports).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
