//! The steps of a start: changes to the new process before its first instruction. [`crate::spawn`]
//! has the order.

use crate::agent::{ARGS_PAGES, Agent};
use crate::child::{self, ChildPlan, REPORT_BYTES, StartStep};
use crate::elf::ElfProgram;
use crate::namespaces;
use crate::notify::NotifyListener;
use crate::policy::{self, HEAP_BYTES, Profile};
use crate::sandboxed::Sandboxed;
use crate::spec::{SandboxSpec, SpawnError, StepContext};
use crate::stub::{self, ARGS, RECORD_BYTES, StubRecord};
use crate::tracee::{self, Stop};
use abi::PAGE;
use abi::core::CPU_WORDS;
use abi::layout::{FOREIGN, FOREIGN_PAGES, FRAMES, INFO, MAILBOX, STUB, WINDOW, mailbox};
use libc::{c_long, sock_filter, user_regs_struct};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_send_signal};
use shmem::Region;
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The limit on a domain's descriptor numbers, above its last doorbell.
const DOMAIN_NOFILE: u64 = 2048;
const CPU_SET_BYTES: u64 = CPU_WORDS as u64 * 8;
const MSEAL: c_long = 462;

/// Offsets of data to which injected system calls refer by pointers. During the start, the data are
/// in the argument pages, which the monitor can write and the process can read.
mod args_offset {
    pub(super) const CAPABILITIES: usize = 0;
    pub(super) const LIMIT: usize = 64;
    pub(super) const NAME: usize = 128;
    pub(super) const CPUS: usize = 256;
    pub(super) const FILTER: usize = 512;
    /// The records of the calls, which have a separate page.
    pub(super) const LIST: usize = abi::PAGE;
}

/// A system call to inject into a process, and its purpose for error messages.
struct InjectedCall {
    what: &'static str,
    record: StubRecord,
}

impl InjectedCall {
    fn new(what: &'static str, nr: c_long, args: &[u64]) -> Self {
        let mut all = [0; 6];
        for (to, from) in all.iter_mut().zip(args) {
            *to = *from;
        }
        let [first, ..] = all;
        // All injected calls return 0, except for `mmap`, which returns the address.
        let expected = if nr == libc::SYS_mmap {
            first as i64
        } else {
            0
        };
        let record = StubRecord {
            nr,
            args: all,
            expected,
        };
        Self { what, record }
    }
}

/// A process that is being started.
pub(crate) struct StartingProcess {
    pid: i32,
    processes: KillOnDrop,
    /// The registers at the stop in `exec`.
    entry: user_regs_struct,
    args: Region,
    /// Whether the process is in separate namespaces.
    namespaces: bool,
    missing: Vec<&'static str>,
}

/// Processes that are killed when this value is dropped, unless they were removed.
struct KillOnDrop {
    child: Option<OwnedFd>,
    /// The domain's process, while it is traced.
    traced: Option<i32>,
}

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let Some(child) = self.child.take() else {
            return;
        };
        let _ = pidfd_send_signal(&child, Signal::KILL);
        if let Some(pid) = self.traced.and_then(Pid::from_raw) {
            // A child exits only after all processes of its PID namespace, and a traced process
            // only after its tracer has reaped it.
            let _ = kill_process(pid, Signal::KILL);
            while tracee::wait(pid.as_raw_nonzero().get())
                .is_ok_and(|stop| !matches!(stop, Stop::Ended(_)))
            {}
        }
        // If the process does not exit, the monitor cannot do more.
        let _ = crate::sandboxed::kill_and_reap(&child);
    }
}

/// The forked process that becomes the domain.
pub(crate) struct ForkedDomain {
    pid: i32,
    pidfd: OwnedFd,
}

