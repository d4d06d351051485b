//! Calls the plugin as runtimes do, with a machine, its namespaces and Debian's `host-local`.

mod bandwidth;
mod cnitool;
mod containerd;
mod containers;
mod cri;
mod machine;
mod manifest;
mod netavark;
mod node;
mod pod;
mod podman;
mod script;
