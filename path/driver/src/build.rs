//! Builds ports from a configuration.
//!
//! The driver domain's frames contain, in this order: for each NIC, its pool, its rings, and its
//! buffers for whole aggregates; with the grant mechanism `copy`, each guest's staging pages; at
//! the end, the flow tables and the buffers of guests' queued frames. The monitor relies on this
//! order when it creates AF_XDP sockets over the pools of NICs.

use crate::dedicated::device::GuestDeviceQueue;
use crate::dedicated::queue::DedicatedQueue;
use crate::dedicated::socket::SocketQueue;
use crate::device_port::OwnDomain;
use crate::devices;
use crate::flow_memory::FlowMemory;
use crate::guests::{Guests, MonitorGuests};
use crate::linearizer::Linearizer;
use crate::nics::NicPort;
use crate::queueing::Queueing;
use crate::switch::Switch;
use crate::turn::Driver;
use crate::vifs::VifPort;
use crate::vifs::memory::VifSettings;
use abi::PAGE;
use config::domain::{
    BUFFER_BYTES, DriverConfig, LINEAR_BUFFERS, LINEAR_BYTES, LroConfig, ModerationConfig,
    NicConfig, NicKindConfig, QUEUE_BYTES,
};
use net::bridge::{Bridge, BridgeSettings};
use nic::moderation::ModerationPolicy;
use runtime::ledger::Ledger;
use runtime::lro::{LroSide, LroStage};
use runtime::mailbox::DomainMailbox;
use runtime::platform::{Platform, Wait};
use runtime::start::{StartError, Started, rejected_error};
use shmem::{Area, Span};
use std::convert::Infallible;
use std::rc::Rc;

/// Runs a driver domain to which the monitor attaches guests. Returns only if the driver cannot
/// continue.
///
/// # Errors
/// Returns an error if a device, a connection or a hypercall was rejected at the start, or sleeping
/// failed.
pub fn run<W: Wait>(started: Started<DriverConfig, W>) -> Result<Infallible, StartError> {
    run_with(started, MonitorGuests::boxed)
}

/// Runs a driver domain whose guests are added and removed by `guests`.
///
/// # Errors
/// Returns the errors of [`run`].
pub fn run_with<W: Wait>(
    started: Started<DriverConfig, W>,
    guests: impl FnOnce(VifSettings) -> Box<dyn Guests>,
) -> Result<Infallible, StartError> {
    let (mut driver, platform) = build(started, guests)?;
    platform
        .ready()
        .map_err(|why| rejected_error("ready", why))?;
    driver.serve_changes();
    driver.vifs_mut().for_each(VifPort::advance);
    driver.devices_changed();
    driver.run_loop()
}

/// Runs a driver domain whose guests are threads of this process: `join` connects them to its
/// ports, by [`VifPort::join`].
///
/// # Errors
/// Returns the errors of [`run`] and of `join`.
pub fn run_joined<W: Wait>(
    started: Started<DriverConfig, W>,
    join: impl FnOnce(Vec<&mut VifPort>) -> Result<(), StartError>,
) -> Result<Infallible, StartError> {
    let (mut driver, _) = build(started, MonitorGuests::boxed)?;
    join(driver.vifs_mut().collect())?;
    driver.run_loop()
}

/// Creates a driver whose guests have not connected, and returns it with its platform.
pub(crate) fn build<W: Wait>(
    started: Started<DriverConfig, W>,
    guests: impl FnOnce(VifSettings) -> Box<dyn Guests>,
) -> Result<(Driver<W>, Rc<dyn Platform>), StartError> {
    let Started {
        domain_memory,
        platform,
        calls,
        waiter,
        config,
    } = started;
    let mut memory = FrameMemory {
        area: domain_memory.frames,
        used: 0,
    };
    let queueing = Queueing::new(memory.take_last(QUEUE_BYTES as usize)?);
    let flows = match FlowMemory::bytes(&config) {
        0 => FlowMemory::default(),
        bytes => FlowMemory::new(memory.take_last(bytes)?.span(), &config),
    };
    let ledger = Rc::new(Ledger::new(config.driver.ledger));
    let switch = Switch::new(bridge(&config), queueing, ledger);
    let mailbox = DomainMailbox::new(domain_memory.mailbox.span());
    let shared = VifSettings::new(Rc::clone(&platform), calls, domain_memory.frames, &config);
    let guests = guests(shared.clone());
    let own_platform = Rc::clone(&platform);
    let mut driver = Driver::without_ports(switch, waiter, mailbox, own_platform, guests, &config);
    driver.flow_memory = flows;
    let own = OwnDomain {
        frames: domain_memory.frames,
        calls: Rc::clone(&shared.calls),
    };
    let mut wires = Vec::new();
    for nic in &config.nics {
        let mut port = nic_port(nic, &config.lro, &mut memory, &platform, &own)?;
        if nic.kind.copies_frames() {
            port.set_pages(driver.guests.nic_pages());
        }
        wires.push((driver.add_nic(nic, port).map_err(rejected)?, nic));
    }
    for vif in &config.vifs {
        let staging = memory.take(vif.staging_pages as usize * PAGE)?;
        let access = driver.guests.access(vif, staging).map_err(rejected)?;
        let number = driver.add_guest(vif, access).map_err(rejected)?;
        if let Some(queue) = vif.queue
            && let Some(&wire) = wires.get(queue.nic as usize)
            && let Some(queue) = dedicated_queue(queue, wire.1.settings.mtu, &platform)?
        {
            driver.add_dedicated(wire, (number, vif), queue);
        }
        if let Some(queue) = vif.device_queue
            && let Some(&wire) = wires.get(queue.nic as usize)
        {
            let end = driver.device_queue(wire.0, queue.queue);
            let end = end.ok_or(StartError::BadStartInfo(
                "a guest's dedicated queue does not fit",
            ))?;
            let calls = Rc::clone(&own.calls);
            let queue = GuestDeviceQueue::new(queue, vif.mac, wire.1.settings.mtu, end, calls);
            let queue = DedicatedQueue::Device(Box::new(queue));
            driver.add_dedicated(wire, (number, vif), queue);
        }
    }
    Ok((driver, platform))
}