impl StartingProcess {
    /// Executes step 1. When this returns, the program is traced and stopped before its first
    /// instruction.
    pub(crate) fn exec(spec: &SandboxSpec<'_>, file: &File) -> Result<Self, SpawnError> {
        let what = "preparing descriptors";
        let null = File::options().read(true).open("/dev/null").during(what)?;
        let stub = stub::page().during("creating the agent's code")?;
        let args = Region::create("agent-args", ARGS_PAGES * PAGE).during(what)?;
        let args_readonly = args.readonly_fd().during(what)?;
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .during(what)?;
        let text = |text: &str| {
            CString::new(text).map_err(|_| SpawnError::Spec("a name or argument contains a NUL"))
        };
        let mut words = vec![text(spec.name)?];
        for arg in spec.args {
            words.push(text(arg)?);
        }
        let mut argv: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
        argv.push(std::ptr::null());
        let console = spec.console.as_raw_fd();
        let plan = ChildPlan {
            link: theirs.as_raw_fd(),
            other_end: ours.as_raw_fd(),
            program: file.as_raw_fd(),
            argv: &argv,
            fds: [
                null.as_raw_fd(),
                console,
                console,
                spec.event.as_raw_fd(),
                spec.epoll.as_raw_fd(),
                stub.as_raw_fd(),
                args_readonly.as_raw_fd(),
                spec.info.fd().as_raw_fd(),
                spec.frames.fd().as_raw_fd(),
                spec.mailbox.as_raw_fd(),
            ],
            cpu: rustix::thread::sched_getcpu(),
        };
        let mut missing = Vec::new();
        let (pid, confined) = namespaces::fork(&plan, &mut missing).during("creating a process")?;
        let child = Pid::from_raw(pid).ok_or(SpawnError::Spec("no process id"))?;
        // The child is not reaped, so its number cannot belong to another process.
        let pidfd = rustix::process::pidfd_open(child, PidfdFlags::empty()).during("pidfd_open")?;
        drop(theirs);
        // SAFETY: all fields are integers, for which zero is valid.
        let entry: user_regs_struct = unsafe { std::mem::zeroed() };
        let processes = KillOnDrop {
            child: Some(pidfd),
            traced: None,
        };
        let mut start = Self {
            pid,
            processes,
            entry,
            args,
            namespaces: confined,
            missing,
        };
        tracee::seize(pid).during("tracing the new process")?;
        rustix::net::send(&ours, b"!", rustix::net::SendFlags::NOSIGNAL).during("starting")?;
        let stopped = tracee::wait_for(pid, Stop::Event(libc::PTRACE_EVENT_EXEC));
        start.read_report(&ours, stopped)?;
        start.entry = tracee::registers(pid).during("reading registers")?;
        start.entry.rax = 0;
        Ok(start)
    }

    /// Reads the process's report on the steps before `exec`.
    fn read_report(&mut self, link: &OwnedFd, stopped: io::Result<()>) -> Result<(), SpawnError> {
        let mut report = [0; REPORT_BYTES];
        while let Ok((REPORT_BYTES, _)) = rustix::net::recv(link, &mut report, RecvFlags::DONTWAIT)
        {
            let [step, has_files, _, _, errno @ ..] = report;
            let errno = i32::from_ne_bytes(errno);
            if errno != 0 {
                let error = io::Error::from_raw_os_error(errno);
                return Err(SpawnError::Step {
                    what: StartStep::text(step),
                    error,
                });
            }
            if has_files != 0 {
                self.missing.push("an empty file system");
            }
        }
        stopped.during("executing the program")
    }

    /// Injects system calls into a process until one fails. The error contains the number of
    /// completed calls.
    fn inject(&self, pid: i32, calls: &[InjectedCall]) -> Result<usize, (usize, SpawnError)> {
        for (at, call) in calls.iter().enumerate() {
            call.record
                .write(self.args.span(), args_offset::LIST + at * RECORD_BYTES);
        }
        let at = ARGS + args_offset::LIST as u64;
        let ran = tracee::list(pid, &self.entry, at, calls.len());
        let failed = |at: usize, error| {
            let what = calls.get(at).map_or("starting", |call| call.what);
            (at, SpawnError::Step { what, error })
        };
        match ran {
            Ok((done, _)) if done >= calls.len() => Ok(done),
            Ok((done, raw)) => {
                let error = tracee::result(raw).err();
                Err(failed(done, error.unwrap_or(io::ErrorKind::Other.into())))
            }
            Err(error) => Err(failed(0, error)),
        }
    }

