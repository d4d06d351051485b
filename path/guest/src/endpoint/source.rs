//! An endpoint that makes frames.

use net::packet::flow::flow_hash;
use nic::frame::HOT;
use nic::{Buffers, Caps, Frame, Nic, Piece, SmallFrames, TxReport};
use shmem::Span;
use stack::FRAME_MAX;

/// EtherType for local experiments (IEEE 802).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// What frames are filled with.
const FILLING: u8 = 0x5a;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// When to look again whether frames of a full window have come back.
const WINDOW_POLL_NS: u64 = 20_000;
/// Frames that a late source may send at once to keep its rate.
const CATCH_UP: f64 = 256.0;

/// Frames of one size to one station, as fast as they are taken or at a rate.
///
/// A buffer gets its bytes once, when it is used first; after that a frame costs what its record
/// costs. With `touch` every byte is written for every frame, as a program would, and bytes
/// 14 … 21 are the frame's number, little-endian.
#[derive(Debug)]
pub struct Source {
    /// What every frame starts with.
    start: [u8; HOT],
    size: usize,
    rate_pps: Option<f64>,
    window: usize,
    left: u64,
    touch: bool,
    sent: u64,
    /// When the first frame was made.
    start_ns: Option<u64>,
    /// Where each buffer lay that has its bytes.
    written: Vec<usize>,
    /// The most buffers that were ever free at once: when none is under way.
    most_free: usize,
    /// The most frames that were ever under way at once, where the supply can tell.
    most_under_way: usize,
    blocked: bool,
    starved: bool,
    short: u64,
    /// Room for the work of a look.
    pieces: Vec<Piece>,
}

impl Source {
    /// A source with address `mac` of frames of `size` bytes (Ethernet header included, at least
    /// 60) to the station `to`: `rate_pps` a second, or as fast as they are taken; at most
    /// `window` under way (0: as many as there are buffers), where the supply can tell; `count`
    /// in all, or without end.
    #[must_use]
    pub fn new(
        mac: [u8; 6],
        to: [u8; 6],
        size: u32,
        rate_pps: Option<f64>,
        window: u32,
        count: Option<u64>,
        touch: bool,
    ) -> Self {
        let mut start = [FILLING; HOT];
        let parts = to.into_iter().chain(mac).chain(ETHERTYPE);
        let number = 0_u64.to_le_bytes();
        start
            .iter_mut()
            .zip(parts.chain(number))
            .for_each(|(byte, part)| *byte = part);
        Self {
            start,
            size: (size as usize).clamp(60, FRAME_MAX),
            rate_pps,
            window: window as usize,
            left: count.unwrap_or(u64::MAX),
            touch,
            sent: 0,
            start_ns: None,
            written: Vec::new(),
            most_free: 0,
            most_under_way: 0,
            blocked: false,
            starved: false,
            short: 0,
            pieces: Vec::new(),
        }
    }

    /// The flow that all of its frames are of.
    #[must_use]
    pub fn flow(&self) -> u32 {
        // The number of a frame comes behind what a flow is made of.
        flow_hash(&self.start)
    }

    /// Frames that may be made now.
    fn allowed(&mut self, now_ns: u64, budget: usize, buffers: &dyn Buffers) -> usize {
        let mut allowed = budget.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if let Some(pps) = self.rate_pps {
            let start_ns = *self.start_ns.get_or_insert(now_ns);
            let due = (now_ns.saturating_sub(start_ns) as f64 * pps / 1e9).floor() + 1.0;
            let behind = due - self.sent as f64;
            if behind > CATCH_UP {
                // Frames that were missed are not made up for: the rate goes on from here.
                let from = (self.sent as f64 + CATCH_UP) / pps * 1e9;
                self.start_ns = Some(now_ns.saturating_sub(from as u64));
            }
            allowed = allowed.min(behind.clamp(0.0, CATCH_UP) as usize);
        }
        self.blocked = false;
        let free = buffers.free();
        self.most_free = self.most_free.max(free.unwrap_or(0));
        if self.window != 0
            && let Some(free) = free
        {
            let room = self.window.saturating_sub(self.most_free - free);
            self.blocked = room < allowed;
            allowed = allowed.min(room);
        }
        allowed
    }

