//! The queues of a connected guest. A guest has one queue, unless its frontend has several rings in
//! each direction (`multi-queue-num-queues`, Xen). Each queue has a separate netback.
//!
//! The driver takes frames from the queues in turn. The hash of a flow or the guest's flow steering
//! selects the queue for frames to the guest, so that no flow is reordered. The fast path, devices
//! that write to the guest's pages, and dedicated queues require a guest with a single queue.

use super::hashing::Hashing;
use net::packet::flow::flow_hash;
use nic::Frame;
use vif::InterfaceCounters;
use vif::events::NotifiedRings;
use vif::grants::GrantMechanism;
use vif::netback::{DeliveryReport, Netback};
use vif::ring::RingWatch;

/// The netback of a guest's queue.
pub(crate) type GuestNetback = Netback<Box<dyn GrantMechanism>>;

/// The queues of one guest, each with a netback.
pub(super) struct GuestQueues {
    first: GuestNetback,
    others: Vec<GuestNetback>,
    /// The queue from which the driver last took frames.
    taken: usize,
    /// Scratch lists of the frames for each queue; empty between batches.
    shares: Vec<Vec<u32>>,
    /// The guest's flow steering, if this domain offers it.
    hashing: Option<Hashing>,
}

impl GuestQueues {
    pub(super) fn new(
        first: GuestNetback,
        others: Vec<GuestNetback>,
        hashing: Option<Hashing>,
    ) -> Self {
        let count = match others.len() {
            0 => 0,
            others => 1 + others,
        };
        Self {
            first,
            others,
            taken: 0,
            shares: vec![Vec::new(); count],
            hashing,
        }
    }

    /// Returns the netback of a guest with a single queue.
    #[inline]
    pub(super) fn only(&self) -> Option<&GuestNetback> {
        self.others.is_empty().then_some(&self.first)
    }

    /// Like [`GuestQueues::only`], but returns a mutable reference.
    #[inline]
    pub(super) fn only_mut(&mut self) -> Option<&mut GuestNetback> {
        self.others.is_empty().then_some(&mut self.first)
    }

    /// Returns the first netback. All netbacks have negotiated the same features.
    pub(super) fn first(&self) -> &GuestNetback {
        &self.first
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &GuestNetback> {
        std::iter::once(&self.first).chain(&self.others)
    }

    #[inline]
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut GuestNetback> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }

    /// Returns the next queue, in round-robin order, from which the guest has sent frames.
    #[inline]
    pub(super) fn next_sender(&mut self) -> &mut GuestNetback {
        if !self.others.is_empty() {
            let count = 1 + self.others.len();
            let mut turns = (1..=count).map(|n| (self.taken + n) % count);
            let has_work = |n: &usize| self.iter().nth(*n).is_some_and(Netback::has_work);
            let found = turns.find(has_work);
            self.taken = found.unwrap_or(self.taken);
        }
        self.last_sender()
    }

    /// Returns the queue from which the driver last took frames.
    #[inline]
    pub(super) fn last_sender(&mut self) -> &mut GuestNetback {
        match self.taken.checked_sub(1) {
            Some(other) => self.others.get_mut(other).unwrap_or(&mut self.first),
            None => &mut self.first,
        }
    }

