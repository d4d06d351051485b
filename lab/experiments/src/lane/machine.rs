//! The lane through the machine: monitor, driver domain and guest domain, with a TAP at each end;
//! and machines without a wire, for raw frames and for the time to come up.

use super::one_process::{self, OneProcess};
use super::window::{Times, account, per_packet};
use super::{Between, Cores, Ends, GUEST, IFNAME, Lane, Loads, PREFIX, Place, Reading, WIRE};
use crate::plan::{Lro, Mechanisms, Wire, WireNic};
use abi::machine::{Audit, Program, Status};
use abi::mailbox::Request;
use anyhow::Context as _;
use client::{Instance, Options};
use config::domain::{GrantMode, Moderation, Offloads, RingFormat, Vmq};
use config::rule::{Ports, Rule, Way};
use config::{Cidr, Config, Endpoint, Guest, KernelPort, Kind, Nic, Pdev, Queues, Vif, XdpWire};
use figures::measure::{CpuTimes, Machine as Cpus, Part};
use figures::{Failure, interrupt};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A running machine and what is known about it.
#[derive(Debug)]
pub struct Running {
    instance: Instance,
    // After the instance, so that it is removed when nobody writes it any more.
    _log: Log,
    /// Domain names by part, in the order of start.
    domains: Vec<(Part, String)>,
    parts: Vec<(Part, Vec<i32>)>,
    grants: GrantMode,
}

/// A name that no other instance of this or another run has.
#[must_use]
pub(crate) fn fresh_name(what: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{what}-{}-{number}", std::process::id())
}

impl Running {
    /// Builds a machine and waits until it is ready.
    ///
    /// # Errors
    /// [`Failure::CannotRun`] where this system does not allow it.
    pub fn start(config: &Config) -> anyhow::Result<Self> {
        interrupt::check()?;
        let machine = config
            .machine()
            .map_err(|problem| Failure::Failed(problem.to_string()))?;
        let log = client::runtime_dir()
            .map_err(failure)?
            .join(format!("{}.log", machine.name));
        let options = Options {
            log: Some(log.clone()),
            ..Options::default()
        };
        let instance = Instance::start(&machine, &options).map_err(failure)?;
        let status = instance.status().map_err(failure)?;
        let mut domains = Vec::new();
        let mut by_part: BTreeMap<Part, Vec<i32>> = BTreeMap::new();
        by_part.insert("monitor", vec![status.pid.cast_signed()]);
        for domain in &status.domains {
            let part = match domain.program {
                Program::Driver => "driver",
                Program::Guest => "guest",
            };
            domains.push((part, domain.name.clone()));
            let pids = by_part.entry(part).or_default();
            pids.push(domain.pid);
            if domain.agent_pid > 0 {
                pids.push(domain.agent_pid);
            }
        }
        Ok(Self {
            instance,
            _log: Log(log),
            domains,
            parts: by_part.into_iter().collect(),
            grants: config.driver.grants,
        })
    }

    /// How the driver domain gets at granted pages.
    #[must_use]
    pub fn grants(&self) -> GrantMode {
        self.grants
    }

    /// Milliseconds from the monitor's start until every connection was up.
    #[must_use]
    pub fn up_ms(&self) -> f64 {
        self.instance.up_ms().unwrap_or(f64::NAN)
    }

