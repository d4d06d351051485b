//! What the core says of domains.

use super::Core;
use abi::core::CoreStatus;

impl Core {
    /// Every domain and connection.
    pub(super) fn status(&mut self) -> CoreStatus {
        CoreStatus {
            cpu_ns: sandbox::cpu_ns(std::process::id() as i32).unwrap_or(0),
            netd_cpu_ns: self.netd.cpu_ns(),
            missing: self.hypervisor.missing(),
            domains: self.hypervisor.domain_status(),
            connections: self.hypervisor.connection_status(),
        }
    }
}
