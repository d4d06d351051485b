//! The fast path over the bridge, for small frames that need no decision except their egress port.

use super::ethernet::{Ethernet, GROUP_BIT};
use super::guard::{Claims, Guard};
use super::members::Bridge;
use super::rules::{Direction, PortFirewall, RoutedFrame};
use crate::flows::PlainPacket;
use nic::SmallFrame;

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
        small_frames: &mut [SmallFrame],
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
        small_frames: &mut [SmallFrame],
        in_port: usize,
        now_ns: u64,
        ports: &mut Vec<u16>,
        routed: &mut Vec<RoutedFrame>,
    ) -> Option<()> {
        let guard = self.routed(in_port)?;
        let (in_flows, mut out_flows) = (self.flows(in_port), None);
        let mut has_flows = false;
        // Most frames of a batch have the same destination and the same claims.
        let mut last = (u64::MAX, 0);
        let mut permitted = Claims::NONE;
        for small_frame in small_frames {
            let ethernet = small_frame.head().first_chunk()?;
            let ethernet = Ethernet::of(ethernet);
            if !permitted.are_those_of(small_frame.head()) {
                if !guard.has(ethernet.source) {
                    return None;
                }
                permitted = guard.harmless_claims(small_frame.head())?;
            }
            if ethernet.destination != last.0 {
                let group = ethernet.destination & GROUP_BIT != 0;
                match self.table.find(ethernet.destination, now_ns) {
                    Some(port)
                        if port != in_port
                            && !group
                            && self.ignores_established(port, Direction::Out) =>
                    {
                        last = (ethernet.destination, port as u16);
                        out_flows = self.flows(port);
                        has_flows = in_flows.is_some() || out_flows.is_some();
                    }
                    _ => return None,
                }
            }
            if has_flows {
                let len = small_frame.len();
                if PlainPacket::needs_more(small_frame.head()) {
                    small_frame.lengthen().ok()?;
                }
                let packet = PlainPacket::of(small_frame.header())?;
                for (flows, direction) in [(in_flows, Direction::In), (out_flows, Direction::Out)] {
                    let Some(flows) = flows else { continue };
                    let flow = flows.find_established(direction, &packet, now_ns)?;
                    routed.push(RoutedFrame { flow, len });
                }
            }
            ports.push(last.1);
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