/// Returns the error of a port that the bridge rejects.
fn rejected(why: String) -> StartError {
    rejected_error("a port of the bridge", std::io::Error::other(why))
}

/// Returns a guest's dedicated queue of a wire. Returns `None` if the monitor has created none
/// because the guest has exited.
fn dedicated_queue(
    queue: config::domain::DedicatedQueueConfig,
    mtu: u32,
    platform: &Rc<dyn Platform>,
) -> Result<Option<DedicatedQueue>, StartError> {
    match platform.attach(queue.device) {
        Ok(fd) => {
            let queue = SocketQueue::new(queue, fd, mtu, platform)?;
            Ok(Some(DedicatedQueue::Socket(Box::new(queue))))
        }
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(rejected_error("a guest's dedicated queue", why)),
    }
}

/// Allocates the driver domain's frames in ascending order.
struct FrameMemory {
    area: Area,
    used: usize,
}

impl FrameMemory {
    fn take_area(&mut self, bytes: usize) -> Result<Area, StartError> {
        let area = self
            .area
            .part(self.used, bytes)
            .ok_or(StartError::BadStartInfo(
                "the driver domain has too few frames",
            ))?;
        self.used += bytes.next_multiple_of(PAGE);
        Ok(area)
    }

    /// Takes `bytes` bytes from the end of the remaining area.
    fn take_last(&mut self, bytes: usize) -> Result<Area, StartError> {
        let few = StartError::BadStartInfo("the driver domain has too few frames");
        let at = self.area.span().len().checked_sub(bytes);
        let (rest, last) = at
            .and_then(|at| Some((self.area.part(0, at)?, self.area.part(at, bytes)?)))
            .ok_or(few)?;
        self.area = rest;
        Ok(last)
    }

    fn take(&mut self, bytes: usize) -> Result<Span, StartError> {
        self.take_area(bytes).map(Area::span)
    }
}

fn nic_port(
    config: &NicConfig,
    lro: &LroConfig,
    memory: &mut FrameMemory,
    platform: &Rc<dyn Platform>,
    own: &OwnDomain,
) -> Result<NicPort, StartError> {
    let area = memory.take_area(config.settings.buffers as usize * BUFFER_BYTES as usize)?;
    let rings = memory.take_area(config.ring_pages() as usize * PAGE)?;
    let (nic, pool) = devices::nic(config, area, rings, platform, own)?;
    let linearizer = memory.take_area((LINEAR_BUFFERS * LINEAR_BYTES) as usize)?;
    let linearizer = Linearizer::new(linearizer, LINEAR_BYTES as usize, lro.backend);
    // Packets that LRO holds must leave the NIC enough buffers to receive into.
    let low_water = (pool.capacity() / 8).max(64).min(pool.capacity() / 2);
    let merger = LroStage::new(LroSide::Physical, lro, pool.capacity() - low_water);
    let policy = match config.settings.moderation {
        ModerationConfig::Spin => ModerationPolicy::Spin,
        ModerationConfig::Tick(us) => ModerationPolicy::Tick { us },
        ModerationConfig::Event => ModerationPolicy::Event,
    };
    let name = format!("nic.{}", config.name);
    let mut port = NicPort::new(name, nic, pool, policy, merger, linearizer);
    port.waits_for_guests = matches!(config.kind, NicKindConfig::Pcap(_));
    Ok(port)
}

/// Creates a bridge without ports.
fn bridge(config: &DriverConfig) -> Bridge {
    Bridge::new(BridgeSettings {
        ageing_ns: u64::from(config.driver.mac_ageing_s) * 1_000_000_000,
        group_pps: config.driver.broadcast_pps,
        // The burst is a fifth of the rate per second, so that the frames of many stations that
        // wake up simultaneously pass.
        group_burst: (config.driver.broadcast_pps / 5).max(1),
        reports_to_all: config.reports_to_all,
        hash_seed: shmem::time::tsc().rotate_left(32) ^ shmem::time::monotonic_ns(),
        ..BridgeSettings::default()
    })
}
