//! From a configuration to ports.
//!
//! The driver's own frames hold, in this order: each NIC's pool and its buffers for whole
//! aggregates, where the grant mechanism is `copy`, each guest's staging pages, and what frames of
//! guests wait in.

use crate::dedicated::queue::DedicatedQueue;
use crate::devices;
use crate::firewall::{self, Firewall};
use crate::guests::{Attached, Fixed, Guests, guest_port};
use crate::linear::Linear;
use crate::nics::NicPort;
use crate::numbered::Numbered;
use crate::ports::{Port, Ports};
use crate::queueing::Queueing;
use crate::switch::Switch;
use crate::turn::Driver;
use crate::vifs::VifPort;
use crate::vifs::memory::{GuestMemory, Shared};
use abi::PAGE;
use config::domain::{
    BUFFER_BYTES, DriverConfig, LINEAR_BUFFERS, LINEAR_BYTES, Lro, Moderation, NicConfig, NicKind,
    QUEUE_BYTES, VifConfig,
};
use net::bridge::{self, Bridge, BridgeSettings};
use nic::moderation::Policy;
use runtime::ledger::Ledger;
use runtime::lro::{Merger, Side};
use runtime::mailbox::Mailbox;
use runtime::platform::{Platform, Waiting};
use runtime::start::{StartError, Started, refused};
use shmem::{Area, Span};
use std::convert::Infallible;
use std::rc::Rc;

/// Runs the driver domain, to which the monitor attaches guests. Returns only if it cannot go on.
///
/// # Errors
/// A device, a connection or a hypercall was refused at the start, or sleeping failed.
pub fn run<W: Waiting>(started: Started<DriverConfig, W>) -> Result<Infallible, StartError> {
    serve(build(started, |shared| Box::new(Attached { shared }))?)
}

/// Runs a driver domain whose guests come and go by themselves.
///
/// # Errors
/// As [`run`].
pub fn run_with<W: Waiting>(
    started: Started<DriverConfig, W>,
    guests: Box<dyn Guests>,
) -> Result<Infallible, StartError> {
    serve(build(started, |_| guests)?)
}

fn serve<W: Waiting>(
    (mut driver, platform): (Driver<W>, Rc<dyn Platform>),
) -> Result<Infallible, StartError> {
    platform.ready().map_err(|why| refused("ready", why))?;
    driver.serve_changes();
    driver.vifs_mut().for_each(VifPort::advance);
    driver.go_on()
}

/// Runs a driver domain whose guests are threads of this process: `join` connects them to its
/// ports, by [`VifPort::join`].
///
/// # Errors
/// As [`run`], and what `join` says.
pub fn run_joined<W: Waiting>(
    started: Started<DriverConfig, W>,
    join: impl FnOnce(Vec<&mut VifPort>) -> Result<(), StartError>,
) -> Result<Infallible, StartError> {
    let (mut driver, _) = build(started, |_| Box::new(Fixed))?;
    join(driver.vifs_mut().collect())?;
    driver.go_on()
}

/// A driver none of whose guests is connected yet, and the system that it runs on.
pub(crate) fn build<W: Waiting>(
    started: Started<DriverConfig, W>,
    guests: impl FnOnce(Shared) -> Box<dyn Guests>,
) -> Result<(Driver<W>, Rc<dyn Platform>), StartError> {
    let Started {
        home,
        platform,
        calls,
        waiter,
        config,
    } = started;
    let ledger = Rc::new(Ledger::new(config.ledger));
    let mut memory = Memory {
        area: home.frames,
        used: 0,
    };
    let mut ports = Ports::default();
    let mut nics = Vec::new();
    for nic in &config.nics {
        let port = nic_port(nic, &config.lro, &mut memory, &platform)?;
        nics.push(ports.insert(Port::Nic(Box::new(port))));
    }
    let shared = Shared::new(Rc::clone(&platform), calls, home.frames, &config);
    let mut vifs = Vec::new();
    for vif in &config.vifs {
        let port = vif_port(vif, &config, &shared, &ledger, &mut memory)?;
        vifs.push(ports.insert(Port::Vif(Box::new(port))));
    }
    let numbered = Numbered::new(&config, &nics, &vifs);
    let firewall = Firewall::of(&numbered);
    for rule in firewall.denying() {
        if let Some(vif) = ports.vif_mut(rule.queue)
            && let Some(queue) = &mut vif.queue
        {
            queue.count_denied(rule.number);
        }
    }
    let bridge = bridge(&config, &numbered)?;
    let mailbox = Mailbox::new(home.mailbox.span());
    let queueing = Queueing::new(memory.take_area(QUEUE_BYTES as usize)?);
    let switch = Switch::new(ports, bridge, firewall, queueing, ledger);
    let system = Rc::clone(&platform);
    let guests = guests(shared);
    let driver = Driver::new(switch, waiter, mailbox, system, guests, &config, &numbered);
    Ok((driver, platform))
}

