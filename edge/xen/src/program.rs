//! Start of the driver from the command line.
//!
//! The process first does everything that needs privileges: it opens Xen's devices, the journal,
//! the NICs and the control socket. Then it drops its rights permanently, and a filter allows only
//! the system calls that it needs.

use crate::calls::RIGHTS;
use crate::control::{self, ControlServer};
use crate::dev::{Evtchn, Gntdev};
use crate::devices::XenDevices;
use crate::guests::XenGuests;
use crate::hypercall_counters::HypercallCounters;
use crate::interfaces::Interfaces;
use crate::journals::Journals;
use crate::platform::Xen;
use crate::store::{Store, XenBus};
use crate::waiter::XenWaiter;
use abi::layout::{info, mailbox};
use abi::machine::{DomainSpec, Program};
use abi::{DomId, PAGE};
use config::NicSection;
use config::domain::{DriverConfig, GrantMode};
use confine::{Rights, confine, own_user};
use runtime::call::Calls;
use runtime::start::{StartError, Started};
use shmem::Area;
use shmem::domain_memory::DomainMemory;
use std::cell::RefCell;
use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

const USAGE: &str = "\
usage: grantway-xen CONFIG.toml SOCKET

Serves every network interface whose backend Xen's toolstack has assigned to this domain, until a
signal. Must be started by root. SOCKET is the path of its control socket; the journal is created
beside it. `grantway xen CONFIG.toml` chooses both paths.

Example: grantway-xen /etc/grantway/xen.toml /run/grantway/grantway.sock";

/// Exit status of a process that has panicked.
pub const PANICKED: i32 = 70;

/// Reason why the program could not start.
#[derive(Debug, thiserror::Error)]
enum XenStartError {
    #[error("{0}")]
    Text(String),
    #[error(transparent)]
    Start(#[from] StartError),
}

impl From<io::Error> for XenStartError {
    fn from(error: io::Error) -> Self {
        Self::Text(error.to_string())
    }
}

/// Implements the program's `main`.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    if matches!(arguments.as_slice(), [help] if help == "--help" || help == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let [config, socket] = arguments.as_slice() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    end_on_panic();
    shmem::install_fault_handler();
    match run(Path::new(config), Path::new(socket)) {
        Ok(never) => match never {},
        Err(error) => {
            eprintln!("grantway-xen: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Makes every later panic in any thread exit the process, so that the next process takes over.
pub fn end_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::exit(PANICKED);
    }));
}

fn run(config: &Path, socket: &Path) -> Result<Infallible, XenStartError> {
    let (name, domain) = configured(config)?;
    let mut driver: DriverConfig = serde_json::from_str(&domain.config)
        .map_err(|error| XenStartError::Text(error.to_string()))?;
    if driver.adapts {
        // No spin time is set, and none can be learned: only Xen knows which CPU runs which domain,
        // and a process cannot yield its CPU to another domain.
        driver.driver.spin_us = Some(0);
        (driver.adapts, driver.yields) = (false, false);
    }
    let listener = control::listen(socket)?;
    let user = rustix::process::getuid().as_raw();

    let bus = XenBus::open()?;
    let store = bus.as_fd().try_clone_to_owned()?;
    let counters = Arc::new(HypercallCounters::default());
    let evtchn = Rc::new(Evtchn::open(Arc::clone(&counters))?);
    let gntdev = Gntdev::open(Arc::clone(&counters))?;
    let journals = Journals::open(&beside(socket))?;
    let memory = home(&domain)?;
    let devices = XenDevices::open(&domain, memory.frames);
    let devices = devices.map_err(|why| XenStartError::Text(why.to_string()))?;
    give_up_rights()?;

    let waits_for = devices.descriptors()?;
    let interfaces = Interfaces::new(Store::new(bus)).map_err(io::Error::other)?;
    let xen = Xen::new(
        interfaces,
        journals,
        gntdev,
        Rc::clone(&evtchn),
        Arc::clone(&counters),
        devices,
        &driver,
    )?;
    let xen = Rc::new(xen);
    let info = memory.info.span();
    let nics: Vec<BorrowedFd<'_>> = waits_for.iter().map(AsFd::as_fd).collect();
    let (waiter, doorbell) = XenWaiter::new(Rc::clone(&xen), evtchn, store, &nics, info)?;
    let server = ControlServer {
        name,
        user,
        memory,
        doorbell,
        counters,
    };
    server.start(listener)?;
    let platform: Rc<Xen> = Rc::clone(&xen);
    let started = Started {
        domain_memory: memory,
        platform,
        calls: Rc::new(RefCell::new(Calls::unavailable())),
        waiter,
        config: driver,
    };
    Ok(driver::run_with(started, |_| Box::new(XenGuests(xen)))?)
}

