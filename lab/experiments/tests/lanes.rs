//! Tests of lanes with real sockets. They need the right to create namespaces and TAPs, and skip
//! every case if they do not have it.
//!
//! They do not use libtest's harness, because this program is also that of the helper processes.

use anyhow::Context as _;
use experiments::lane::build::OnWire;
use experiments::lane::cores::Cores;
use experiments::lane::kernel_path::Offloaded;
use experiments::lane::machine::{lane, local_lane};
use experiments::lane::{Lane, Loads, forward, kernel_path, ledgers, vm};
use experiments::plan::{
    Gro, PathKind, PayloadDirection, Place, Times, Topology, WireNic, WireOffload, WireSpeed,
    Workload,
};
use figures::Failure;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use testing::{TIMEOUT, skip};

const TIMES: Times = Times {
    warm_up: Duration::from_millis(50),
    window: Duration::from_millis(200),
};

/// Name of the environment variable that is set if machines have a private runtime directory.
const PRIVATE_RUNTIME: &str = "GRANTWAY_TEST_OWN_PLACE";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|word| word == "internal") {
        return match experiments::internal::main(args.get(1..).unwrap_or_default()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    if args.iter().any(|word| word == "--list") {
        return ExitCode::SUCCESS;
    }
    if std::env::var_os(PRIVATE_RUNTIME).is_none() {
        return with_private_runtime();
    }
    let cores = Cores::choose();
    let cases: [(&str, &dyn Fn() -> anyhow::Result<()>); 10] = [
        ("namespaces_end_with_their_holder", &namespaces_end),
        ("forwarder_carries_both_directions", &|| {
            carries(forward::lane(Place::Split, cores, &Loads::default()))
        }),
        ("machine_carries_both_directions", &|| machine(cores)),
        ("machine_whose_core_is_killed_leaves_no_file", &|| {
            killed(cores)
        }),
        ("veth_carries_both_directions", &|| {
            carries(kernel_path::veth_lane(1, Gro::On, cores, &Loads::default()))
        }),
        ("veth_with_three_wires_carries_over_each", &|| {
            carries(kernel_path::veth_lane(
                3,
                Gro::Rps,
                cores,
                &Loads::default(),
            ))
        }),
        ("bridge_with_threads_carries_both_directions", &|| {
            let of = Offloaded::frames(Gro::Napi);
            carries(kernel_path::bridge_lane(of, cores, &Loads::default()))
        }),
        (
            "bridge_that_merges_at_its_ports_hands_aggregates_on",
            &|| merges(cores),
        ),
        ("wires_carry_frames_or_whole_segments", &|| wires(cores)),
        ("a_vm_sends_and_receives_on_every_path", &|| vms(cores)),
    ];
    let mut failed = 0;
    for (name, case) in &cases {
        match case() {
            Ok(()) => println!("test {name} ... ok"),
            Err(error) => {
                failed += 1;
                println!("test {name} ... FAILED: {error:#}");
            }
        }
    }
    println!(
        "test result: {}. {} passed; {failed} failed",
        if failed == 0 { "ok" } else { "FAILED" },
        cases.len() - failed
    );
    ExitCode::from(u8::from(failed > 0))
}

/// Runs the tests again with a private runtime directory for machines. Otherwise a profiler that
/// runs at the same time would find the machines and query their domains.
fn with_private_runtime() -> ExitCode {
    let run = || -> anyhow::Result<bool> {
        let folder = tempfile::tempdir()?;
        let mut command = std::process::Command::new(std::env::current_exe()?);
        let command = command.env(PRIVATE_RUNTIME, "1");
        let command = command.env(client::RUNTIME_DIR_VAR, folder.path());
        Ok(command.status()?.success())
    };
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("test result: FAILED. {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Converts the failure to set up a lane without the required rights to `None`.
fn allowed(lane: anyhow::Result<Lane>) -> anyhow::Result<Option<Lane>> {
    match lane {
        Ok(lane) => Ok(Some(lane)),
        Err(error) => {
            let text = format!("{error:#}");
            let absent = matches!(error.downcast_ref(), Some(Failure::CannotRun(_)));
            if absent || text.contains("permitted") || text.contains("denied") {
                return Ok(skip(text));
            }
            Err(error)
        }
    }
}

fn namespaces_end() -> anyhow::Result<()> {
    let ns = match experiments::ns::NamedNamespace::new("test") {
        Ok(ns) => ns,
        Err(error) => {
            skip::<()>(format!("{error:#}"));
            return Ok(());
        }
    };
    let (path, pid) = (ns.path(), ns.pid());
    anyhow::ensure!(path.exists());
    anyhow::ensure!(std::fs::read_link(&path)? != std::fs::read_link("/proc/self/ns/net")?);
    drop(ns);
    anyhow::ensure!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    Ok(())
}

/// Returns the figures of a stream's window in which every domain's ledger closes as the
/// specification promises. A short window beside other programs may miss that, so the test fails
/// only if no window closes within ten times the error. Lanes without a machine have no ledgers.
fn closing(lane: &mut Lane, direction: PayloadDirection) -> anyhow::Result<BTreeMap<String, f64>> {
    let end = Instant::now() + TIMEOUT;
    loop {
        let stream = window_of(lane, Workload::Stream, direction)?;
        let domains = stream
            .keys()
            .filter_map(|name| name.strip_prefix("closure."));
        let closures = domains.map(|domain| (domain, ledgers::confirmed(domain, &stream)));
        let closures: Vec<_> = closures.collect();
        for (name, closure) in &closures {
            let bounded = closure.is_some_and(|closure| (0.5..=1.5).contains(&closure));
            anyhow::ensure!(bounded, "{name}: {closure:?}");
        }
        let closes = |closure: f64| (0.95..=1.05).contains(&closure);
        if closures
            .iter()
            .all(|(_, closure)| closure.is_some_and(closes))
        {
            return Ok(stream);
        }
        anyhow::ensure!(Instant::now() < end, "none closes: {stream:?}");
    }
}

/// Returns the figures of the first window with traffic. Earlier windows may end before the load
/// runs.
fn window_of(
    lane: &mut Lane,
    workload: Workload,
    direction: PayloadDirection,
) -> anyhow::Result<BTreeMap<String, f64>> {
    let end = Instant::now() + TIMEOUT;
    loop {
        let window = lane.window(workload, direction, TIMES)?;
        let carried = window.mark.bytes > 0 || window.mark.operations > 0;
        anyhow::ensure!(carried || Instant::now() < end, "{:?}", window.mark);
        if carried {
            return Ok(window.figures(2_000_000_000));
        }
    }
}

fn carries(lane: anyhow::Result<Lane>) -> anyhow::Result<()> {
    let Some(mut lane) = allowed(lane)? else {
        return Ok(());
    };
    for direction in PayloadDirection::BOTH {
        let stream = closing(&mut lane, direction)?;
        anyhow::ensure!(stream["throughput"] > 0.0, "{stream:?}");
        anyhow::ensure!(stream["cycles_per_byte.total"] > 0.0, "{stream:?}");
        let requests = window_of(&mut lane, Workload::Requests(1), direction)?;
        anyhow::ensure!(requests["transactions"] > 0.0, "{requests:?}");
        anyhow::ensure!(
            requests["latency_us.p99"] >= requests["latency_us.p50"],
            "{requests:?}"
        );
        println!(
            "  {}: {:.2} Gb/s, {:.2} cycles/byte, {:.0} requests/s, p50 {:.0} us",
            direction.name(),
            stream["throughput"],
            stream["cycles_per_byte.total"],
            requests["transactions"],
            requests["latency_us.p50"]
        );
    }
    Ok(())
}

/// A bridge that aggregates at its ports delivers packets larger than the wire's to the guest's
/// kernel, with and without kernel threads.
fn merges(cores: Cores) -> anyhow::Result<()> {
    for gro in [Gro::In, Gro::InNapi] {
        let of = Offloaded::frames(gro);
        let Some(mut lane) = allowed(kernel_path::bridge_lane(of, cores, &Loads::default()))?
        else {
            return Ok(());
        };
        // The first windows may end before the stream is fast.
        let end = Instant::now() + TIMEOUT;
        loop {
            let window = lane.window(Workload::Stream, PayloadDirection::ToGuest, TIMES)?;
            let mark = window.mark;
            let each = mark.bytes as f64 / mark.segments.max(1) as f64;
            if each > 2.0 * 1448.0 {
                break;
            }
            anyhow::ensure!(Instant::now() < end, "{gro:?}: {each} bytes a segment");
        }
        carries(Ok(lane))?;
    }
    Ok(())
}

/// Every path to a virtual machine carries both directions, and charges cycles to the virtual
/// machine and to the path.
fn vms(cores: Cores) -> anyhow::Result<()> {
    let paths = [
        (PathKind::Vm, "guest"),
        (PathKind::VmOneProcess, "driver"),
        (PathKind::VmBridge, "nic_kernel"),
    ];
    for (path, part) in paths {
        if path == PathKind::Vm && client::daemon_path().is_err() {
            skip::<()>("no monitor");
            continue;
        }
        let Some(mut lane) = allowed(vm::lane(path, cores, &Loads::default()))? else {
            return Ok(());
        };
        let stream = window_of(&mut lane, Workload::Stream, PayloadDirection::ToGuest)?;
        anyhow::ensure!(stream["cycles_per_byte.vm"] > 0.0, "{path:?}: {stream:?}");
        let of_part = stream.get(&format!("cycles_per_byte.{part}"));
        anyhow::ensure!(
            of_part.is_some_and(|cycles| *cycles > 0.0),
            "{path:?}: {stream:?}"
        );
        carries(Ok(lane))?;
    }
    Ok(())
}

/// From a guest, the wires of the bridge and of the machine carry MTU-sized frames or whole
/// segments, as configured.
fn wires(cores: Cores) -> anyhow::Result<()> {
    let (speed, loads) = (WireSpeed::unbounded(), Loads::default());
    let gro = Gro::InNapi;
    let offloads = [
        WireOffload::None,
        WireOffload::Checksum,
        WireOffload::Segments,
    ];
    for offload in offloads {
        let segments = offload == WireOffload::Segments;
        let bridge = kernel_path::bridge_lane(Offloaded { gro, segments }, cores, &loads);
        let wire = OnWire {
            offload,
            ..OnWire::tap(&speed)
        };
        let machine = match client::daemon_path() {
            Ok(_) => Some(lane(
                Place::OneCore,
                wire,
                Topology::default(),
                cores,
                &loads,
            )),
            Err(error) => skip(error),
        };
        for made in std::iter::once(bridge).chain(machine) {
            let Some(mut lane) = allowed(made)? else {
                continue;
            };
            let end = Instant::now() + TIMEOUT;
            loop {
                let window = lane.window(Workload::Stream, PayloadDirection::FromGuest, TIMES)?;
                let mark = window.mark;
                let each = mark.frame_bytes as f64 / mark.frames.max(1) as f64;
                anyhow::ensure!(segments || each <= 1514.0, "{each} bytes a frame");
                if mark.frames > 0 && (each > 3000.0) == segments {
                    break;
                }
                anyhow::ensure!(Instant::now() < end, "{offload:?}: {each} bytes a frame");
            }
        }
    }
    Ok(())
}

/// If the core is killed, the machine stops, and the process that started it removes its files in
/// the runtime directory.
fn killed(cores: Cores) -> anyhow::Result<()> {
    if let Err(error) = client::daemon_path() {
        skip::<()>(error);
        return Ok(());
    }
    let (speed, loads) = (WireSpeed::unbounded(), Loads::default());
    let made = lane(
        Place::OneCore,
        OnWire::tap(&speed),
        Topology::default(),
        cores,
        &loads,
    );
    let Some(lane) = allowed(made)? else {
        return Ok(());
    };
    let place = client::runtime_dir()?;
    let files = || -> anyhow::Result<Vec<_>> {
        let entries = std::fs::read_dir(&place)?;
        entries.map(|entry| Ok(entry?.file_name())).collect()
    };
    let before = files()?;
    let core = Pid::from_raw(lane.machine()?.core()?).context("no core")?;
    kill_process(core, Signal::KILL)?;
    drop(lane);
    let left = files()?;
    anyhow::ensure!(before.len() > left.len(), "{before:?} {left:?}");
    let of_machines = |name: &&OsString| name.to_string_lossy().starts_with("lane-");
    let left: Vec<_> = left.iter().filter(of_machines).collect();
    anyhow::ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// Checks the machine, if its programs were built beside this one.
fn machine(cores: Cores) -> anyhow::Result<()> {
    if let Err(error) = client::daemon_path() {
        skip::<()>(error);
        return Ok(());
    }
    let speed = WireSpeed::unbounded();
    for (nic, place) in [
        (WireNic::Tap, Place::OneCore),
        (WireNic::Tap, Place::Split),
        (WireNic::Xdp, Place::OneCore),
        (WireNic::Soft, Place::OneCore),
    ] {
        let wire = OnWire {
            nic,
            ..OnWire::tap(&speed)
        };
        carries(lane(
            place,
            wire,
            Topology::default(),
            cores,
            &Loads::default(),
        ))?;
    }
    several_guests(cores)?;
    device_domains(cores)
}

/// Guests on separate NICs receive together, as do guests with different loads.
fn several_guests(cores: Cores) -> anyhow::Result<()> {
    let speed = WireSpeed::unbounded();
    let own = Topology {
        guests: 2,
        wires: 2,
        own_wires: true,
        ..Topology::default()
    };
    let mixed = Topology {
        rivals: 4,
        mixed: true,
        ..Topology::default()
    };
    let loads = Loads::of_stream(&[PayloadDirection::ToGuest]);
    for (topology, carried) in [
        (own, &["throughput"][..]),
        (
            mixed,
            &[
                "throughput",
                "throughput.rivals",
                "transactions.rivals.web",
                "transactions.rivals.requests",
            ],
        ),
    ] {
        let wire = OnWire::tap(&speed);
        let Some(mut lane) = allowed(lane(Place::OneCore, wire, topology, cores, &loads))? else {
            return Ok(());
        };
        let end = Instant::now() + TIMEOUT;
        loop {
            let stream = window_of(&mut lane, Workload::Stream, PayloadDirection::ToGuest)?;
            let runs = |metric: &&str| stream.get(*metric).is_some_and(|rate| *rate > 0.0);
            if carried.iter().all(runs) {
                break;
            }
            anyhow::ensure!(Instant::now() < end, "{topology:?}: {stream:?}");
        }
    }
    Ok(())
}

/// A guest and the driver domain itself receive from a NIC with a device domain at its rate. The
/// device's cycles are in no total.
fn device_domains(cores: Cores) -> anyhow::Result<()> {
    const GBPS: f64 = 0.05;
    let speed = WireSpeed::try_from(GBPS.to_string()).map_err(anyhow::Error::msg)?;
    let wire = OnWire {
        nic: WireNic::Soft,
        ..OnWire::tap(&speed)
    };
    let (topology, loads) = (Topology::default(), Loads::default());
    for made in [
        lane(Place::OneCore, wire, topology, cores, &loads),
        local_lane(Place::OneCore, wire, topology, cores, &loads),
    ] {
        let Some(mut lane) = allowed(made)? else {
            return Ok(());
        };
        let end = Instant::now() + TIMEOUT;
        let stream = loop {
            let stream = window_of(&mut lane, Workload::Stream, PayloadDirection::ToGuest)?;
            // A window may also read data that queues held before it.
            if stream["throughput"] < 4.0 * GBPS {
                break stream;
            }
            anyhow::ensure!(Instant::now() < end, "{stream:?}");
        };
        let cycles = |part: &str| {
            let name = format!("cycles_per_byte.{part}");
            stream.get(&name).copied().unwrap_or(0.0)
        };
        anyhow::ensure!(cycles("nic_device") > 0.0, "{stream:?}");
        let parts = [
            "sender",
            "receiver",
            "driver",
            "guest",
            "monitor",
            "nic_kernel",
            "wire_kernel",
        ];
        let sum: f64 = parts.map(cycles).iter().sum();
        anyhow::ensure!((sum / cycles("total") - 1.0).abs() < 1e-6, "{stream:?}");
    }
    Ok(())
}
