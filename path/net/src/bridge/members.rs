//! The bridge: adding, removing and querying ports.

use super::addresses::Addresses;
use super::drops::{DropReason, Drops};
use super::ethernet::{GROUP_BIT, destination_of, word_of};
use super::guard::Guard;
use super::membership::{self, Membership};
use super::offence::Offence;
use super::port::{AddError, BridgeSettings, PortConfig, PortKind};
use super::ports::{MAX_PORTS, PortSet};
use super::rule::Rule;
use super::rules::{Direction, Filtered, PortFirewall, RoutedFrame, RuleCount};
use super::table::{ForwardingTable, StationEntry};
use super::verdict::Verdict;
use crate::flows::Flows;
use nic::rate::TokenBucket;

/// One port's state.
#[derive(Debug)]
pub(super) struct PortState {
    /// Identity enforcement of a guest; `None` for a NIC port.
    pub(super) guard: Option<Guard>,
    pub(super) rate: Option<TokenBucket>,
    pub(super) group: TokenBucket,
    /// Verdict on a unicast frame from this port to an unknown station.
    pub(super) unknown: Result<Verdict, DropReason>,
    /// Verdict on a frame from this port to a group.
    pub(super) flood: Result<Verdict, DropReason>,
    /// Verdict on a multicast membership report from this port.
    pub(super) report: Result<Verdict, DropReason>,
    /// Whether the port receives membership reports, because it is a NIC port or its guest routes
    /// multicast.
    pub(super) is_router: bool,
    pub(super) drops: Drops,
    /// The first frame of each kind that the guest forged.
    pub(super) offences: Vec<Offence>,
    /// Number of offences that [`Bridge::new_offences`] has returned.
    reported: usize,
}

/// The bridge.
#[derive(Debug)]
pub struct Bridge {
    pub(super) settings: BridgeSettings,
    pub(super) table: ForwardingTable,
    pub(super) ports: Vec<Option<PortState>>,
    /// Rules by port, up to the last port with rules.
    pub(super) rules: Vec<PortFirewall>,
    /// Frames of flows in the batch that [`Bridge::routes`] has accepted; empty between batches.
    pub(super) routed: Vec<RoutedFrame>,
    pub(super) addresses: Addresses,
    /// See [`Bridge::has_new_offences`].
    pub(super) has_offences: bool,
    /// Drops of removed ports, and of frames from ports that do not exist.
    pub(super) past: Drops,
}