    /// The monitor's status.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn status(&self) -> anyhow::Result<Status> {
        Ok(self.instance.status().map_err(failure)?)
    }

    /// The audit of grants.
    ///
    /// # Errors
    /// If the monitor does not answer.
    pub fn audit(&self) -> anyhow::Result<Audit> {
        Ok(self.instance.grants().map_err(failure)?)
    }

    /// All counters of a domain.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn stat(&self, domain: &str) -> anyhow::Result<Value> {
        self.instance
            .relay(domain, &Request::Stat)
            .map_err(failure)
            .with_context(|| format!("the counters of {domain}"))
    }

    /// Switches all domains to another way of aggregating.
    ///
    /// # Errors
    /// If a domain refuses, or does not answer.
    pub fn switch(&self, lro: &Lro) -> anyhow::Result<()> {
        for (_, name) in &self.domains {
            for (key, value) in lro.switches() {
                let request = Request::Set {
                    key: key.to_owned(),
                    value: value.to_owned(),
                };
                self.instance.relay(name, &request).map_err(failure)?;
            }
        }
        Ok(())
    }

    /// Names of all domains, by part.
    #[must_use]
    pub fn domains(&self) -> &[(Part, String)] {
        &self.domains
    }

    /// Ends it, and waits until nothing is left.
    ///
    /// # Errors
    /// If it does not end in time.
    pub fn down(self) -> anyhow::Result<()> {
        Ok(self.instance.down().map_err(failure)?)
    }
}

/// A monitor's log, removed with the machine: a run keeps figures, not logs. The log of a machine
/// that did not start stays, because the error names it.
#[derive(Debug)]
struct Log(PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        let _gone_already = std::fs::remove_file(&self.0);
    }
}

fn failure(error: client::Error) -> Failure {
    match error {
        error if error.cannot_run_here() => Failure::CannotRun(error.to_string()),
        error if error.is_usage() => Failure::Usage(error.to_string()),
        error => Failure::Failed(error.to_string()),
    }
}

impl Between for Running {
    fn parts(&self) -> Vec<(Part, Vec<i32>)> {
        self.parts.clone()
    }

    fn reading(&mut self) -> anyhow::Result<Reading> {
        let mut reading = Reading::default();
        for (part, name) in &self.domains {
            digest(part, &self.stat(name)?, &mut reading);
        }
        Ok(reading)
    }

    fn machine(&self) -> Option<&Running> {
        Some(self)
    }
}

/// Adds a domain's counters to a reading: see [`super::window::Window::figures`] for the names.
pub(super) fn digest(part: &str, stat: &Value, reading: &mut Reading) {
    let mut add = |name: String, value: f64| *reading.sums.entry(name).or_default() += value;
    let ledger = &stat["ledger"];
    for (hop, entry) in ledger["hops"].as_object().into_iter().flatten() {
        if let Some(cycles) = entry["cycles"].as_f64() {
            add(format!("{part}.hop.{hop}"), cycles);
        }
    }
    let hz = ledger["tsc_hz"].as_f64().unwrap_or(0.0);
    if let Some(ns) = ledger["cpu_ns"].as_f64() {
        add(format!("{part}.cpu"), ns * hz / 1e9);
    }
    for (reason, count) in stat["drops"].as_object().into_iter().flatten() {
        if let Some(count) = count.as_f64() {
            add(format!("drops.{reason}"), count);
        }
    }
    for name in ["segments", "aggregates"] {
        if let Some(count) = stat["lro"][name].as_f64() {
            add(format!("{part}.lro.{name}"), count);
        }
    }
    for (ns, count) in stat["lro"]["waits_ns"].as_object().into_iter().flatten() {
        if let Some(count) = count.as_f64() {
            add(format!("lro.waits.{ns}"), count);
        }
    }
    if let Some(count) = stat["pool"]["granted_anew"].as_f64() {
        add("granted_anew".to_owned(), count);
    }
    for port in stat["ports"].as_object().into_iter().flatten() {
        for name in ["acks", "sacks"] {
            if let Some(count) = port.1[name].as_f64() {
                add(name.to_owned(), count);
            }
        }
    }
    // What stands behind a guest's interfaces: the frames that it has taken, and those of its own
    // that were under way at once.
    for vif in stat["vifs"].as_object().into_iter().flatten() {
        let endpoint = &vif.1["endpoint"];
        add(
            format!("{part}.delivered"),
            endpoint["tx_packets"].as_f64().unwrap_or(0.0),
        );
        if let Some(count) = endpoint["source_under_way_max"].as_f64() {
            let most = reading.most.entry("under_way".to_owned()).or_default();
            *most = most.max(count);
        }
    }
}