    /// Injects system calls, all of which must succeed.
    fn inject_all(&self, pid: i32, calls: &[InjectedCall]) -> Result<(), SpawnError> {
        self.inject(pid, calls)
            .map(drop)
            .map_err(|(_, error)| error)
    }

    /// Executes step 2.
    pub(crate) fn lay_out(&mut self, spec: &SandboxSpec<'_>) -> Result<(), SpawnError> {
        // The flags include MAP_FIXED_NOREPLACE, because the kernel chose the addresses of program
        // and stack.
        const SHARED: u64 = (libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE) as u64;
        const POPULATE: u64 = libc::MAP_POPULATE as u64;
        const READ: u64 = libc::PROT_READ as u64;
        const BOTH: u64 = READ | libc::PROT_WRITE as u64;
        const EXEC: u64 = libc::PROT_EXEC as u64;
        self.map_stub([
            STUB as u64,
            PAGE as u64,
            READ | EXEC,
            SHARED | POPULATE,
            child::STUB,
            0,
        ])?;
        let args_bytes = (ARGS_PAGES * PAGE) as u64;
        let info_bytes = spec.info.span().len() as u64;
        let frames_bytes = spec.frames.span().len() as u64;
        let regions = "mapping the domain's regions";
        let args = [ARGS, args_bytes, READ, SHARED | POPULATE, child::ARGS, 0];
        let info = [INFO as u64, info_bytes, BOTH, SHARED, child::INFO, 0];
        let frames = FRAMES as u64;
        let frames = [frames, frames_bytes, BOTH, SHARED, child::FRAMES, 0];
        let [mail, mail_bytes] = [MAILBOX as u64, mailbox::BYTES as u64];
        let mailbox = [mail, mail_bytes, BOTH, SHARED, child::MAILBOX, 0];
        // The argument pages are mapped first, because they contain the records of all other calls.
        tracee::call(self.pid, &self.entry, libc::SYS_mmap, &args).during(regions)?;
        let mut calls = vec![
            InjectedCall::new(regions, libc::SYS_mmap, &info),
            InjectedCall::new(regions, libc::SYS_mmap, &frames),
            InjectedCall::new(regions, libc::SYS_mmap, &mailbox),
        ];
        let reserve = libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_NORESERVE
            | libc::MAP_FIXED_NOREPLACE;
        let foreign = (spec.profile == Profile::Shim).then_some(FOREIGN_PAGES);
        let what = "reserving addresses for other memory";
        for (start, pages) in [(WINDOW, spec.window_slots), (FOREIGN, foreign.unwrap_or(0))] {
            let bytes = u64::from(pages) * PAGE as u64;
            let none = [libc::PROT_NONE as u64, reserve as u64, u64::MAX, 0];
            let [protection, flags, no_file, offset] = none;
            let args = [start as u64, bytes, protection, flags, no_file, offset];
            if pages > 0 {
                calls.push(InjectedCall::new(what, libc::SYS_mmap, &args));
            }
        }
        let surplus = [child::STUB, u32::MAX.into(), 0];
        let what = "closing descriptors";
        calls.push(InjectedCall::new(what, libc::SYS_close_range, &surplus));
        self.inject_all(self.pid, &calls)?;
        let seal = [
            [STUB as u64, PAGE as u64 + args_bytes, 0],
            [INFO as u64, info_bytes, 0],
            [FRAMES as u64, frames_bytes, 0],
            [mail, mail_bytes, 0],
        ];
        let seal = seal
            .each_ref()
            .map(|args| InjectedCall::new("mseal", MSEAL, args));
        if self.inject(self.pid, &seal).is_err() {
            self.missing.push("sealed mappings (mseal, Linux 6.10)");
        }
        Ok(())
    }