    /// Delivers the frames of `pick` that pass the guest's multicast filter: calls `deliver` for
    /// each queue with the frames for this queue. Returns the sum of the reports.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        frames: &[Frame],
        pick: &[u32],
        mut deliver: impl FnMut(&mut GuestNetback, &[u32]) -> DeliveryReport,
    ) -> DeliveryReport {
        let matching = self.first.match_multicast(frames, pick);
        let pick = matching.as_deref().unwrap_or(pick);
        if self.others.is_empty() {
            return deliver(&mut self.first, pick);
        }
        let mut all = DeliveryReport::default();
        self.divide(frames, pick, |queue, own| {
            all += deliver(queue, own);
        });
        all
    }

    /// Divides the frames of `pick` among several queues: calls `deliver` for each queue with the
    /// frames for this queue.
    pub(super) fn divide(
        &mut self,
        frames: &[Frame],
        pick: &[u32],
        mut deliver: impl FnMut(&mut GuestNetback, &[u32]),
    ) {
        let count = self.shares.len().max(1);
        for &index in pick {
            let header = frames.get(index as usize).map_or(&[][..], Frame::header);
            let chosen = self.hashing.and_then(|choice| choice.queue(header, count));
            let queue = chosen.unwrap_or_else(|| flow_hash(header) as usize % count);
            if let Some(own) = self.shares.get_mut(queue) {
                own.push(index);
            }
        }
        let queues = std::iter::once(&mut self.first).chain(&mut self.others);
        for (queue, own) in queues.zip(&mut self.shares) {
            if !own.is_empty() {
                deliver(queue, own);
                own.clear();
            }
        }
    }

    /// Calls `ring` with the number and the rings of each queue about which the guest must be
    /// notified.
    #[inline]
    pub(super) fn notify(&mut self, mut ring: impl FnMut(usize, NotifiedRings)) {
        for (number, queue) in self.iter_mut().enumerate() {
            if let Some(rings) = queue.notify() {
                ring(number, rings);
            }
        }
    }

    /// Returns a check whether the guest may have sent something. For several queues, the check
    /// never reports an idle guest, because the queues have no common word.
    #[inline]
    pub(super) fn watch(&self) -> RingWatch {
        self.only().map_or(RingWatch::NONE, Netback::watch)
    }

    /// Returns the sum of the counters of all queues.
    pub(super) fn counters(&self) -> InterfaceCounters {
        let mut all = InterfaceCounters::default();
        for queue in self.iter() {
            all += *queue.counters();
        }
        all
    }

    /// Ends all queues and releases their grants.
    pub(super) fn end(self) {
        for queue in std::iter::once(self.first).chain(self.others) {
            drop(queue.into_grants());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::classic::GrantEntry;
    use shmem::Span;
    use shmem::sync::fence;
    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::atomic::Ordering;
    use vif::testing::{BACKEND, FakeGrants, Rig, TestMemory, frame_at, packet, sizes};

    const COUNT: usize = 3;

    /// Returns the guest's ends and the driver's ends of `COUNT` queues.
    fn guest() -> (Vec<Rig>, GuestQueues) {
        let rigs: Vec<Rig> = (0..COUNT).map(|_| Rig::new(sizes())).collect();
        let mut ends = rigs.iter().map(end);
        let queues = GuestQueues::new(ends.next().unwrap(), ends.collect(), None);
        (rigs, queues)
    }

    fn end(rig: &Rig) -> GuestNetback {
        let (table, frames) = (rig.table_span(), rig.memory().area());
        let page = |gref: &abi::GrantRef| {
            let entry = table.load_u64(gref.index() as usize * 8).unwrap();
            frames.page(GrantEntry(entry).frame()).unwrap()
        };
        let ring = |of: &[abi::GrantRef]| of.iter().map(page).collect::<Vec<Span>>();
        let (tx, rx) = (ring(&rig.record.tx_ring), ring(&rig.record.rx_ring));
        let grants: Box<dyn GrantMechanism> = Box::new(FakeGrants::new(table, frames, BACKEND));
        let event = page(&rig.record.event);
        Netback::new(*rig.front.negotiated(), &tx, &rx, event, grants).unwrap()
    }

    /// Takes at most four frames in one turn.
    fn take(queues: &mut GuestQueues) -> usize {
        let mut frames = Vec::new();
        let taken = queues.next_sender().from_guest(4, &mut frames).unwrap();
        queues.last_sender().from_guest_done();
        queues.iter_mut().for_each(Netback::publish);
        taken
    }

    #[test]
    fn queues_are_served_in_turn() {
        let (mut rigs, mut queues) = guest();
        for _ in 0..8 {
            assert!(rigs[2].send(&packet(60, 1), nic::Offload::default()));
        }
        assert!(rigs[0].send(&packet(60, 2), nic::Offload::default()));
        // A backlog of eight frames in one queue does not delay the other queue.
        assert_eq!([(); 4].map(|()| take(&mut queues)), [4, 1, 4, 0]);
        assert_eq!((rigs[0].front.reap(), rigs[2].front.reap()), (Ok(1), Ok(8)));
        assert_eq!(queues.counters().from_guest, 9);
    }

    #[test]
    fn a_flow_stays_in_its_queue() {
        let (mut rigs, mut queues) = guest();
        let source = TestMemory::new(8);
        let bytes: Vec<_> = (0..32).map(|n| packet(60, n / 2)).collect();
        let at = |(n, bytes): (usize, &Vec<u8>)| frame_at(&source, n * 64, bytes, 60);
        let frames: Vec<_> = bytes.iter().enumerate().map(at).collect();
        // The frames with odd numbers are for another port.
        let pick: Vec<u32> = (0..32).filter(|n| n % 2 == 0).collect();
        for _ in 0..2 {
            let mut given = BTreeSet::new();
            queues.divide(&frames, &pick, |queue, own| {
                assert_eq!(queue.to_guest(&frames, own).delivered as usize, own.len());
                given.extend(own.iter().copied());
            });
            assert!(given.iter().eq(&pick), "{given:?}");
        }
        queues.iter_mut().for_each(Netback::publish);
        let mut queue_of = BTreeMap::new();
        for (n, rig) in rigs.iter_mut().enumerate() {
            let received = rig.receive(64);
            assert!(!received.is_empty(), "queue {n}");
            for bytes in received {
                assert_eq!(*queue_of.entry(bytes).or_insert(n), n);
            }
        }
        assert_eq!(queue_of.len(), 16);
    }

    #[test]
    fn netif_29_guest_selects_the_queue_of_a_flow() {
        let (_rigs, mut queues) = guest();
        let memory = shmem::Area::anonymous(abi::PAGE).unwrap().span();
        let choice = Hashing::in_memory(memory);
        queues.hashing = Some(choice);
        let source = TestMemory::new(1);
        let frames = [frame_at(&source, 0, &vif::testing::ipv4_tcp(100, 1), 154)];
        let mut delivered_with_table_entry = |queue_number: u32| {
            choice.set_on(true);
            choice.set_types(net::packet::toeplitz::HashTypes::ALL);
            choice.set_entries(1);
            choice.set_table(0, &[queue_number]);
            queues.divide(&frames, &[0], |queue, own| {
                assert_eq!(queue.to_guest(&frames, own).delivered, 1);
            });
            let given = queues.iter().map(|queue| queue.counters().to_guest);
            given.collect::<Vec<_>>()
        };
        assert_eq!(delivered_with_table_entry(2), [0, 0, 1]);
        assert_eq!(delivered_with_table_entry(0), [1, 0, 1]);
        assert_eq!(delivered_with_table_entry(1), [1, 1, 1]);
    }

    #[test]
    fn only_dirty_guests_are_notified() {
        let (rigs, mut queues) = guest();
        for rig in &rigs {
            rig.raw_rx().set_rsp_event(1);
            rig.raw_tx().set_rsp_event(1);
            // The guest sleeps.
            rig.event_page().store_u32(192, 1).unwrap();
        }
        let source = TestMemory::new(1);
        let frames = [frame_at(&source, 0, &packet(60, 1), 60)];
        let own = queues.iter_mut().nth(1).unwrap();
        assert_eq!(own.to_guest(&frames, &[0]).delivered, 1);
        queues.iter_mut().for_each(Netback::publish);
        fence(Ordering::SeqCst);
        let mut notified = Vec::new();
        queues.notify(|queue, rings| notified.push((queue, rings)));
        let rings = NotifiedRings {
            tx: false,
            rx: true,
        };
        assert_eq!(notified, [(1, rings)]);
    }

    #[test]
    fn only_a_single_queue_can_be_watched() {
        let rig = Rig::new(sizes());
        let one = GuestQueues::new(end(&rig), Vec::new(), None);
        assert!(one.only().is_some() && one.watch().is_idle());
        let (_rigs, several) = guest();
        assert!(several.only().is_none() && !several.watch().is_idle());
    }
}