/// A machine's wire.
#[derive(Clone, Copy, Debug)]
pub struct OnWire<'a> {
    /// What it is.
    pub nic: WireNic,
    /// How fast.
    pub speed: &'a Wire,
    /// Interrupt moderation: microseconds from one look to the next; none: a look for every event.
    pub tick_us: Option<u32>,
}

impl<'a> OnWire<'a> {
    /// A TAP that is looked at as soon as something comes.
    #[must_use]
    pub fn tap(speed: &'a Wire) -> Self {
        Self {
            nic: WireNic::Tap,
            speed,
            tick_us: None,
        }
    }
}

/// The machine of a lane: one wire, and one guest on a TAP.
#[must_use]
pub fn config(
    wire: PathBuf,
    guest: PathBuf,
    near: OnWire<'_>,
    place: Place,
    cores: Cores,
) -> Config {
    let driver_core = cores.driver(place);
    let port = |netns: PathBuf, address: IpAddr| KernelPort {
        ifname: Some(IFNAME.to_owned()),
        netns: Some(netns.display().to_string()),
        addresses: vec![Cidr {
            address,
            prefix: PREFIX,
        }],
        ..KernelPort::default()
    };
    let mut config = Config {
        name: fresh_name("lane"),
        nics: vec![Nic::new(
            "wire",
            match near.nic {
                WireNic::Tap => Kind::Tap {
                    port: port(wire, WIRE),
                    // Frames of the MTU with their checksums, as from a real wire.
                    offloads: Offloads::None,
                },
                WireNic::Xdp => Kind::Xdp {
                    wire: XdpWire::Veth(port(wire, WIRE)),
                },
            },
        )],
        guests: vec![Guest {
            name: "guest".to_owned(),
            cpus: vec![cores.guest],
            spin_us: NO_SPIN,
            vifs: vec![Vif::new(Endpoint::Tap {
                port: port(guest, GUEST),
            })],
        }],
        ..Config::default()
    };
    for nic in &mut config.nics {
        nic.rate_mbps = near.speed.mbps;
        nic.moderation = near.tick_us.map_or(Moderation::Event, Moderation::Tick);
    }
    config.driver.cpus = vec![driver_core];
    config.driver.spin_us = NO_SPIN;
    // What ends in a window is no figure.
    config.driver.restart = false;
    config
}

/// On two cores every domain shares one with a socket's process: who spins there waits for itself.
const NO_SPIN: Option<u32> = Some(0);

/// What a lane's machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct What {
    /// In which ways it differs from the usual one.
    pub mechanisms: Mechanisms,
    /// How many guests it has.
    pub guests: u32,
    /// Streams of each guest's load.
    pub flows: u32,
    /// Whether its driver domain is started again at once, however often it ends.
    pub restarts: bool,
}

impl Default for What {
    fn default() -> Self {
        Self {
            mechanisms: Mechanisms::default(),
            guests: 1,
            flows: 1,
            restarts: false,
        }
    }
}

