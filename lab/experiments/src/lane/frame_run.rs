//! Machines without a wire, for raw frames from guest to guest.

use super::build::{NO_SPIN, dedicate_queues};
use super::cores::Cores;
use super::ledgers;
use super::one_process::{self, OneProcess};
use super::path::Path;
use super::running::{NIC_DEVICE, Running, unique_name};
use super::window::per_packet;
use crate::plan::{FrameRule, Times};
use anyhow::Context as _;
use config::domain::{FrameSource, GrantMode, PortSettings, RingFormat, Rings, Source};
use config::rule::{FirewallRule, Inbound, RuleDirection, RuleState};
use config::{
    Config, DevicePlace, Endpoint, GuestSection, MacAddress, NicKind, NicSection, SoftWire, Vif,
};
use figures::interrupt;
use figures::measure::{CpuPart, CpuTimes, HostCpuTimes};
use serde_json::Value;
use std::collections::BTreeMap;

/// Number of entries of each queue of a NIC.
const NIC_DESCRIPTORS: u32 = 1024;
/// Microseconds from the first frame to a NIC's interrupt.
const NIC_INTERRUPT_US: u32 = 50;

/// Raw frames from an interface of a guest through the driver to another interface of the same
/// guest. One process sends and receives and another switches, as in measurements of DPDK's
/// switches.
#[derive(Clone, Copy, Debug)]
pub struct FrameRun<'a> {
    /// Grant mechanism: as in a configuration file, or `pointers`, where guest and driver are one
    /// process.
    pub grants: &'a str,
    /// Frame size, bytes.
    pub size: u32,
    /// Number of guests.
    pub guests: u32,
    /// Number of guests that send.
    pub active: u32,
    /// Total frames per second of all senders; `None`: as fast as the driver accepts them.
    pub rate_pps: Option<f64>,
    /// True if the guests write and read every byte.
    pub touch: bool,
    /// Number of buffers for frames from a guest; `None`: the default.
    pub from_guest: Option<u32>,
    /// Number of frames that a sender keeps in flight to the driver domain; `None`: one per buffer.
    pub in_flight: Option<u32>,
    /// Number of posted buffers for frames to a guest; `None`: the default.
    pub to_guest: Option<u32>,
    /// Ring layout; `None`: the default.
    pub ring: Option<RingFormat>,
    /// Number of UDP flows of a sender; 0: its frames are not IP.
    pub flows: u16,
    /// True if the receiving interfaces have a stateful firewall.
    pub stateful: bool,
    /// Their rule that allows all frames. Unset: none.
    pub allow: Option<FrameRule>,
    /// True if a NIC receives the frames into a dedicated queue of the guest.
    pub nic: bool,
    /// Cores: the driver runs on the guest's core, the guest on the wire's.
    pub cores: Cores,
}

/// Result of a frame run.
#[derive(Clone, Debug)]
pub struct FrameWindow {
    /// Figures by metric.
    pub figures: BTreeMap<String, f64>,
    /// Conditions, for users.
    pub conditions: String,
    /// True if the underlying hypervisor stole too much CPU time.
    pub disturbed: bool,
}

