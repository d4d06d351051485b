//! Forwarding decisions, for one frame or a batch.

use super::addresses::Addresses;
use super::drops::DropReason;
use super::ethernet::{Ethernet, GROUP_BIT, RESERVED, RESERVED_MASK, word_of};
use super::guard::{Claims, needed_header_bytes};
use super::members::{Bridge, PortState};
use super::membership::{self, Membership};
use super::offence::Offence;
use super::rules::{Direction, Filtered, PortFirewall};
use super::table::{ForwardingTable, LearnResult};
use super::verdict::Verdict;
use crate::packet::ETHERNET_BYTES;
use nic::{Frame, SmallFrame};
use shmem::Fault;

/// Bytes of the destination and the source of a frame.
const ADDRESSES: usize = 12;

impl Bridge {
    /// Decides where to forward a frame that arrived at `in_port`.
    ///
    /// `header` is its snapshot and `len` its length in bytes. A snapshot of
    /// [`nic::frame::SNAPSHOT_MIN`] bytes suffices for most frames; [`needed_header_bytes`] returns
    /// the length for the others.
    pub fn forward(&mut self, header: &[u8], len: usize, in_port: usize, now_ns: u64) -> Verdict {
        let Some((state, mut arrivals)) = self.arrivals(in_port, now_ns) else {
            self.past.count(DropReason::UnknownPort);
            return Verdict::Drop(DropReason::UnknownPort);
        };
        let verdict = arrivals.forward(state, header, len);
        if arrivals.is_router {
            self.becomes_router(in_port);
        }
        verdict
    }

    /// Like [`Bridge::forward`], for a batch that arrived at one port: appends one verdict per
    /// frame to `verdicts`. Extends the snapshots of guests' frames that must be inspected.
    pub fn forward_batch(
        &mut self,
        frames: &mut [Frame],
        in_port: usize,
        now_ns: u64,
        verdicts: &mut Vec<Verdict>,
    ) {
        let Some((state, mut arrivals)) = self.arrivals(in_port, now_ns) else {
            for _ in frames {
                self.past.count(DropReason::UnknownPort);
                verdicts.push(Verdict::Drop(DropReason::UnknownPort));
            }
            return;
        };
        let is_inspected = state.guard.is_some() || !arrivals.rules.is_empty();
        verdicts.extend(frames.iter_mut().map(|frame| {
            if is_inspected && lengthen(frame).is_err() {
                state.drops.count(DropReason::Fault);
                return Verdict::Drop(DropReason::Fault);
            }
            arrivals.forward(state, frame.header(), frame.len())
        }));
        if arrivals.is_router {
            self.becomes_router(in_port);
        }
    }

    /// Returns whether [`Bridge::forward_small`] can return the verdicts on frames from a port: it
    /// has no guard, and no port has rules.
    #[must_use]
    #[inline]
    pub fn ignores_packets(&self, in_port: usize) -> bool {
        let state = self.ports.get(in_port).and_then(Option::as_ref);
        self.rules.is_empty() && state.is_some_and(|state| state.guard.is_none())
    }

    /// Like [`Bridge::forward_batch`], for small frames from a port that [ignores
    /// packets](Self::ignores_packets). A frame with the same addresses as the first one costs only
    /// a comparison.
    pub fn forward_small(
        &mut self,
        frames: &[SmallFrame],
        in_port: usize,
        now_ns: u64,
        verdicts: &mut Vec<Verdict>,
    ) {
        let Some((state, mut arrivals)) = self.arrivals(in_port, now_ns) else {
            return;
        };
        // The verdict on a small frame depends only on its addresses, unless the port has a rate.
        let mut last: Option<(&[u8; ADDRESSES], usize)> = None;
        for frame in frames {
            let addresses = frame.head().first_chunk::<ADDRESSES>();
            if let (Some((known, port)), Some(addresses)) = (last, addresses)
                && known == addresses
            {
                verdicts.push(Verdict::Unicast(port));
                continue;
            }
            let head = frame.head().get(..frame.len()).unwrap_or(frame.head());
            let verdict = arrivals.forward(state, head, frame.len());
            last = match (&verdict, addresses) {
                (Verdict::Unicast(port), Some(addresses)) if state.rate.is_none() => {
                    Some((addresses, *port))
                }
                _ => None,
            };
            verdicts.push(verdict);
        }
        if arrivals.is_router {
            self.becomes_router(in_port);
        }
    }

    /// Returns a port's state and the forwarding state for frames that arrive at it, or `None` if
    /// the port does not exist.
    #[inline]
    fn arrivals(&mut self, in_port: usize, now_ns: u64) -> Option<(&mut PortState, Arrivals<'_>)> {
        let state = self.ports.get_mut(in_port)?.as_mut()?;
        let arrivals = Arrivals {
            table: &mut self.table,
            rules: &mut self.rules,
            addresses: &self.addresses,
            has_offences: &mut self.has_offences,
            in_port,
            now_ns,
            permitted: Claims::NONE,
            last: (u64::MAX, None),
            is_router: false,
        };
        Some((state, arrivals))
    }
}

/// Extends a snapshot to its [`needed_header_bytes`] length.
#[inline]
fn lengthen(frame: &mut Frame) -> Result<(), Fault> {
    match needed_header_bytes(frame.header()) {
        0 => Ok(()),
        bytes => frame.extend_snapshot(bytes),
    }
}

