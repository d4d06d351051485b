//! Starts a program as a confined domain, and maps pages into it and takes them away again.
//!
//! Who may touch what: a **domain** touches its own memory, its regions INFO and FRAMES, and the
//! pages that are in its grant window now. Its **agent** shares its address space and changes only
//! that window, and only as the holder of [`Agent`] says. Nothing else can: the domain's filter
//! ([`system_calls`]) has no call that changes a mapping, makes another process or another view
//! of a page, or reaches the agent. Both processes end when the monitor does.
//!
//! | what could be done without the filter | what stops it besides |
//! |---|---|
//! | open another domain's memory | its descriptors are in the agent's table only; own user, empty file system, not dumpable |
//! | replace the agent's code or arguments | they are sealed, and opened read-only |
//! | make a read-only page writable | its descriptor is opened read-only |
//! | keep a page by `mremap(old_size = 0)`, a fork, `vmsplice`, `io_uring`, an AF_XDP socket | **nothing**: these stand and fall with the filter |
//! | keep a page from being taken away by sealing its slot or splitting mappings without end | nothing; taking away then fails, and the domain is killed |
//! | outlive the monitor | the agent is the first process of the domain's PID namespace |
//!
//! `tests/attacks.rs` tries each of them from inside a domain.
#![allow(unsafe_code)]

mod agent;
mod bpf;
mod child;
mod elf;
mod mappings;
mod namespaces;
mod notify;
mod policy;
mod process;
mod runs;
mod sandboxed;
mod spawn;
mod spec;
mod start;
mod stub;
mod tracee;

pub use agent::{Agent, AgentError};
pub use mappings::mappings_max;
pub use notify::{Call, Listener};
pub use policy::{Profile, system_calls};
pub use process::{cpu_ns, thread_cpu_ns, user_of};
pub use runs::{DeviceMap, PageMap};
pub use sandboxed::Sandboxed;
pub use spawn::{check, spawn};
pub use spec::{SpawnError, Spec};
