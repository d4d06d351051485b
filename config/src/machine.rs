//! From a [`Config`] to what the monitor builds: domains with their sizes, devices, connections,
//! and the text for each domain's program.

use crate::Cidr;
use crate::check::worker_name;
use crate::domain::{
    self, DriverConfig, GrantMode, GuestConfig, GuestVif, NicConfig, NicKind, Offloads, OwnQueue,
    Stack, VifConfig, Vmq,
};
use crate::model::{Config, Endpoint, Guest, KernelPort, Kind, Nic, Queues, Station, XdpWire};
use crate::problem::{Place, Problems};
use crate::rule::{self, Rule, Way};
use abi::firewall;
use abi::layout::{FRAMES_MAX, WINDOW_SLOTS_MAX, fd, info};
use abi::machine::{Connection, Device, Domain, Machine, Netdev, Program, Tap, Xdp, XdpQueue};
use abi::xdp::Ring;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Grant references below this are never given out, as in Xen.
const RESERVED_GRANTS: u32 = 8;
/// Frames beyond what is counted, for what a program keeps beside its pools.
const SPARE_FRAMES: u32 = 64;
/// Pages of buffers that one guest may take back by force while the driver uses them, before that
/// costs the driver its life (it gets time to let go of some first).
const COLLATERAL_PAGES: u32 = 64;
/// Pages that copies of one vif are staged in: a batch of 64 packets of up to 4 pages, in both
/// directions, and their headers.
const STAGING_PAGES: u32 = 576;
/// Pages of a NIC's buffers that whole aggregates are copied into: they are there also while that
/// is not asked for, because it may be while traffic runs.
const LINEAR_PAGES: u32 = domain::LINEAR_BUFFERS * (domain::LINEAR_BYTES / abi::PAGE as u32);
/// Buffers of a NIC that lie in one page.
const BUFFERS_PER_PAGE: u32 = abi::PAGE as u32 / domain::BUFFER_BYTES;
/// Grant references that a guest may have: the index bits of one.
const GRANTS_MAX: u32 = 1 << abi::GrantRef::INDEX_BITS;

impl Config {
    /// The machine to build.
    ///
    /// # Errors
    /// What is wrong with the configuration, without lines: see [`Config::check`].
    pub fn machine(&self) -> Result<Machine, Problems> {
        self.check()?;
        Ok(build(self))
    }
}

/// What of a valid configuration exceeds the machine's limits: where, what, remedy.
pub(crate) fn too_large(config: &Config) -> Vec<(Place, String, String)> {
    let mut found = Vec::new();
    let vifs: usize = config.guests.iter().map(|guest| guest.vifs.len()).sum();
    let most = fd::CONNECTIONS_MAX as usize;
    if vifs > most {
        let last = config.guests.len().saturating_sub(1);
        let what = format!("too many guests: {vifs} interfaces in all");
        found.push((Place::Guest(last), what, format!("{most} is the most")));
        return found;
    }
    let machine = build(config);
    let workers = config.driver.workers.max(1) as usize;
    for (n, domain) in machine.domains.iter().enumerate() {
        let place = n.checked_sub(workers).map_or(Place::Machine, Place::Guest);
        let limits = [
            ("page frames", domain.frames as usize, FRAMES_MAX as usize),
            (
                "grant references",
                domain.grant_entries as usize,
                GRANTS_MAX as usize,
            ),
            (
                "slots of the grant window",
                domain.window_slots as usize,
                WINDOW_SLOTS_MAX as usize,
            ),
            ("devices", domain.devices.len(), fd::DEVICES_MAX as usize),
            (
                "bytes of configuration",
                domain.config.len(),
                info::CONFIG_MAX,
            ),
        ];
        for (what, has, most) in limits {
            if has > most {
                let what = format!("domain {} needs {has} {what}", domain.name);
                let remedy = format!("{most} is the most: use fewer guests, interfaces or buffers");
                found.push((place, what, remedy));
            }
        }
    }
    found
}

