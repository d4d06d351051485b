//! A window of a run whose frames circulate.

use crate::lane::window::per_packet;
use crate::plan::Times;
use figures::interrupt;
use figures::measure::{CpuPart, CpuTimes, HostCpuTimes};
use std::collections::BTreeMap;

/// Figures of a window.
#[derive(Debug)]
pub(super) struct PacketWindow {
    /// Millions of packets per second, and CPU cycles per packet of each part.
    pub(super) figures: BTreeMap<String, f64>,
    /// Whether other work of the host disturbed it.
    pub(super) disturbed: bool,
}

impl PacketWindow {
    /// Measures the processes of `parts`. `rate` returns the packets per second since its last
    /// call.
    pub(super) fn measure(
        parts: &[(CpuPart, Vec<i32>)],
        times: Times,
        tsc_hz: u64,
        mut rate: impl FnMut() -> anyhow::Result<f64>,
    ) -> anyhow::Result<Self> {
        let (cpus, cpu) = (HostCpuTimes::read(), CpuTimes::read(parts));
        rate()?;
        interrupt::sleep(times.window)?;
        let pps = rate()?;
        let used = CpuTimes::read(parts).since(&cpu);
        let disturbed = HostCpuTimes::read().disturbed_since(cpus);
        let mut figures = BTreeMap::from([("packets".to_owned(), pps / 1e6)]);
        let cycles = |(part, _): &(CpuPart, _)| {
            let ns = used.get(part).copied().unwrap_or(0);
            (*part, ns as f64 * tsc_hz as f64 / 1e9)
        };
        let cycles = parts.iter().map(cycles).collect();
        per_packet(&cycles, pps * times.window.as_secs_f64(), &mut figures);
        Ok(Self { figures, disturbed })
    }
}
