//! The plugin as runtimes call it, with a machine, its namespaces and Debian's `host-local`.

mod bandwidth;
mod containers;
mod machine;
mod podman;
