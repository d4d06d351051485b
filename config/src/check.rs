//! What a configuration means, checked: names, addresses, numbers, sizes.

use crate::domain::{
    BufferSize, FRAME_EXTRA_BYTES, GrantMode, Offloads, StackApp, Vmq, XDP_MTU_MAX,
};
use crate::lro;
use crate::model::{
    Config, Endpoint, KernelPort, Kind, Nic, Polling, Queues, SLOTS_PER_PAGE, Station, XdpWire,
};
use crate::problem::{Finding, Lines, Place, Problem, Problems};
use crate::rule::{RULES_MAX, Rule};
use crate::{Cidr, Mac};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::IpAddr;
use std::ops::RangeInclusive;

/// CPUs that a set can name: one bit each of a word of the start information.
const CPUS: usize = 64;
/// Guests and vifs of a guest that derived MACs can tell apart; far above what a machine holds.
const VIFS_PER_GUEST: usize = 16;
/// Longest name of a network interface, bytes.
const IFNAME_MAX: usize = 15;
/// Pages that may change hands in all, of each end.
const FLIP_PAGES: usize = 16_384;
/// The name of the driver domain.
const DRIVER: &str = "driver";

/// The name of a worker of the driver domain.
pub(crate) fn worker_name(worker: u32) -> String {
    match worker {
        0 => DRIVER.to_owned(),
        _ => format!("{DRIVER}-{worker}"),
    }
}

impl Config {
    /// Check it, as [`crate::parse`] does with what it has read.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn check(&self) -> Result<(), Problems> {
        let lines = Lines::default();
        let found = self.findings().into_iter();
        Problems::or(
            found
                .map(|finding| Problem::new(finding, None, &lines))
                .collect(),
            (),
        )
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut check = Check {
            config: self,
            found: Vec::new(),
        };
        check.machine();
        check.nics();
        check.guests();
        check.pdevs();
        check.stations();
        check.lro();
        if check.found.is_empty() {
            // Sizes are worth a look only when their parts are sound.
            check.sizes();
        }
        check.found
    }
}

struct Check<'c> {
    config: &'c Config,
    found: Vec<Finding>,
}

