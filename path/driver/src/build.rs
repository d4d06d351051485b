//! From a configuration to ports.
//!
//! The driver's own frames hold, in this order: each NIC's pool and its buffers for whole
//! aggregates, and where the grant mechanism is `copy`, each guest's staging pages.

use crate::devices;
use crate::firewall;
use crate::linear::Linear;
use crate::nics::NicPort;
use crate::own::OwnQueue;
use crate::port::Port;
use crate::turn::{Driver, vifs};
use crate::vifs::{Shared, VifPort, Window};
use abi::{ConnId, PAGE, Slot};
use config::domain::{
    BUFFER_BYTES, DriverConfig, LINEAR_BUFFERS, LINEAR_BYTES, Lro, Moderation, NicConfig, NicKind,
};
use net::bridge::{self, Bridge, BridgeSettings};
use net::packet::Mac;
use nic::moderation::Policy;
use runtime::ledger::Ledger;
use runtime::lro::{Merger, Side};
use runtime::mailbox::Mailbox;
use runtime::platform::Platform;
use runtime::start::{StartError, Started, refused};
use shmem::{Area, Span};
use std::rc::Rc;

/// Makes the driver and tells the monitor that it is ready.
pub(crate) fn build(started: Started<DriverConfig>) -> Result<Driver, StartError> {
    let (mut driver, platform) = assemble(started)?;
    platform.ready().map_err(|why| refused("ready", why))?;
    vifs(&mut driver.ports).for_each(VifPort::advance);
    Ok(driver)
}

/// A driver none of whose guests is connected yet, and the system that it runs on.
pub(crate) fn assemble(
    started: Started<DriverConfig>,
) -> Result<(Driver, Rc<dyn Platform>), StartError> {
    let Started {
        home,
        platform,
        calls,
        waiter,
        config,
    } = started;
    let ledger = Rc::new(Ledger::new(config.ledger));
    let mut room = Room {
        area: home.frames,
        used: 0,
    };
    let mut ports = Vec::new();
    for nic in &config.nics {
        ports.push(Port::Nic(Box::new(nic_port(
            nic,
            &config.lro,
            &mut room,
            &platform,
        )?)));
    }
    let shared = Shared {
        platform: Rc::clone(&platform),
        calls,
        ledger: Rc::clone(&ledger),
        frames: home.frames,
        grants: config.grants,
        offloads: config.offloads,
        ring_order: config.ring_order,
        ring_format: config.ring_format,
        meta: config.lro.meta,
    };
    for vif in &config.vifs {
        let staging = room.take(vif.staging_pages as usize * PAGE)?;
        let window = Window {
            first: Slot(vif.first_slot),
            slots: vif.slots,
            tables: Slot(vif.tables_slot),
            flips: vif.flip_pages,
        };
        let mut port = VifPort::new(
            format!("vif.{}", vif.name),
            ConnId(vif.conn),
            vif.mac,
            shared.clone(),
            window,
            staging,
        );
        if let Some(queue) = vif.queue {
            let mtu = config.nics.get(queue.nic as usize);
            let mtu = mtu.map_or(0, |nic| nic.mtu);
            port.queue = own_queue(queue, mtu, &config.lro, &platform)?;
        }
        ports.push(Port::Vif(Box::new(port)));
    }
    for rule in firewall::denying(&config) {
        if let Some(Port::Vif(vif)) = ports.get_mut(rule.queue)
            && let Some(queue) = &mut vif.queue
        {
            queue.count_denied(rule.number);
        }
    }
    let bridge = bridge(&config)?;
    let mailbox = Mailbox::new(home.info.span());
    let driver = Driver::new(ports, bridge, ledger, waiter, mailbox, &config);
    Ok((driver, platform))
}

/// A guest's own queue of a wire. None: the guest is no more, and the monitor has made none.
fn own_queue(
    queue: config::domain::DedicatedQueue,
    mtu: u32,
    lro: &Lro,
    platform: &Rc<dyn Platform>,
) -> Result<Option<OwnQueue>, StartError> {
    match platform.attach(queue.device) {
        Ok(fd) => OwnQueue::new(queue, fd, mtu, lro, platform).map(Some),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(why) => Err(refused("a guest's own queue", why)),
    }
}

/// The driver's own frames, given out from the first on.
struct Room {
    area: Area,
    used: usize,
}

impl Room {
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
    room: &mut Room,
    platform: &Rc<dyn Platform>,
) -> Result<NicPort, StartError> {
    let area = room.take_area(config.buffers as usize * BUFFER_BYTES as usize)?;
    let (nic, pool) = devices::nic(config, area, platform)?;
    let linear = room.take_area((LINEAR_BUFFERS * LINEAR_BYTES) as usize)?;
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
    port.waits_for_guests = matches!(config.kind, NicKind::Pcap { .. });
    Ok(port)
}

/// A bridge with a port for each NIC and then each guest, numbered as the driver numbers them.
fn bridge(config: &DriverConfig) -> Result<Bridge, StartError> {
    let mut bridge = Bridge::new(BridgeSettings {
        ageing_ns: u64::from(config.mac_ageing_s) * 1_000_000_000,
        group_pps: config.broadcast_pps,
        // A fifth of a second's worth, so that a neighbourhood that wakes up at once is heard.
        group_burst: (config.broadcast_pps / 5).max(1),
        hash_seed: shmem::time::tsc().rotate_left(32) ^ shmem::time::monotonic_ns(),
        ..BridgeSettings::default()
    });
    let nics = config.nics.iter().map(|nic| bridge::Port {
        addresses: nic.addresses.clone(),
        rules: firewall::rules(&nic.rules),
        ..bridge::Port::nic()
    });
    // Rate limits are kept where they are back-pressure, not drops: see `fairness`.
    let guests = config.vifs.iter().map(|vif| bridge::Port {
        addresses: vif.addresses.clone(),
        rules: firewall::rules(&vif.rules),
        ..bridge::Port::guest(Mac(vif.mac))
    });
    for (number, port) in nics.chain(guests).enumerate() {
        bridge.add(number, &port).map_err(|error| {
            refused(
                "a port of the bridge",
                std::io::Error::other(error.to_string()),
            )
        })?;
    }
    Ok(bridge)
}
