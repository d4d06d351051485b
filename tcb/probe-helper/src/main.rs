//! `probe-helper ROLE`: drops the rights that a helper drops, and attacks. Prints every attack that
//! succeeded.
//!
//! Without a role, as the core starts netd, it attacks in netd's place, and writes its report to
//! the file `report` in the folder of its program.

use confine::roles::{BROKER, MANAGER, NETD};
use confine::{Rights, confine, own_user};
use probe_helper::{ATTACKS, BROKER_CALLS, NETD_CALLS, mounted, not_refused, opens};
use std::ffi::{CStr, CString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Number of the core's descriptors to try.
const DESCRIPTORS: u32 = 256;
/// Number of process ids to try.
const PROCESSES: u32 = 1 << 16;

fn main() -> ExitCode {
    let role = std::env::args().nth(1);
    match attack(role.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("probe-helper: {error}");
            ExitCode::FAILURE
        }
    }
}

fn attack(role: Option<&str>) -> io::Result<()> {
    let core = std::os::unix::process::parent_id();
    let user = own_user();
    // netd's rights on a kernel without Landlock.
    let bare = Rights {
        files: None,
        ..NETD
    };
    let rights = match role {
        Some("manager") => MANAGER,
        Some("broker") => BROKER,
        Some("bare") => Rights { user, ..bare },
        _ => Rights { user, ..NETD },
    };
    let mut report: Box<dyn Write> = match role {
        Some(_) => Box::new(io::stdout()),
        None => {
            let own = std::env::current_exe()?;
            Box::new(File::create(own.with_file_name("report"))?)
        }
    };
    confine(&rights)?;
    let mut succeeded = not_refused(ATTACKS);
    if role != Some("broker") {
        succeeded.extend(not_refused(BROKER_CALLS));
    }
    if role == Some("manager") || role == Some("broker") {
        succeeded.extend(not_refused(NETD_CALLS));
    } else {
        succeeded.extend(processes(core));
    }
    if role.is_none_or(|role| role == "netd") {
        succeeded.extend(files());
        succeeded.extend(mounted_files());
        succeeded.extend(needed());
    }
    for line in &succeeded {
        writeln!(report, "{line}")?;
    }
    writeln!(report, "done")?;
    report.flush()?;
    // Like netd, the program runs until the core closes the link.
    if role.is_none() {
        io::stdin().read_to_end(&mut Vec::new())?;
    }
    Ok(())
}

/// Attacks the core and all other processes, including domains, through `/proc` and through a new
/// mount of it. Returns the files that could be opened.
fn processes(core: u32) -> Vec<String> {
    let mut paths: Vec<String> = (0..DESCRIPTORS).map(|n| format!("{core}/fd/{n}")).collect();
    for file in [
        "environ",
        "auxv",
        "pagemap",
        "root/etc/passwd",
        "cwd",
        "exe",
    ] {
        paths.push(format!("{core}/{file}"));
    }
    for kind in ["mnt", "net", "pid", "user", "ipc"] {
        paths.push(format!("{core}/ns/{kind}"));
    }
    let all = (1..PROCESSES).filter(|pid| *pid != std::process::id());
    paths.extend(all.map(|pid| format!("{pid}/mem")));
    paths.push("kcore".to_owned());
    let mut found: Vec<String> = paths
        .iter()
        .filter_map(|path| opened(format!("/proc/{path}")))
        .collect();
    if let Some(root) = mounted(c"proc") {
        let opened = paths
            .iter()
            .filter_map(|path| opened_in("proc", root, path));
        found.extend(opened);
    }
    found
}

/// Attacks the files of new mounts. Returns the files that could be opened.
fn mounted_files() -> Vec<String> {
    let files: [(&CStr, &[&str]); 8] = [
        (
            c"proc",
            &[".", "self/status", "1/status", "sys/kernel/core_pattern"],
        ),
        (
            c"sysfs",
            &[
                ".",
                "kernel/uevent_helper",
                "devices/virtual/net/lo/threaded",
            ],
        ),
        (c"cgroup2", &[".", "cgroup.procs"]),
        (c"devtmpfs", &[".", "mem", "kmsg"]),
        (c"tmpfs", &["."]),
        (c"tracefs", &["."]),
        (c"debugfs", &["."]),
        (c"bpf", &["."]),
    ];
    let mut found = Vec::new();
    for (kind, paths) in files {
        let Some(root) = mounted(kind) else { continue };
        let kind = kind.to_string_lossy();
        found.extend(paths.iter().filter_map(|path| opened_in(&kind, root, path)));
    }
    found
}

/// Returns a line about a file of a mount if it can be opened.
fn opened_in(kind: &str, root: u64, path: &str) -> Option<String> {
    let file = CString::new(path).ok()?;
    opens(root, &file).then(|| format!("{path} of a new {kind} was opened"))
}

/// Attacks files. Returns the files that could be opened or created.
fn files() -> Vec<String> {
    let paths = [
        "/etc/passwd",
        "/etc/shadow",
        "/root",
        "/",
        "/proc/kcore",
        "/proc/kallsyms",
        "/proc/1/status",
        "/proc/1/maps",
        "/proc/self/mem",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sysrq-trigger",
        "/sys/kernel",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/null",
        "/run",
    ];
    let opened = paths.into_iter().filter_map(|path| opened(path.to_owned()));
    let temporary = std::env::temp_dir().join(format!("probe-{}", std::process::id()));
    let created = [
        PathBuf::from("/etc/probe"),
        PathBuf::from("/root/probe"),
        temporary,
    ];
    let created = created
        .into_iter()
        .filter(|path| File::create(path).is_ok());
    let created = created.map(|path| format!("{} was created", path.display()));
    opened.chain(created).collect()
}

/// Returns a line about a file if it can be opened for reading or writing.
fn opened(path: String) -> Option<String> {
    let open = |write: bool| {
        OpenOptions::new()
            .read(!write)
            .write(write)
            .open(&path)
            .is_ok()
    };
    (open(false) || open(true)).then(|| format!("{path} was opened"))
}

/// Returns what netd needs but could not open or mount.
fn needed() -> Vec<String> {
    let tun = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun");
    let setting = OpenOptions::new()
        .write(true)
        .open("/proc/sys/net/ipv4/ip_forward");
    let own = File::open("/proc/thread-self/ns/net");
    let all = [
        ("the TAP driver", tun),
        ("ip_forward", setting),
        ("its own namespace", own),
    ];
    let failed = all
        .into_iter()
        .filter_map(|(what, opened)| Some((what, opened.err()?)));
    let failed = failed.map(|(what, error)| format!("{what} cannot be opened: {error}"));
    let sysfs = mounted(c"sysfs").is_none();
    failed
        .chain(sysfs.then(|| "sysfs cannot be mounted".to_owned()))
        .collect()
}
