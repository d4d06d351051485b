//! `cargo xtask xen`: the driver domain on the real Xen, in an emulated machine.
//!
//! | module | what it does |
//! |---|---|
//! | `packages` | downloads Debian's packages, unpacks them below `target/xen` |
//! | `kernels` | Xen and Linux in the form in which the emulator loads them |
//! | `archive` | an initial file system as the kernel unpacks it |
//! | `images` | what lies in dom0's and in a guest's file system |
//! | `machine` | the emulator: console, deadline, how each test ended |
//!
//! What happens inside the machine is shell, in `xtask/xen/`.

mod archive;
mod images;
mod kernels;
mod machine;
mod packages;

use crate::workspace;
use anyhow::{Context, Result, bail, ensure};
use images::Programs;
use std::fs;
use std::process::Command;
use std::time::Duration;

const USAGE: &str = "\
usage: cargo xtask xen [TEST…]

Boots Xen, a dom0 and stock guests in QEMU's software emulation, with the driver domain of this
tree, and runs the tests; without a name those that are marked with *. `all` runs all of them.
Packages are downloaded once, with apt-get, to target/xen. GRANTWAY_XEN_SLOW multiplies all
deadlines (left out: by how busy this system is).";

/// Seconds that a run may take whose machine has a processor for itself.
const DEADLINE_S: u64 = 240;

/// The tests, whether they run if none is named, and what they show.
const TESTS: [(&str, bool, &str); 13] = [
    ("boot", true, "Xen, dom0 and the toolstack are up"),
    (
        "pv",
        true,
        "a PV guest: ping over IPv4 and IPv6, TCP both ways, 1 MB each, with checksums",
    ),
    ("pvh", true, "the same with a PVH guest"),
    ("pair", true, "two guests reach each other"),
    ("tools", true, "grantway status, stat and trace speak to it"),
    (
        "kill",
        true,
        "killed in the middle of a stream: the next process takes over",
    ),
    (
        "queues",
        false,
        "a guest with four processors has four queues, over a kill as well",
    ),
    (
        "save",
        false,
        "a guest is saved and goes on, and is restored as another domain",
    ),
    (
        "detach",
        true,
        "an interface is detached and attached under traffic",
    ),
    (
        "hostile",
        false,
        "a guest attacks: nobody else notices, and it is served again",
    ),
    (
        "destroy",
        true,
        "guests are destroyed: nothing is left in the xenstore",
    ),
    (
        "driver",
        false,
        "a driver domain that is not dom0 serves a guest",
    ),
    (
        "kills",
        false,
        "killed 100 times under streams both ways: all survive",
    ),
];

pub(crate) fn run(names: &[String]) -> Result<()> {
    if let [name] = names
        && matches!(name.as_str(), "--help" | "-h" | "list")
    {
        println!("{USAGE}\n");
        for (name, default, what) in TESTS {
            println!("  {}{name:10} {what}", if default { '*' } else { ' ' });
        }
        return Ok(());
    }
    let tests = chosen(names)?;
    let home = workspace::target_directory()?.join("xen");
    fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
    let packages = match packages::ready(&home) {
        Ok(packages) => packages,
        Err(why) => return skip(&format!("{why:#}")),
    };
    let programs = build()?;
    let kernels = kernels::ready(&home, &packages)?;
    let image = images::dom0(&home, &packages, &kernels, &programs)?;
    let slow = slowness()?;
    println!("deadlines are multiplied by {slow}");
    let machine = machine::Machine {
        kernels: &kernels,
        image: &image,
        packages: &packages,
        log: home.join("console.log"),
        slow,
        deadline: Duration::from_secs(DEADLINE_S * u64::from(slow)),
    };
    machine.run(&tests)
}

fn chosen(names: &[String]) -> Result<Vec<&'static str>> {
    let known = TESTS.map(|(name, ..)| name);
    if names == ["all"] {
        return Ok(known.to_vec());
    }
    if names.is_empty() {
        let default = TESTS.iter().filter(|(_, default, _)| *default);
        return Ok(default.map(|(name, ..)| *name).collect());
    }
    let find = |name: &String| {
        let found = known.iter().find(|known| *known == name);
        found
            .copied()
            .with_context(|| format!("no such test: {name}; there are {}", known.join(", ")))
    };
    names.iter().map(find).collect()
}

/// What cannot run here is no failure, unless everything has to run.
fn skip(why: &str) -> Result<()> {
    if std::env::var("GRANTWAY_REQUIRE").is_ok_and(|value| value == "all") {
        bail!("{why}");
    }
    println!("skipped: {why}");
    Ok(())
}

/// By how much longer than usual everything may take.
fn slowness() -> Result<u32> {
    if let Ok(given) = std::env::var("GRANTWAY_XEN_SLOW") {
        let slow: u32 = given.parse().context("GRANTWAY_XEN_SLOW")?;
        ensure!((1..=100).contains(&slow), "GRANTWAY_XEN_SLOW is 1 to 100");
        return Ok(slow);
    }
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load
        .split_whitespace()
        .next()
        .and_then(|load| load.parse().ok())
        .unwrap_or(0.0);
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    Ok((1.0 + load / cpus as f64).round().clamp(1.0, 10.0) as u32)
}

/// Builds the programs that run inside. The example by a run of its own: it needs what no program
/// is linked with.
fn build() -> Result<Programs> {
    let programs = [
        "-p",
        "xen",
        "-p",
        "cli",
        "--bin",
        "grantway-xen",
        "--bin",
        "grantway",
    ];
    let example = ["-p", "xen", "--example", "hostile-front"];
    for chosen in [programs.as_slice(), &example] {
        let mut command: Command = workspace::cargo();
        command.args(["build", "--quiet"]).args(chosen);
        let status = command.status().context("cannot run cargo")?;
        ensure!(status.success(), "the build failed");
    }
    let folder = workspace::target_directory()?.join("x86_64-unknown-linux-gnu/debug");
    Ok(Programs {
        driver: folder.join("grantway-xen"),
        cli: folder.join("grantway"),
        hostile: folder.join("examples/hostile-front"),
    })
}