fn build(config: &Config) -> Machine {
    let workers = 0..config.driver.workers.max(1);
    let mut domains: Vec<_> = workers
        .clone()
        .map(|worker| driver(config, worker))
        .collect();
    let mut connections = Vec::new();
    for (g, guest) in config.guests.iter().enumerate() {
        domains.push(self::guest(config, g, guest));
        for handle in 0..guest.vifs.len() {
            connections.extend(workers.clone().map(|worker| Connection {
                backend: worker_name(worker),
                frontend: guest.name.clone(),
                handle: handle as u16,
            }));
        }
    }
    Machine {
        name: config.name.clone(),
        domains,
        connections,
    }
}

/// Pages of one vif's two rings.
fn ring_pages(config: &Config) -> u32 {
    2 << config.ring_order()
}

/// Pages for frames from the guest where packets of 64 KB may come: half of them hold such
/// packets, two at once.
const FROM_GUEST_PAGES_TSO: u32 = 64;

/// Pages of one vif's pool.
fn pool_pages(config: &Config) -> u32 {
    let buffers = config.buffers;
    let pages = buffers
        .to_guest
        .saturating_add(buffers.from_guest)
        .div_ceil(buffers.size.per_page());
    if config.driver.offloads < Offloads::Tso {
        return pages;
    }
    let to_guest = buffers.to_guest.div_ceil(buffers.size.per_page());
    pages.max(to_guest.saturating_add(FROM_GUEST_PAGES_TSO))
}

/// Pages of one vif's buffers that are granted when they are needed.
fn spare_pages(config: &Config) -> u32 {
    let buffers = config.buffers;
    buffers.spare.div_ceil(buffers.size.per_page())
}

/// Queues of a guest, over all of its interfaces.
fn queues(config: &Config, guest: &Guest) -> u32 {
    (guest.vifs.len() as u32).saturating_mul(config.driver.workers.max(1))
}

/// Pages of each end of one queue of a vif that change hands.
fn flip_pages(config: &Config) -> u32 {
    match config.driver.grants {
        GrantMode::Flip => config.buffers.to_guest,
        _ => 0,
    }
}

/// Pages of one vif's buffers to receive into.
fn rx_pages(config: &Config) -> u32 {
    config
        .buffers
        .to_guest
        .div_ceil(config.buffers.size.per_page())
}

/// The frame of a guest at which the receive pool of its vif number `vif` begins: behind the pages of
/// those before it, its rings and its event page. The guest's program checks that it lies there.
fn rx_pool(config: &Config, vif: usize) -> u32 {
    let rx = rx_pages(config);
    let tx = pool_pages(config).saturating_sub(rx).max(2);
    let before = ring_pages(config).saturating_add(1);
    let pages = before
        .saturating_add(rx)
        .saturating_add(tx)
        .saturating_add(spare_pages(config));
    pages.saturating_mul(vif as u32).saturating_add(before)
}

/// The devices of the queues of an AF_XDP wire that guests have, noted in `own` by guest and vif.
fn own_queues(
    config: &Config,
    (n, nic): (usize, &Nic),
    devices: &mut Devices,
    window_slots: &mut u32,
    own: &mut BTreeMap<(usize, usize), OwnQueue>,
) {
    for (g, guest) in config.guests.iter().enumerate() {
        for (v, vif) in guest.vifs.iter().enumerate() {
            let Some(pdev) = vif.pdev.as_ref().filter(|pdev| pdev.nic == nic.name) else {
                continue;
            };
            let (first_frame, frames) = (rx_pool(config, v), rx_pages(config));
            let chunk_bytes = config.buffers.size.bytes() as u32;
            let chunks = frames.saturating_mul(config.buffers.size.per_page());
            let entries = chunks.checked_next_power_of_two().unwrap_or(1 << 31);
            let rings_slot = *window_slots;
            *window_slots = window_slots.saturating_add(2 * Ring::slots(entries));
            let device = devices.add(Device::XdpQueue(XdpQueue {
                queue: pdev.queue,
                guest: guest.name.clone(),
                mac: config.vif_mac(g, v).map_or([0; 6], |mac| mac.0),
                first_frame,
                frames,
                chunk_bytes,
                entries,
                rings_slot,
                rules: firewall::Rules {
                    from_wire: compiled(&nic.rules, Way::In),
                    to_guest: compiled(&vif.rules, Way::Out),
                },
            }));
            let queue = OwnQueue {
                nic: n as u32,
                device,
                rings_slot,
                entries,
                chunk_bytes,
                first_frame,
                frames,
            };
            own.insert((g, v), queue);
        }
    }
}

