//! The endpoint behind a netfront, and the results of its frames.

use net::packet::ETHERNET_BYTES;
use net::packet::too_big::TooBig;
use nic::{Frame, Nic, Piece, TxReport};
use runtime::report::TxTotals;
use runtime::trace::DropSnapshot;

/// Maximum number of errors that wait for room in the ring.
const ERRORS_MAX: usize = 32;

/// An endpoint as used by its interface.
pub(super) struct EndpointDevice {
    pub endpoint: Box<dyn Nic>,
    /// Whether the endpoint's peer notifies it ([`nic::Notified`]).
    pub is_notified: bool,
    pub tx_totals: TxTotals,
    /// Frames dropped because they exceed the endpoint's MTU.
    pub too_long: u64,
    /// Generator of errors to the senders of these frames.
    pub too_big: TooBig,
    /// Error frames still to be sent.
    pub pending_errors: Vec<Vec<u8>>,
    /// Scratch list of frame indexes.
    numbers: Vec<u32>,
}

impl EndpointDevice {
    pub(super) fn new(mut endpoint: Box<dyn Nic>) -> Self {
        Self {
            is_notified: endpoint.notified().is_some(),
            endpoint,
            tx_totals: TxTotals::default(),
            too_long: 0,
            too_big: TooBig::default(),
            pending_errors: Vec::new(),
            numbers: Vec::new(),
        }
    }

    /// Takes a snapshot of the endpoint's drops, for a frame's trace.
    pub(super) fn drop_snapshot(&self) -> DropSnapshot {
        let too_long = (
            "too_long",
            "Longer than the endpoint accepts.",
            self.too_long,
        );
        DropSnapshot::of_device(&self.tx_totals).with_reasons([too_long])
    }

    /// Sends frames to the endpoint, which never keeps any. Returns the number of frames at the end
    /// of the batch that the caller must send again later.
    pub(super) fn send(&mut self, now_ns: u64, frames: &[Frame]) -> usize {
        if frames.is_empty() {
            return 0;
        }
        self.numbers.clear();
        self.numbers.extend(0..frames.len() as u32);
        let mut report = self.endpoint.tx(now_ns, frames, &self.numbers);
        if report.refused > 0 {
            let too_long = self.report_too_long(now_ns, frames).min(report.refused);
            report.refused -= too_long;
            self.too_long += u64::from(too_long);
        }
        self.tx_totals.add(&report);
        report.waiting as usize
    }

    /// Like [`EndpointDevice::give`], for an endpoint's fast path.
    pub(super) fn give_small_frames(&mut self, now_ns: u64, frames: &[Piece]) -> usize {
        match self.endpoint.small_frames() {
            Some(endpoint) if !frames.is_empty() => {
                let report = endpoint.tx_small_frames(now_ns, frames);
                self.tx_totals.add(&report);
                report.waiting as usize
            }
            _ => 0,
        }
    }

    /// Sends frames to the endpoint for the last time, and drops those that would have to wait.
    pub(super) fn send_final(&mut self, now_ns: u64, frames: &[Frame]) {
        let waiting = self.send(now_ns, frames);
        self.count_dropped(waiting);
    }

    /// Counts `waiting` frames as dropped because the endpoint has no room.
    pub(super) fn count_dropped(&mut self, waiting: usize) {
        self.tx_totals.add(&TxReport {
            full: waiting as u32,
            ..TxReport::default()
        });
    }

    /// Creates errors for the senders of frames that exceed the endpoint's MTU; returns the number
    /// of these frames.
    #[cold]
    fn report_too_long(&mut self, now_ns: u64, frames: &[Frame]) -> u32 {
        let caps = self.endpoint.caps();
        let mtu = caps.max_frame.saturating_sub(ETHERNET_BYTES);
        let mut count = 0;
        for frame in frames.iter().filter(|frame| caps.is_too_long(frame)) {
            count += 1;
            if self.pending_errors.len() < ERRORS_MAX {
                self.pending_errors
                    .extend(self.too_big.answer(frame, mtu, &[], now_ns));
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::PAGE;
    use nic::{BufferId, Buffers, Caps, Checksum, Gso, GsoKind, Offload, Piece};
    use shmem::Area;

    /// A device that accepts frames of up to 1514 bytes, and aggregates.
    struct MtuDevice;

    impl Nic for MtuDevice {
        fn caps(&self) -> Caps {
            Caps {
                checksum: true,
                tso: true,
                max_frame: 1514,
            }
        }

        fn rx(&mut self, _: u64, _: usize, _: &mut dyn Buffers, _: &mut Vec<Frame>) -> usize {
            0
        }

        fn tx(&mut self, _: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
            let takes = |index: &&u32| self.caps().takes(&frames[**index as usize]);
            let sent = pick.iter().filter(takes).count() as u32;
            TxReport {
                sent,
                refused: pick.len() as u32 - sent,
                ..TxReport::default()
            }
        }
    }

    /// Returns an IPv4 packet of `len` bytes that routers must not fragment.
    fn packet(len: usize) -> Frame {
        let [high, low] = (len as u16).to_be_bytes();
        let head = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, high, low];
        let rest = [0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        let area = Area::anonymous(4 * PAGE).unwrap();
        let span = area.at(0, 14 + len).unwrap();
        span.write(&[&head[..], &rest].concat()).unwrap();
        let buffer = BufferId::NONE;
        Frame::new(Piece { span, buffer }, 14 + len).unwrap()
    }

    #[test]
    fn senders_of_packets_above_the_mtu_are_answered() {
        let mut device = EndpointDevice::new(Box::new(MtuDevice));
        let mut merged = packet(4000);
        merged.offload.gso = Some(Gso {
            kind: GsoKind::Tcp4,
            size: 1460,
        });
        merged.offload.checksum = Checksum::Blank {
            start: 34,
            offset: 16,
        };
        device.send(0, &[packet(1500), merged.clone()]);
        assert!(device.pending_errors.is_empty());
        device.send(
            0,
            &[packet(1501), merged.clone(), packet(100), packet(4000)],
        );
        assert_eq!(device.pending_errors.len(), 2);
        for error in &device.pending_errors {
            assert_eq!(error[26..34], [10, 0, 0, 2, 10, 0, 0, 1], "from the guest");
            assert_eq!(error[34..36], [3, 4]);
            assert_eq!(error[40..42], 1500_u16.to_be_bytes());
        }
        let mut long_segments = packet(4000);
        long_segments.offload = Offload {
            gso: Some(Gso {
                kind: GsoKind::Tcp4,
                size: 1481,
            }),
            ..merged.offload
        };
        device.send(0, &[long_segments]);
        assert_eq!(device.pending_errors.len(), 3, "its segments are too long");
        let totals = device.tx_totals;
        assert_eq!((totals.sent, totals.refused, device.too_long), (4, 0, 3));
        for _ in 0..100 {
            device.send(0, &[packet(4000)]);
        }
        assert_eq!(device.pending_errors.len(), 20, "the limit");
        assert_eq!((device.too_big.sent, device.too_big.limited), (20, 83));
    }
}
