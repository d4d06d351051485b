//! Receive buffers for the frames of a dedicated queue.

use nic::vmq::{ReturnReason, VmqBackend};
use nic::{Buffer, BufferId, Buffers, Frame, Pool};
use vif::grants::GrantMechanism;
use vif::netback::Netback;

/// Marks the ids of a guest's posted buffers.
const POSTED_BIT: u32 = 1 << 31;

/// Buffers for a batch of a queue's frames. The batch uses the buffers that the guest has posted.
/// If the guest has posted too few, or if frames must not be written to the guest, it uses this
/// domain's buffers. After the first buffer of this domain, a batch uses no buffers of the guest,
/// which keeps frames in order. If a frame may need several buffers, the whole batch uses only one
/// kind of buffers, so that no frame uses both.
pub struct BatchPosting<'a, G> {
    netback: Option<&'a mut Netback<G>>,
    pool: &'a mut Pool,
    /// Number of buffer bytes that a frame needs.
    bytes: usize,
    /// Whether a frame may need several buffers.
    chains: bool,
    /// Whether the rest of the batch uses this domain's buffers.
    bounced: bool,
    to_guest: &'a mut Vec<Frame>,
    to_pool: &'a mut Vec<Frame>,
}

impl<'a, G: GrantMechanism> BatchPosting<'a, G> {
    /// Creates the buffers of a batch with frames of at most `bytes` bytes. Received frames in
    /// `netback`'s buffers are appended to `to_guest`, frames in `pool`'s buffers to `to_pool`.
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

impl<G: GrantMechanism> VmqBackend for BatchPosting<'_, G> {
    fn alloc(&mut self) -> Option<Buffer> {
        let posted = match &mut self.netback {
            Some(netback) if !self.bounced => netback.post(self.bytes),
            _ => None,
        };
        match posted {
            Some(Buffer { id, span }) => Some(Buffer {
                id: BufferId(id.0 | POSTED_BIT),
                span,
            }),
            // The batch ends here. The next batch starts with enough buffers of the guest for a
            // whole frame, or uses only this domain's buffers.
            None if self.chains && !self.bounced => None,
            None => {
                self.bounced = true;
                self.pool.take()
            }
        }
    }

    fn free(&mut self, buffer: BufferId, why: ReturnReason) {
        if buffer.0 & POSTED_BIT == 0 {
            self.pool.put(buffer);
        } else if let Some(netback) = &mut self.netback {
            netback.put_back(BufferId(buffer.0 & !POSTED_BIT), why == ReturnReason::Fault);
        }
    }

    fn netif_rx(&mut self, mut frame: Frame) {
        let posted = frame
            .pieces
            .iter()
            .any(|piece| piece.buffer.0 & POSTED_BIT != 0);
        if posted {
            for piece in &mut frame.pieces {
                piece.buffer.0 &= !POSTED_BIT;
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

    /// Length of the longest frame with pending segmentation. It needs 33 buffers.
    const LONGEST: usize = 65_554;

    /// Returns a guest that has posted `posted` buffers.
    fn rig(posted: u32) -> Rig {
        let sizes = Sizes {
            rx_pages: posted / 2,
            ..sizes()
        };
        let features = Features::ALL.with(Features::RX_META);
        Rig::with_record(sizes, Features::ALL, back_record(features))
    }

    /// Takes buffers until none is left. Returns the number of the guest's buffers and the number
    /// of the driver's.
    fn given(rig: &mut Rig, bytes: usize) -> (usize, usize) {
        let mut pool = Pool::new(Area::anonymous(64 * 2048).unwrap(), 2048);
        let (mut to_guest, mut to_pool) = (Vec::new(), Vec::new());
        let netback = Some(&mut rig.back);
        let mut posting =
            BatchPosting::<FakeGrants>::new(netback, &mut pool, bytes, &mut to_guest, &mut to_pool);
        let all: Vec<Buffer> = std::iter::from_fn(|| posting.alloc()).collect();
        let (guests, ours): (Vec<&Buffer>, Vec<&Buffer>) =
            all.iter().partition(|buffer| buffer.id.0 & POSTED_BIT != 0);
        let given = (guests.len(), ours.len());
        for buffer in &all {
            posting.free(buffer.id, ReturnReason::Unused);
        }
        assert_eq!(pool.available(), 64, "each buffer returned to its owner");
        rig.back.post_end();
        given
    }

    #[test]
    fn multi_buffer_frame_never_spans_both_pools() {
        assert_eq!(given(&mut rig(34), LONGEST), (34, 0));
        assert_eq!(given(&mut rig(32), LONGEST), (0, 64), "no whole frame fits");
        assert_eq!(
            given(&mut rig(34), 1519),
            (34, 64),
            "each frame fits one buffer"
        );
    }

    /// The driver consumes invalid requests and does not wait for missing buffers, so it receives a
    /// guest's frames regardless of what the guest has posted.
    #[test]
    fn batch_does_not_wait_for_invalid_buffers() {
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
        assert_eq!(
            given(&mut rig, LONGEST),
            (0, 64),
            "the guest's buffers are used up"
        );
    }
}
