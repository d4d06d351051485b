//! `grantway-cni`: the plugin that a container runtime calls to attach a container to a running
//! machine as a guest, and to detach it.
//!
//! CNI 0.4.0, 1.0.0 and 1.1.0: the call is in the environment, the network's configuration on
//! standard input, the answer on standard output. The process keeps no state: everything that a
//! later call needs follows from the network's name, the container's id and the interface's name.
//! If called with arguments, it is a plugin of netavark. The crate is also the library with which
//! `grantway-docker` attaches containers.

pub mod attachment;
mod call;
mod commands;
mod error;
mod ipam;
mod key;
mod machine;
pub mod namespace;
mod netavark;
mod network;
pub mod options;
mod pending;
mod pod;
mod ports;
mod program;
mod request;
mod reserved;
mod result;
mod routed;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests;
mod version;

pub use error::CniError;
pub use ports::PortMapping;
use std::collections::BTreeMap;

/// Executes one call, of CNI if `args` is empty and otherwise of netavark. `env` has the variables
/// `CNI_…`, `input` is standard input. Returns the answer, and whether the call succeeded.
#[must_use]
pub fn run(args: &[String], env: BTreeMap<String, String>, input: &[u8]) -> (String, bool) {
    match args {
        [] => program::run(env, input),
        args => netavark::run(args, &env, input),
    }
}
