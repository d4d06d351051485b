//! `cargo xtask xen`: tests the driver domain on the real Xen, in an emulated machine.
//!
//! | module | purpose |
//! |---|---|
//! | `packages` | downloads Debian's packages and unpacks them below `target/xen` |
//! | `kernels` | Xen and Linux in the form in which the emulator loads them |
//! | `archive` | an initial file system in the kernel's format |
//! | `images` | contents of dom0's and a guest's file systems |
//! | `laboratory` | creates all of these |
//! | `machine` | the emulator: console, deadline, result of each test |
//! | `exp` | the comparison with the kernel's netback |
//!
//! Shell scripts in `xtask/xen/` run inside the machine.

pub(crate) mod archive;
mod exp;
mod images;
mod kernels;
mod laboratory;
pub(crate) mod machine;
pub(crate) mod packages;

use anyhow::{Context, Result};
use laboratory::{Laboratory, deadline_factor};
pub(crate) use packages::find;
use std::time::Duration;

const USAGE: &str = "\
usage: cargo xtask xen [TEST…|all] | exp [ARGS…]

Boots Xen, a dom0 and stock guests in QEMU's software emulation, with the driver domain of this
tree, and runs the named tests: by default those marked with *, with `all` every test. Downloads
packages once, with apt-get, to target/xen. GRANTWAY_XEN_SLOW multiplies all deadlines (default: by
the load of this system). `exp --help` describes the comparison with xen-netback.

example: cargo xtask xen pv kill";

/// Deadline of a run on a system with a free CPU, seconds.
const DEADLINE_S: u64 = 360;
/// Addition to the deadline for a long test, seconds.
const LONG_S: u64 = 300;

/// The tests: name, whether the test runs by default, and description.
const TESTS: [(&str, bool, &str); 18] = [
    ("boot", true, "Xen, dom0 and the toolstack are up"),
    (
        "pv",
        true,
        "a PV guest: ping over IPv4 and IPv6, TCP both ways, 1 MB each, with checksums",
    ),
    ("pvh", true, "the same with a PVH guest"),
    ("pair", true, "two guests reach each other"),
    (
        "tools",
        true,
        "grantway status, stat and trace work with it",
    ),
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
        "a guest is saved and continues, and is restored as another domain",
    ),
    (
        "detach",
        true,
        "an interface is detached and attached under traffic",
    ),
    (
        "toolstack",
        false,
        "toolstacks are killed during their work; the next one finishes it",
    ),
    (
        "hostile",
        true,
        "a guest attacks: no other guest is affected, and it is served again",
    ),
    (
        "maps",
        true,
        "packets from guests are mapped: two guests, attacks, kills; no page stays mapped",
    ),
    (
        "destroy",
        true,
        "guests are destroyed: nothing remains in the xenstore",
    ),
    (
        "uplink",
        false,
        "a guest reaches the network behind a NIC: by a TAP on a bridge",
    ),
    ("xdp", false, "the same by an AF_XDP socket on that NIC"),
    (
        "driver",
        false,
        "a driver domain that is not dom0 serves a guest",
    ),
    (
        "many",
        false,
        "sixteen guests at the same time: ping, 64 KB both ways, nothing remains",
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
    if let [first, rest @ ..] = names
        && first == "exp"
    {
        return exp::run(rest);
    }
    let tests = chosen(names)?;
    let Some(laboratory) = Laboratory::ready(false)? else {
        return Ok(());
    };
    let slow = deadline_factor()?;
    println!("deadlines are multiplied by {slow}");
    let machine = machine::XenMachine {
        kernels: &laboratory.kernels,
        image: &laboratory.image,
        packages: &laboratory.packages,
        log: laboratory.home.join("console.log"),
        memory_mib: tests.iter().map(|test| memory_mib(test)).max().unwrap_or(0),
        has_nic: tests.iter().any(|test| ["uplink", "xdp"].contains(test)),
        slow,
        deadline: Duration::from_secs(deadline_s(&tests) * u64::from(slow)),
        counts_instructions: false,
    };
    machine.run(machine::Task {
        argument: &format!("xtest={}", tests.join("+")),
        wanted: &tests,
        on_window: &mut |_| Ok(()),
    })
}

/// Returns the machine's memory for a test.
fn memory_mib(test: &str) -> u32 {
    match test {
        "many" => 6144,
        _ => 2048,
    }
}

/// Returns the deadline of these tests, seconds.
fn deadline_s(tests: &[&str]) -> u64 {
    let long = tests.iter().filter(|test| ["many", "kills"].contains(test));
    DEADLINE_S + LONG_S * long.count() as u64
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
            .with_context(|| format!("no such test: {name}; choose from {}", known.join(", ")))
    };
    names.iter().map(find).collect()
}