/// State for forwarding frames that arrive at the same port at the same time.
struct Arrivals<'a> {
    table: &'a mut ForwardingTable,
    rules: &'a mut [PortFirewall],
    addresses: &'a Addresses,
    has_offences: &'a mut bool,
    in_port: usize,
    now_ns: u64,
    /// Claims of the last frame that the guard has permitted without inspection.
    permitted: Claims,
    /// The last destination, and its port if the table has it. They stay valid at a guarded port,
    /// because nothing is learned there.
    last: (u64, Option<usize>),
    /// Whether one of the frames shows that the guest routes multicast.
    is_router: bool,
}

impl Arrivals<'_> {
    /// Decides about one frame, and counts it if it is dropped.
    #[inline(always)]
    fn forward(&mut self, state: &mut PortState, header: &[u8], len: usize) -> Verdict {
        match self.decide(state, header, len) {
            Ok(verdict) => verdict,
            Err(reason) => self.count_drop(state, header, reason),
        }
    }

    /// Counts a dropped frame, and records the first forgery of each kind.
    #[cold]
    fn count_drop(&mut self, state: &mut PortState, header: &[u8], reason: DropReason) -> Verdict {
        state.drops.count(reason);
        if reason.is_forgery() && state.drops.get(reason) == 1 {
            let station = |mac| self.table.find(word_of(mac), self.now_ns);
            let offence = Offence::of(reason, header, self.addresses, station);
            state.offences.push(offence);
            *self.has_offences = true;
        }
        Verdict::Drop(reason)
    }

    #[inline(always)]
    fn decide(
        &mut self,
        state: &mut PortState,
        header: &[u8],
        len: usize,
    ) -> Result<Verdict, DropReason> {
        let ethernet = header
            .first_chunk::<ETHERNET_BYTES>()
            .ok_or(DropReason::Runt)?;
        let Ethernet {
            destination,
            source,
        } = Ethernet::of(ethernet);

        self.identify(state, header, source)?;
        let mut filtered = (!self.rules.is_empty()).then(|| Filtered::new(header, len));
        if let Some(filtered) = &mut filtered {
            self.pass(self.in_port, Direction::In, filtered)?;
        }
        if state.guard.is_none()
            && self.table.learn(source, self.in_port, self.now_ns) == LearnResult::Bound
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
                true => self.group(state, header),
                false => Err(DropReason::GroupBudget),
            }
        } else {
            match self.port_of(destination, state.guard.is_some()) {
                Some(port) if port == self.in_port => Err(DropReason::SamePort),
                Some(port) => Ok(Verdict::Unicast(port)),
                None => state.unknown.clone(),
            }
        };
        match &mut filtered {
            Some(filtered) => self.filter_out(verdict?, filtered),
            None => verdict,
        }
    }

    /// Returns the port of a destination.
    #[inline]
    fn port_of(&mut self, destination: u64, is_guarded: bool) -> Option<usize> {
        if destination == self.last.0 {
            return self.last.1;
        }
        let port = self.table.find(destination, self.now_ns);
        if is_guarded {
            self.last = (destination, port);
        }
        port
    }

    /// Returns the verdict on a frame to a group.
    #[inline]
    fn group(&mut self, state: &PortState, header: &[u8]) -> Result<Verdict, DropReason> {
        match membership::of(header) {
            None => {}
            Some(Membership::Report) => return state.report.clone(),
            Some(Membership::Router) => self.is_router = true,
        }
        state.flood.clone()
    }

    /// Returns an error if a frame with this source is not permitted from this port.
    #[inline]
    fn identify(
        &mut self,
        state: &PortState,
        header: &[u8],
        source: u64,
    ) -> Result<(), DropReason> {
        if let Some(guard) = &state.guard {
            if self.permitted.are_those_of(header) {
                return Ok(());
            }
            if !guard.has(source) {
                return Err(DropReason::ForgedSource);
            }
            if let Some(claims) = guard.harmless_claims(header) {
                self.permitted = claims;
                return Ok(());
            }
            return guard.inspect(header, source, self.addresses);
        }
        if source & GROUP_BIT != 0 || source == 0 {
            return Err(DropReason::BadSource);
        }
        Ok(())
    }

    /// Returns an error if the rules of a port deny a frame.
    #[inline]
    fn pass(
        &mut self,
        port: usize,
        direction: Direction,
        filtered: &mut Filtered<'_>,
    ) -> Result<(), DropReason> {
        match self.rules.get_mut(port) {
            Some(rules) => rules.pass(direction, filtered, self.now_ns),
            None => Ok(()),
        }
    }

    /// Removes the ports whose egress rules deny the frame from a verdict.
    fn filter_out(
        &mut self,
        verdict: Verdict,
        filtered: &mut Filtered<'_>,
    ) -> Result<Verdict, DropReason> {
        match &verdict {
            Verdict::Unicast(port) => {
                self.pass(*port, Direction::Out, filtered)?;
                Ok(verdict)
            }
            Verdict::Multiple(set) => {
                let mut denied = DropReason::Firewall;
                let allowed = set.iter().filter(|port| {
                    let passed = self.pass(*port, Direction::Out, filtered);
                    passed.inspect_err(|reason| denied = *reason).is_ok()
                });
                let allowed = allowed.collect();
                Verdict::to(allowed).map_err(|_| denied)
            }
            Verdict::Drop(_) => Ok(verdict),
        }
    }
}