    /// Makes the first call, which maps the stub. The code for this call temporarily replaces the
    /// program's first instructions.
    fn map_stub(&self, call: [u64; 6]) -> Result<(), SpawnError> {
        const SYSCALL_INT3: u64 = 0xcc_050f;
        let what = "mapping the agent's code";
        let at = self.entry.rip;
        let patch = |old: u64| (old & !0xff_ffff) | SYSCALL_INT3;
        let old = tracee::swap_text(self.pid, at, patch).during(what)?;
        // The process is stopped inside `exec`, which has not written its result to rax yet. So the
        // process first leaves `exec` and stops at the breakpoint.
        let mut out = self.entry;
        out.rip = at + 2;
        tracee::set_registers(self.pid, out).during(what)?;
        tracee::resume(self.pid).during(what)?;
        tracee::finish(self.pid).during(what)?;
        tracee::begin(self.pid, &self.entry, at, libc::SYS_mmap, &call).during(what)?;
        let mapped = tracee::finish(self.pid).during(what)?;
        tracee::swap_text(self.pid, at, |_| old).during(what)?;
        tracee::result(mapped).during(what).map(drop)
    }

    /// Executes step 3.
    pub(crate) fn fork(&mut self) -> Result<ForkedDomain, SpawnError> {
        let what = "forking the domain";
        let flags = (libc::CLONE_VM | libc::SIGCHLD) as u64;
        tracee::begin(
            self.pid,
            &self.entry,
            stub::single_call(),
            libc::SYS_clone,
            &[flags],
        )
        .during(what)?;
        tracee::wait_for(self.pid, Stop::Event(libc::PTRACE_EVENT_FORK)).during(what)?;
        let pid = tracee::event_message(self.pid).during(what)? as i32;
        self.processes.traced = Some(pid);
        tracee::wait_for(pid, Stop::Event(libc::PTRACE_EVENT_STOP)).during(what)?;
        tracee::resume(self.pid).during(what)?;
        tracee::result(tracee::finish(self.pid).during(what)?).during(what)?;
        let domain = Pid::from_raw(pid).ok_or(SpawnError::Spec("no process id"))?;
        let pidfd =
            rustix::process::pidfd_open(domain, PidfdFlags::empty()).during("pidfd_open")?;
        Ok(ForkedDomain { pid, pidfd })
    }

    /// Writes data for a system call into the argument pages, and returns their address.
    fn put(&self, offset: usize, bytes: &[u8]) -> Result<u64, SpawnError> {
        let args_offset = self.args.span().sub(offset, bytes.len());
        let args_offset = args_offset.ok_or(SpawnError::Spec("a name is too long"))?;
        args_offset
            .put(bytes)
            .map_err(io::Error::other)
            .during("writing arguments")?;
        Ok(ARGS + offset as u64)
    }