/// The port of a guest, with its dedicated queue if it has one.
fn vif_port(
    vif: &VifConfig,
    config: &DriverConfig,
    shared: &Shared,
    ledger: &Rc<Ledger>,
    memory: &mut Memory,
) -> Result<VifPort, StartError> {
    let staging = memory.take(vif.staging_pages as usize * PAGE)?;
    let mut port = VifPort::new(
        vif,
        Rc::clone(&shared.platform),
        Rc::clone(ledger),
        Box::new(GuestMemory::new(vif, shared, staging)),
    );
    if let Some(queue) = vif.queue {
        let mtu = config.nics.get(queue.nic as usize);
        let mtu = mtu.map_or(0, |nic| nic.mtu);
        port.queue = dedicated_queue(queue, mtu, &shared.platform)?;
    }
    Ok(port)
}

/// A guest's dedicated queue of a wire. None: the guest is no more, and the monitor has made none.
fn dedicated_queue(
    queue: config::domain::DedicatedQueue,
    mtu: u32,
    platform: &Rc<dyn Platform>,
) -> Result<Option<DedicatedQueue>, StartError> {
    match platform.attach(queue.device) {
        Ok(fd) => DedicatedQueue::new(queue, fd, mtu, platform).map(Some),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(refused("a guest's own queue", why)),
    }
}

/// The driver's own frames, given out from the first on.
struct Memory {
    area: Area,
    used: usize,
}

impl Memory {
    fn take_area(&mut self, bytes: usize) -> Result<Area, StartError> {
        let area = self
            .area
            .part(self.used, bytes)
            .ok_or(StartError::Damaged("the driver domain has too few frames"))?;
        self.used += bytes.next_multiple_of(PAGE);
        Ok(area)
    }

    fn take(&mut self, bytes: usize) -> Result<Span, StartError> {
        self.take_area(bytes).map(Area::span)
    }
}

fn nic_port(
    config: &NicConfig,
    lro: &Lro,
    memory: &mut Memory,
    platform: &Rc<dyn Platform>,
) -> Result<NicPort, StartError> {
    let area = memory.take_area(config.buffers as usize * BUFFER_BYTES as usize)?;
    let (nic, pool) = devices::nic(config, area, platform)?;
    let linear = memory.take_area((LINEAR_BUFFERS * LINEAR_BYTES) as usize)?;
    let linear = Linear::new(linear, LINEAR_BYTES as usize, lro.backend);
    // What is held must leave the NIC enough to receive into.
    let low_water = (pool.capacity() / 8).max(64).min(pool.capacity() / 2);
    let merger = Merger::new(Side::Physical, lro, pool.capacity() - low_water);
    let policy = match config.moderation {
        Moderation::Spin => Policy::Spin,
        Moderation::Tick(us) => Policy::Tick { us },
        Moderation::Event => Policy::Event,
    };
    let name = format!("nic.{}", config.name);
    let mut port = NicPort::new(name, nic, pool, policy, merger, linear);
    port.waits_for_guests = matches!(config.kind, NicKind::Pcap(_));
    Ok(port)
}

/// A bridge with a port for each NIC and each guest.
fn bridge(config: &DriverConfig, numbered: &Numbered<'_>) -> Result<Bridge, StartError> {
    let mut bridge = Bridge::new(BridgeSettings {
        ageing_ns: u64::from(config.mac_ageing_s) * 1_000_000_000,
        group_pps: config.broadcast_pps,
        // A fifth of a second's worth, so that a neighbourhood that wakes up at once is heard.
        group_burst: (config.broadcast_pps / 5).max(1),
        reports_to_all: config.reports_to_all,
        hash_seed: shmem::time::tsc().rotate_left(32) ^ shmem::time::monotonic_ns(),
        ..BridgeSettings::default()
    });
    let nics = numbered.nics().map(|(number, nic)| {
        let port = bridge::Port {
            addresses: nic.addresses.clone(),
            gateways: nic.gateways.clone(),
            rules: firewall::rules(&nic.rules),
            ..bridge::Port::nic()
        };
        (number, port)
    });
    let guests = numbered
        .vifs()
        .map(|(number, vif)| (number, guest_port(vif)));
    for (number, port) in nics.chain(guests) {
        bridge.add(number, &port).map_err(|error| {
            refused(
                "a port of the bridge",
                std::io::Error::other(error.to_string()),
            )
        })?;
    }
    Ok(bridge)
}
