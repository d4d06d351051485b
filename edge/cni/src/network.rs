//! The part of a network's configuration that every call needs. ADD parses the parts that only it
//! needs, so that mistakes in them do not block a DEL.

use crate::call::is_id;
use crate::error::{CniError, ErrorCode};
use crate::version::CniVersion;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The default machine, as for `grantway attach`.
const MACHINE: &str = "grantway";
/// The folder of pending cleanups.
const STATE_DIR: &str = "/run/grantway/cni";

/// The configuration of a network.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NetworkConfig {
    cni_version: String,
    /// Its name.
    pub(crate) name: String,
    machine: Option<String>,
    socket: Option<PathBuf>,
    #[serde(default = "state_dir")]
    pub(crate) state_dir: PathBuf,
    /// Whether an agent sets the rules of pods.
    #[serde(default)]
    pub(crate) network_policy: bool,
    /// Whether containers also send packets for their own subnet to the gateway.
    #[serde(default)]
    pub(crate) routed: bool,
    #[serde(default)]
    ipam: Option<Ipam>,
}

#[derive(Clone, Debug, Deserialize)]
struct Ipam {
    #[serde(rename = "type")]
    program: Option<String>,
    #[serde(rename = "dataDir")]
    data_dir: Option<PathBuf>,
}

fn state_dir() -> PathBuf {
    STATE_DIR.into()
}

impl NetworkConfig {
    /// Parses the configuration; also returns the version for answers.
    pub(crate) fn of(conf: &Value) -> Result<(Self, CniVersion), CniError> {
        let network: Self = decoded(conf)?;
        let version = CniVersion::of(&network.cni_version).ok_or_else(|| {
            let spoken = CniVersion::ALL.map(CniVersion::text).join(", ");
            let msg = format!(
                "CNI {} is not supported",
                network.cni_version.escape_debug()
            );
            CniError::new(ErrorCode::CniVersion, msg).with_details(format!("supported: {spoken}"))
        })?;
        let wrong = |msg: String| Err(CniError::new(ErrorCode::Config, msg));
        if !is_id(&network.name) {
            return wrong(format!("`name` is \"{}\"", network.name.escape_debug()));
        }
        if network.machine.is_some() && network.socket.is_some() {
            return wrong("both `machine` and `socket` are set: remove one of them".into());
        }
        for (key, path) in [
            ("socket", network.socket.as_ref()),
            ("stateDir", Some(&network.state_dir)),
        ] {
            if let Some(path) = path.filter(|path| !path.is_absolute()) {
                return wrong(format!("`{key}` is {path:?}: set an absolute path"));
            }
        }
        Ok((network, version))
    }

    /// Returns the control socket of its machine.
    pub(crate) fn socket(&self) -> Result<PathBuf, CniError> {
        match (&self.socket, self.machine.as_deref()) {
            (Some(socket), _) => Ok(socket.clone()),
            (None, machine) => client::find(machine.unwrap_or(MACHINE)).map_err(|error| {
                CniError::new(
                    ErrorCode::Config,
                    "cannot determine the path of the machine's socket",
                )
                .with_details(error)
            }),
        }
    }

    /// Returns the plugin that assigns its addresses, if any.
    pub(crate) fn ipam(&self) -> Option<&str> {
        let program = self.ipam.as_ref()?.program.as_deref();
        program.filter(|program| !program.is_empty())
    }

    /// Returns the folder of that plugin's files, if set.
    pub(crate) fn ipam_data_dir(&self) -> Option<&Path> {
        self.ipam.as_ref()?.data_dir.as_deref()
    }
}

/// Decodes a part of standard input.
pub(crate) fn decoded<T: DeserializeOwned>(value: &Value) -> Result<T, CniError> {
    T::deserialize(value).map_err(|error| {
        let msg = "cannot parse the network's configuration";
        CniError::new(ErrorCode::Decode, msg).with_details(error)
    })
}
