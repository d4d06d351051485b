//! Real sessions. Without the privilege to sample everything, the tests sample only processes that
//! they start. If even that is forbidden, they report it and exit.
#![allow(unsafe_code)]

use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};
use testing::{KillOnDrop, TIMEOUT, require, skip};
use xenoprof::attribute::Attribution;
use xenoprof::attribute::Classing;
use xenoprof::attribute::rules::Rules;
use xenoprof::model::{Session, StackFrame, Tier, file};
use xenoprof::record::{DEFAULT_HZ, RecordOptions, run, to_file};
use xenoprof::show::flame;

/// Runs one session at a time, because the kernel adds up the time of all children of a process.
/// Uses a private runtime directory, so that no test finds another user's machine.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    static PLACE: Once = Once::new();
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let place = concat!(env!("CARGO_TARGET_TMPDIR"), "/no-machines");
    // SAFETY: every test of this program waits here before it reads the environment or starts
    // anything. Other code reads the environment through the standard library, which has a lock.
    PLACE.call_once(|| unsafe { std::env::set_var(client::RUNTIME_DIR_VAR, place) });
    one
}

/// Returns a shell command that computes for some tenths of a second and then exits with this
/// status.
fn busy(status: u8) -> Vec<String> {
    let script = format!("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exit {status}");
    ["sh", "-c", &script].map(str::to_owned).into()
}

fn options(command: Vec<String>) -> RecordOptions {
    RecordOptions {
        events: vec!["cpu-clock".to_owned()],
        hz: Some(DEFAULT_HZ),
        // This limit is reached only if a busy machine gives the command no time at all.
        limit: Some(Duration::from_secs(120)),
        named: Vec::new(),
        machine: None,
        kallsyms: None,
        command,
        participants: None,
        own: false,
        stop: None,
    }
}

fn record(command: Vec<String>) -> Option<(Session, Option<ExitStatus>)> {
    match run(&options(command)) {
        Ok(recorded) => Some(recorded),
        Err(error) if figures::exit_code(&error) == 3 => skip(format!("{error:#}")),
        Err(error) => panic!("{error:#}"),
    }
}

#[test]
fn a_command_that_starts_no_domain_is_one_domain() {
    let _alone = alone();
    let Some((session, status)) = record(busy(7)) else {
        return;
    };
    assert_eq!(status.and_then(|status| status.code()), Some(7));
    let index = session.domains.iter().position(|d| d.name == "sh");
    let index = index.expect("the command's domain");
    let exact_ns = session.domains[index].cpu_ns.expect("exact time");
    assert!(exact_ns > 20_000_000, "{exact_ns}");
    assert!(exact_ns <= session.head.ran_ns + session.head.ran_ns / 4);
    let samples: Vec<_> = session
        .samples
        .iter()
        .filter(|sample| session.domain_of(sample) == index)
        .collect();
    let raw = samples.len() as f64 * session.head.period as f64 / exact_ns as f64;
    // If the hypervisor steals time, exact time includes time without samples.
    assert!(
        (0.1..2.0).contains(&raw),
        "samples account for {raw} of the exact time"
    );
    // The shell runs code that has a file, and its samples lie within the session.
    let shell = samples.iter().filter(|sample| {
        let mut frames = session.frames_of(sample.3);
        frames.any(|(_, frame)| {
            session
                .module(frame)
                .is_some_and(|m| m.path.starts_with('/'))
        })
    });
    assert!(shell.count() * 2 > samples.len());
    assert!(samples.iter().all(|sample| sample.0 <= session.head.ran_ns));
}

/// The shell and the C library have no frame pointers and no symbols but exported ones.
#[test]
fn stacks_reach_the_start_of_their_process() {
    let _alone = alone();
    let Some((session, _)) = record(busy(0)) else {
        return;
    };
    let index = session.domains.iter().position(|d| d.name == "sh").unwrap();
    let found = Attribution::new(&session, &Rules::thesis(), Classing::Nearest);
    let part = &found.parts[index];
    assert!(part.in_user >= 20, "{part:?}");
    // The dynamic linker runs before the process's first function.
    assert!(
        part.whole * 100 >= part.in_user * 90,
        "{} of {}",
        part.whole,
        part.in_user
    );
}

