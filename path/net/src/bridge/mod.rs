//! The bridge: where a frame goes, and which may not go anywhere. Its clauses are numbered in
//! `specs/bridge.md` (BR-1 …).
//!
//! | module | job |
//! |---|---|
//! | `table` | which port a station is behind: bound for good, or learned for a while |
//! | `guard` | what a guest may claim about itself in ARP and neighbour discovery |
//! | `rules` | what may pass a port: a firewall |
//! | `ports` | sets of ports |
//! | `drops` | why a frame went nowhere, counted |
//!
//! A port is a *NIC port*, behind which there are stations to be learned, or a *guest port*, whose
//! MACs are bound by configuration and enforced. Time is passed in, and every table is bounded.

mod drops;
mod guard;
mod ports;
mod rules;
mod table;

pub use drops::{DropReason, Drops};
pub use guard::wanted;
pub use ports::{MAX_PORTS, PortSet};
pub use rules::{Count, Prefix, Rule, Way};
pub use table::Station;

use crate::packet::{ETHERNET_BYTES, Mac};
use guard::Guard;
use nic::rate::TokenBucket;
use nic::{Frame, Single};
use rules::{Asked, Rules, Seen};
use shmem::Fault;
use std::collections::BTreeMap;
use std::net::IpAddr;
use table::{Learned, Table};

/// The low 48 bits of a word: a MAC, its first byte lowest.
const MAC_BITS: u64 = (1 << 48) - 1;
/// The group bit of a MAC in such a word.
const GROUP_BIT: u64 = 1;
/// 01:80:c2:00:00:00 … 0f, of which the lowest four bits of the last byte differ (802.1D, 7.12.6).
const RESERVED: u64 = 0x0000_00c2_8001;
/// What of a word those addresses have in common.
const RESERVED_MASK: u64 = 0xf0ff_ffff_ffff;

/// What holds for the whole bridge.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Stations that may be learned at the same time.
    pub learned_max: usize,
    /// Nanoseconds after which a silent learned station is forgotten.
    pub ageing_ns: u64,
    /// Broadcast and multicast frames a second that each port may send.
    pub group_pps: u32,
    /// How many of them at once.
    pub group_burst: u32,
    /// Secret of the table's hash, so that nobody can choose MACs that collide.
    pub hash_seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            learned_max: 4096,
            ageing_ns: 300_000_000_000,
            group_pps: 1000,
            group_burst: 200,
            hash_seed: 0,
        }
    }
}

/// A limit on what comes in by a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Bytes of frames a second.
    pub bytes_per_s: u64,
    /// Bytes at once.
    pub burst_bytes: u32,
}

/// Kinds of port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Stations are behind it that are learned.
    Nic,
    /// A guest.
    Guest {
        /// Its MACs, at least one: the only sources that it may use, and what is forwarded to it.
        macs: Vec<Mac>,
        /// Whether it may call itself a router (ICMPv6 router advertisements and redirects).
        router: bool,
        /// Whether it may claim no IP addresses but those of its port (and link-local ones).
        confined: bool,
    },
}

/// A port, as it is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The kind.
    pub kind: Kind,
    /// The IP addresses behind it that are known: no guest port may claim another port's.
    pub addresses: Vec<IpAddr>,
    /// What may come in by it; none: no limit.
    pub rate: Option<Rate>,
    /// Which frames may pass it: the first rule that fits decides, and what none fits may pass.
    pub rules: Vec<Rule>,
}

impl Port {
    /// A NIC port without a limit.
    #[must_use]
    pub fn nic() -> Self {
        Self {
            kind: Kind::Nic,
            addresses: Vec::new(),
            rate: None,
            rules: Vec::new(),
        }
    }

    /// A guest port with one MAC and without a limit.
    #[must_use]
    pub fn guest(mac: Mac) -> Self {
        let kind = Kind::Guest {
            macs: vec![mac],
            router: false,
            confined: false,
        };
        Self {
            kind,
            addresses: Vec::new(),
            rate: None,
            rules: Vec::new(),
        }
    }
}

