//! An endpoint that sends every frame back.

use nic::{Buffers, Caps, Frame, Nic, TxReport};
use stack::FRAME_MAX;
use stack::frame_queue::FrameQueue;

/// An endpoint that sends every unicast frame back to its sender, with the MACs swapped and
/// otherwise unchanged. The two directions have separate pools, so it copies the frame.
#[derive(Debug, Default)]
pub struct Echo {
    waiting: FrameQueue,
    spare: Vec<Vec<u8>>,
    not_echoed: u64,
}

impl Nic for Echo {
    fn caps(&self) -> Caps {
        Caps {
            checksum: true,
            tso: true,
            max_frame: FRAME_MAX,
        }
    }

    fn rx(
        &mut self,
        _now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        self.waiting.take(budget, buffers, &mut self.spare, out)
    }

    fn tx(&mut self, _now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let mut report = TxReport::default();
        for frame in pick.iter().filter_map(|&index| frames.get(index as usize)) {
            if self.waiting.is_full() {
                report.full += 1;
                continue;
            }
            let mut bytes = self.spare.pop().unwrap_or_default();
            bytes.resize(frame.len(), 0);
            if frame.prefix(&mut bytes).is_err() {
                report.fault += 1;
                self.spare.push(bytes);
                continue;
            }
            report.sent += 1;
            report.bytes += frame.len() as u64;
            let single = bytes.first().is_some_and(|byte| byte & 1 == 0);
            match bytes.get_mut(..12) {
                Some(macs) if single => {
                    macs.rotate_left(6);
                    self.waiting.push(bytes, frame.offload);
                }
                // The echo does not answer frames to group addresses, because another echo would
                // send the answer back.
                _ => {
                    self.not_echoed += 1;
                    self.spare.push(bytes);
                }
            }
        }
        report
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(now_ns)
    }

    fn starved(&self) -> bool {
        self.waiting.starved()
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("echo_waiting", self.waiting.len() as u64),
            ("echo_not_echoed", self.not_echoed),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nic::{Checksum, Pool};
    use shmem::Area;
    use stack::frame_queue::WAITING_MAX;

    fn frame(bytes: &[u8], pool: &mut Pool) -> Frame {
        Frame::from_bytes(bytes, pool).unwrap()
    }

    #[test]
    fn echoed_frames_have_swapped_addresses() {
        let mut pool = Pool::new(Area::anonymous(8 * 2048).unwrap(), 2048);
        let mut bytes: Vec<u8> = (0..100).collect();
        bytes[0] = 2;
        let mut sent = frame(&bytes, &mut pool);
        sent.offload.checksum = Checksum::Blank {
            start: 34,
            offset: 16,
        };
        let mut echo = Echo::default();
        assert_eq!(echo.tx(0, &[sent.clone()], &[0]).sent, 1);
        assert_eq!(echo.next_due(3), Some(3));
        let mut out = Vec::new();
        assert_eq!(echo.rx(0, 8, &mut pool, &mut out), 1);
        let back = out[0].to_vec().unwrap();
        assert_eq!(
            (&back[..6], &back[6..12], &back[12..]),
            (&bytes[6..12], &bytes[..6], &bytes[12..])
        );
        assert_eq!(out[0].offload, sent.offload);
        assert_eq!(echo.next_due(3), None);
    }

    #[test]
    fn group_frames_are_ignored_and_full_queue_drops() {
        let mut pool = Pool::new(Area::anonymous(8 * 2048).unwrap(), 2048);
        let group = frame(&[0xff; 60], &mut pool);
        let single = frame(&[2; 60], &mut pool);
        let mut echo = Echo::default();
        assert_eq!(echo.tx(0, &[group], &[0]).sent, 1);
        assert_eq!(echo.next_due(0), None);
        let all = vec![0; WAITING_MAX + 5];
        let report = echo.tx(0, &[single], &all);
        assert_eq!((report.sent as usize, report.full), (WAITING_MAX, 5));
        let mut out = Vec::new();
        assert_eq!(
            echo.rx(0, 64, &mut pool, &mut out),
            6,
            "as many frames as buffers"
        );
    }
}
