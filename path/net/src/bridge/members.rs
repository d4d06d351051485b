//! The bridge and its ports: adding, removing, and what can be asked of them.

use super::addresses::Addresses;
use super::drops::{DropReason, Drops};
use super::ethernet::{GROUP_BIT, destination_of, word_of};
use super::guard::Guard;
use super::membership::{self, Membership};
use super::offence::Offence;
use super::port::{AddError, BridgeSettings, Kind, Port};
use super::ports::{MAX_PORTS, PortSet};
use super::rules::{Count, Firewall, Inspected, Rule, Way};
use super::table::{ForwardingTable, Station};
use super::verdict::Verdict;
use nic::rate::TokenBucket;

/// One port's state.
#[derive(Debug)]
pub(super) struct PortState {
    /// A guest's MAC as loaded from a frame; NIC ports: 0.
    pub(super) bound: u64,
    /// What is enforced on a guest; none: a NIC port.
    pub(super) guard: Option<Guard>,
    pub(super) rate: Option<TokenBucket>,
    pub(super) group: TokenBucket,
    /// Where a unicast frame from here to an unknown station goes.
    pub(super) unknown: Result<Verdict, DropReason>,
    /// Where a group's frame from here goes.
    pub(super) flood: Result<Verdict, DropReason>,
    /// Where a report of members of a multicast group goes from here.
    pub(super) report: Result<Verdict, DropReason>,
    /// Whether it is told what hosts report: a NIC's, or of a guest that routes multicast.
    pub(super) is_router: bool,
    pub(super) drops: Drops,
    /// The first frame of each kind that it forged.
    pub(super) offences: Vec<Offence>,
    /// How many of them [`Bridge::new_offences`] has returned.
    told: usize,
}

/// The bridge.
#[derive(Debug)]
pub struct Bridge {
    pub(super) settings: BridgeSettings,
    pub(super) table: ForwardingTable,
    pub(super) ports: Vec<Option<PortState>>,
    /// By port, up to the last port that has rules. Empty if no port has.
    pub(super) rules: Vec<Firewall>,
    pub(super) addresses: Addresses,
    /// See [`Bridge::has_new_offences`].
    pub(super) has_offences: bool,
    /// Drops of removed ports, and of frames that came in by a port that does not exist.
    pub(super) past: Drops,
}

impl Bridge {
    /// A bridge without ports.
    #[must_use]
    pub fn new(settings: BridgeSettings) -> Self {
        Self {
            settings,
            table: ForwardingTable::new(
                settings.learned_max,
                settings.ageing_ns,
                settings.hash_seed,
            ),
            ports: Vec::new(),
            rules: Vec::new(),
            addresses: Addresses::default(),
            has_offences: false,
            past: Drops::default(),
        }
    }

    /// Adds port `number`. Traffic goes on meanwhile.
    ///
    /// # Errors
    /// Nothing has changed: see [`AddError`].
    pub fn add(&mut self, number: usize, port: &Port) -> Result<(), AddError> {
        self.check(number, port)?;
        let (bound, guard, is_router) = match &port.kind {
            Kind::Nic => (0, None, true),
            Kind::Guest { macs, claims } => {
                for mac in macs {
                    self.table.bind(word_of(*mac), number);
                }
                let guard = Guard::new(number, macs, claims, &port.addresses);
                let bound = macs.first().map_or(0, |mac| word_of(*mac));
                (bound, Some(guard), claims.router)
            }
        };
        self.addresses.add(number, &port.addresses, &port.gateways);
        let BridgeSettings {
            group_pps,
            group_burst,
            ..
        } = self.settings;
        let state = PortState {
            bound,
            guard,
            rate: port
                .rate
                .map(|rate| TokenBucket::new(rate.bytes_per_s, rate.burst_bytes)),
            group: TokenBucket::new(group_pps.into(), group_burst),
            unknown: Err(DropReason::NoPort),
            flood: Err(DropReason::NoPort),
            report: Err(DropReason::NoPort),
            is_router,
            drops: Drops::default(),
            offences: Vec::new(),
            told: 0,
        };
        if self.ports.len() <= number {
            self.ports.resize_with(number + 1, || None);
        }
        if let Some(slot) = self.ports.get_mut(number) {
            *slot = Some(state);
        }
        self.set_rules(number, &port.rules);
        self.update_floods();
        Ok(())
    }