impl FrameRun<'_> {
    /// Starts a machine, warms it up, measures a window and stops it.
    ///
    /// # Errors
    /// Returns an error if the machine does not start.
    pub fn measure(&self, times: Times, tsc_hz: u64) -> anyhow::Result<FrameWindow> {
        let config = self.config()?;
        if self.grants == one_process::NAME {
            let mut running = OneProcess::start(&config)?;
            return self.open(&mut running, &config, times, tsc_hz);
        }
        let mut running = Running::start(&config)?;
        let window = self.open(&mut running, &config, times, tsc_hz)?;
        running.down()?;
        Ok(window)
    }

    fn open(
        &self,
        running: &mut dyn Path,
        config: &Config,
        times: Times,
        tsc_hz: u64,
    ) -> anyhow::Result<FrameWindow> {
        interrupt::sleep(times.warm_up)?;
        let cpus = HostCpuTimes::read();
        // Reading the counters of 64 guests takes long. At both ends of the window, the driver
        // domain and the first guest, which sends, are therefore read last, so that all windows
        // have the same length.
        let start = std::time::Instant::now();
        let cpu = CpuTimes::read(&running.parts());
        let calls_before = hypercalls(running)?;
        let before = running.reading()?;
        interrupt::sleep(times.window)?;
        let seconds = start.elapsed().as_secs_f64();
        let used = CpuTimes::read(&running.parts()).since(&cpu);
        let calls = hypercalls(running)?;
        let after = running.reading()?;
        let disturbed = HostCpuTimes::read().disturbed_since(cpus);
        let path = after.since(&before);
        let packets = path.sums.get("guest.delivered").copied().unwrap_or(0.0);
        let mut figures = BTreeMap::from([("packets".to_owned(), packets / seconds / 1e6)]);
        // Only the ledgers separate the CPU time of two threads of one process.
        let of_ledger = |part: CpuPart| path.sums.get(&format!("{part}.cpu")).copied();
        let mut cycles =
            BTreeMap::from(["driver", "guest"].map(|part| (part, of_ledger(part).unwrap_or(0.0))));
        let exact = used
            .iter()
            .map(|(part, ns)| (*part, *ns as f64 * tsc_hz as f64 / 1e9));
        cycles.extend(exact);
        // The device of a NIC represents hardware.
        let device = cycles.remove(NIC_DEVICE);
        per_packet(&cycles, packets, &mut figures);
        if let Some(cycles) = device.filter(|_| packets > 0.0) {
            figures.insert(format!("cycles_per_packet.{NIC_DEVICE}"), cycles / packets);
        }
        for (part, calls) in calls.into_iter().filter(|_| packets > 0.0) {
            let made = calls.saturating_sub(calls_before.get(part).copied().unwrap_or(0));
            let name = format!("hypercalls_per_packet.{part}");
            figures.insert(name, made as f64 / packets);
        }
        ledgers::account(&path, packets, &mut figures);
        figures.extend(
            path.sums
                .iter()
                .filter(|(name, _)| name.starts_with("drops."))
                .map(|(name, sum)| (name.clone(), *sum)),
        );
        let payload = if self.touch { "touched" } else { "not touched" };
        let posted = config.buffers.to_guest;
        let conditions = if self.nic {
            format!(
                "from a NIC's device, which copies each frame into one of {posted} posted buffers; \
                 payload {payload}; pages of 4 KB"
            )
        } else {
            let under_way = after.maxima.get("under_way").copied().unwrap_or(0.0);
            figures.insert("in_flight".to_owned(), under_way);
            format!(
                "at most {under_way} frames of a guest in flight and {posted} buffers posted by \
                 it; copied once; payload {payload}; pages of 4 KB"
            )
        };
        Ok(FrameWindow {
            figures,
            conditions,
            disturbed,
        })
    }

    fn config(&self) -> anyhow::Result<Config> {
        let grants: GrantMode = match self.grants {
            one_process::NAME => GrantMode::Unchecked,
            grants => serde_json::from_value(Value::from(grants))
                .with_context(|| format!("unknown grant mechanism `{grants}`"))?,
        };
        let guest = |number| GuestSection {
            name: format!("guest{number}"),
            cpus: vec![self.cores.wire],
            vifs: vec![Vif {
                stateful: self.stateful,
                inbound: self.stateful.then_some(Inbound::Allow),
                settings: PortSettings {
                    rules: self.allow.map(allow_all).into_iter().collect(),
                    ..PortSettings::default()
                },
                ..Vif::new(Endpoint::Sink { touch: self.touch })
            }],
            ..GuestSection::default()
        };
        let mut config = Config {
            name: unique_name("frames"),
            guests: (0..self.guests).map(guest).collect(),
            ..Config::default()
        };
        for number in 0..self.active as usize {
            let to = config.vif_mac(number, 0).context("no MAC")?;
            if self.nic {
                self.add_nic(&mut config, to);
                continue;
            }
            let source = Vif::new(Endpoint::Source(Source {
                to,
                size: self.size,
                rate_pps: self.rate_pps.map(|all| all / f64::from(self.active)),
                window: self.in_flight.unwrap_or(0),
                count: None,
                touch: self.touch,
                flows: self.flows,
            }));
            if let Some(guest) = config.guests.get_mut(number) {
                guest.vifs.push(source);
            }
        }
        config.driver.cpus = vec![self.cores.guest];
        config.driver.grants = grants;
        config.driver.restart = false;
        if self.stateful || self.allow == Some(FrameRule::Established) {
            // Flows without an answer may use only half of a table.
            let entries = (4 * u32::from(self.flows)).next_power_of_two();
            config.driver.flows = entries.clamp(config.driver.flows, 65_536);
            config.driver.flow_tables = config.driver.flow_tables.max(self.guests);
        }
        if let Some(buffers) = self.from_guest {
            config.buffers.from_guest = buffers;
        }
        if let Some(buffers) = self.to_guest {
            config.buffers.to_guest = buffers;
        }
        if let Some(format) = self.ring {
            config.ring.format = format;
        }
        Ok(config)
    }

    /// Adds a NIC that receives frames to `to` as fast as its device can store them.
    fn add_nic(&self, config: &mut Config, to: MacAddress) {
        let source = FrameSource {
            to,
            size: self.size,
        };
        let mut nic = NicSection::new(
            "wire",
            NicKind::Soft {
                wire: SoftWire::Source(source),
                rings: Rings {
                    descriptors: NIC_DESCRIPTORS,
                    interrupt_us: NIC_INTERRUPT_US,
                    ..Rings::default()
                },
                place: DevicePlace::Domain,
                cpus: vec![self.cores.wire],
                lro: false,
                header_split: false,
            },
        );
        nic.settings.buffers = 2 * NIC_DESCRIPTORS;
        config.nics.push(nic);
        dedicate_queues(1, config);
        config.buffers.to_guest = NIC_DESCRIPTORS;
        // A domain that spins would keep the other one off their common core.
        config.driver.spin_us = NO_SPIN;
        for guest in &mut config.guests {
            guest.cpus = vec![self.cores.guest];
            guest.spin_us = NO_SPIN;
        }
    }
}