impl What {
    /// Makes this of the usual machine with one guest.
    fn apply(self, ends: &Ends, place: Place, cores: Cores, config: &mut Config) {
        let Mechanisms {
            grants,
            vmq,
            buffers,
            prefetch,
            spare,
            release_threshold,
            meta,
            offloads,
            workers,
            rules,
        } = self.mechanisms;
        if self.restarts {
            config.driver.restart = true;
            config.driver.restart_pause_ms = 0;
        }
        if let Some(workers) = workers {
            config.driver.workers = workers;
            if place == Place::Split {
                config.driver.cpus = vec![cores.wire, cores.guest];
                config.driver.cpus.truncate(workers as usize);
            }
        }
        let vifs = config.guests.iter_mut().flat_map(|guest| &mut guest.vifs);
        vifs.for_each(|vif| vif.rules = (1..=rules).map(unfit_rule).collect());
        config.driver.grants = grants;
        config.buffers.size = buffers;
        config.buffers.spare = spare;
        config.buffers.release_threshold = release_threshold;
        config.lro.meta = meta.unwrap_or(config.lro.meta);
        config.buffers.prefetch = prefetch.unwrap_or(config.buffers.prefetch);
        if vmq {
            for nic in &mut config.nics {
                nic.queues = Queues::Vmq(Vmq {
                    queues: self.guests,
                    // Guests keep their queues: there is one for each.
                    rebalance_ms: 0,
                });
            }
        }
        for vif in config.guests.iter_mut().flat_map(|guest| &mut guest.vifs) {
            vif.offloads = offloads;
        }
        let first = config.guests.first().cloned();
        for (number, (namespace, address)) in ends.guests().enumerate().skip(1) {
            let Some(mut guest) = first.clone() else {
                break;
            };
            guest.name = format!("guest{number}");
            for vif in &mut guest.vifs {
                if let Endpoint::Tap { port } = &mut vif.endpoint {
                    port.netns = Some(namespace.path().display().to_string());
                    port.addresses = vec![Cidr {
                        address,
                        prefix: PREFIX,
                    }];
                }
            }
            config.guests.push(guest);
        }
        let wire = config
            .nics
            .first()
            .filter(|nic| matches!(nic.kind, Kind::Xdp { .. }));
        if let Some(name) = wire.filter(|_| vmq).map(|nic| nic.name.clone()) {
            // There are no queues that go to whoever is busy.
            for (queue, guest) in (1..).zip(&mut config.guests) {
                let nic = name.clone();
                let pdev = Pdev { nic, queue };
                guest
                    .vifs
                    .iter_mut()
                    .for_each(|vif| vif.pdev = Some(pdev.clone()));
            }
        }
    }
}

/// A rule that fits no frame of a load's: it asks for an address and a port, and finds another
/// port.
fn unfit_rule(number: u16) -> Rule {
    Rule {
        way: Some(Way::Out),
        source: Some(Cidr {
            address: WIRE,
            prefix: PREFIX,
        }),
        // Below every port that a load uses.
        destination_ports: Some(Ports(number..=number)),
        ..Rule::any(number.to_string(), false)
    }
}

/// Sets up the lane.
///
/// # Errors
/// If namespaces cannot be made or the machine does not start.
pub fn lane(
    place: Place,
    wire: OnWire<'_>,
    what: What,
    cores: Cores,
    loads: &Loads,
) -> anyhow::Result<Lane> {
    let ends = Ends::of_guests(what.guests)?;
    let (near, far) = (ends.wire.path(), ends.guest.path());
    let mut config = config(near, far, wire, place, cores);
    what.apply(&ends, place, cores, &mut config);
    let running = Running::start(&config)?;
    let loads = Loads {
        flows: what.flows,
        ..loads.clone()
    };
    Lane::new(ends, Box::new(running), cores, &loads)
}

/// The lane to the driver domain itself: the receiver is a socket behind a TAP on the driver's own
/// bridge, without ring and grants.
///
/// # Errors
/// As [`lane`].
pub fn local_lane(place: Place, cores: Cores, loads: &Loads) -> anyhow::Result<Lane> {
    let ends = Ends::new()?;
    let (near, far) = (ends.wire.path(), ends.guest.path());
    let speed = Wire::unbounded();
    let mut config = config(near, far, OnWire::tap(&speed), place, cores);
    for guest in std::mem::take(&mut config.guests) {
        for vif in guest.vifs {
            if let Endpoint::Tap { port } = vif.endpoint {
                config.nics.push(Nic::new("local", Kind::Local { port }));
            }
        }
    }
    let running = Running::start(&config)?;
    Lane::new(ends, Box::new(running), cores, loads)
}