    /// The next frame, in this buffer; none: it cannot be.
    #[inline]
    fn frame(&mut self, buffer: Piece) -> Option<Piece> {
        if buffer.span.len() < self.size {
            self.short += 1;
            return None;
        }
        let index = buffer.buffer.0 as usize;
        let known = self.written.get(index) == Some(&buffer.span.addr());
        let span = buffer.span.take(self.size);
        if !known || self.touch {
            self.write(span)?;
            // Numbers of pools are small; one that is not costs its bytes every time.
            if index < 1 << 16 {
                if self.written.len() <= index {
                    self.written.resize(index + 1, 0);
                }
                if let Some(place) = self.written.get_mut(index) {
                    *place = buffer.span.addr();
                }
            }
        }
        self.sent += 1;
        self.left -= 1;
        Some(Piece { span, ..buffer })
    }

    /// Writes the bytes of the next frame.
    fn write(&mut self, frame: Span) -> Option<()> {
        if self.touch
            && let Some(number) = self.start.get_mut(ETHERNET..ETHERNET + 8)
        {
            number.copy_from_slice(&self.sent.to_le_bytes());
        }
        frame.fill(FILLING).ok()?;
        frame.write(&self.start).ok()
    }
}

impl SmallFrames for Source {
    fn rx_small_frames(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Piece>,
    ) -> usize {
        let allowed = self.allowed(now_ns, budget, buffers);
        let first = out.len();
        buffers.take_many(allowed, out);
        let mut made = first;
        while let Some(place) = out.get_mut(made) {
            let Some(frame) = self.frame(*place) else {
                break;
            };
            *place = frame;
            made += 1;
        }
        for rest in out.drain(made..) {
            buffers.put(rest.buffer);
        }
        self.starved = made - first < allowed;
        if let Some(free) = buffers.free() {
            let under_way = self.most_free.saturating_sub(free);
            self.most_under_way = self.most_under_way.max(under_way);
        }
        made - first
    }

    fn tx_small_frames(&mut self, _now_ns: u64, frames: &[Piece]) -> TxReport {
        TxReport {
            sent: frames.len() as u32,
            bytes: frames.iter().map(|piece| piece.span.len() as u64).sum(),
            ..TxReport::default()
        }
    }
}

impl Nic for Source {
    fn caps(&self) -> Caps {
        Caps {
            checksum: true,
            tso: true,
            max_frame: FRAME_MAX,
        }
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let before = out.len();
        let mut pieces = std::mem::take(&mut self.pieces);
        self.rx_small_frames(now_ns, budget, buffers, &mut pieces);
        for piece in pieces.drain(..) {
            match Frame::new(piece, self.size) {
                Ok(frame) => out.push(frame),
                Err(_) => buffers.put(piece.buffer),
            }
        }
        self.pieces = pieces;
        out.len() - before
    }

    fn tx(&mut self, _now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let taken = pick.iter().filter_map(|&index| frames.get(index as usize));
        taken.fold(TxReport::default(), |mut report, frame| {
            report.sent += 1;
            report.bytes += frame.len() as u64;
            report
        })
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        if self.left == 0 {
            return None;
        }
        if self.blocked {
            return Some(now_ns + WINDOW_POLL_NS);
        }
        match (self.rate_pps, self.start_ns) {
            (Some(pps), Some(start_ns)) => {
                Some(start_ns.saturating_add((self.sent as f64 / pps * 1e9) as u64))
            }
            _ => Some(now_ns),
        }
    }

    fn starved(&self) -> bool {
        self.starved
    }

    /// The next connection's buffers hold nothing of it yet.
    fn release(&mut self, _buffers: &mut dyn Buffers) {
        self.written.clear();
    }