/// Why a port cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// Its number is too large.
    #[error("port {0} is beyond the {MAX_PORTS} that a bridge can have")]
    Number(usize),
    /// Its number is in use.
    #[error("port {0} exists already")]
    Exists(usize),
    /// A guest port without any MAC.
    #[error("a guest port needs a MAC")]
    NoMac,
    /// A MAC that is no single station's.
    #[error("{0} is not the address of a single station")]
    NotAStation(Mac),
    /// A MAC that is bound already.
    #[error("{0} is bound to a port already")]
    MacTaken(Mac),
    /// An address that is another port's.
    #[error("{0} is another port's address")]
    AddressTaken(IpAddr),
}

/// Where a frame goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Out by this port.
    Unicast(usize),
    /// Out by each of these ports, at least one.
    Many(PortSet),
    /// Nowhere.
    Drop(DropReason),
}

/// One port's state.
#[derive(Debug)]
struct State {
    /// A guest's MAC as loaded from a frame; NIC ports: 0.
    bound: u64,
    /// What else is known about a guest; none: a NIC port.
    guard: Option<Guard>,
    rate: Option<TokenBucket>,
    group: TokenBucket,
    /// Where a unicast frame from here to an unknown station goes.
    unknown: Result<Verdict, DropReason>,
    /// Where a group's frame from here goes.
    flood: Result<Verdict, DropReason>,
    drops: Drops,
}

/// The bridge.
#[derive(Debug)]
pub struct Bridge {
    settings: Settings,
    table: Table,
    ports: Vec<Option<State>>,
    /// By port, up to the last that has any.
    rules: Vec<Rules>,
    owners: BTreeMap<IpAddr, usize>,
    /// Drops of ports that are no more, and of frames that came in by none.
    past: Drops,
}