impl Bridge {
    /// Creates a bridge without ports.
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
            routed: Vec::new(),
            addresses: Addresses::default(),
            has_offences: false,
            past: Drops::default(),
        }
    }

    /// Adds port `number` while traffic runs.
    ///
    /// # Errors
    /// Returns [`AddError`] after changing nothing.
    pub fn add(&mut self, number: usize, port: &PortConfig) -> Result<(), AddError> {
        self.check(number, port)?;
        let (guard, is_router) = match &port.kind {
            PortKind::Nic => (None, true),
            PortKind::Guest { macs, permissions } => {
                for mac in macs {
                    self.table.bind(word_of(*mac), number);
                }
                let guard = Guard::new(number, macs, permissions, &port.addresses);
                (Some(guard), permissions.router)
            }
        };
        self.addresses.add(number, &port.addresses, &port.gateways);
        let BridgeSettings {
            group_pps,
            group_burst,
            ..
        } = self.settings;
        let state = PortState {
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
            reported: 0,
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

    /// Replaces a port's rules and resets their counts.
    pub fn set_rules(&mut self, number: usize, rules: &[Rule]) {
        if !rules.is_empty() && self.rules.len() <= number {
            self.rules.resize_with(number + 1, PortFirewall::default);
        }
        if let Some(before) = self.rules.get_mut(number) {
            before.set(rules);
        }
    }

    /// Sets a port's flow table, which stateful rules need; returns the previous table.
    pub fn set_flows(&mut self, number: usize, flows: Option<Flows>) -> Option<Flows> {
        if flows.is_some() && self.rules.len() <= number {
            self.rules.resize_with(number + 1, PortFirewall::default);
        }
        let port = self.rules.get_mut(number)?;
        std::mem::replace(&mut port.flows, flows.map(Box::new)).map(|before| *before)
    }

    /// Returns a port's flow table, if its rules are stateful.
    #[must_use]
    pub fn flows(&self, number: usize) -> Option<&Flows> {
        self.rules.get(number)?.flows.as_deref()
    }

    fn check(&self, number: usize, port: &PortConfig) -> Result<(), AddError> {
        if number >= MAX_PORTS {
            return Err(AddError::Number(number));
        }
        if self.ports.get(number).is_some_and(Option::is_some) {
            return Err(AddError::Exists(number));
        }
        if let PortKind::Guest { macs, .. } = &port.kind {
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

    /// Removes port `number` with its MACs, its addresses and the stations learned behind it;
    /// returns whether it existed. Its drops stay in the total.
    pub fn remove(&mut self, number: usize) -> bool {
        let Some(state) = self.ports.get_mut(number).and_then(Option::take) else {
            return false;
        };
        self.past += state.drops;
        if let Some(rules) = self.rules.get_mut(number) {
            *rules = PortFirewall::default();
        }
        self.table.forget_port(number);
        self.addresses.remove(number);
        self.update_floods();
        true
    }

    /// Recomputes each port's flood verdicts, after every change of the ports.
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

    /// Marks the guest of a port as a multicast router, which receives membership reports.
    pub(super) fn becomes_router(&mut self, number: usize) {
        if let Some(Some(state)) = self.ports.get_mut(number)
            && !std::mem::replace(&mut state.is_router, true)
        {
            self.update_floods();
        }
    }

    /// Returns the drops of frames that arrived at a port.
    #[must_use]
    pub fn drops(&self, number: usize) -> Option<&Drops> {
        self.ports.get(number)?.as_ref().map(|state| &state.drops)
    }

    /// Returns the first frame of each kind that the guest of a port forged.
    #[must_use]
    pub fn offences(&self, number: usize) -> &[Offence] {
        let state = self.ports.get(number).and_then(Option::as_ref);
        state.map_or(&[], |state| &state.offences)
    }

    /// Returns whether [`Bridge::new_offences`] would return any.
    #[must_use]
    #[inline]
    pub fn has_new_offences(&self) -> bool {
        self.has_offences
    }

    /// Returns the offences since the last call, each with its port.
    pub fn new_offences(&mut self) -> Vec<(usize, Offence)> {
        let mut new = Vec::new();
        if !std::mem::take(&mut self.has_offences) {
            return new;
        }
        for (number, state) in self.ports.iter_mut().enumerate() {
            if let Some(state) = state {
                let untold = state.offences.iter().skip(state.reported);
                new.extend(untold.map(|offence| (number, *offence)));
                state.reported = state.offences.len();
            }
        }
        new
    }

    /// Returns all drops, including those of removed ports.
    #[must_use]
    pub fn drops_total(&self) -> Drops {
        let mut total = self.past;
        for state in self.ports.iter().flatten() {
            total += state.drops;
        }
        total
    }

    /// Returns the counts of a port's rules, in their order.
    pub fn rule_counts(&self, number: usize) -> impl Iterator<Item = RuleCount> + '_ {
        self.rules
            .get(number)
            .into_iter()
            .flat_map(PortFirewall::counts)
    }

    /// If a rule denies a frame from `in_port`, returns the rule's port and the rule's index at
    /// this port. Counts nothing.
    #[must_use]
    pub fn denied_by(&self, header: &[u8], in_port: usize, now_ns: u64) -> Option<(usize, usize)> {
        let mut filtered = Filtered::new(header, 0);
        let mut denies = |port: usize, direction| {
            let rules = self.rules.get(port)?;
            let (rule, allowed) = rules.find(direction, &mut filtered, now_ns)?;
            (!allowed).then_some((port, rule))
        };
        if let Some(denied) = denies(in_port, Direction::In) {
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
            (Some(port), _) => denies(port, Direction::Out),
            (None, Ok(Verdict::Unicast(port))) => denies(*port, Direction::Out),
            (None, Ok(Verdict::Multiple(set))) => {
                set.iter().find_map(|port| denies(port, Direction::Out))
            }
            _ => None,
        }
    }

    /// Returns every station known at `now_ns`.
    pub fn stations(&self, now_ns: u64) -> impl Iterator<Item = StationEntry> + '_ {
        self.table.stations(now_ns)
    }
}