/// Rules for frames that pass a port this way, as the monitor is told them.
fn compiled(rules: &[Rule], way: Way) -> Vec<firewall::Rule> {
    let rules = rule::for_way(rules, way);
    rules.map(|(_, rule)| rule.compiled()).collect()
}

/// Entries of a guest's grant table: one for each page that it may grant, and as many again, so
/// that a reference need not be used anew at once.
fn grant_entries(config: &Config, guest: &Guest) -> u32 {
    let pages = pool_pages(config)
        .saturating_add(spare_pages(config))
        .saturating_mul(2)
        .saturating_add(ring_pages(config));
    let wanted = pages
        .saturating_mul(queues(config, guest))
        .saturating_add(RESERVED_GRANTS);
    wanted.checked_next_power_of_two().unwrap_or(u32::MAX)
}

/// The devices of a domain, numbered as they are added.
#[derive(Default)]
struct Devices(Vec<Device>);

impl Devices {
    fn add(&mut self, device: Device) -> u32 {
        self.0.push(device);
        self.0.len() as u32 - 1
    }

    /// A TAP with as many shared queues as there are workers: for this domain the one of `worker`, of
    /// which the first makes the TAP.
    fn share(&mut self, tap: Tap, worker: u32, workers: u32) -> u32 {
        self.add(match worker {
            0 => Device::Tap(Tap {
                shares: workers.saturating_sub(1),
                ..tap
            }),
            _ => Device::TapShare {
                ifname: tap.ifname,
                netns: tap.netns,
            },
        })
    }

    fn files(&mut self, read: &Option<String>, write: &Option<String>) -> [Option<u32>; 2] {
        let read = read.clone().map(|file| self.add(Device::Read(file)));
        let write = write.clone().map(|file| self.add(Device::Write(file)));
        [read, write]
    }
}

/// A TAP that carries what `offloads` says.
fn tap(
    port: &KernelPort,
    ifname: Option<String>,
    mac: [u8; 6],
    mtu: u32,
    offloads: Offloads,
) -> Tap {
    Tap {
        ifname: ifname.unwrap_or_default(),
        netns: port.netns.clone(),
        mac: Some(mac),
        addresses: port.addresses.iter().map(ToString::to_string).collect(),
        gateway: port.gateway.map(|gateway| gateway.to_string()),
        mtu,
        vnet_header: offloads > Offloads::None,
        checksum: offloads >= Offloads::Checksum,
        tso: offloads >= Offloads::Tso,
        tx_queue: port.tx_queue,
        queues: 0,
        steered: Vec::new(),
        shares: 0,
    }
}

fn stack(station: &Station) -> Stack {
    Stack {
        addresses: station.addresses.clone(),
        gateway: station.gateway,
        apps: station.apps.clone(),
    }
}

fn plain(addresses: &[Cidr]) -> Vec<IpAddr> {
    addresses.iter().map(|cidr| cidr.address).collect()
}

/// The gateways that are nobody's in this file: they are somewhere behind a NIC.
fn gateways(config: &Config) -> BTreeSet<IpAddr> {
    let vifs = config.guests.iter().flat_map(|guest| &guest.vifs);
    let known: Vec<_> = config
        .nics
        .iter()
        .map(|nic| nic.addresses())
        .chain(vifs.map(|vif| vif.addresses()))
        .collect();
    let own = |address: IpAddr| {
        let mut all = known.iter().flat_map(|(addresses, _)| addresses.iter());
        all.any(|cidr| cidr.address == address)
    };
    let gateways = known.iter().filter_map(|(_, gateway)| *gateway);
    gateways.filter(|gateway| !own(*gateway)).collect()
}

