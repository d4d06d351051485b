//! `grantway-netd`: opens and configures devices for the core, which starts it.
//!
//! Standard input is the link to the core. netd may change the host's network, and has no access to
//! any domain's frames. It passes the descriptors of a device to the core. The core keeps
//! duplicates, gives domains their descriptors, and passes all descriptors to the next netd if this
//! one dies. netd keeps a descriptor of each TAP and closes it last, because the kernel needs a
//! long time to remove a TAP.
//!
//! netd opens the TAP driver and network settings, and cannot access other processes. Its broker,
//! which runs the same program, opens network namespaces, `pcap` files and settings in sysfs, and
//! loads BPF programs for netd.
//!
//! | module | contents |
//! |---|---|
//! | `serve` | tasks of the core: open, adopt, bind, close |
//! | `broker` | opens namespaces and files, and loads BPF programs |
//! | `control` | domains' control calls to devices, on a separate thread |
//! | `device` | one device or socket |
//! | `namespace_id` | the identity of a namespace |
//! | `namespace_watch` | detects the loss of devices' namespaces |
//! | `sockets`, `dial_schedule` | vhost-user sockets; connections to listening monitors |

mod broker;
mod control;
mod device;
mod dial_schedule;
mod namespace_id;
mod namespace_watch;
mod serve;
mod sockets;

use broker::Broker;
use confine::roles::{BROKER, NETD};
use confine::{Rights, confine, own_user};
use netdev::{napi_threads, netns, programs};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let is_broker = std::env::args().nth(1).as_deref() == Some(broker::ARGUMENT);
    let ended = match is_broker {
        true => run_broker(),
        false => run(),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("grantway-netd: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let link = stdin()?;
    let broker = Arc::new(Broker::start().map_err(|e| format!("starting the broker: {e}"))?);
    let user = own_user();
    let missing = confined(&Rights { user, ..NETD })?;
    let opener = Arc::clone(&broker);
    netns::open_by(Box::new(move |path| opener.namespace(path)));
    let loader = Arc::clone(&broker);
    programs::load_by(Box::new(move |kind, code, maps| {
        loader.load(kind, code, maps)
    }));
    let opener = Arc::clone(&broker);
    napi_threads::open_by(Box::new(move |sysfs, ifname| {
        opener.napi_threads(sysfs, ifname)
    }));
    serve::run(link.into(), broker, missing)
}

fn run_broker() -> Result<(), String> {
    let link = stdin()?;
    let _ = rustix::thread::set_name(c"netd-broker");
    confined(&BROKER)?;
    broker::serve(link.into())
}

/// Returns the link on standard input.
fn stdin() -> Result<OwnedFd, String> {
    let link = std::io::stdin().as_fd().try_clone_to_owned();
    link.map_err(|e| format!("the link to the core: {e}"))
}

fn confined(rights: &Rights<'_>) -> Result<Vec<String>, String> {
    confine(rights).map_err(|e| format!("dropping unneeded rights: {e}"))
}