    /// Executes step 4.
    pub(crate) fn confine_domain(
        &mut self,
        domain: &ForkedDomain,
        spec: &SandboxSpec<'_>,
        program: &ElfProgram,
    ) -> Result<NotifyListener, SpawnError> {
        let id = crate::user_of(domain.pid).into();
        // The order matters, because each call needs rights that a later one drops.
        let what = "changing the user";
        let own_user = [
            InjectedCall::new(what, libc::SYS_setgroups, &[0, 0]),
            InjectedCall::new(what, libc::SYS_setresgid, &[id, id, id]),
            InjectedCall::new(what, libc::SYS_setresuid, &[id, id, id]),
        ];
        if self.inject(domain.pid, &own_user).is_err() {
            self.missing.push("a separate user id");
        }
        let heap = data_bytes(domain.pid).during("reading the program's size")? + HEAP_BYTES;
        for (resource, limit) in [
            (libc::RLIMIT_NOFILE, DOMAIN_NOFILE),
            (libc::RLIMIT_DATA, heap),
        ] {
            let limit = [limit.to_ne_bytes(), limit.to_ne_bytes()].concat();
            let args = &[0, resource.into(), self.put(args_offset::LIMIT, &limit)?, 0];
            let what = "setting limits";
            // The call fails if the hard limit is lower, which is acceptable.
            let _ = self.inject(
                domain.pid,
                &[InjectedCall::new(what, libc::SYS_prlimit64, args)],
            );
        }
        let name = self.put_name(spec.name)?;
        let capabilities = self.no_capabilities()?;
        let cpus = self.put(args_offset::CPUS, &cpu_set(spec.cpus))?;
        // If the monitor has no rights over the process, it can take the listeners only of a
        // dumpable process.
        let dumpable = u64::from(!self.namespaces);
        let prctl = |args: &[u64]| InjectedCall::new("prctl", libc::SYS_prctl, args);
        let affinity = &[0, CPU_SET_BYTES, cpus];
        let last = [
            prctl(&[libc::PR_SET_NAME as u64, name]),
            // Without a PID namespace, this kills the domain when its agent dies.
            prctl(&[libc::PR_SET_PDEATHSIG as u64, libc::SIGKILL as u64]),
            prctl(&[libc::PR_SET_DUMPABLE as u64, dumpable]),
            InjectedCall::new("dropping capabilities", libc::SYS_capset, &capabilities),
            InjectedCall::new("setting the CPUs", libc::SYS_sched_setaffinity, affinity),
        ];
        self.inject_all(domain.pid, &last)?;
        let entry = self.entry;
        let filter = policy::domain_filter(spec.profile, program.relro(entry.rip));
        let (listener, number) = self.install_filter(domain.pid, &domain.pidfd, &filter)?;
        tracee::call(domain.pid, &entry, libc::SYS_close, &[number])
            .during("closing the listener")?;
        Ok(NotifyListener::new(listener).0)
    }

    /// Executes steps 5 and 6.
    pub(crate) fn confine_agent(
        mut self,
        domain: ForkedDomain,
        attach: NotifyListener,
        spec: &SandboxSpec<'_>,
    ) -> Result<Sandboxed, SpawnError> {
        // The agent runs on the CPU of its caller, which may be any CPU.
        let all_cpus = self.put(args_offset::CPUS, &cpu_set(&[0; CPU_WORDS]))?;
        let name = self.put_name(&format!("agent-{}", spec.name))?;
        let capabilities = self.no_capabilities()?;
        let calls = [
            InjectedCall::new(
                "closing descriptors",
                libc::SYS_close_range,
                &[0, u32::MAX.into(), 0],
            ),
            InjectedCall::new(
                "naming the agent",
                libc::SYS_prctl,
                &[libc::PR_SET_NAME as u64, name],
            ),
            InjectedCall::new("dropping capabilities", libc::SYS_capset, &capabilities),
            InjectedCall::new(
                "freeing the agent's CPUs",
                libc::SYS_sched_setaffinity,
                &[0, CPU_SET_BYTES, all_cpus],
            ),
        ];
        self.inject_all(self.pid, &calls)?;
        let filter = policy::agent_filter(spec.profile, spec.window_slots);
        let pidfd = self
            .processes
            .child
            .as_ref()
            .ok_or(SpawnError::Spec("no process"))?;
        let pidfd = pidfd.try_clone().during("copying a descriptor")?;
        let (listener, number) = self.install_filter(self.pid, &pidfd, &filter)?;
        let mut registers = self.entry;
        registers.rip = stub::LOOP;
        registers.rsp = 0;
        tracee::set_registers(self.pid, registers).during("starting the agent")?;
        tracee::detach(self.pid).during("starting the agent")?;
        let (listener, synchronous) = NotifyListener::new(listener);
        if !synchronous {
            self.missing.push("synchronous wake-ups (Linux 6.6)");
        }
        let mut agent = Agent::start(listener, self.args, self.pid, spec.window_slots)?;
        // An agent with a copy of the listener would not notice that the monitor has exited.
        agent.close(number as u32)?;
        tracee::set_registers(domain.pid, self.entry).during("starting the domain")?;
        tracee::detach(domain.pid).during("starting the domain")?;
        self.processes.traced = None;
        self.missing.dedup();
        Ok(Sandboxed {
            pid: domain.pid,
            agent_pid: self.pid,
            pidfd: domain.pidfd,
            agent,
            attach,
            missing: self.missing,
            agent_pidfd: self.processes.child.take(),
        })
    }