    fn small_frames(&mut self) -> Option<&mut dyn SmallFrames> {
        Some(self)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("source_frames", self.sent),
            ("source_under_way_max", self.most_under_way as u64),
            ("source_short_buffers", self.short),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nic::Pool;
    use shmem::Area;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const TO: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn pool(buffers: usize) -> Pool {
        Pool::new(Area::anonymous(buffers * 2048).unwrap(), 2048)
    }

    #[test]
    fn frames_are_as_ordered_and_bounded_by_buffers() {
        let mut source = Source::new(MAC, TO, 64, None, 0, None, false);
        let (mut pool, mut out) = (pool(8), Vec::new());
        assert_eq!(source.rx(0, 64, &mut pool, &mut out), 8);
        assert_eq!(source.rx(0, 64, &mut pool, &mut out), 0);
        for frame in &mut out {
            let bytes = frame.to_vec().unwrap();
            assert_eq!(bytes.len(), 64);
            assert_eq!(
                (&bytes[..6], &bytes[6..12], &bytes[12..14]),
                (&TO[..], &MAC[..], &[0x88, 0xb5][..])
            );
            frame.recycle(&mut pool);
        }
        assert_eq!(source.next_due(5), Some(5));
        out.clear();
        assert_eq!(source.rx(0, 3, &mut pool, &mut out), 3);
    }

    #[test]
    fn after_a_connection_that_ended_buffers_get_their_bytes_anew() {
        let mut source = Source::new(MAC, TO, 64, None, 0, None, false);
        let area = Area::anonymous(4096).unwrap();
        let mut first = None;
        for _ in 0..2 {
            // The pages of a new connection are zeroed.
            area.span().fill(0).unwrap();
            let (mut pool, mut out) = (Pool::new(area, 2048), Vec::new());
            assert_eq!(source.rx_small_frames(0, 64, &mut pool, &mut out), 2);
            let mut bytes = [0; 64];
            out[1].span.read(&mut bytes).unwrap();
            assert_eq!(bytes[6..12], MAC);
            assert_eq!(*first.get_or_insert(bytes), bytes);
            source.release(&mut pool);
        }
    }

    #[test]
    fn touched_frames_carry_their_number() {
        let mut source = Source::new(MAC, TO, 1514, None, 0, Some(3), true);
        let (mut pool, mut out) = (pool(1), Vec::new());
        for number in 0..3u64 {
            assert_eq!(source.rx(0, 1, &mut pool, &mut out), 1);
            let mut frame = out.pop().unwrap();
            assert_eq!(frame.to_vec().unwrap()[14..22], number.to_le_bytes());
            frame.recycle(&mut pool);
        }
        assert_eq!(
            source.rx(0, 9, &mut pool, &mut out),
            0,
            "the count is reached"
        );
        assert_eq!(source.next_due(0), None);
    }

    #[test]
    fn a_rate_is_kept_and_missed_time_is_not_made_up_for() {
        let mut source = Source::new(MAC, TO, 60, Some(1000.0), 0, None, false);
        let (mut pool, mut out) = (pool(512), Vec::new());
        let mut total = 0;
        for ms in 0..100u64 {
            total += source.rx(ms * 1_000_000, 64, &mut pool, &mut out);
            assert_eq!(source.next_due(ms * 1_000_000), Some((ms + 1) * 1_000_000));
            out.drain(..).for_each(|mut frame| frame.recycle(&mut pool));
        }
        assert_eq!(total, 100);
        let late = 10_000_000_000;
        assert_eq!(source.rx(late, 1000, &mut pool, &mut out), 256);
        out.drain(..).for_each(|mut frame| frame.recycle(&mut pool));
        assert!(source.rx(late, 1000, &mut pool, &mut out) <= 1);
        assert!(source.next_due(late).unwrap() <= late + 1_000_000);
    }

    #[test]
    fn a_window_bounds_what_is_under_way() {
        let mut source = Source::new(MAC, TO, 60, None, 4, None, false);
        let (mut pool, mut out) = (pool(32), Vec::new());
        assert_eq!(source.rx(0, 64, &mut pool, &mut out), 4);
        assert_eq!(source.rx(0, 64, &mut pool, &mut out), 0);
        assert_eq!(source.next_due(7), Some(7 + WINDOW_POLL_NS));
        out.pop().unwrap().recycle(&mut pool);
        assert_eq!(source.rx(0, 64, &mut pool, &mut out), 1);
        assert!(source.counters().contains(&("source_under_way_max", 4)));
    }
}