/// A domain changes its root to an empty folder, where its program has no path.
#[test]
fn stacks_of_a_process_in_an_empty_root_are_complete() {
    require!(root);
    let _alone = alone();
    let (me, root) = (
        std::env::current_exe().unwrap(),
        tempfile::tempdir().unwrap(),
    );
    let root = format!("{ROOT}={}", root.path().display());
    let args = ["--exact", "computes_in_an_empty_root", "--ignored"];
    let command = ["env", &root, me.to_str().unwrap()].into_iter().chain(args);
    let Some((session, _)) = record(command.map(str::to_owned).collect()) else {
        return;
    };
    let index = session
        .domains
        .iter()
        .position(|d| d.name == "env")
        .unwrap();
    let found = Attribution::new(&session, &Rules::thesis(), Classing::Nearest);
    let part = &found.parts[index];
    assert!(part.in_user >= 20, "{part:?}");
    assert!(part.whole * 100 >= part.in_user * 90, "{part:?}");
}

/// Name of the variable with the new root of [`computes_in_an_empty_root`].
const ROOT: &str = "XENOPROF_TEST_ROOT";

/// The command of [`stacks_of_a_process_in_an_empty_root_are_complete`].
#[test]
#[ignore = "a load for another test"]
fn computes_in_an_empty_root() {
    std::os::unix::fs::chroot(std::env::var_os(ROOT).unwrap()).unwrap();
    reads_the_clock();
}

#[test]
fn functions_of_the_vdso_have_names() {
    let _alone = alone();
    let me = std::env::current_exe().unwrap();
    let args = ["--exact", "reads_the_clock", "--ignored"];
    let command = std::iter::once(me.to_str().unwrap()).chain(args);
    let Some((session, _)) = record(command.map(str::to_owned).collect()) else {
        return;
    };
    let is_vdso = |frame: &&StackFrame| session.module(frame).is_some_and(|m| m.path == "[vdso]");
    let names: Vec<&str> = session
        .frames
        .iter()
        .filter(is_vdso)
        .map(|f| &*f.symbol)
        .collect();
    assert!(
        names.iter().any(|name| name.contains("clock_gettime")),
        "{names:?}"
    );
}

/// The command of [`functions_of_the_vdso_have_names`].
#[test]
#[ignore = "a load for another test"]
fn reads_the_clock() {
    let start = std::time::Instant::now();
    while start.elapsed() < Duration::from_millis(500) {}
}

