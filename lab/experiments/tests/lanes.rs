//! Lanes with real sockets: what needs the right to make namespaces and TAPs. Without it every
//! case says so and passes.
//!
//! Not libtest's harness, because the helper processes are this very program called again.

use experiments::lane::build::OnWire;
use experiments::lane::cores::Cores;
use experiments::lane::machine::lane;
use experiments::lane::{Lane, Loads, forward, kernel_path};
use experiments::plan::{Direction, Gro, Place, Times, Topology, Wire, WireNic, Workload};
use figures::Failure;
use std::process::ExitCode;
use std::time::Duration;

const TIMES: Times = Times {
    warm_up: Duration::from_millis(50),
    window: Duration::from_millis(200),
};

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
        ("forwarder_is_no_slower_than_the_reference", &|| {
            compare(cores)
        }),
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

/// A lane that this user may not set up is no failure.
fn allowed(lane: anyhow::Result<Lane>) -> anyhow::Result<Option<Lane>> {
    match lane {
        Ok(lane) => Ok(Some(lane)),
        Err(error) => {
            let text = format!("{error:#}");
            let absent = matches!(error.downcast_ref(), Some(Failure::CannotRun(_)));
            if absent || text.contains("permitted") || text.contains("denied") {
                println!("  left out: {text}");
                return Ok(None);
            }
            Err(error)
        }
    }
}

fn namespaces_end() -> anyhow::Result<()> {
    let ns = match experiments::ns::Namespace::new("test") {
        Ok(ns) => ns,
        Err(error) => {
            println!("  left out: {error:#}");
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

fn carries(lane: anyhow::Result<Lane>) -> anyhow::Result<()> {
    let Some(mut lane) = allowed(lane)? else {
        return Ok(());
    };
    for direction in Direction::BOTH {
        let stream = lane
            .window(Workload::Stream, direction, TIMES)?
            .figures(2_000_000_000);
        anyhow::ensure!(stream["throughput"] > 0.001, "{stream:?}");
        anyhow::ensure!(stream["cycles_per_byte.total"] > 0.0, "{stream:?}");
        let requests = lane
            .window(Workload::Requests(1), direction, TIMES)?
            .figures(2_000_000_000);
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

/// The machine, if its programs were built beside this one.
fn machine(cores: Cores) -> anyhow::Result<()> {
    if let Err(error) = client::daemon_path() {
        println!("  left out: {error}");
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
            speed: &speed,
            tick_us: None,
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

/// The forwarder against a C one with the same loop, whose source an environment variable names.
/// Interleaved, and generous: the point is to notice a forwarder that would flatter the machine.
fn compare(cores: Cores) -> anyhow::Result<()> {
    let Some(source) = std::env::var_os("GRANTWAY_TAPFWD_C") else {
        println!("  left out: GRANTWAY_TAPFWD_C names no source");
        return Ok(());
    };
    let ours = allowed(forward::lane(Place::OneCore, cores, &Loads::default()))?;
    let theirs = allowed(reference::lane(&source, cores))?;
    let (Some(mut ours), Some(mut theirs)) = (ours, theirs) else {
        return Ok(());
    };
    let mut ratios = Vec::new();
    for _ in 0..9 {
        let rate = |lane: &mut Lane| {
            let window = lane.window(Workload::Stream, Direction::ToGuest, TIMES)?;
            anyhow::Ok(window.figures(1)["throughput"])
        };
        ratios.push(rate(&mut ours)? / rate(&mut theirs)?);
    }
    let ratio = figures::stats::estimate(&ratios, 1).unwrap();
    println!(
        "  ours / reference: {:.3} [{:.3}, {:.3}]",
        ratio.value, ratio.lo, ratio.hi
    );
    anyhow::ensure!(ratio.hi >= 1.0, "slower than the reference");
    Ok(())
}

mod reference {
    use experiments::lane::cores::Cores;
    use experiments::lane::ends::{Ends, GUEST, PREFIX, WIRE};
    use experiments::lane::path::Path;
    use experiments::lane::reading::Reading;
    use experiments::lane::{Lane, Loads};
    use experiments::plan::Place;
    use figures::measure::Part;
    use std::ffi::OsStr;
    use std::process::{Child, Command, Stdio};

    struct Reference {
        child: Child,
        _folder: tempfile::TempDir,
    }

    /// The C program knows namespaces by names below /var/run/netns only: it gets names that lead
    /// from there to the holders' files.
    pub(super) fn lane(source: &OsStr, cores: Cores) -> anyhow::Result<Lane> {
        experiments::kernel::need(&["cc", "ip", "taskset"])?;
        let folder = tempfile::tempdir()?;
        let program = folder.path().join("tapfwd");
        let built = Command::new("cc")
            .arg("-O2")
            .arg("-o")
            .arg(&program)
            .arg(source)
            .status()?;
        anyhow::ensure!(built.success(), "cc failed");
        std::fs::create_dir_all("/run/netns")?;
        let mut ends = Ends::new()?;
        let netns = |pid: i32| format!("../../../proc/{pid}/ns/net");
        for end in [&mut ends.wire, &mut ends.guest] {
            end.run(&["ip", "tuntap", "add", "mode", "tap", "name", "gw0"])?;
        }
        let child = Command::new("taskset")
            .args(["-c", &cores.driver(Place::OneCore).to_string()])
            .arg(&program)
            .args([
                &netns(ends.wire.pid()),
                "gw0",
                &netns(ends.guest.pid()),
                "gw0",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        std::thread::sleep(std::time::Duration::from_millis(200));
        for (end, address) in [(&mut ends.wire, WIRE), (&mut ends.guest, GUEST)] {
            end.run(&[
                "ip",
                "addr",
                "add",
                &format!("{address}/{PREFIX}"),
                "dev",
                "gw0",
            ])?;
            end.run(&["ip", "link", "set", "gw0", "up"])?;
        }
        let path = Reference {
            child,
            _folder: folder,
        };
        Lane::new(ends, Box::new(path), cores, &Loads::default())
    }

    impl Path for Reference {
        fn parts(&self) -> Vec<(Part, Vec<i32>)> {
            vec![("driver", vec![self.child.id().cast_signed()])]
        }

        fn reading(&mut self) -> anyhow::Result<Reading> {
            Ok(Reading::default())
        }
    }

    impl Drop for Reference {
        fn drop(&mut self) {
            let _gone = self.child.kill();
            let _reaped = self.child.wait();
        }
    }
}