    /// A port has these rules from now on, which have decided about nothing yet.
    pub fn set_rules(&mut self, number: usize, rules: &[Rule]) {
        if !rules.is_empty() && self.rules.len() <= number {
            self.rules.resize_with(number + 1, Firewall::default);
        }
        if let Some(before) = self.rules.get_mut(number) {
            *before = Firewall::new(rules);
        }
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
            .find(|address| self.addresses.is_taken(address))
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
        self.past += state.drops;
        if let Some(rules) = self.rules.get_mut(number) {
            *rules = Firewall::default();
        }
        self.table.forget_port(number);
        self.addresses.remove(number);
        self.update_floods();
        true
    }

    /// Works out where each port's floods go. Called after every change of the ports.
    fn update_floods(&mut self) {
        let members = |keep: fn(&PortState) -> bool| -> PortSet {
            let states = self.ports.iter().enumerate();
            states
                .filter(|(_, state)| state.as_ref().is_some_and(keep))
                .map(|(n, _)| n)
                .collect()
        };
        let all = members(|_| true);
        let nics = members(|state| state.guard.is_none());
        let routers = members(|state| state.is_router);
        for (number, state) in self.ports.iter_mut().enumerate() {
            if let Some(state) = state {
                state.unknown = Verdict::to(nics.without(number));
                state.flood = Verdict::to(all.without(number));
                state.report = match self.settings.reports_to_all {
                    true => state.flood.clone(),
                    false => Verdict::to(routers.without(number)),
                };
            }
        }
    }

    /// The guest of a port routes multicast: from now on it is told what hosts report.
    pub(super) fn becomes_router(&mut self, number: usize) {
        if let Some(Some(state)) = self.ports.get_mut(number)
            && !std::mem::replace(&mut state.is_router, true)
        {
            self.update_floods();
        }
    }

    /// What was dropped of what came in by a port.
    #[must_use]
    pub fn drops(&self, number: usize) -> Option<&Drops> {
        self.ports.get(number)?.as_ref().map(|state| &state.drops)
    }

    /// The first frame of each kind that the guest of a port forged.
    #[must_use]
    pub fn offences(&self, number: usize) -> &[Offence] {
        let state = self.ports.get(number).and_then(Option::as_ref);
        state.map_or(&[], |state| &state.offences)
    }

    /// Whether [`Bridge::new_offences`] has any to return.
    #[must_use]
    #[inline]
    pub fn has_new_offences(&self) -> bool {
        self.has_offences
    }

    /// The offences since the last call, each with its port.
    pub fn new_offences(&mut self) -> Vec<(usize, Offence)> {
        let mut new = Vec::new();
        if !std::mem::take(&mut self.has_offences) {
            return new;
        }
        for (number, state) in self.ports.iter_mut().enumerate() {
            if let Some(state) = state {
                let untold = state.offences.iter().skip(state.told);
                new.extend(untold.map(|offence| (number, *offence)));
                state.told = state.offences.len();
            }
        }
        new
    }

    /// Everything that was dropped, also by ports that are no more.
    #[must_use]
    pub fn drops_total(&self) -> Drops {
        let mut total = self.past;
        for state in self.ports.iter().flatten() {
            total += state.drops;
        }
        total
    }

    /// What each rule of a port has decided about, in their order.
    pub fn rule_counts(&self, number: usize) -> impl Iterator<Item = Count> + '_ {
        self.rules
            .get(number)
            .into_iter()
            .flat_map(Firewall::counts)
    }

    /// The rule that denies a frame that came in by `in_port`, if one does: the port whose rule it
    /// is, and its place among that port's. Nothing is counted.
    #[must_use]
    pub fn denied_by(&self, header: &[u8], in_port: usize, now_ns: u64) -> Option<(usize, usize)> {
        let seen = Inspected::of(header);
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
            _ => match membership::of(header) {
                Some(Membership::Report) => (None, &state.report),
                _ => (None, &state.flood),
            },
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