/// Milliseconds until a machine with so many guests is ready: one wire, every guest with a TAP,
/// all of them in one namespace apart from the wire's.
///
/// # Errors
/// If it does not start, or does not end cleanly.
pub fn up_ms(guests: u32) -> anyhow::Result<f64> {
    let ends = Ends::new()?;
    let cores = Cores::choose();
    let (near, far) = (ends.wire.path(), ends.guest.path());
    let speed = Wire::unbounded();
    let mut config = config(near, far, OnWire::tap(&speed), Place::Split, cores);
    let netns = ends.guest.path().display().to_string();
    config.guests = (0..guests)
        .map(|number| Guest {
            name: format!("guest{number}"),
            vifs: vec![Vif::new(Endpoint::Tap {
                port: KernelPort {
                    ifname: Some(format!("{IFNAME}-{number}")),
                    netns: Some(netns.clone()),
                    ..KernelPort::default()
                },
            })],
            ..Guest::default()
        })
        .collect();
    config.driver.cpus.clear();
    let running = Running::start(&config)?;
    let ms = running.up_ms();
    running.down()?;
    Ok(ms)
}

/// Raw frames from a guest's interface through the driver to another one of the same guest: one
/// process that sends and receives beside the one that switches, as DPDK's switches are measured.
#[derive(Clone, Copy, Debug)]
pub struct FrameRun<'a> {
    /// How the driver gets at granted pages: as a configuration file has it, or `pointers`, where
    /// guest and driver are one process.
    pub grants: &'a str,
    /// Bytes of a frame.
    pub size: u32,
    /// Guests of the machine.
    pub guests: u32,
    /// Those of them that send.
    pub active: u32,
    /// Frames sent a second, by all of them together; none: as fast as they are taken.
    pub rate_pps: Option<f64>,
    /// Whether they write and read every byte.
    pub touch: bool,
    /// Buffers for frames from a guest; none: as many as usual.
    pub from_guest: Option<u32>,
    /// How rings lie in their pages; none: as usual.
    pub ring: Option<RingFormat>,
    /// The driver has the guest's core, the guest has the wire's.
    pub cores: Cores,
}

/// What a frame run showed, and whether it was disturbed.
#[derive(Clone, Debug)]
pub struct FrameWindow {
    /// Figures by metric.
    pub figures: BTreeMap<String, f64>,
    /// The conditions, in words.
    pub conditions: String,
    /// Whether the hypervisor below took too much CPU time.
    pub disturbed: bool,
}

