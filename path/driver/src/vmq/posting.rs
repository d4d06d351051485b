//! Where a queue's frames go.

use nic::vmq::{Backend, Freed};
use nic::{Buffer, BufferId, Buffers, Frame, Pool};
use vif::grants::Grants;
use vif::netback::Netback;

/// Numbers of buffers that a guest has posted have this bit.
const POSTED: u32 = 1 << 31;

/// Where a queue's frames go: into what the guest has posted, or into buffers of this domain's if
/// the guest has posted nothing (more) or must not be written to. Once a batch has used one of this
/// domain's it uses no more of the guest's: frames keep their order. Where a frame may need several
/// buffers, the whole batch goes to one of the two: a frame never lies in both.
pub struct Posting<'a, G> {
    netback: Option<&'a mut Netback<G>>,
    pool: &'a mut Pool,
    /// Room that a frame needs.
    bytes: usize,
    /// Whether a frame may need several buffers.
    chains: bool,
    /// Whether buffers are this domain's from now on.
    bounced: bool,
    to_guest: &'a mut Vec<Frame>,
    to_pool: &'a mut Vec<Frame>,
}

impl<'a, G: Grants> Posting<'a, G> {
    /// Frames of at most `bytes` bytes go to what `netback` has, and are appended to `to_guest`;
    /// the others go to `pool`, and are appended to `to_pool`.
    pub fn new(
        mut netback: Option<&'a mut Netback<G>>,
        pool: &'a mut Pool,
        bytes: usize,
        to_guest: &'a mut Vec<Frame>,
        to_pool: &'a mut Vec<Frame>,
    ) -> Self {
        let of_a_frame = |netback: &&mut Netback<G>| netback.buffers_for(bytes).unwrap_or(1);
        let buffers = netback.as_ref().map_or(1, of_a_frame);
        let has = |netback: &mut &mut Netback<G>| netback.posted(buffers) >= buffers;
        let chains = buffers > 1;
        Self {
            bounced: chains && !netback.as_mut().is_some_and(has),
            netback,
            pool,
            bytes,
            chains,
            to_guest,
            to_pool,
        }
    }
}

impl<G: Grants> Backend for Posting<'_, G> {
    fn alloc(&mut self) -> Option<Buffer> {
        let posted = match &mut self.netback {
            Some(netback) if !self.bounced => netback.post(self.bytes),
            _ => None,
        };
        match posted {
            Some(Buffer { id, span }) => Some(Buffer {
                id: BufferId(id.0 | POSTED),
                span,
            }),
            // The next batch has enough of the guest's for a whole frame, or has none.
            None if self.chains && !self.bounced => None,
            None => {
                self.bounced = true;
                self.pool.take()
            }
        }
    }

    fn free(&mut self, buffer: BufferId, why: Freed) {
        if buffer.0 & POSTED == 0 {
            self.pool.put(buffer);
        } else if let Some(netback) = &mut self.netback {
            netback.put_back(BufferId(buffer.0 & !POSTED), why == Freed::Fault);
        }
    }

    fn netif_rx(&mut self, mut frame: Frame) {
        let posted = frame
            .pieces
            .iter()
            .any(|piece| piece.buffer.0 & POSTED != 0);
        if posted {
            for piece in &mut frame.pieces {
                piece.buffer.0 &= !POSTED;
            }
            self.to_guest.push(frame);
        } else {
            self.to_pool.push(frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmem::Area;
    use vif::netfront::Sizes;
    use vif::netif::Features;
    use vif::testing::{FakeGrants, Rig, back_record, sizes};

    /// Room for the longest frame that is still to be cut, which needs 33 buffers.
    const LONGEST: usize = 65_554;

    /// A guest that has posted so many buffers.
    fn rig(posted: u32) -> Rig {
        let sizes = Sizes {
            rx_pages: posted / 2,
            ..sizes()
        };
        let features = Features::ALL.with(Features::RX_META);
        Rig::with_record(sizes, Features::ALL, back_record(features))
    }

    /// Buffers that a device gets until there is none, as (the guest's, ours).
    fn given(rig: &mut Rig, bytes: usize) -> (usize, usize) {
        let mut pool = Pool::new(Area::anonymous(64 * 2048).unwrap(), 2048);
        let (mut to_guest, mut to_pool) = (Vec::new(), Vec::new());
        let netback = Some(&mut rig.back);
        let mut posting =
            Posting::<FakeGrants>::new(netback, &mut pool, bytes, &mut to_guest, &mut to_pool);
        let all: Vec<Buffer> = std::iter::from_fn(|| posting.alloc()).collect();
        let (guests, ours): (Vec<&Buffer>, Vec<&Buffer>) =
            all.iter().partition(|buffer| buffer.id.0 & POSTED != 0);
        let given = (guests.len(), ours.len());
        for buffer in &all {
            posting.free(buffer.id, Freed::Unused);
        }
        assert_eq!(pool.available(), 64, "each came back to whom it is from");
        rig.back.post_end();
        given
    }

    #[test]
    fn a_frame_of_several_buffers_lies_in_the_guest_s_or_in_ours() {
        assert_eq!(given(&mut rig(34), LONGEST), (34, 0));
        assert_eq!(given(&mut rig(32), LONGEST), (0, 64), "no whole frame fits");
        assert_eq!(given(&mut rig(34), 1519), (34, 64), "each lies in one");
    }

    /// Whatever a guest has posted, its frames come: a request that is no buffer is used up, and
    /// buffers that are too few for a frame are not waited for.
    #[test]
    fn buffers_that_are_none_are_not_waited_for() {
        use vif::netif::RxRequest;
        let mut rig = rig(40);
        let raw = rig.raw_rx();
        for at in 5..40 {
            let request = RxRequest::decode(raw.request_at(at));
            let nowhere = RxRequest {
                gref: 0xdead,
                ..request
            };
            raw.request(at, nowhere.encode());
        }
        assert_eq!(given(&mut rig, LONGEST), (5, 0));
        assert_eq!(given(&mut rig, LONGEST), (0, 64), "they are used up");
    }
}