impl Bridge {
    /// A bridge without ports.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            table: Table::new(settings.learned_max, settings.ageing_ns, settings.hash_seed),
            ports: Vec::new(),
            rules: Vec::new(),
            owners: BTreeMap::new(),
            past: Drops::default(),
        }
    }

    /// Adds port `number`. Traffic goes on meanwhile.
    ///
    /// # Errors
    /// Nothing has changed: see [`AddError`].
    pub fn add(&mut self, number: usize, port: &Port) -> Result<(), AddError> {
        self.check(number, port)?;
        let (bound, guard) = match &port.kind {
            Kind::Nic => (0, None),
            Kind::Guest {
                macs,
                router,
                confined,
            } => {
                for mac in macs {
                    self.table.bind(word_of(*mac), number);
                }
                let guard = Guard::new(number, macs, *router, *confined);
                (macs.first().map_or(0, |mac| word_of(*mac)), Some(guard))
            }
        };
        self.owners
            .extend(port.addresses.iter().map(|address| (*address, number)));
        let Settings {
            group_pps,
            group_burst,
            ..
        } = self.settings;
        let state = State {
            bound,
            guard,
            rate: port
                .rate
                .map(|rate| TokenBucket::new(rate.bytes_per_s, rate.burst_bytes)),
            group: TokenBucket::new(group_pps.into(), group_burst),
            unknown: Err(DropReason::NoPort),
            flood: Err(DropReason::NoPort),
            drops: Drops::default(),
        };
        if self.ports.len() <= number {
            self.ports.resize_with(number + 1, || None);
        }
        if let Some(slot) = self.ports.get_mut(number) {
            *slot = Some(state);
        }
        if !port.rules.is_empty() && self.rules.len() <= number {
            self.rules.resize_with(number + 1, Rules::default);
        }
        if let Some(rules) = self.rules.get_mut(number) {
            *rules = Rules::new(&port.rules);
        }
        self.wire();
        Ok(())
    }

    fn check(&self, number: usize, port: &Port) -> Result<(), AddError> {
        if number >= MAX_PORTS {
            return Err(AddError::Number(number));
        }
        if self.ports.get(number).is_some_and(Option::is_some) {
            return Err(AddError::Exists(number));
        }
        if let Kind::Guest { macs, .. } = &port.kind {
            if macs.is_empty() {
                return Err(AddError::NoMac);
            }
            for (index, mac) in macs.iter().enumerate() {
                if !mac.is_station() {
                    return Err(AddError::NotAStation(*mac));
                }
                if macs.iter().take(index).any(|other| other == mac)
                    || self.table.is_bound(word_of(*mac))
                {
                    return Err(AddError::MacTaken(*mac));
                }
            }
        }
        match port
            .addresses
            .iter()
            .find(|address| self.owners.contains_key(address))
        {
            Some(address) => Err(AddError::AddressTaken(*address)),
            None => Ok(()),
        }
    }

    /// Removes port `number`, with its MACs, its addresses and what was learned behind it. Its
    /// drops stay in the total. Whether there was such a port.
    pub fn remove(&mut self, number: usize) -> bool {
        let Some(state) = self.ports.get_mut(number).and_then(Option::take) else {
            return false;
        };
        self.past.absorb(&state.drops);
        if let Some(rules) = self.rules.get_mut(number) {
            *rules = Rules::default();
        }
        self.table.forget_port(number);
        self.owners.retain(|_, owner| *owner != number);
        self.wire();
        true
    }

    /// Works out where each port's floods go.
    fn wire(&mut self) {
        let members = |keep: fn(&State) -> bool| -> PortSet {
            let states = self.ports.iter().enumerate();
            states
                .filter(|(_, state)| state.as_ref().is_some_and(keep))
                .map(|(n, _)| n)
                .collect()
        };
        let all = members(|_| true);
        let nics = members(|state| state.guard.is_none());
        for (number, state) in self.ports.iter_mut().enumerate() {
            if let Some(state) = state {
                state.unknown = Verdict::to(nics.without(number));
                state.flood = Verdict::to(all.without(number));
            }
        }
    }

    /// Decides where a frame goes that came in by `in_port`.
    ///
    /// `header` is its snapshot and `len` its bytes in all. A snapshot of
    /// [`nic::frame::HOT`] bytes is enough for most frames; [`wanted`] names those that need more.
    pub fn forward(&mut self, header: &[u8], len: usize, in_port: usize, now_ns: u64) -> Verdict {
        let Some(Some(state)) = self.ports.get_mut(in_port) else {
            self.past.count(DropReason::UnknownPort);
            return Verdict::Drop(DropReason::UnknownPort);
        };
        let mut arrivals = Arrivals {
            table: &mut self.table,
            rules: &mut self.rules,
            owners: &self.owners,
            in_port,
            now_ns,
        };
        arrivals.judge(state, header, len)
    }

    /// [`Bridge::forward`] for a batch that came in by one port, with the snapshots lengthened
    /// where a guest's must be looked into: one verdict per frame is appended to `verdicts`.
    pub fn forward_batch(
        &mut self,
        frames: &mut [Frame],
        in_port: usize,
        now_ns: u64,
        verdicts: &mut Vec<Verdict>,
    ) {
        let Some(Some(state)) = self.ports.get_mut(in_port) else {
            for _ in frames {
                self.past.count(DropReason::UnknownPort);
                verdicts.push(Verdict::Drop(DropReason::UnknownPort));
            }
            return;
        };
        let mut arrivals = Arrivals {
            table: &mut self.table,
            rules: &mut self.rules,
            owners: &self.owners,
            in_port,
            now_ns,
        };
        verdicts.extend(frames.iter_mut().map(|frame| {
            let looked_into = state.guard.is_some() || !arrivals.rules.is_empty();
            if looked_into && lengthen(frame).is_err() {
                state.drops.count(DropReason::Fault);
                return Verdict::Drop(DropReason::Fault);
            }
            arrivals.judge(state, frame.header(), frame.len())
        }));
    }

    /// Whether [`Bridge::routes`] is open at all to what comes in by a port.
    #[must_use]
    #[inline]
    pub fn has_routes(&self, in_port: usize) -> bool {
        self.routed(in_port).is_some()
    }

    /// The port that this is, if the short way is open to what comes in by it.
    #[inline]
    fn routed(&self, in_port: usize) -> Option<(&State, &Guard)> {
        let state = self.ports.get(in_port)?.as_ref()?;
        let is_open = state.rate.is_none() && self.rules.is_empty();
        state
            .guard
            .as_ref()
            .filter(|_| is_open)
            .map(|guard| (state, guard))
    }

    /// The short way over the bridge: the port of each of these frames that came in by one port is put into
    /// `ports`, if every one goes out by one port and nothing about any of them has to be learned, counted
    /// or looked into. Whether it is so; if not, [`Bridge::forward_batch`] decides about all of them.
    #[must_use]
    pub fn routes(
        &self,
        singles: &[Single],
        in_port: usize,
        now_ns: u64,
        ports: &mut Vec<u16>,
    ) -> bool {
        ports.clear();
        let Some((state, guard)) = self.routed(in_port) else {
            return false;
        };
        // Most frames of a batch go to one station.
        let mut last = (u64::MAX, 0);
        for single in singles {
            let Some(ethernet) = single.head().first_chunk() else {
                return false;
            };
            let ethernet = Ethernet::of(ethernet);
            let is_known = ethernet.source == state.bound || guard.has(ethernet.source);
            if !is_known || !guard::is_harmless(ethernet.ethertype, single.head()) {
                return false;
            }
            if ethernet.destination != last.0 {
                let group = ethernet.destination & GROUP_BIT != 0;
                match self.table.find(ethernet.destination, now_ns) {
                    Some(port) if port != in_port && !group => {
                        last = (ethernet.destination, port as u16);
                    }
                    _ => return false,
                }
            }
            ports.push(last.1);
        }
        true
    }

    /// What was dropped of what came in by a port.
    #[must_use]
    pub fn drops(&self, number: usize) -> Option<&Drops> {
        self.ports.get(number)?.as_ref().map(|state| &state.drops)
    }

    /// Everything that was dropped, also by ports that are no more.
    #[must_use]
    pub fn drops_total(&self) -> Drops {
        let mut total = self.past.clone();
        for state in self.ports.iter().flatten() {
            total.absorb(&state.drops);
        }
        total
    }

    /// What each rule of a port has decided about, in their order.
    pub fn rule_counts(&self, number: usize) -> impl Iterator<Item = Count> + '_ {
        self.rules.get(number).into_iter().flat_map(Rules::counts)
    }

    /// The rule that denies a frame that came in by `in_port`, if one does: the port whose rule it
    /// is, and its place among that port's. Nothing is counted.
    #[must_use]
    pub fn denied_by(&self, header: &[u8], in_port: usize, now_ns: u64) -> Option<(usize, usize)> {
        let seen = Seen::of(header);
        let denies = |port: usize, way| {
            let (rule, allowed) = self.rules.get(port)?.find(way, &seen)?;
            (!allowed).then_some((port, rule))
        };
        if let Some(denied) = denies(in_port, Way::In) {
            return Some(denied);
        }
        let state = self.ports.get(in_port)?.as_ref()?;
        let destination = destination_of(header.first_chunk()?);
        let (found, flood) = match destination & GROUP_BIT {
            0 => (self.table.find(destination, now_ns), &state.unknown),
            _ => (None, &state.flood),
        };
        match (found, flood) {
            (Some(port), _) => denies(port, Way::Out),
            (None, Ok(Verdict::Unicast(port))) => denies(*port, Way::Out),
            (None, Ok(Verdict::Many(set))) => set.iter().find_map(|port| denies(port, Way::Out)),
            _ => None,
        }
    }

    /// Every station that the bridge knows at `now_ns`.
    pub fn stations(&self, now_ns: u64) -> impl Iterator<Item = Station> + '_ {
        self.table.stations(now_ns)
    }
}

