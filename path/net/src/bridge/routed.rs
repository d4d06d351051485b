//! The fast path over the bridge, for small frames that need no decision except their egress port.

use super::ethernet::{GROUP_BIT, destination_of};
use super::guard::{Claims, Guard};
use super::members::Bridge;
use super::rules::{Direction, PortFirewall, RoutedFrame};
use crate::flows::PlainPacket;
use nic::SmallBatch;

impl Bridge {
    /// Returns whether [`Bridge::routes`] ever accepts frames from a port.
    #[must_use]
    #[inline]
    pub fn has_routes(&self, in_port: usize) -> bool {
        self.routed(in_port).is_some()
    }

    /// Returns a port's guard if its frames may take the fast path.
    #[inline]
    fn routed(&self, in_port: usize) -> Option<&Guard> {
        let state = self.ports.get(in_port)?.as_ref()?;
        let is_open = state.rate.is_none() && self.ignores_established(in_port, Direction::In);
        state.guard.as_ref().filter(|_| is_open)
    }

    /// Puts the egress port of each of these frames, which arrived at one port, into `ports`.
    /// Returns false if one of them has no single egress port, or must be learned, counted or
    /// inspected; [`Bridge::forward_batch`] then returns the verdicts on all of them. Extends the
    /// heads of frames whose flow is looked up and needs more.
    #[must_use]
    pub fn routes(
        &mut self,
        small_frames: &mut SmallBatch,
        in_port: usize,
        now_ns: u64,
        ports: &mut Vec<u16>,
    ) -> bool {
        ports.clear();
        let mut routed = std::mem::take(&mut self.routed);
        routed.clear();
        let found = self.find_routes(small_frames, in_port, now_ns, ports, &mut routed);
        self.routed = routed;
        found.is_some()
    }

    /// Counts the last batch that [`Bridge::routes`] accepted in its flows, after the caller has
    /// sent it.
    #[inline]
    pub fn sent(&mut self, now_ns: u64) {
        for RoutedFrame { flow, len } in self.routed.drain(..) {
            flow.count(len, now_ns);
        }
    }

    fn find_routes(
        &self,
        small_frames: &mut SmallBatch,
        in_port: usize,
        now_ns: u64,
        ports: &mut Vec<u16>,
        routed: &mut Vec<RoutedFrame>,
    ) -> Option<()> {
        let guard = self.routed(in_port)?;
        // Most frames of a batch have the same destination and the same claims. The functions for
        // the others are not inlined, so that the loop needs few registers.
        let mut last = (u64::MAX, 0);
        let mut permitted = Claims::NONE;
        for small_frame in small_frames.iter() {
            let head = small_frame.head();
            if !permitted.are_those_of(head) {
                permitted = guard.permitted_claims(head)?;
            }
            let destination = destination_of(head.first_chunk()?);
            if destination != last.0 {
                last = (destination, self.route(in_port, destination, now_ns)?);
            }
            ports.push(last.1);
        }
        if self.rules.is_empty() {
            return Some(());
        }
        self.find_flows(small_frames, in_port, now_ns, ports, routed)
    }

    /// Returns the egress port of the frames for one station, unless each of them needs a verdict.
    #[inline(never)]
    fn route(&self, in_port: usize, destination: u64, now_ns: u64) -> Option<u16> {
        let is_group = destination & GROUP_BIT != 0;
        let port = self.table.find(destination, now_ns)?;
        let is_open = port != in_port && self.ignores_established(port, Direction::Out);
        (is_open && !is_group).then_some(port as u16)
    }

    /// Finds the flows of frames whose ingress or egress port has a flow table.
    #[inline(never)]
    fn find_flows(
        &self,
        small_frames: &mut SmallBatch,
        in_port: usize,
        now_ns: u64,
        ports: &[u16],
        routed: &mut Vec<RoutedFrame>,
    ) -> Option<()> {
        let in_flows = self.flows(in_port);
        for (index, port) in ports.iter().enumerate() {
            let out_flows = self.flows((*port).into());
            if in_flows.is_none() && out_flows.is_none() {
                continue;
            }
            let small_frame = small_frames.get(index)?;
            let len = small_frame.len();
            if PlainPacket::needs_more(small_frame.head()) {
                small_frames.lengthen(index).ok()?;
            }
            let packet = PlainPacket::of(small_frames.header(index))?;
            for (flows, direction) in [(in_flows, Direction::In), (out_flows, Direction::Out)] {
                let Some(flows) = flows else { continue };
                let flow = flows.find_established(direction, &packet, now_ns)?;
                routed.push(RoutedFrame { flow, len });
            }
        }
        Some(())
    }

    /// Returns whether a port has no rules, or rules that pass all frames of admitted flows.
    #[inline]
    fn ignores_established(&self, port: usize, direction: Direction) -> bool {
        let rules: Option<&PortFirewall> = self.rules.get(port);
        rules.is_none_or(|rules| rules.ignores_established(direction))
    }
}
