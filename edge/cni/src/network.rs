//! The configuration of a network, as far as every call needs it. What only ADD reads is read
//! there: what makes no sense in it must not keep a container from going.

use crate::call::is_id;
use crate::failure::{Code, Failure};
use crate::version::Version;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The machine that is meant where none is named, as for `grantway attach`.
const MACHINE: &str = "grantway";
/// What is to be done later is noted here.
const STATE_DIR: &str = "/run/grantway/cni";

/// The configuration of a network.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Network {
    cni_version: String,
    /// Its name.
    pub(crate) name: String,
    machine: Option<String>,
    socket: Option<PathBuf>,
    #[serde(default = "state_dir")]
    pub(crate) state_dir: PathBuf,
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

impl Network {
    /// Reads it, with the version that answers are to have.
    pub(crate) fn of(conf: &Value) -> Result<(Self, Version), Failure> {
        let network: Self = decoded(conf)?;
        let version = Version::of(&network.cni_version).ok_or_else(|| {
            let spoken = Version::ALL.map(Version::text).join(", ");
            let msg = format!("CNI {} is not spoken", network.cni_version.escape_debug());
            Failure::new(Code::Version, msg).because(format!("these are: {spoken}"))
        })?;
        let wrong = |msg: String| Err(Failure::new(Code::Config, msg));
        if !is_id(&network.name) {
            return wrong(format!("`name` is \"{}\"", network.name.escape_debug()));
        }
        if network.machine.is_some() && network.socket.is_some() {
            return wrong("there are `machine` and `socket`: leave one of them out".into());
        }
        for (key, path) in [
            ("socket", network.socket.as_ref()),
            ("stateDir", Some(&network.state_dir)),
        ] {
            if let Some(path) = path.filter(|path| !path.is_absolute()) {
                return wrong(format!("`{key}` is {path:?}: write an absolute path"));
            }
        }
        Ok((network, version))
    }

    /// The control socket of its machine.
    pub(crate) fn socket(&self) -> Result<PathBuf, Failure> {
        match (&self.socket, self.machine.as_deref()) {
            (Some(socket), _) => Ok(socket.clone()),
            (None, machine) => client::find(machine.unwrap_or(MACHINE)).map_err(|error| {
                Failure::new(Code::Config, "there is no way to the machine").because(error)
            }),
        }
    }

    /// The program that gives out its addresses, if one does.
    pub(crate) fn ipam(&self) -> Option<&str> {
        let program = self.ipam.as_ref()?.program.as_deref();
        program.filter(|program| !program.is_empty())
    }

    /// The folder of the files of the program that gives out its addresses, if one is given.
    pub(crate) fn ipam_data_dir(&self) -> Option<&Path> {
        self.ipam.as_ref()?.data_dir.as_deref()
    }
}

/// A part of what was said on standard input.
pub(crate) fn decoded<T: DeserializeOwned>(value: &Value) -> Result<T, Failure> {
    T::deserialize(value).map_err(|error| {
        let msg = "the network's configuration cannot be read";
        Failure::new(Code::Decode, msg).because(error)
    })
}