impl Check<'_> {
    fn say(
        &mut self,
        place: Place,
        key: &'static str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.found.push(Finding {
            place,
            key,
            what: what.into(),
            remedy: remedy.into(),
        });
    }

    fn range(&mut self, place: Place, key: &'static str, value: u32, good: RangeInclusive<u32>) {
        if !good.contains(&value) {
            let remedy = format!("write a number from {} to {}", good.start(), good.end());
            self.say(place, key, format!("`{key}` is {value}"), remedy);
        }
    }

    fn rate(&mut self, place: Place, key: &'static str, rate: Option<f64>) {
        /// Above any link, in Mb/s and in frames a second: what a token bucket can count.
        const RATE_MAX: f64 = 1e9;
        if let Some(rate) = rate
            && !(rate > 0.0 && rate <= RATE_MAX)
        {
            let remedy = format!(
                "write a number above 0 and up to {RATE_MAX}, or leave `{key}` out for no limit"
            );
            self.say(place, key, format!("`{key}` is {rate}"), remedy);
        }
    }

    fn name(&mut self, place: Place, name: &str, most: usize) {
        let good = |c: u8| c.is_ascii_alphanumeric() || c == b'-' || c == b'_';
        if name.is_empty() || name.len() > most || !name.bytes().all(good) {
            let what = format!("`name` is \"{}\"", name.escape_debug());
            let remedy = format!("use 1 to {most} letters, digits, `-` and `_`");
            self.say(place, "name", what, remedy);
        }
    }

    fn cpus(&mut self, place: Place, cpus: &[usize]) {
        if let Some(cpu) = cpus.iter().find(|&&cpu| cpu >= CPUS) {
            let remedy = format!("write numbers below {CPUS}");
            self.say(place, "cpus", format!("`cpus` has {cpu}"), remedy);
        }
    }

    fn polling(&mut self, place: Place, polling: Polling) {
        self.range(
            place,
            "spin_us",
            polling.spin_us.unwrap_or(0),
            0..=1_000_000,
        );
        self.range(place, "tick_us", polling.tick_us, 0..=1_000_000);
        self.range(place, "empty_ticks", polling.empty_ticks, 0..=1_000_000);
    }

    fn machine(&mut self) {
        let config = self.config;
        self.name(Place::Machine, &config.name, 32);
        let driver = &config.driver;
        self.cpus(Place::Driver, &driver.cpus);
        self.range(
            Place::Driver,
            "workers",
            driver.workers,
            1..=crate::model::Driver::WORKERS_MAX,
        );
        self.polling(Place::Driver, driver.polling);
        self.range(Place::Driver, "poll_budget", driver.poll_budget, 1..=256);
        self.range(
            Place::Driver,
            "notify_us",
            driver.notify_us.unwrap_or(0),
            0..=10_000,
        );
        self.range(
            Place::Driver,
            "broadcast_pps",
            driver.broadcast_pps,
            1..=10_000_000,
        );
        self.range(
            Place::Driver,
            "mac_ageing_s",
            driver.mac_ageing_s,
            1..=1_000_000,
        );
        self.range(
            Place::Driver,
            "restart_pause_ms",
            driver.restart_pause_ms,
            0..=60_000,
        );
        let buffers = config.buffers;
        self.range(Place::Buffers, "to_guest", buffers.to_guest, 32..=4096);
        self.range(Place::Buffers, "spare", buffers.spare, 0..=4096);
        if let Some(threshold) = buffers.release_threshold {
            self.release(threshold);
        }
        if driver.grants == GrantMode::Flip {
            self.flip();
        }
        self.range(Place::Buffers, "from_guest", buffers.from_guest, 32..=4096);
        self.range(Place::Buffers, "prefetch", buffers.prefetch, 0..=256);
        let slots = config.ring.slots;
        let most = SLOTS_PER_PAGE << crate::domain::RING_ORDER_MAX;
        if !slots.is_power_of_two() || !(SLOTS_PER_PAGE..=most).contains(&slots) {
            let remedy = "write 256, 512, 1024, 2048 or 4096";
            self.say(Place::Ring, "slots", format!("`slots` is {slots}"), remedy);
        }
        if config.guests.is_empty() && config.nics.is_empty() {
            let remedy = "add a section [[nic]] and a section [[guest]] with a [[guest.vif]]";
            self.say(
                Place::Machine,
                "",
                "there is neither a NIC nor a guest",
                remedy,
            );
        }
    }

    /// Pages can be revoked only where the driver domain lets go of them between two frames.
    fn release(&mut self, threshold: u32) {
        let (place, key) = (Place::Buffers, "release_threshold");
        self.range(place, key, threshold, 0..=4096);
        if self.config.buffers.spare == 0 {
            let what = "there is a `release_threshold` and no `spare`";
            let remedy = "leave it out, or write the `spare` buffers that may come and go";
            self.say(place, key, what, remedy);
        }
        let grants = match self.config.driver.grants {
            GrantMode::Mapped => "mapped",
            GrantMode::Shared => "shared",
            GrantMode::Flip => "flip",
            GrantMode::Copy | GrantMode::Map | GrantMode::New => return,
        };
        let what =
            format!("there is a `release_threshold`, and the driver's `grants` is \"{grants}\"");
        let remedy = "leave it out, or write grants = \"new\", \"map\" or \"copy\" in [driver]: \
                      otherwise a page stays with the driver domain as long as the connection lasts";
        self.say(place, key, what, remedy);
    }

    /// Pages change hands one by one: as a whole, for as many as were posted, and each is a mapping of
    /// its own with whoever has it.
    fn flip(&mut self) {
        let buffers = self.config.buffers;
        let wrong = "the driver's `grants` is \"flip\"";
        if buffers.size != BufferSize::Full {
            let what = format!("{wrong} and `size` is \"half\"");
            let remedy = "write size = \"full\": a page changes hands with one frame in it";
            self.say(Place::Buffers, "size", what, remedy);
        }
        if buffers.spare > 0 {
            let what = format!("{wrong} and there are `spare` buffers");
            let remedy = "leave them out: pages are exchanged one for one, none comes or goes";
            self.say(Place::Buffers, "spare", what, remedy);
        }
        let vifs: usize = self
            .config
            .guests
            .iter()
            .map(|guest| guest.vifs.len())
            .sum();
        let pages = vifs.saturating_mul(buffers.to_guest as usize);
        if pages > FLIP_PAGES {
            let what = format!("{wrong} and {vifs} interfaces have {pages} buffers `to_guest`");
            let remedy = format!(
                "{FLIP_PAGES} is the most: each page is a mapping of its own in the driver domain, \
                 of which the kernel allows a process some 65 000"
            );
            self.say(Place::Buffers, "to_guest", what, remedy);
        }
    }

    fn nics(&mut self) {
        let mut names = BTreeMap::new();
        for (n, nic) in self.config.nics.iter().enumerate() {
            let place = Place::Nic(n);
            self.name(place, &nic.name, 32);
            if let Some(first) = names.insert(&nic.name, n) {
                let what = format!(
                    "the name \"{}\" is that of [[nic]] {} too",
                    nic.name,
                    first + 1
                );
                self.say(place, "name", what, "give each its own");
            }
            self.range(place, "mtu", nic.mtu, 576..=9000);
            self.rate(place, "rate_mbps", nic.rate_mbps);
            self.range(
                place,
                "burst_bytes",
                nic.burst_bytes,
                nic.mtu + 18..=64 << 20,
            );
            self.range(place, "buffers", nic.buffers, 64..=65_536);
            if let crate::domain::Moderation::Tick(tick) = nic.moderation {
                self.range(place, "tick_us", tick, 1..=100_000);
            }
            if let Queues::Vmq(vmq) = nic.queues {
                self.vmq(n, nic, vmq);
            }
            self.shared_by_workers(place, nic);
            self.rules(place, &nic.rules, |r| Place::NicRule(n, r));
            match &nic.kind {
                Kind::Tap { port, offloads } => {
                    if *offloads == Offloads::Tso {
                        let remedy = "write \"none\" or \"checksum\": frames on a wire are never \
                                      longer than its MTU";
                        self.say(place, "offloads", "`offloads` is \"tso\"", remedy);
                    }
                    self.port(place, port, self.config.nic_ifname(n));
                }
                Kind::Xdp { wire } => {
                    if nic.mtu > XDP_MTU_MAX {
                        let what = format!("`kind` is \"xdp\" and `mtu` is {}", nic.mtu);
                        let remedy = format!(
                            "a frame must fit one buffer, of which the kernel keeps 256 bytes: \
                             write an `mtu` of at most {XDP_MTU_MAX}"
                        );
                        self.say(place, "mtu", what, remedy);
                    }
                    match wire {
                        XdpWire::Veth(port) => {
                            self.port(place, port, self.config.nic_ifname(n));
                        }
                        XdpWire::Netdev { name, netns } => {
                            self.ifname(place, "netdev", name);
                            self.netns(place, netns.as_deref());
                        }
                    }
                }
                Kind::Local { port } => self.port(place, port, self.config.nic_ifname(n)),
                Kind::Sim {
                    loss,
                    station,
                    delay_us,
                    ..
                } => {
                    self.range(place, "delay_us", *delay_us, 0..=10_000_000);
                    if !(0.0..=1.0).contains(loss) {
                        let remedy = "write a share from 0.0 to 1.0";
                        self.say(place, "loss", format!("`loss` is {loss}"), remedy);
                    }
                    self.station(place, station, |app| Place::NicApp(n, app));
                }
                Kind::Pcap { read, write } => self.files(place, read, write),
            }
        }
    }

    /// Queues for single guests need a NIC that has them, pages that stay mapped, and buffers
    /// that a frame fits in one piece.
    fn vmq(&mut self, n: usize, nic: &Nic, vmq: Vmq) {
        let place = Place::Nic(n);
        self.range(place, "vmq_queues", vmq.queues, 1..=64);
        self.range(place, "vmq_rebalance_ms", vmq.rebalance_ms, 0..=60_000);
        let wrong = "`queues` is \"vmq\"";
        match nic.kind {
            Kind::Tap { .. } | Kind::Sim { .. } => {}
            Kind::Xdp { .. } if vmq.rebalance_ms > 0 => {
                let what = "`kind` is \"xdp\" and there is a `vmq_rebalance_ms`";
                let remedy = "leave it out: a guest has the queue that its `pdev` names, for good";
                self.say(place, "vmq_rebalance_ms", what, remedy);
            }
            Kind::Xdp { .. } => {}
            Kind::Pcap { .. } | Kind::Local { .. } => {
                let remedy = "leave it out, or use a NIC of kind \"tap\", \"xdp\" or \"sim\"";
                self.say(place, "queues", wrong, remedy);
            }
        }
        if nic.rate_mbps.is_some() {
            let what = format!("{wrong} and there is a `rate_mbps`");
            let remedy = "leave one of them out: the token bucket is in front of the shared queue";
            self.say(place, "queues", what, remedy);
        }
        let grants = self.config.driver.grants;
        if let GrantMode::Copy | GrantMode::Flip = grants {
            let mode = if grants == GrantMode::Copy {
                "copy"
            } else {
                "flip"
            };
            let what = format!("{wrong} and the driver's `grants` is \"{mode}\"");
            let remedy = "write another `grants` in [driver], or queues = \"shared\" here: a NIC can only write to pages that are within the driver domain's reach";
            self.say(place, "queues", what, remedy);
        }
        let buffer = self.config.buffers.size.bytes() as u32;
        if nic.mtu.saturating_add(FRAME_EXTRA_BYTES) > buffer {
            let what = format!("{wrong} and `mtu` is {}", nic.mtu);
            let remedy = format!(
                "a frame must fit one of the guests' buffers: write an `mtu` of at most {}, or \
                 size = \"full\" in [buffers]",
                buffer - FRAME_EXTRA_BYTES
            );
            self.say(place, "queues", what, remedy);
        }
    }

    /// Workers share a NIC whose packets the kernel spreads over queues.
    fn shared_by_workers(&mut self, place: Place, nic: &Nic) {
        let workers = self.config.driver.workers;
        if workers < 2 {
            return;
        }
        if !matches!(nic.kind, Kind::Tap { .. } | Kind::Local { .. }) {
            let what = format!("the driver has {workers} `workers`, and this NIC has one queue");
            let remedy = "write kind = \"tap\" or \"local\", or workers = 1 in [driver]";
            self.say(place, "kind", what, remedy);
        }
        if matches!(nic.queues, Queues::Vmq(_)) {
            let what = format!("`queues` is \"vmq\", and the driver has {workers} `workers`");
            let remedy = "write queues = \"shared\", or workers = 1 in [driver]: a NIC either leads \
                          frames to single guests or spreads flows over workers";
            self.say(place, "queues", what, remedy);
        }
    }

    fn guests(&mut self) {
        let mut names = BTreeMap::new();
        let workers: Vec<_> = (0..self.config.driver.workers.max(1))
            .map(worker_name)
            .collect();
        let most = usize::from(u16::MAX);
        if self.config.guests.len() > most {
            self.say(
                Place::Guest(most),
                "",
                "too many guests",
                format!("{most} is the most"),
            );
            return;
        }
        for (g, guest) in self.config.guests.iter().enumerate() {
            let place = Place::Guest(g);
            self.name(place, &guest.name, 32);
            if workers.contains(&guest.name) {
                let what = format!("the name \"{}\" is that of the driver domain", guest.name);
                self.say(place, "name", what, "choose another");
            } else if let Some(first) = names.insert(&guest.name, g) {
                let what = format!(
                    "the name \"{}\" is that of [[guest]] {} too",
                    guest.name,
                    first + 1
                );
                self.say(place, "name", what, "give each its own");
            }
            self.cpus(place, &guest.cpus);
            self.polling(place, guest.polling);
            if guest.vifs.is_empty() || guest.vifs.len() > VIFS_PER_GUEST {
                let what = format!("it has {} interfaces", guest.vifs.len());
                let remedy = format!("give it 1 to {VIFS_PER_GUEST} sections [[guest.vif]]");
                self.say(place, "", what, remedy);
            }
            for v in 0..guest.vifs.len() {
                self.vif(g, v);
            }
        }
    }

    fn pdevs(&mut self) {
        let mut taken = BTreeMap::new();
        for (g, guest) in self.config.guests.iter().enumerate() {
            for (v, vif) in guest.vifs.iter().enumerate() {
                let Some(pdev) = &vif.pdev else { continue };
                let place = Place::Vif(g, v);
                if let Some((what, remedy)) = pdev.contradiction(self.config, &taken) {
                    self.say(place, "pdev", what, remedy);
                }
                taken.insert(pdev, place.to_string());
            }
        }
    }

    fn vif(&mut self, g: usize, v: usize) {
        let Some(vif) = self
            .config
            .guests
            .get(g)
            .and_then(|guest| guest.vifs.get(v))
        else {
            return;
        };
        let place = Place::Vif(g, v);
        self.range(place, "mtu", vif.mtu, 576..=9000);
        self.rate(place, "rate_mbps", vif.rate_mbps);
        self.range(place, "weight", vif.weight, 1..=1000);
        self.rules(place, &vif.rules, |r| Place::VifRule(g, v, r));
        match &vif.endpoint {
            Endpoint::Tap { port } => self.port(place, port, self.config.vif_ifname(g, v)),
            Endpoint::Stack { station } => {
                self.station(place, station, |app| Place::VifApp(g, v, app));
            }
            Endpoint::Source {
                size,
                rate_pps,
                window,
                to,
                ..
            } => {
                self.range(place, "size", *size, 60..=vif.mtu.saturating_add(14));
                self.rate(place, "rate_pps", *rate_pps);
                self.range(place, "window", *window, 0..=4096);
                if to.is_zero() {
                    let remedy = "write the MAC of a vif or station, like 02:00:00:00:00:01";
                    self.say(place, "to", format!("`to` is {to}"), remedy);
                }
            }
            Endpoint::Pcap { read, write } => self.files(place, read, write),
            Endpoint::Sink { .. } | Endpoint::Echo => {}
        }
    }

    fn rules(&mut self, place: Place, rules: &[Rule], rule_place: impl Fn(usize) -> Place) {
        if rules.len() > RULES_MAX {
            let what = format!("it has {} rules", rules.len());
            self.say(place, "", what, format!("{RULES_MAX} is the most"));
            return;
        }
        let mut names = BTreeMap::new();
        for (r, rule) in rules.iter().enumerate() {
            let place = rule_place(r);
            self.name(place, &rule.name, 32);
            if let Some(first) = names.insert(&rule.name, r) {
                let what = format!(
                    "the name \"{}\" is that of rule {} too",
                    rule.name,
                    first + 1
                );
                self.say(place, "name", what, "give each its own");
            }
            if let Some((key, what, remedy)) = rule.contradiction() {
                self.say(place, key, what, remedy);
            }
        }
    }

    fn files(&mut self, place: Place, read: &Option<String>, write: &Option<String>) {
        if read.is_none() && write.is_none() {
            let remedy = "write read = \"in.pcap\", write = \"out.pcap\" or both";
            self.say(place, "", "it has neither `read` nor `write`", remedy);
        }
        for (key, file) in [("read", read), ("write", write)] {
            if let Some(file) = file
                && (file.is_empty() || file.contains('\0'))
            {
                self.say(place, key, format!("`{key}` is no file"), "write its path");
            }
        }
    }

    fn port(&mut self, place: Place, port: &KernelPort, ifname: Option<String>) {
        let ifname = ifname.unwrap_or_default();
        self.ifname(place, "ifname", &ifname);
        self.netns(place, port.netns.as_deref());
        if port.netns.is_none() && port.ifname.is_none() && matches!(place, Place::Vif(..)) {
            let what =
                format!("`netns` is missing, so the interface would be this system's {ifname}");
            let remedy = "write netns = \"…\" (make it with `ip netns add`), or choose an `ifname`";
            self.say(place, "", what, remedy);
        }
        self.range(place, "tx_queue", port.tx_queue, 0..=1_000_000);
        self.gateway(place, &port.addresses, port.gateway);
    }

    fn ifname(&mut self, place: Place, key: &'static str, ifname: &str) {
        let good = |c: u8| c.is_ascii_graphic() && c != b'/' && c != b':' && c != b'%';
        let is_name = !ifname.is_empty() && ifname.len() <= IFNAME_MAX && ifname.bytes().all(good);
        if !is_name || ifname == "." || ifname == ".." {
            let what = format!("`{key}` is \"{}\"", ifname.escape_debug());
            let remedy = format!("use 1 to {IFNAME_MAX} letters, digits, `-`, `_` and `.`");
            self.say(place, key, what, remedy);
        }
    }

    fn netns(&mut self, place: Place, netns: Option<&str>) {
        let Some(netns) = netns else { return };
        let path = netns.starts_with('/');
        if netns.is_empty() || netns.contains('\0') || (!path && netns.contains('/')) {
            let what = format!("`netns` is \"{}\"", netns.escape_debug());
            let remedy = "write a name as in `ip netns list`, or an absolute path";
            self.say(place, "netns", what, remedy);
        }
    }

    fn gateway(&mut self, place: Place, addresses: &[Cidr], gateway: Option<IpAddr>) {
        if let Some(gateway) = gateway
            && !addresses.iter().any(|address| address.contains(gateway))
        {
            let what = format!("`gateway` {gateway} is in none of the networks of `addresses`");
            self.say(place, "gateway", what, "choose one that is a neighbour");
        }
    }

    fn station(&mut self, place: Place, station: &Station, app_place: impl Fn(usize) -> Place) {
        if station.addresses.is_empty() || station.addresses.len() > 4 {
            let what = format!("it has {} addresses", station.addresses.len());
            let remedy = "write 1 to 4, like addresses = [\"10.0.0.2/24\"]";
            self.say(place, "addresses", what, remedy);
        }
        self.gateway(place, &station.addresses, station.gateway);
        if station.apps.len() > 32 {
            self.say(place, "", "it has more than 32 apps", "leave some out");
        }
        let mut ports = BTreeMap::new();
        for (a, app) in station.apps.iter().enumerate() {
            let place = app_place(a);
            match *app {
                StackApp::TcpSink { port } | StackApp::TcpEcho { port } => {
                    self.range(place, "port", port.into(), 1..=65_535);
                    if ports.insert(port, a).is_some() {
                        let what = format!("port {port} is taken by another app");
                        self.say(place, "port", what, "give each its own");
                    }
                }
                StackApp::TcpSource { to, seconds, .. } => {
                    self.range(place, "seconds", seconds, 1..=1_000_000);
                    self.target(place, to.ip(), Some(to.port()));
                }
                StackApp::TcpClient {
                    to, size, seconds, ..
                } => {
                    self.range(place, "seconds", seconds, 1..=1_000_000);
                    self.range(place, "size", size, 1..=1 << 20);
                    self.target(place, to.ip(), Some(to.port()));
                }
                StackApp::Ping { to, count, .. } => {
                    self.range(place, "count", count, 1..=1_000_000);
                    self.target(place, to, None);
                }
            }
        }
    }

    fn target(&mut self, place: Place, to: IpAddr, port: Option<u16>) {
        if to.is_unspecified() || to.is_multicast() || port == Some(0) {
            let remedy = "write the address of one station, and a port above 0";
            self.say(place, "to", format!("`to` is {to}"), remedy);
        }
    }

    /// What must be different all over the bridge.
    fn stations(&mut self) {
        let config = self.config;
        let mut macs: BTreeMap<Mac, Place> = BTreeMap::new();
        let mut addresses: BTreeMap<IpAddr, Place> = BTreeMap::new();
        let mut interfaces: BTreeMap<(Option<&str>, String), Place> = BTreeMap::new();
        let nics = (0..config.nics.len()).map(|n| (Place::Nic(n), config.nic_mac(n)));
        let vifs = config.guests.iter().enumerate().flat_map(|(g, guest)| {
            (0..guest.vifs.len()).map(move |v| (Place::Vif(g, v), config.vif_mac(g, v)))
        });
        for (place, mac) in nics.chain(vifs) {
            if let Some(mac) = mac {
                self.mac(place, mac, &mut macs);
            }
            let (own, port) = match place {
                Place::Nic(n) => match config.nics.get(n).map(|nic| &nic.kind) {
                    Some(Kind::Sim { station, .. }) => (&station.addresses, None),
                    Some(Kind::Xdp {
                        wire: XdpWire::Netdev { name, netns },
                    }) => {
                        let used = (netns.as_deref(), name.clone());
                        if let Some(first) = interfaces.insert(used, place) {
                            let what = format!("the interface {name} is that of {first} too");
                            self.say(place, "netdev", what, "choose another `netdev`");
                        }
                        continue;
                    }
                    Some(kind) => match kind.port() {
                        Some(port) => (&port.addresses, Some((port, config.nic_ifname(n)))),
                        None => continue,
                    },
                    None => continue,
                },
                Place::Vif(g, v) => match config.vif(g, v).map(|vif| &vif.endpoint) {
                    Some(Endpoint::Tap { port }) => {
                        (&port.addresses, Some((port, config.vif_ifname(g, v))))
                    }
                    Some(Endpoint::Stack { station }) => (&station.addresses, None),
                    _ => continue,
                },
                _ => continue,
            };
            for address in own {
                self.address(place, address.address, &mut addresses);
            }
            if let Some((port, Some(ifname))) = port {
                let shown = ifname.clone();
                if let Some(first) = interfaces.insert((port.netns.as_deref(), ifname), place) {
                    let what = format!("the interface {shown} is that of {first} too");
                    self.say(place, "ifname", what, "choose another `ifname` or `netns`");
                }
            }
        }
    }

    fn mac(&mut self, place: Place, mac: Mac, taken: &mut BTreeMap<Mac, Place>) {
        if mac.is_multicast() || mac.is_zero() {
            let kind = if mac.is_zero() {
                "no station's"
            } else {
                "a multicast address"
            };
            let remedy = "write one with an even first byte, like 02:00:00:00:00:01";
            self.say(place, "mac", format!("`mac` {mac} is {kind}"), remedy);
            return;
        }
        match taken.entry(mac) {
            Entry::Vacant(entry) => {
                entry.insert(place);
            }
            Entry::Occupied(first) => {
                let what = format!("the MAC {mac} is that of {} too", first.get());
                self.say(place, "mac", what, "give each its own, or leave `mac` out");
            }
        }
    }

    fn address(&mut self, place: Place, address: IpAddr, taken: &mut BTreeMap<IpAddr, Place>) {
        if address.is_unspecified() || address.is_multicast() {
            let remedy = "write the address of one station, like 10.0.0.2/24";
            self.say(
                place,
                "addresses",
                format!("`addresses` has {address}"),
                remedy,
            );
            return;
        }
        match taken.entry(address) {
            Entry::Vacant(entry) => {
                entry.insert(place);
            }
            Entry::Occupied(first) => {
                let what = format!("the address {address} is that of {} too", first.get());
                self.say(place, "addresses", what, "give each its own");
            }
        }
    }

    fn lro(&mut self) {
        let lro = self.config.lro;
        self.range(Place::Lro, "hold_us", lro.hold_us, lro::HOLD_US);
        self.range(Place::Lro, "flows", lro.flows, lro::FLOWS);
        self.range(Place::Lro, "segments", lro.segments, lro::SEGMENTS);
        if let Some((key, what, remedy)) = lro.contradiction() {
            self.say(Place::Lro, key, what, remedy);
        }
        if !lro.spoils_forwarding() {
            return;
        }
        for (g, guest) in self.config.guests.iter().enumerate() {
            let forwarding = guest.vifs.iter().position(|vif| vif.forwards);
            if let Some(v) = forwarding {
                let what = format!(
                    "`rules` is \"lro\", but {}-{v} ({}) forwards packets, and what is merged so \
                     cannot be cut into what it was",
                    guest.name,
                    Place::Vif(g, v),
                );
                let remedy = "write rules = \"gro\", or at = \"none\"";
                self.say(Place::Lro, "rules", what, remedy);
            }
        }
    }

    fn sizes(&mut self) {
        for (place, what, remedy) in crate::machine::too_large(self.config) {
            self.say(place, "", what, remedy);
        }
    }
}
