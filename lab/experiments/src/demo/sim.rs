//! The demonstration without TAPs. It uses a wire in memory with a TCP/IP station at its far end,
//! inside the driver domain or the domain of the NIC's device, and a TCP/IP stack inside the guest
//! domain. The loads are programs of these stations, which run one after the other and report
//! through the domains' counters.

use super::findings::{COLUMN, Findings, PLAN, add_access, bar, query_access, title};
use crate::lane::cores::Cores;
use crate::lane::ends::{GUEST, PREFIX, WIRE};
use crate::lane::path::Path as _;
use crate::lane::running::{NIC_DEVICE, Running, unique_name};
use crate::lane::window::Window;
use crate::load::Mark;
use crate::plan::{ColumnConfig, PayloadDirection, Workload};
use crate::runner::Samples;
use anyhow::bail;
use config::domain::{Rings, StackApp, StackConfig};
use config::{
    Cable, Cidr, Config, DevicePlace, Endpoint, GuestSection, NicKind, NicSection, SoftWire, Vif,
};
use figures::measure::{CpuTimes, HostCpuTimes};
use figures::{Failure, interrupt};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use xenoprof::count::EventCounts;

const SINK_PORT: u16 = 5201;
const ECHO_PORT: u16 = 5301;
/// Indices of programs in a station's list.
const SINK: usize = 0;
const CLIENT: usize = 3;
/// Seconds before the first load, and between loads.
const PAUSE_S: u32 = 1;
/// Number of windows per load.
const WINDOWS: u32 = 3;

/// A NIC in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryNic {
    /// One end of a cable.
    #[default]
    Sim,
    /// A device with descriptor rings, at one end of a cable.
    Soft,
}

/// The start and end of a load. Loads run in the order of [`phases`].
struct Phase {
    workload: Workload,
    direction: PayloadDirection,
    after_s: u32,
}

fn phases(seconds: u32) -> [Phase; 4] {
    let phase = |number: u32, workload, direction| Phase {
        workload,
        direction,
        after_s: PAUSE_S + number * (seconds + PAUSE_S),
    };
    [
        phase(0, Workload::Stream, PayloadDirection::ToGuest),
        phase(1, Workload::Stream, PayloadDirection::FromGuest),
        phase(2, Workload::Requests(1), PayloadDirection::ToGuest),
        phase(3, Workload::Requests(1), PayloadDirection::FromGuest),
    ]
}

/// Runs the demonstration without TAPs.
pub(super) fn find(
    nic: MemoryNic,
    quick: bool,
    cores: Cores,
    tsc_hz: u64,
) -> anyhow::Result<Findings> {
    let seconds = if quick { 2 } else { 6 };
    let mut running = Running::start(&machine(nic, cores, seconds))?;
    let mut samples = Samples::default();
    let bar = bar(4 * u64::from(WINDOWS));
    let mut access = None;
    for phase in phases(seconds) {
        bar.set_message(title(phase.workload, phase.direction));
        wait_for_load(&running, &phase)?;
        // The first quarter of the load's time is warm-up, and the last quarter is slack.
        interrupt::sleep(quarter(seconds))?;
        for round in 0..WINDOWS {
            let length = 2 * quarter(seconds) / WINDOWS;
            let window = open(&mut running, &phase, length)?;
            let config = ColumnConfig::new(COLUMN, &[("dir", phase.direction.name())]);
            if window.disturbed {
                samples.disturb(&config);
            }
            samples.add(&config, round as usize, &window.figures(tsc_hz));
            bar.inc(1);
        }
        if access.is_none() {
            access = Some(query_access(&running)?);
        }
    }
    bar.finish_and_clear();
    let mut found = Findings {
        figures: samples.figures(PLAN),
        access: access.unwrap_or_default(),
        notes: vec![note(nic).to_owned()],
    };
    let up_ms = running.up_ms();
    running.down()?;
    add_access(&mut found, up_ms);
    Ok(found)
}

fn note(nic: MemoryNic) -> &'static str {
    match nic {
        MemoryNic::Sim => {
            "the wire's station is part of the driver domain, whose cycles include it"
        }
        MemoryNic::Soft => {
            "the NIC's device and the wire's station are a separate domain, which represents \
             hardware: its cycles are in no sum"
        }
    }
}

/// Waits until the load of a phase starts. The delay varies, because the stations' clocks started
/// before the machine was ready.
fn wait_for_load(running: &Running, phase: &Phase) -> anyhow::Result<()> {
    let before = counters(running, phase)?;
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let now = counters(running, phase)?;
        if (now.bytes, now.operations) != (before.bytes, before.operations) {
            return Ok(());
        }
        if Instant::now() > end {
            let direction = phase.direction.name();
            bail!(Failure::Failed(format!("no data arrives {direction}")));
        }
        interrupt::sleep(Duration::from_millis(20))?;
    }
}

fn quarter(seconds: u32) -> Duration {
    Duration::from_millis(250 * u64::from(seconds))
}

/// Measures a window while the load of a phase runs.
fn open(running: &mut Running, phase: &Phase, length: Duration) -> anyhow::Result<Window> {
    let (machine, began) = (HostCpuTimes::read(), Instant::now());
    let cpu = CpuTimes::read(running.processes());
    let path = running.reading()?;
    let before = counters(running, phase)?;
    let start = Instant::now();
    interrupt::sleep(length)?;
    let after = counters(running, phase)?;
    let ns = start.elapsed().as_nanos() as u64;
    let cpu_ns = CpuTimes::read(running.processes()).since(&cpu);
    let (now, wall) = (HostCpuTimes::read(), began.elapsed());
    Ok(Window {
        workload: phase.workload,
        mark: Mark {
            ns,
            bytes: after.bytes.saturating_sub(before.bytes),
            operations: after.operations.saturating_sub(before.operations),
            p50_us: after.p50_us,
            p99_us: after.p99_us,
            ..Mark::default()
        },
        rivals: BTreeMap::new(),
        cpu_ns,
        busy_ns: now.busy_since(machine, wall).as_nanos() as u64,
        events: EventCounts::default(),
        path: running.reading()?.since(&path),
        disturbed: now.disturbed_since(machine),
    })
}