/// Returns the instance's name and the driver domain of a configuration.
fn configured(path: &Path) -> Result<(String, DomainSpec), XenStartError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| XenStartError::Text(format!("{}: {error}", path.display())))?;
    let wrong = |problems: config::Problems| XenStartError::Text(problems.to_string());
    let config = config::parse(&path.to_string_lossy(), &text).map_err(wrong)?;
    let refuse = |why: &str| Err(XenStartError::Text(format!("{}: {why}", path.display())));
    if !config.guests.is_empty() {
        return refuse("[[guest]]: on Xen the toolstack creates guests; remove this section");
    }
    if config.driver.workers > 1 {
        return refuse("[driver] workers: on Xen only 1 is supported");
    }
    if config.nics.iter().any(|nic| nic.dedicated_queues() > 0) {
        return refuse("[[nic]] queues: on Xen only \"shared\" is supported");
    }
    if config.nics.iter().any(NicSection::has_device_domain) {
        return refuse("[[nic]] device: on Xen only \"driver\" is supported");
    }
    let served = [GrantMode::Copy, GrantMode::Map, GrantMode::Counted];
    if !served.contains(&config.driver.grants) {
        return refuse("[driver] grants: on Xen only \"copy\" and \"map\" are supported");
    }
    let machine = config.machine().map_err(wrong)?;
    let mut domains = machine.domains.into_iter();
    let driver = domains.find(|domain| domain.program == Program::Driver);
    match driver {
        Some(driver) => Ok((machine.name, driver)),
        None => refuse("the configuration has no driver domain"),
    }
}

/// Returns the journal's path.
fn beside(socket: &Path) -> PathBuf {
    socket.with_extension("journal")
}

/// Allocates memory in the driver's layout.
fn home(domain: &DomainSpec) -> io::Result<DomainMemory> {
    Ok(DomainMemory {
        info: Area::anonymous(info::bytes(0, domain.config.len()))?,
        mailbox: Area::anonymous(mailbox::BYTES)?,
        frames: Area::anonymous((domain.frames as usize).max(1) * PAGE)?,
        window: Area::anonymous(PAGE)?,
        foreign: Area::anonymous(PAGE)?,
        domain: DomId(0),
        grant_entries: 0,
        config_bytes: domain.config.len(),
        devices: domain.devices.len() as u32,
        cpus: 0,
    })
}

/// Switches to a user that no other process has, and keeps only [`RIGHTS`]. The process is still
/// single-threaded.
fn give_up_rights() -> Result<(), XenStartError> {
    if !rustix::process::getuid().is_root() {
        return Err(XenStartError::Text(
            "only root can start the driver domain on Xen".to_owned(),
        ));
    }
    let user = own_user();
    let missing = confine(&Rights { user, ..RIGHTS })?;
    match missing.first() {
        None => Ok(()),
        Some(missing) => Err(XenStartError::Text(format!(
            "not available on this system: {missing}"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_unsupported_on_xen_are_rejected() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let parsed = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            configured(file.path())
        };
        let nic = "[[nic]]\nname = \"wire\"\nkind = \"sim\"\naddresses = [\"10.0.0.1/24\"]\n";
        for (text, key) in [
            (format!("{nic}queues = \"vmq\"\n"), "[[nic]] queues"),
            ("[driver]\nworkers = 2\n".to_owned(), "[driver] workers"),
            (
                "[driver]\ngrants = \"unchecked\"\n".to_owned(),
                "[driver] grants",
            ),
            (
                "[[guest]]\nname = \"g\"\n[[guest.vif]]\nendpoint = \"echo\"\n".to_owned(),
                "[[guest]]",
            ),
        ] {
            let refused = parsed(&text).map(|(name, _)| name).unwrap_err().to_string();
            assert!(refused.contains(&format!(": {key}: on Xen")), "{refused}");
        }
        assert!(parsed(nic).is_ok());
    }
}