    /// Writes a process name into the argument pages, truncated to the 15 bytes that the kernel
    /// stores.
    fn put_name(&self, name: &str) -> Result<u64, SpawnError> {
        let mut bytes = [0; 16];
        for (to, from) in bytes.iter_mut().take(15).zip(name.bytes()) {
            *to = from;
        }
        self.put(args_offset::NAME, &bytes)
    }

    /// Returns the arguments of a `capset` that drops all capabilities.
    fn no_capabilities(&self) -> Result<[u64; 2], SpawnError> {
        const VERSION_3: u32 = 0x2008_0522;
        let mut bytes = [0; 32];
        let (version, _) = bytes.split_at_mut(4);
        version.copy_from_slice(&VERSION_3.to_ne_bytes());
        let header = self.put(args_offset::CAPABILITIES, &bytes)?;
        Ok([header, header + 8])
    }

    /// Installs a filter with a listener in a stopped process, and takes the listener. Returns the
    /// listener and its number in the process, where it is still open.
    fn install_filter(
        &mut self,
        pid: i32,
        pidfd: &OwnedFd,
        filter: &[sock_filter],
    ) -> Result<(OwnedFd, u64), SpawnError> {
        const HEADER_BYTES: usize = 16;
        let what = "installing a filter";
        let mut bytes = (filter.len() as u64).to_ne_bytes().to_vec();
        bytes.extend((ARGS + (args_offset::FILTER + HEADER_BYTES) as u64).to_ne_bytes());
        for instruction in filter {
            let sock_filter { code, jt, jf, k } = *instruction;
            bytes.extend(code.to_ne_bytes());
            bytes.extend([jt, jf]);
            bytes.extend(k.to_ne_bytes());
        }
        let at = self.put(args_offset::FILTER, &bytes)?;
        let mode = u64::from(libc::SECCOMP_SET_MODE_FILTER);
        let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
        // With this flag, only a fatal signal interrupts a call that the monitor has received.
        let killable = listener | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
        let entry = self.entry;
        let install = |flags| tracee::call(pid, &entry, libc::SYS_seccomp, &[mode, flags, at]);
        let number = match install(killable) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                self.missing
                    .push("calls that only death interrupts (Linux 5.19)");
                install(listener)
            }
            other => other,
        };
        let number = number.during(what)?;
        let taken = rustix::process::pidfd_getfd(pidfd, number as i32, PidfdGetfdFlags::empty());
        Ok((taken.during("taking a listener")?, number))
    }
}

/// Returns a CPU set in the kernel's format. An empty set means all CPUs.
fn cpu_set(cpus: &[u64; CPU_WORDS]) -> Vec<u8> {
    let inject_all = *cpus == [0; CPU_WORDS];
    let set = if inject_all {
        [u64::MAX; CPU_WORDS]
    } else {
        *cpus
    };
    set.map(u64::to_ne_bytes).concat()
}

/// Returns the number of bytes of private writable memory of a process, as RLIMIT_DATA counts them.
fn data_bytes(pid: i32) -> io::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let field = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let kib = field.and_then(|field| field.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib << 10)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}
