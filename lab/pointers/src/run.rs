//! The program `pointers`: guest and driver domain as two threads of one process, which access each
//! other's memory through plain pointers. Netfronts, bridge and netbacks are the same as on a
//! machine, so this measures the path without isolation.
//!
//! Its argument is the description of a machine with one guest, in the monitor's format. It prints
//! `{"ready":true}`, answers each line on standard input with both threads' counters, and exits at
//! the end of its input.

use crate::grants::{Numbers, Pointers};
use crate::platform::Threads;
use abi::layout::{fd, info, mailbox};
use abi::machine::{DomainSpec, Machine, Program};
use abi::mailbox::MailboxRequest;
use abi::{DomId, PAGE};
use driver::vifs::VifPort;
use guest::interface::Interface;
use runtime::call::Calls;
use runtime::mailbox::MailboxClient;
use runtime::platform::{ConnectRecord, Doorbell};
use runtime::processes::EventDoorbell;
use runtime::start::{StartError, Started, rejected_error};
use runtime::wait::Waiter;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use shmem::Area;
use shmem::domain_memory::DomainMemory;
use std::cell::RefCell;
use std::convert::Infallible;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, channel};
use vif::netif::BackRecord;

/// Implements the program's `main`.
#[must_use]
pub(crate) fn main() -> ExitCode {
    let run = std::env::args()
        .nth(1)
        .ok_or_else(|| "expected one argument, the description of a machine".to_owned())
        .and_then(|text| run(&text));
    match run {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pointers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(text: &str) -> Result<(), String> {
    shmem::install_fault_handler();
    let machine: Machine = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let of = |program| {
        let mut all = machine.domains.iter().filter(|d| d.program == program);
        match (all.next(), all.next()) {
            (Some(domain), None) if domain.devices.is_empty() => Half::new(domain.clone()),
            _ => Err(io::Error::other(
                "not one driver domain and one guest, without devices",
            )),
        }
    };
    let halves = || {
        let (driver, guest) = (of(Program::Driver)?, of(Program::Guest)?);
        let asked = [driver.asked()?, guest.asked()?];
        let bells = (driver.event.try_clone()?, guest.event.try_clone()?);
        Ok::<_, io::Error>((driver, guest, asked, bells))
    };
    let (driver, guest, mut asked, (drivers, guests)) =
        halves().map_err(|error| error.to_string())?;
    let (to_guest, offers) = channel();
    let (to_driver, answers) = channel();
    let frames = guest.domain_memory.frames;
    thread(move || {
        driver::run_joined(driver.started(guests)?, |ports| {
            join_driver(ports, frames, &to_guest, &answers)
        })
    });
    thread(move || {
        guest::run_joined(guest.started(drivers)?, |interfaces| {
            join_guest(interfaces, &to_driver, &offers)
        })
    });
    // Once both threads have answered, they are connected.
    stat(&mut asked)?;
    print(&json!({ "ready": true }))?;
    let mut line = String::new();
    while io::stdin()
        .read_line(&mut line)
        .is_ok_and(|count| count > 0)
    {
        print(&stat(&mut asked)?)?;
        line.clear();
    }
    Ok(())
}

/// Starts a thread. The process exits when the thread exits.
fn thread(run: impl FnOnce() -> Result<Infallible, StartError> + Send + 'static) {
    std::thread::spawn(move || {
        let Err(error) = run();
        eprintln!("pointers: {error}");
        std::process::exit(1);
    });
}

fn print(value: &Value) -> Result<(), String> {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}")
        .and_then(|()| out.flush())
        .map_err(|error| error.to_string())
}

fn stat([driver, guest]: &mut [MailboxQueries; 2]) -> Result<Value, String> {
    Ok(json!({ "driver": driver.stat()?, "guest": guest.stat()? }))
}

/// Returns the error for two threads that cannot be connected.
fn apart(why: impl ToString) -> StartError {
    rejected_error("joining both threads", io::Error::other(why.to_string()))
}

/// Connects the driver's ports to the guest's interfaces, which have the same number and order.
fn join_driver(
    ports: Vec<&mut VifPort>,
    frames: Area,
    offers: &Sender<BackRecord>,
    answers: &Receiver<ConnectRecord>,
) -> Result<(), StartError> {
    for port in ports {
        offers.send(port.record()).map_err(apart)?;
        let record = answers.recv().map_err(apart)?;
        let pointers = Pointers::new(frames, port.ledger());
        let pages = pointers.clone();
        port.join(&record, Box::new(pointers), |gref| pages.page(gref))
            .map_err(apart)?;
    }
    Ok(())
}

fn join_guest(
    interfaces: &mut [Interface],
    answers: &Sender<ConnectRecord>,
    offers: &Receiver<BackRecord>,
) -> Result<(), StartError> {
    for interface in interfaces {
        let back = offers.recv().map_err(apart)?;
        let record = interface.join(&back, &mut Numbers).map_err(apart)?;
        answers.send(record).map_err(apart)?;
    }
    Ok(())
}

/// Resources of one thread.
struct Half {
    domain: DomainSpec,
    domain_memory: DomainMemory,
    event: OwnedFd,
    epoll: OwnedFd,
}

impl Half {
    fn new(domain: DomainSpec) -> io::Result<Self> {
        let pages = |count: u32| Area::anonymous((count as usize).max(1) * PAGE);
        let domain_memory = DomainMemory {
            info: Area::anonymous(info::bytes(domain.grant_entries, 0))?,
            mailbox: Area::anonymous(mailbox::BYTES)?,
            frames: pages(domain.frames)?,
            // Nothing is ever mapped in the window.
            window: pages(0)?,
            foreign: pages(0)?,
            domain: DomId(0),
            grant_entries: domain.grant_entries,
            config_bytes: 0,
            devices: 0,
            cpus: domain.cpus.iter().fold(0, |set, cpu| set | 1 << (cpu % 64)),
        };
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(
            &epoll,
            &event,
            epoll::EventData::new_u64(fd::EPOLL_EVENT),
            edges,
        )?;
        Ok(Self {
            domain,
            domain_memory,
            event,
            epoll,
        })
    }

    fn asked(&self) -> io::Result<MailboxQueries> {
        Ok(MailboxQueries {
            name: self.domain.name.clone(),
            asker: MailboxClient::new(&self.domain_memory),
            bell: EventDoorbell::from(self.event.try_clone()?),
        })
    }

    /// Prepares the domain in its own thread and pins the thread to its CPUs. `other` is the other
    /// thread's doorbell.
    fn started<C: DeserializeOwned>(self, other: OwnedFd) -> Result<Started<C>, StartError> {
        let mut cpus = CpuSet::new();
        self.domain.cpus.iter().for_each(|&cpu| cpus.set(cpu));
        if !self.domain.cpus.is_empty() {
            sched_setaffinity(None, &cpus).map_err(|why| rejected_error("its CPUs", why))?;
        }
        Ok(Started {
            domain_memory: self.domain_memory,
            platform: Rc::new(Threads::new(other, self.domain_memory.window)),
            calls: Rc::new(RefCell::new(Calls::unavailable())),
            waiter: Waiter::new(self.epoll, self.event, self.domain_memory.info.span()),
            config: serde_json::from_str(&self.domain.config)?,
        })
    }
}

/// Queries a thread through its mailbox, as the monitor does.
struct MailboxQueries {
    name: String,
    asker: MailboxClient,
    bell: EventDoorbell,
}

impl MailboxQueries {
    fn stat(&mut self) -> Result<Value, String> {
        let text = serde_json::to_vec(&MailboxRequest::Stat).map_err(|error| error.to_string())?;
        let reply = self.asker.request(&text, || self.bell.ring());
        let reply = reply.map_err(|error| format!("{}: {error}", self.name))?;
        serde_json::from_slice(&reply).map_err(|error| error.to_string())
    }
}