/// The MACs of all guests, in the order of their vifs.
fn vif_macs(config: &Config) -> Vec<[u8; 6]> {
    let guests = config.guests.iter().enumerate();
    let vifs = guests.flat_map(|(g, guest)| (0..guest.vifs.len()).map(move |v| (g, v)));
    vifs.filter_map(|(g, v)| config.vif_mac(g, v).map(|mac| mac.0))
        .collect()
}

/// A NIC's queues for single guests: no more than there are guests' interfaces.
fn vmq(nic: &Nic, macs: &[[u8; 6]]) -> Option<Vmq> {
    match nic.queues {
        // Those of an AF_XDP wire are not given by load.
        Queues::Vmq(vmq) if !macs.is_empty() && !matches!(nic.kind, Kind::Xdp { .. }) => {
            Some(Vmq {
                queues: vmq.queues.min(macs.len() as u32),
                ..vmq
            })
        }
        _ => None,
    }
}

/// A worker's share of what all of them together may let through.
fn share_of(mbps: Option<f64>, config: &Config) -> Option<f64> {
    mbps.map(|mbps| mbps / f64::from(config.driver.workers.max(1)))
}

fn driver(config: &Config, worker: u32) -> Domain {
    let own = &config.driver;
    let workers = own.workers.max(1);
    let mut devices = Devices::default();
    let mut frames = SPARE_FRAMES;
    let (mut window_slots, mut collateral) = (0u32, 0u32);
    let mut nics = Vec::new();
    let mut own_of = BTreeMap::new();
    // Where the driver puts a NIC's buffers: one NIC's behind the other's, from the first frame on.
    let mut first_frame = 0;
    for (n, nic) in config.nics.iter().enumerate() {
        let mac = config.nic_mac(n).map_or([0; 6], |mac| mac.0);
        let ifname = config.nic_ifname(n);
        let kind = match &nic.kind {
            Kind::Tap { port, offloads } => {
                let macs = vif_macs(config);
                let tap = tap(port, ifname, mac, nic.mtu, *offloads);
                let tap = match vmq(nic, &macs) {
                    Some(vmq) => Tap {
                        queues: vmq.queues,
                        steered: macs,
                        ..tap
                    },
                    None => tap,
                };
                let queues = tap.queues;
                NicKind::Tap {
                    device: devices.share(tap, worker, workers),
                    vnet_header: *offloads > Offloads::None,
                    checksum: *offloads >= Offloads::Checksum,
                    queues: (0..queues).map(|_| devices.add(Device::TapQueue)).collect(),
                }
            }
            Kind::Xdp { wire } => {
                let entries = nic.buffers.next_power_of_two();
                let netdev = match wire {
                    XdpWire::Veth(port) => {
                        Netdev::Veth(tap(port, ifname, mac, nic.mtu, Offloads::None))
                    }
                    XdpWire::Netdev { name, netns } => Netdev::Existing {
                        ifname: name.clone(),
                        netns: netns.clone(),
                    },
                };
                let rings_slot = window_slots;
                window_slots += Ring::ALL.len() as u32 * Ring::slots(entries);
                let xdp = Xdp {
                    netdev,
                    first_frame,
                    frames: nic.buffers / BUFFERS_PER_PAGE,
                    chunk_bytes: domain::BUFFER_BYTES,
                    entries,
                    rings_slot,
                    queues: nic.single_queues(),
                };
                let device = devices.add(Device::Xdp(xdp));
                own_queues(
                    config,
                    (n, nic),
                    &mut devices,
                    &mut window_slots,
                    &mut own_of,
                );
                NicKind::Xdp {
                    device,
                    rings_slot,
                    entries,
                }
            }
            Kind::Local { port } => NicKind::Local {
                device: {
                    let tap = tap(port, ifname, mac, nic.mtu, Offloads::Tso);
                    devices.share(tap, worker, workers)
                },
                mac,
            },
            Kind::Sim {
                delay_us,
                loss,
                seed,
                station,
                ..
            } => NicKind::Sim {
                delay_us: *delay_us,
                loss: *loss,
                seed: *seed,
                mac,
                far: stack(station),
            },
            Kind::Pcap { read, write } => {
                let [read, write] = devices.files(read, write);
                NicKind::Pcap { read, write }
            }
        };
        let pages = nic.buffers.div_ceil(BUFFERS_PER_PAGE) + LINEAR_PAGES;
        first_frame += pages;
        frames = frames.saturating_add(pages);
        nics.push(NicConfig {
            name: nic.name.clone(),
            kind,
            mtu: nic.mtu,
            rate_mbps: share_of(nic.rate_mbps, config),
            burst_bytes: nic.burst_bytes,
            moderation: nic.moderation,
            buffers: nic.buffers,
            addresses: plain(nic.addresses().0),
            vmq: vmq(nic, &vif_macs(config)),
            rules: nic.rules.clone(),
        });
    }
    if let Some(nic) = nics.first_mut() {
        nic.addresses.extend(gateways(config));
    }
    let staging_pages = if own.grants == GrantMode::Copy {
        STAGING_PAGES
    } else {
        0
    };
    let mut vifs = Vec::new();
    for (g, guest) in config.guests.iter().enumerate() {
        let slots = grant_entries(config, guest);
        let tables = if own.grants.is_new() {
            abi::ngm::table_slots(slots)
        } else {
            flip_pages(config)
        };
        for (v, vif) in guest.vifs.iter().enumerate() {
            vifs.push(VifConfig {
                conn: vifs.len() as u32,
                name: format!("{}-{v}", guest.name),
                mac: config.vif_mac(g, v).map_or([0; 6], |mac| mac.0),
                addresses: plain(vif.addresses().0),
                rate_mbps: share_of(vif.rate_mbps, config),
                weight: vif.weight,
                first_slot: window_slots,
                slots,
                tables_slot: window_slots.saturating_add(slots),
                flip_pages: flip_pages(config),
                staging_pages,
                forwards: vif.forwards,
                rules: vif.rules.clone(),
                firewall: vif.firewall,
                queue: own_of.get(&(g, v)).copied(),
            });
            window_slots = window_slots.saturating_add(slots).saturating_add(tables);
            frames = frames.saturating_add(staging_pages);
            if own.grants.is_new() {
                // Its rings may be taken back, and whatever is in use in that moment.
                // A device has most of its buffers all the time.
                let posted = match vif.pdev {
                    Some(_) => rx_pages(config),
                    None => 0,
                };
                let share = ring_pages(config)
                    .saturating_add(COLLATERAL_PAGES)
                    .saturating_add(posted);
                collateral = collateral.saturating_add(share);
            }
        }
    }
    let config_text = DriverConfig {
        nics,
        vifs,
        grants: own.grants,
        offloads: own.offloads,
        ring_order: config.ring_order(),
        ring_format: config.ring.format,
        broadcast_pps: own.broadcast_pps.div_ceil(workers),
        mac_ageing_s: own.mac_ageing_s,
        spin_us: spin_us(config, own.polling.spin_us),
        tick_us: own.polling.tick_us,
        empty_ticks: own.polling.empty_ticks,
        poll_budget: own.poll_budget,
        notify_us: notify_us(config),
        ledger: own.ledger,
        lro: config.lro,
    };
    Domain {
        name: worker_name(worker),
        program: Program::Driver,
        frames,
        grant_entries: RESERVED_GRANTS,
        window_slots,
        collateral,
        restart_pause_ms: own.restart.then_some(own.restart_pause_ms),
        cpus: own.worker_cpus(worker),
        devices: devices.0,
        config: json(&config_text),
    }
}

