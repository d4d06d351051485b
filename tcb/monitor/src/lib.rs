//! The hypervisor: domains, frames, grants, event channels, connections