/// Returns a rule that allows all frames to a guest.
fn allow_all(rule: FrameRule) -> FirewallRule {
    FirewallRule {
        direction: Some(RuleDirection::Out),
        state: match rule {
            FrameRule::Any => None,
            FrameRule::Established => Some(RuleState::Established),
        },
        ..FirewallRule::any("all", true)
    }
}

/// Returns the number of hypercalls of the driver domain and of the guests so far. Returns an empty
/// map if the path is not a machine.
fn hypercalls(path: &dyn Path) -> anyhow::Result<BTreeMap<CpuPart, u64>> {
    let mut sums = BTreeMap::new();
    let Some(running) = path.machine() else {
        return Ok(sums);
    };
    for domain in running.status()?.domains {
        let known = running.domains().iter();
        let known = known.filter(|(part, _)| ["driver", "guest"].contains(part));
        if let Some((part, _)) = known.into_iter().find(|(_, name)| *name == domain.name) {
            *sums.entry(*part).or_default() += domain.hypercalls;
        }
    }
    Ok(sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_of_the_plans_are_valid() {
        let cores = Cores { wire: 0, guest: 1 };
        for grants in [
            "copy",
            "map",
            "persistent",
            "counted",
            "unchecked",
            "pointers",
        ] {
            let run = FrameRun {
                grants,
                size: 64,
                guests: 64,
                active: 3,
                rate_pps: None,
                touch: true,
                from_guest: Some(1536),
                in_flight: Some(384),
                to_guest: Some(384),
                ring: Some(RingFormat::Xen),
                flows: 4096,
                stateful: true,
                allow: Some(FrameRule::Established),
                nic: false,
                cores,
            };
            run.config().unwrap().machine().unwrap();
        }
        let run = FrameRun {
            grants: "steal",
            size: 64,
            guests: 1,
            active: 1,
            rate_pps: None,
            touch: false,
            from_guest: None,
            in_flight: None,
            to_guest: None,
            ring: None,
            flows: 0,
            stateful: false,
            allow: None,
            nic: false,
            cores,
        };
        assert!(run.config().is_err());
        let run = FrameRun {
            grants: "counted",
            nic: true,
            ..run
        };
        let machine = run.config().unwrap().machine().unwrap();
        assert!(machine.domains.iter().any(|d| d.name == "device-wire"));
    }
}