fn guest(config: &Config, g: usize, guest: &Guest) -> Domain {
    let mut devices = Devices::default();
    let workers = config.driver.workers.max(1);
    let mut vifs = Vec::new();
    for (v, vif) in guest.vifs.iter().enumerate() {
        let mac = config.vif_mac(g, v).map_or([0; 6], |mac| mac.0);
        let endpoint = match &vif.endpoint {
            Endpoint::Tap { port } => {
                // The kernel may leave undone what the vif can carry; what the driver does not
                // take after all, the guest's netfront completes.
                let offloads = vif.offloads.min(config.driver.offloads);
                let tap = tap(port, config.vif_ifname(g, v), mac, vif.mtu, offloads);
                let tap = Tap {
                    vnet_header: true,
                    ..tap
                };
                let queue = |worker| devices.share(tap.clone(), worker, workers);
                domain::Endpoint::Tap {
                    devices: (0..workers).map(queue).collect(),
                }
            }
            Endpoint::Stack { station } => domain::Endpoint::Stack {
                stack: stack(station),
            },
            Endpoint::Sink { touch } => domain::Endpoint::Sink { touch: *touch },
            Endpoint::Source {
                to,
                size,
                rate_pps,
                window,
                count,
                touch,
            } => domain::Endpoint::Source {
                to: to.0,
                size: *size,
                rate_pps: *rate_pps,
                window: *window,
                count: *count,
                touch: *touch,
            },
            Endpoint::Echo => domain::Endpoint::Echo {},
            Endpoint::Pcap { read, write } => {
                let [read, write] = devices.files(read, write);
                domain::Endpoint::Pcap { read, write }
            }
        };
        vifs.push(GuestVif {
            conns: (0..workers)
                .map(|worker| v as u32 * workers + worker)
                .collect(),
            mac,
            mtu: vif.mtu,
            endpoint,
            ring_order: config.ring_order(),
            ring_format: config.ring.format,
            buffers: config.buffers.size,
            pool_pages: pool_pages(config),
            to_guest_buffers: config.buffers.to_guest,
            spare_buffers: config.buffers.spare,
            release_threshold: config.buffers.release_threshold,
            prefetch: config.buffers.prefetch,
            offloads: vif.offloads.min(config.driver.offloads),
            forwards: vif.forwards,
            rx_pool: vif.pdev.as_ref().map(|_| rx_pool(config, v)),
        });
    }
    let pages = pool_pages(config)
        .saturating_add(spare_pages(config))
        .saturating_add(ring_pages(config));
    let frames = pages
        .saturating_mul(queues(config, guest))
        .saturating_add(SPARE_FRAMES);
    let config_text = GuestConfig {
        vifs,
        spin_us: spin_us(config, guest.polling.spin_us),
        yields: is_crowded(config, guest),
        tick_us: guest.polling.tick_us,
        empty_ticks: guest.polling.empty_ticks,
        poll_budget: config.driver.poll_budget,
        ledger: config.driver.ledger,
        lro: config.lro,
    };
    Domain {
        name: guest.name.clone(),
        program: Program::Guest,
        frames,
        grant_entries: grant_entries(config, guest),
        // A guest is granted nothing, and has pages that change hands at the most.
        window_slots: flip_pages(config).saturating_mul(queues(config, guest)),
        collateral: 0,
        // Whoever runs it knows what its end means.
        restart_pause_ms: None,
        cpus: guest.cpus.clone(),
        devices: devices.0,
        config: json(&config_text),
    }
}

/// A domain's spin budget: as given, or by whether driver and guests share CPUs.
fn spin_us(config: &Config, given: Option<u32>) -> u32 {
    let usual = if config.is_driver_apart() {
        crate::model::Polling::SPIN_APART_US
    } else {
        0
    };
    given.unwrap_or(usual)
}

/// Whether more guests may use the CPUs of one than there are.
fn is_crowded(config: &Config, guest: &Guest) -> bool {
    let shares = |other: &&Guest| other.cpus.iter().any(|cpu| guest.cpus.contains(cpu));
    config.guests.iter().filter(shares).count() > guest.cpus.len()
}

/// How long guests are left asleep while a NIC has more for them: as given, or by whether driver
/// and guests share CPUs.
fn notify_us(config: &Config) -> u32 {
    let usual = if config.is_driver_apart() {
        0
    } else {
        crate::model::Driver::NOTIFY_SHARED_US
    };
    config.driver.notify_us.unwrap_or(usual)
}

/// The text of a program's configuration.
fn json(value: &impl serde::Serialize) -> String {
    // Plain structs with text keys: serde_json has nothing to refuse.
    serde_json::to_string(value).unwrap_or_default()
}
