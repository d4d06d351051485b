//! `grantway-cni`: what a container runtime calls to give a container a network interface, and to
//! take it away again. The container becomes a guest of a machine that runs.
//!
//! CNI 0.4.0, 1.0.0 and 1.1.0: the call is in the environment, the network's configuration on
//! standard input, the answer on standard output. The process keeps nothing: whatever a later call
//! has to know follows from the network's name, the container's id and the interface's name. Called
//! with arguments it is a plugin of netavark's.

mod call;
mod commands;
mod failure;
mod ipam;
mod key;
mod machine;
mod namespace;
mod netavark;
mod network;
mod pending;
mod program;
mod request;
mod reserved;
mod result;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests;
mod version;

use std::collections::BTreeMap;

/// Carries out one call: CNI's if `args` is empty, else netavark's. `env` has the variables
/// `CNI_…`, `input` is standard input. Returns the answer and whether the call succeeded.
#[must_use]
pub fn run(args: &[String], env: BTreeMap<String, String>, input: &[u8]) -> (String, bool) {
    match args {
        [] => program::run(env, input),
        args => netavark::run(args, &env, input),
    }
}
