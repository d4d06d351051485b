//! Lanes with real sockets: what needs the right to make namespaces and TAPs. Without it every
//! case is skipped.
//!
//! Not libtest's harness, because the helper processes are this very program called again.

use experiments::lane::build::OnWire;
use experiments::lane::cores::Cores;
use experiments::lane::machine::lane;
use experiments::lane::{Lane, Loads, forward, kernel_path};
use experiments::plan::{Direction, Gro, Place, Times, Topology, Wire, WireNic, Workload};
use figures::Failure;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use testing::{PATIENCE, skip};

const TIMES: Times = Times {
    warm_up: Duration::from_millis(50),
    window: Duration::from_millis(200),
};

/// Set where machines have a place of their own.
const OWN_PLACE: &str = "GRANTWAY_TEST_OWN_PLACE";

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
    if std::env::var_os(OWN_PLACE).is_none() {
        return in_own_place();
    }
    let cores = Cores::choose();
    let cases: [(&str, &dyn Fn() -> anyhow::Result<()>); 6] = [
        ("namespaces_end_with_their_holder", &namespaces_end),
        ("forwarder_carries_both_directions", &|| {
            carries(forward::lane(Place::Split, cores, &Loads::default()))
        }),
        ("machine_carries_both_directions", &|| machine(cores)),
        ("veth_carries_both_directions", &|| {
            carries(kernel_path::lane(false, Gro::On, cores, &Loads::default()))
        }),
        ("bridge_with_threads_carries_both_directions", &|| {
            carries(kernel_path::lane(true, Gro::Napi, cores, &Loads::default()))
        }),
        (
            "bridge_that_merges_at_its_ports_hands_aggregates_on",
            &|| merges(cores),
        ),
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

/// The same once more, with a place of its own for its machines: a profiler that somebody runs
/// would find them, and ask their domains while they are asked here.
fn in_own_place() -> ExitCode {
    let run = || -> anyhow::Result<bool> {
        let folder = tempfile::tempdir()?;
        let mut command = std::process::Command::new(std::env::current_exe()?);
        let command = command.env(OWN_PLACE, "1");
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

/// A lane that this user may not set up is no failure.
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
    let ns = match experiments::ns::Namespace::new("test") {
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

/// What the specification promises of a domain's ledger, at ten times its error: a short window
/// beside other programs. Other lanes have none.
fn closes(stream: &BTreeMap<String, f64>) -> anyhow::Result<()> {
    let closures = stream
        .iter()
        .filter(|(name, _)| name.starts_with("closure."));
    for (name, closure) in closures {
        anyhow::ensure!((0.5..=1.5).contains(closure), "{name}: {closure}");
    }
    Ok(())
}

/// The figures of a window in which something was carried: the first may be over before the load
/// has had a CPU.
fn window_of(
    lane: &mut Lane,
    workload: Workload,
    direction: Direction,
) -> anyhow::Result<BTreeMap<String, f64>> {
    let end = Instant::now() + PATIENCE;
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
    for direction in Direction::BOTH {
        let stream = window_of(&mut lane, Workload::Stream, direction)?;
        anyhow::ensure!(stream["throughput"] > 0.0, "{stream:?}");
        anyhow::ensure!(stream["cycles_per_byte.total"] > 0.0, "{stream:?}");
        closes(&stream)?;
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

/// A bridge that merges at its own ports: what reaches the guest's kernel is larger than the wire's
/// packets, with kernel threads and without.
fn merges(cores: Cores) -> anyhow::Result<()> {
    for gro in [Gro::In, Gro::InNapi] {
        let Some(mut lane) = allowed(kernel_path::lane(true, gro, cores, &Loads::default()))?
        else {
            return Ok(());
        };
        // Not before the stream is fast: the first window may be over before.
        let end = Instant::now() + PATIENCE;
        loop {
            let window = lane.window(Workload::Stream, Direction::ToGuest, TIMES)?;
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

/// The machine, if its programs were built beside this one.
fn machine(cores: Cores) -> anyhow::Result<()> {
    if let Err(error) = client::daemon_path() {
        skip::<()>(error);
        return Ok(());
    }
    let speed = Wire::unbounded();
    for (nic, place) in [
        (WireNic::Tap, Place::OneCore),
        (WireNic::Tap, Place::Split),
        (WireNic::Xdp, Place::OneCore),
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
    Ok(())
}
