//! Forwarding: where one frame goes, or a batch.

use super::addresses::Addresses;
use super::drops::DropReason;
use super::ethernet::{Ethernet, GROUP_BIT, RESERVED, RESERVED_MASK, word_of};
use super::guard::{Guard, wanted};
use super::members::{Bridge, PortState};
use super::membership::{self, Membership};
use super::offence::Offence;
use super::rules::{Filtered, Firewall, Way};
use super::table::{ForwardingTable, Learned};
use super::verdict::Verdict;
use crate::packet::ETHERNET_BYTES;
use nic::{Frame, SmallFrame};
use shmem::Fault;

impl Bridge {
    /// Decides where a frame goes that came in by `in_port`.
    ///
    /// `header` is its snapshot and `len` its bytes in all. A snapshot of
    /// [`nic::frame::HOT`] bytes is enough for most frames; [`wanted`] names those that need more.
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

    /// [`Bridge::forward`] for a batch that came in by one port: one verdict per frame is appended
    /// to `verdicts`. Snapshots are lengthened where a guest's frame has to be inspected.
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
        verdicts.extend(frames.iter_mut().map(|frame| {
            let is_inspected = state.guard.is_some() || !arrivals.rules.is_empty();
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

    /// Whether [`Bridge::routes`] can answer for a port at all.
    #[must_use]
    #[inline]
    pub fn has_routes(&self, in_port: usize) -> bool {
        self.routed(in_port).is_some()
    }

    /// The port that this is, if frames that come in by it may take the fast path.
    #[inline]
    fn routed(&self, in_port: usize) -> Option<(&PortState, &Guard)> {
        let state = self.ports.get(in_port)?.as_ref()?;
        let is_open = state.rate.is_none() && self.rules.is_empty();
        state
            .guard
            .as_ref()
            .filter(|_| is_open)
            .map(|guard| (state, guard))
    }

    /// The fast path over the bridge: puts the port of each of these frames, which came in by one
    /// port, into `ports`. False: some frame does not go out by exactly one port, or has to be
    /// learned, counted or inspected; then [`Bridge::forward_batch`] decides about all of them.
    #[must_use]
    pub fn routes(
        &self,
        small_frames: &[SmallFrame],
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
        for small_frame in small_frames {
            let Some(ethernet) = small_frame.head().first_chunk() else {
                return false;
            };
            let ethernet = Ethernet::of(ethernet);
            let is_known = ethernet.source == state.bound || guard.has(ethernet.source);
            if !is_known || !guard.is_harmless(ethernet.ethertype, small_frame.head()) {
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

    /// A port's state, and what the frames that come in by it are forwarded by. None: there is no
    /// such port.
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
            is_router: false,
        };
        Some((state, arrivals))
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

/// What decides about frames that come in by one port at one time.
struct Arrivals<'a> {
    table: &'a mut ForwardingTable,
    rules: &'a mut [Firewall],
    addresses: &'a Addresses,
    has_offences: &'a mut bool,
    in_port: usize,
    now_ns: u64,
    /// Whether one of them says that who has sent it routes multicast.
    is_router: bool,
}

impl Arrivals<'_> {
    /// Decides about one frame; counts a drop.
    #[inline]
    fn forward(&mut self, state: &mut PortState, header: &[u8], len: usize) -> Verdict {
        self.decide(state, header, len).unwrap_or_else(|reason| {
            state.drops.count(reason);
            if reason.is_forgery() && state.drops.get(reason) == 1 {
                let station = |mac| self.table.find(word_of(mac), self.now_ns);
                let offence = Offence::of(reason, header, self.addresses, station);
                state.offences.push(offence);
                *self.has_offences = true;
            }
            Verdict::Drop(reason)
        })
    }

    #[inline]
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
            ethertype,
        } = Ethernet::of(ethernet);

        self.identify(state, header, source, ethertype)?;
        let mut filtered = Filtered::new(header, len);
        if !self.pass(self.in_port, Way::In, &mut filtered) {
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
                true => self.group(state, header),
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
        self.filter_out(verdict?, &mut filtered)
    }

    /// Where a group's frame goes.
    #[inline]
    fn group(&mut self, state: &PortState, header: &[u8]) -> Result<Verdict, DropReason> {
        match membership::of(header) {
            None => {}
            Some(Membership::Report) => return state.report.clone(),
            Some(Membership::Router) => self.is_router = true,
        }
        state.flood.clone()
    }

    /// Whether a frame with this source may come in by this port at all.
    #[inline]
    fn identify(
        &self,
        state: &PortState,
        header: &[u8],
        source: u64,
        ethertype: u16,
    ) -> Result<(), DropReason> {
        if let Some(guard) = &state.guard {
            if source != state.bound && !guard.has(source) {
                return Err(DropReason::ForgedSource);
            }
            if guard.is_harmless(ethertype, header) {
                return Ok(());
            }
            return guard.inspect(header, source, self.addresses);
        }
        if source & GROUP_BIT != 0 || source == 0 {
            return Err(DropReason::BadSource);
        }
        Ok(())
    }

    /// Whether the rules of a port let a frame pass.
    #[inline]
    fn pass(&mut self, port: usize, way: Way, filtered: &mut Filtered<'_>) -> bool {
        let rules = self.rules.get_mut(port);
        rules.is_none_or(|rules| rules.allow(way, filtered))
    }

    /// Leaves of a verdict the ports whose rules let the frame out.
    fn filter_out(
        &mut self,
        verdict: Verdict,
        filtered: &mut Filtered<'_>,
    ) -> Result<Verdict, DropReason> {
        match &verdict {
            Verdict::Unicast(port) if !self.pass(*port, Way::Out, filtered) => {
                Err(DropReason::Firewall)
            }
            Verdict::Many(set) => {
                let allowed = set
                    .iter()
                    .filter(|port| self.pass(*port, Way::Out, filtered));
                Verdict::to(allowed.collect()).map_err(|_| DropReason::Firewall)
            }
            Verdict::Unicast(_) | Verdict::Drop(_) => Ok(verdict),
        }
    }
}