/// The compiler's map is in its mount namespace, under its number in its PID namespace.
#[test]
fn compiled_code_in_other_namespaces_has_names() {
    require!(root);
    let _alone = alone();
    let me = std::env::current_exe().unwrap();
    let script = "mount -t tmpfs none /tmp && exec \"$0\" --exact compiles_a_loop --ignored";
    let mut unshare = Command::new("unshare");
    unshare.args([
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "sh",
        "-c",
        script,
    ]);
    let started = KillOnDrop(unshare.arg(me).spawn().unwrap());
    let end = Instant::now() + TIMEOUT;
    let children = format!("/proc/{0}/task/{0}/children", started.0.id());
    let pid: u32 = loop {
        let listed = std::fs::read_to_string(&children).unwrap();
        if let Ok(pid) = listed.trim().parse()
            && Path::new(&format!("/proc/{pid}/root/tmp/perf-1.map")).exists()
        {
            break pid;
        }
        assert!(Instant::now() < end, "no map");
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut options = options(Vec::new());
    options.named = vec![format!("compiler={pid}")];
    options.limit = Some(Duration::from_secs(2));
    let session = match run(&options) {
        Ok((session, _)) => session,
        Err(error) if figures::exit_code(&error) == 3 => return skip(format!("{error:#}")),
        Err(error) => panic!("{error:#}"),
    };
    let is_named = |frame: &StackFrame| frame.symbol == "LazyCompile:*loop /srv/app.js:1";
    assert!(session.frames.iter().any(is_named));
    let note = format!("perf map of process {pid}: malformed lines skipped: 1");
    assert!(
        session.head.notes.contains(&note),
        "{:?}",
        session.head.notes
    );
}

/// The program of [`compiled_code_in_other_namespaces_has_names`].
#[test]
#[ignore = "a load for another test"]
fn compiles_a_loop() {
    // dec rdi; jnz -5; ret
    const CODE: [u8; 6] = [0x48, 0xff, 0xcf, 0x75, 0xfb, 0xc3];
    const LEN: usize = 4096;
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, at an address of the kernel's choice, overlaps no other.
    let code = unsafe { libc::mmap(std::ptr::null_mut(), LEN, protection, flags, -1, 0) };
    assert_ne!(code, libc::MAP_FAILED);
    // SAFETY: the mapping is writable and longer than the code, and nothing refers to it yet.
    unsafe { code.cast::<[u8; CODE.len()]>().write(CODE) };
    let map = format!(
        "{:x} 6 LazyCompile:*loop /srv/app.js:1\nnot a line\n",
        code.addr()
    );
    std::fs::write(format!("/tmp/perf-{}.map", std::process::id()), map).unwrap();
    // SAFETY: the code takes one number, in RDI, changes no register that belongs to its caller,
    // and returns.
    let run: extern "C" fn(u64) = unsafe { std::mem::transmute(code) };
    let end = Instant::now() + TIMEOUT;
    while Instant::now() < end {
        run(10_000_000);
    }
}

#[test]
fn the_ledger_counts_every_sample() {
    let _alone = alone();
    let Some((session, _)) = record(busy(0)) else {
        return;
    };
    let whole = |cpu: u32| {
        session
            .losses
            .iter()
            .find(move |l| l.cpu == cpu && l.domain.is_none())
    };
    for &cpu in &session.head.cpus {
        let seen = session.samples.iter().filter(|s| s.1 == cpu).count() as u64;
        let row = whole(cpu).expect("a row for each CPU");
        assert_eq!(row.delivered, seen);
        assert_eq!(row.expected, session.head.ran_ns / session.head.period);
    }
    for row in &session.losses {
        let known = row.delivered + row.lost() + row.steal;
        assert_eq!(row.expected.cast_signed(), known.cast_signed() + row.silent);
    }
}

#[test]
fn kernel_functions_have_names_if_permitted() {
    let _alone = alone();
    let command = [
        "sh",
        "-c",
        "head -c 300000000 /dev/zero | tail -c 1 >/dev/null",
    ];
    let Some((session, _)) = record(command.map(str::to_owned).into()) else {
        return;
    };
    if session.head.tier == Tier::OwnUser {
        return skip("the privilege to sample the kernel");
    }
    let named = |name: &str| session.frames.iter().any(|frame| frame.symbol == name);
    assert!(named("entry_SYSCALL_64_after_hwframe") || named("do_syscall_64"));
    let mut svg = Vec::new();
    flame::picture(&session, &Rules::thesis(), None, &mut svg).unwrap();
    assert!(String::from_utf8(svg).unwrap().contains("do_syscall_64"));
}

#[test]
fn running_processes_can_be_profiled() {
    let _alone = alone();
    let mut child = Command::new("sh")
        .args(["-c", "while :; do :; done"])
        .spawn()
        .unwrap();
    let mut options = options(Vec::new());
    options.named = vec![format!("app={}", child.id())];
    // This time suffices for some samples even if other programs use the CPUs.
    let limit = Duration::from_secs(5);
    options.limit = Some(limit);
    let recorded = run(&options);
    child.kill().unwrap();
    child.wait().unwrap();
    let session = match recorded {
        Ok((session, status)) => {
            assert!(status.is_none());
            session
        }
        Err(error) => {
            assert_eq!(figures::exit_code(&error), 3, "{error:#}");
            return skip(format!("{error:#}"));
        }
    };
    let app = session
        .domains
        .iter()
        .position(|d| d.name == "app")
        .unwrap();
    let found = Attribution::new(&session, &Rules::thesis(), Classing::Nearest);
    assert!(found.parts[app].samples > 10, "{:?}", found.parts[app]);
    assert!(u128::from(session.head.ran_ns) >= limit.as_nanos());
}

#[test]
fn a_session_is_equal_after_reading_its_file() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.prof");
    let recorded = to_file(&options(busy(0)), &path, false);
    if let Err(error) = recorded {
        assert_eq!(figures::exit_code(&error), 3, "{error:#}");
        assert!(!path.exists(), "nothing is left behind");
        return skip(format!("{error:#}"));
    }
    let session = file::read(&path).unwrap();
    assert!(!session.samples.is_empty());
    let again = to_file(&options(busy(0)), &path, false).unwrap_err();
    assert_eq!(figures::exit_code(&again), 2);
    assert_eq!(file::read(&path).unwrap(), session, "the file is as it was");
}

#[test]
fn a_command_that_cannot_start_is_reported() {
    let _alone = alone();
    let error = run(&options(vec!["/no/such/program".to_owned()])).unwrap_err();
    assert!([2, 3].contains(&figures::exit_code(&error)), "{error:#}");
    let mut wrong = options(Vec::new());
    wrong.named = vec!["app".to_owned()];
    let error = run(&wrong).unwrap_err();
    assert_eq!(figures::exit_code(&error), 2);
    let mut wrong = options(Vec::new());
    wrong.events = vec!["cylces".to_owned()];
    let error = run(&wrong).unwrap_err();
    assert_eq!(figures::exit_code(&error), 2);
    assert!(error.to_string().contains("cycles"), "{error:#}");
}