/// Makes a snapshot as long as it is [`wanted`].
#[inline]
fn lengthen(frame: &mut Frame) -> Result<(), Fault> {
    match wanted(frame.header()) {
        0 => Ok(()),
        bytes => frame.need(bytes),
    }
}

/// What frames are judged by that come in by one port at one time.
struct Arrivals<'a> {
    table: &'a mut Table,
    rules: &'a mut [Rules],
    owners: &'a BTreeMap<IpAddr, usize>,
    in_port: usize,
    now_ns: u64,
}

impl Arrivals<'_> {
    /// Decides about one frame, and counts it if it is dropped.
    #[inline]
    fn judge(&mut self, state: &mut State, header: &[u8], len: usize) -> Verdict {
        self.decide(state, header, len).unwrap_or_else(|reason| {
            state.drops.count(reason);
            Verdict::Drop(reason)
        })
    }

    #[inline]
    fn decide(
        &mut self,
        state: &mut State,
        header: &[u8],
        len: usize,
    ) -> Result<Verdict, DropReason> {
        let ethernet = header
            .first_chunk::<ETHERNET_BYTES>()
            .ok_or(DropReason::Runt)?;
        let Ethernet {
            destination,
            source,
            ethertype,
        } = Ethernet::of(ethernet);

        self.identify(state, header, source, ethertype)?;
        let mut asked = Asked::new(header, len);
        if !self.pass(self.in_port, Way::In, &mut asked) {
            return Err(DropReason::Firewall);
        }
        if state.guard.is_none()
            && self.table.learn(source, self.in_port, self.now_ns) == Learned::Bound
        {
            return Err(DropReason::BoundSource);
        }
        if destination & RESERVED_MASK == RESERVED {
            return Err(DropReason::ReservedGroup);
        }
        if let Some(rate) = &mut state.rate
            && !rate.take(self.now_ns, len as u32)
        {
            return Err(DropReason::RateLimit);
        }
        let verdict = if destination & GROUP_BIT != 0 {
            match state.group.take(self.now_ns, 1) {
                true => state.flood.clone(),
                false => Err(DropReason::GroupBudget),
            }
        } else {
            match self.table.find(destination, self.now_ns) {
                Some(port) if port == self.in_port => Err(DropReason::SamePort),
                Some(port) => Ok(Verdict::Unicast(port)),
                None => state.unknown.clone(),
            }
        };
        if self.rules.is_empty() {
            return verdict;
        }
        self.let_out(verdict?, &mut asked)
    }

    /// Whether a frame with this source may come in by this port at all.
    #[inline]
    fn identify(
        &self,
        state: &State,
        header: &[u8],
        source: u64,
        ethertype: u16,
    ) -> Result<(), DropReason> {
        if let Some(guard) = &state.guard {
            if source != state.bound && !guard.has(source) {
                return Err(DropReason::ForgedSource);
            }
            if guard::is_harmless(ethertype, header) {
                return Ok(());
            }
            return guard.look_into(header, source, self.owners);
        }
        if source & GROUP_BIT != 0 || source == 0 {
            return Err(DropReason::BadSource);
        }
        Ok(())
    }

    /// Whether the rules of a port let a frame pass.
    #[inline]
    fn pass(&mut self, port: usize, way: Way, asked: &mut Asked<'_>) -> bool {
        let rules = self.rules.get_mut(port);
        rules.is_none_or(|rules| rules.allow(way, asked))
    }

    /// What of a verdict the rules of the ports allow that the frame would go out by.
    fn let_out(&mut self, verdict: Verdict, asked: &mut Asked<'_>) -> Result<Verdict, DropReason> {
        match &verdict {
            Verdict::Unicast(port) if !self.pass(*port, Way::Out, asked) => {
                Err(DropReason::Firewall)
            }
            Verdict::Many(set) => {
                let allowed = set.iter().filter(|port| self.pass(*port, Way::Out, asked));
                Verdict::to(allowed.collect()).map_err(|_| DropReason::Firewall)
            }
            Verdict::Unicast(_) | Verdict::Drop(_) => Ok(verdict),
        }
    }
}