impl FrameRun<'_> {
    /// Starts a machine, lets it warm up, opens a window, ends it.
    ///
    /// # Errors
    /// If it does not start.
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
        running: &mut dyn Between,
        config: &Config,
        times: Times,
        tsc_hz: u64,
    ) -> anyhow::Result<FrameWindow> {
        interrupt::sleep(times.warm_up)?;
        let cpus = Cpus::read();
        // To ask 64 guests takes long. The driver domain and the first guest, which is busy, are asked first: so
        // everything else is looked at before, at both ends, and all windows are equally long.
        let start = std::time::Instant::now();
        let cpu = CpuTimes::read(&running.parts());
        let before = running.reading()?;
        interrupt::sleep(times.window)?;
        let seconds = start.elapsed().as_secs_f64();
        let used = CpuTimes::read(&running.parts()).since(&cpu);
        let after = running.reading()?;
        let disturbed = Cpus::read().disturbed_since(cpus);
        let path = after.since(&before);
        let packets = path.sums.get("guest.delivered").copied().unwrap_or(0.0);
        let mut figures = BTreeMap::from([("packets".to_owned(), packets / seconds / 1e6)]);
        // Threads of one process have no CPU time of their own but what their ledgers say.
        let of_ledger = |part: Part| path.sums.get(&format!("{part}.cpu")).copied();
        let mut cycles =
            BTreeMap::from(["driver", "guest"].map(|part| (part, of_ledger(part).unwrap_or(0.0))));
        let exact = used
            .iter()
            .map(|(part, ns)| (*part, *ns as f64 * tsc_hz as f64 / 1e9));
        cycles.extend(exact);
        per_packet(&cycles, packets, &mut figures);
        account(&path, packets, &mut figures);
        figures.extend(
            path.sums
                .iter()
                .filter(|(name, _)| name.starts_with("drops."))
                .map(|(name, sum)| (name.clone(), *sum)),
        );
        let under_way = after.most.get("under_way").copied().unwrap_or(0.0);
        figures.insert("in_flight".to_owned(), under_way);
        Ok(FrameWindow {
            figures,
            conditions: format!(
                "at most {under_way} frames of a guest under way and {} waiting for it; payload {}; pages of 4 KB",
                config.buffers.to_guest,
                if self.touch { "touched" } else { "not touched" }
            ),
            disturbed,
        })
    }

    fn config(&self) -> anyhow::Result<Config> {
        let grants: GrantMode = match self.grants {
            one_process::NAME => GrantMode::Unchecked,
            grants => serde_json::from_value(Value::from(grants))
                .with_context(|| format!("no grant mechanism `{grants}`"))?,
        };
        let guest = |number| Guest {
            name: format!("guest{number}"),
            cpus: vec![self.cores.wire],
            vifs: vec![Vif::new(Endpoint::Sink { touch: self.touch })],
            ..Guest::default()
        };
        let mut config = Config {
            name: fresh_name("frames"),
            guests: (0..self.guests).map(guest).collect(),
            ..Config::default()
        };
        for number in 0..self.active as usize {
            let to = config.vif_mac(number, 0).context("no MAC")?;
            let source = Vif::new(Endpoint::Source {
                to,
                size: self.size,
                rate_pps: self.rate_pps.map(|all| all / f64::from(self.active)),
                window: 0,
                count: None,
                touch: self.touch,
            });
            if let Some(guest) = config.guests.get_mut(number) {
                guest.vifs.push(source);
            }
        }
        config.driver.cpus = vec![self.cores.guest];
        config.driver.grants = grants;
        config.driver.restart = false;
        if let Some(buffers) = self.from_guest {
            config.buffers.from_guest = buffers;
        }
        if let Some(format) = self.ring {
            config.ring.format = format;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domains_counters_are_digested_by_part() {
        let stat = serde_json::json!({
            "ledger": {"hops": {"nic": {"cycles": 30}, "idle": {"cycles": 10}},
                       "cpu_ns": 20, "tsc_hz": 2_000_000_000u64},
            "drops": {"no_buffer": 2, "spoofed": 0},
            "vifs": {"0": {"endpoint": {"tx_packets": 5, "source_under_way_max": 7}}},
        });
        let mut reading = Reading::default();
        digest("guest", &stat, &mut reading);
        digest("guest", &stat, &mut reading);
        assert_eq!(reading.sums["guest.hop.nic"], 60.0);
        assert_eq!(reading.sums["guest.cpu"], 80.0);
        assert_eq!(reading.sums["drops.no_buffer"], 4.0);
        assert_eq!(reading.sums["drops.spoofed"], 0.0, "zeros are printed too");
        assert_eq!(reading.sums["guest.delivered"], 10.0);
        assert_eq!(reading.most["under_way"], 7.0);
    }

    #[test]
    fn nonsense_from_a_domain_counts_for_nothing() {
        let mut reading = Reading::default();
        digest(
            "driver",
            &serde_json::json!({"ledger": 3, "drops": ["x"]}),
            &mut reading,
        );
        digest("driver", &Value::Null, &mut reading);
        assert!(reading.sums.values().all(|&sum| sum == 0.0));
    }

    #[test]
    fn machines_of_the_plans_are_valid() {
        let cores = Cores { wire: 0, guest: 1 };
        for place in [Place::OneCore, Place::Split] {
            let config = config(
                "/proc/1/ns/net".into(),
                "/proc/2/ns/net".into(),
                OnWire::tap(&Wire::unbounded()),
                place,
                cores,
            );
            config.machine().unwrap();
        }
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
                ring: Some(RingFormat::Xen),
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
            ring: None,
            cores,
        };
        assert!(run.config().is_err());
    }
}