/// Returns the counters of the program that receives a phase's stream or sends its requests.
fn counters(running: &Running, phase: &Phase) -> anyhow::Result<Mark> {
    // The receiver counts streams, the client requests.
    let in_guest =
        (phase.direction == PayloadDirection::ToGuest) == (phase.workload == Workload::Stream);
    let is_wanted = |part: &str| match in_guest {
        true => part == "guest",
        // The NIC determines the domain of the wire's station.
        false => ["driver", NIC_DEVICE].contains(&part),
    };
    let mut mark = Mark::default();
    for (_, domain) in running.domains().iter().filter(|(part, _)| is_wanted(part)) {
        let stat = running.stat(domain)?;
        let place = match phase.workload {
            Workload::Stream => SINK,
            Workload::Requests(_) => CLIENT,
        };
        let number = |name: &str| number_in(&stat, &format!("app.{place}.{name}"));
        mark.bytes += number("bytes").unwrap_or(0);
        mark.operations += number("transactions").unwrap_or(0);
        let us = |name: &str| number(name).map(|ns| ns as f64 / 1e3);
        mark.p50_us = us("latency_p50_ns").or(mark.p50_us);
        mark.p99_us = us("latency_p99_ns").or(mark.p99_us);
    }
    Ok(mark)
}

/// Returns the number with this key, at any depth of a domain's counters.
fn number_in(value: &Value, key: &str) -> Option<u64> {
    match value {
        Value::Object(map) => map
            .get(key)
            .and_then(Value::as_u64)
            .or_else(|| map.values().find_map(|value| number_in(value, key))),
        _ => None,
    }
}

fn machine(nic: MemoryNic, cores: Cores, seconds: u32) -> Config {
    let cable = Cable {
        delay_us: 10,
        seed: 1,
        station: station(PayloadDirection::ToGuest, WIRE, GUEST, seconds),
        ..Cable::default()
    };
    let guest = station(PayloadDirection::FromGuest, GUEST, WIRE, seconds);
    let mut config = Config {
        name: unique_name("demo"),
        nics: vec![NicSection::new(
            "wire",
            match nic {
                MemoryNic::Sim => NicKind::Sim(cable),
                MemoryNic::Soft => NicKind::Soft {
                    wire: SoftWire::Cable(cable),
                    rings: Rings::default(),
                    place: DevicePlace::Domain,
                    cpus: Vec::new(),
                    lro: false,
                    header_split: false,
                },
            },
        )],
        guests: vec![GuestSection {
            name: "guest".to_owned(),
            cpus: vec![cores.guest],
            vifs: vec![Vif::new(Endpoint::Stack { station: guest })],
            ..GuestSection::default()
        }],
        ..Config::default()
    };
    config.driver.cpus = vec![cores.wire];
    config.driver.restart = false;
    config
}

/// Returns a station that always receives and answers, and sends only in its phases.
fn station(direction: PayloadDirection, own: IpAddr, other: IpAddr, seconds: u32) -> StackConfig {
    let mut apps = vec![
        StackApp::TcpSink { port: SINK_PORT },
        StackApp::TcpEcho { port: ECHO_PORT },
    ];
    for phase in phases(seconds) {
        if phase.direction != direction {
            continue;
        }
        let after_s = phase.after_s;
        apps.push(match phase.workload {
            Workload::Stream => StackApp::TcpSource {
                to: SocketAddr::new(other, SINK_PORT),
                seconds,
                after_s,
                file_kb: None,
            },
            Workload::Requests(_) => StackApp::TcpClient {
                to: SocketAddr::new(other, ECHO_PORT),
                size: 1,
                seconds,
                after_s,
            },
        });
    }
    StackConfig {
        addresses: vec![Cidr {
            address: own,
            prefix: PREFIX,
        }],
        gateway: None,
        apps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_follow_each_other_within_the_time_allowed() {
        for (seconds, most) in [(2, 15), (6, 60)] {
            let phases = phases(seconds);
            for pair in phases.windows(2) {
                assert!(pair[0].after_s + seconds <= pair[1].after_s);
            }
            assert!(phases[3].after_s + seconds <= most);
        }
    }

    #[test]
    fn programs_have_the_expected_indices() {
        let station = station(PayloadDirection::ToGuest, WIRE, GUEST, 2);
        assert!(matches!(station.apps[SINK], StackApp::TcpSink { .. }));
        assert!(matches!(station.apps[CLIENT], StackApp::TcpClient { .. }));
        for nic in [MemoryNic::Sim, MemoryNic::Soft] {
            machine(nic, Cores { wire: 0, guest: 1 }, 2)
                .machine()
                .unwrap();
        }
    }

    #[test]
    fn counters_are_found_at_any_depth() {
        let stat = serde_json::json!({"a": {"b": {"app.0.bytes": 7}}, "app.1.bytes": 8, "n": null});
        assert_eq!(number_in(&stat, "app.0.bytes"), Some(7));
        assert_eq!(number_in(&stat, "app.1.bytes"), Some(8));
        assert_eq!(number_in(&stat, "app.2.bytes"), None);
    }
}
