//! What the core says of domains.

use super::Core;
use abi::core::CoreStatus;
use rustix::time::{ClockId, clock_gettime};

impl Core {
    /// Every domain and connection.
    pub(super) fn status(&mut self) -> CoreStatus {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        CoreStatus {
            cpu_ns: (cpu.tv_sec as u64).saturating_mul(1_000_000_000) + cpu.tv_nsec as u64,
            netd_cpu_ns: self.netd.cpu_ns(),
            missing: self.hypervisor.missing(),
            domains: self.hypervisor.domain_status(),
            connections: self.hypervisor.connection_status(),
        }
    }
}