impl Verdict {
    /// The verdict that sends to each of a set.
    fn to(set: PortSet) -> Result<Self, DropReason> {
        let (first, second) = (set.iter().next(), set.iter().nth(1));
        match (first, second) {
            (None, _) => Err(DropReason::NoPort),
            (Some(port), None) => Ok(Self::Unicast(port)),
            _ => Ok(Self::Many(set)),
        }
    }
}

/// An Ethernet header; addresses as they are loaded, first byte lowest.
struct Ethernet {
    destination: u64,
    source: u64,
    ethertype: u16,
}

impl Ethernet {
    #[inline]
    fn of(header: &[u8; ETHERNET_BYTES]) -> Self {
        let [.., a, b, c, d, e, f, g, h] = *header;
        let rest = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        Self {
            destination: destination_of(header),
            source: rest & MAC_BITS,
            ethertype: u16::from_be((rest >> 48) as u16),
        }
    }
}

/// The destination of a frame, first byte lowest.
#[inline]
fn destination_of(ethernet: &[u8; ETHERNET_BYTES]) -> u64 {
    let [a, b, c, d, e, f, g, h, ..] = *ethernet;
    u64::from_le_bytes([a, b, c, d, e, f, g, h]) & MAC_BITS
}

/// A MAC as loaded from a frame: first byte lowest.
fn word_of(Mac([a, b, c, d, e, f]): Mac) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

/// The way back.
fn mac_of(word: u64) -> Mac {
    let [a, b, c, d, e, f, ..] = word.to_le_bytes();
    Mac([a, b, c, d, e, f])
}
