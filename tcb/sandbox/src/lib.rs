//! Starts of programs as confined domains, and changes of their grant windows.
//!
//! A **domain** can access its own memory, its regions INFO and FRAMES, and the pages that are
//! mapped in its grant window. Its **agent** shares its address space, and changes only that
//! window, as requested through [`Agent`]. Nothing else can change the window: the domain's filter
//! ([`system_calls`]) permits no call that changes a mapping, creates another process or another
//! mapping of a page, or affects the agent. Both processes die with the monitor.
//!
//! | attack that is possible without the filter | further defences |
//! |---|---|
//! | open another domain's memory | only the agent's table contains its descriptors; separate user,
//! empty file system, not dumpable |
//! | replace the agent's code or arguments | they are sealed, and opened read-only |
//! | make a read-only page writable | its descriptor is opened read-only |
//! | keep access to a page by `mremap(old_size = 0)`, a fork, `vmsplice`, `io_uring`, an AF_XDP
//! socket | **none**: only the filter prevents these | | prevent an unmapping by sealing the slot
//! or by splitting mappings up to the limit | none; the unmapping fails, and the monitor kills the
//! domain |
//! | outlive the monitor | the agent is the first process of the domain's PID namespace |
//!
//! `tests/attacks.rs` tries each of these from inside a domain.
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
pub use notify::{NotifyListener, PendingCall};
pub use policy::{Profile, system_calls};
pub use process::{cpu_ns, thread_cpu_ns, user_of};
pub use runs::{DeviceMap, PageMap};
pub use sandboxed::Sandboxed;
pub use spawn::{check, spawn};
pub use spec::{SandboxSpec, SpawnError};
