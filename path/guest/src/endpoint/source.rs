//! An endpoint that generates frames.

use net::packet::checksum::Sum;
use net::packet::flow::flow_hash;
use net::packet::protocol;
use nic::prefetch::{fetch_ahead, frames_ahead};
use nic::{BufferId, Buffers, Caps, Frame, Nic, Piece, SmallFrames, TxReport};
use shmem::Span;
use stack::FRAME_MAX;

/// EtherType for local experiments (IEEE 802).
const ETHERTYPE: [u8; 2] = [0x88, 0xb5];
/// Byte with which frames are filled.
const FILL_BYTE: u8 = 0x5a;
/// Offset of a frame's number in a frame that is not IP.
const NUMBER: usize = 16;
/// Offset of a frame's number in a UDP packet.
const NUMBER_IN_UDP: usize = 48;
/// Source address of the flows, from the range that RFC 2544 reserves for measurements.
const FROM_IP: [u8; 4] = [198, 18, 0, 1];
/// Destination address of the flows, from the same range.
const TO_IP: [u8; 4] = [198, 18, 0, 2];
/// Source port of the first flow; the others follow.
const FIRST_PORT: u16 = 10_000;
/// Offset of the source port.
const PORT: usize = 34;
/// Polling interval for returned frames while the window is full.
const WINDOW_POLL_NS: u64 = 20_000;
/// Maximum number of frames that a source sends in one batch to return to its rate after a delay.
const CATCH_UP: f64 = 256.0;

/// An endpoint that generates frames of one size to one station, at a rate or as fast as the caller
/// takes them.
///
/// It fills each buffer only at its first use. With `touch` it writes every byte of every frame, as
/// a program would, and bytes 16 … 23 are the frame's number, little-endian (48 … 55 in UDP).
#[derive(Debug)]
pub struct FrameSource {
    /// A frame without its number.
    template: Vec<u8>,
    size: usize,
    rate_pps: Option<f64>,
    window: usize,
    left: u64,
    touch: bool,
    /// Number of UDP flows, which send one packet each in turn; 0: the frames are not IP.
    flows: u16,
    sent: u64,
    /// Time of the first frame.
    start_ns: Option<u64>,
    /// Address of each filled buffer.
    written: Vec<usize>,
    /// Maximum number of free buffers so far. It is reached when no frame is in flight.
    free_max: usize,
    /// Maximum number of frames in flight so far, if the supply knows it.
    in_flight_max: usize,
    blocked: bool,
    starved: bool,
    short: u64,
    /// Scratch list, empty between polls.
    pieces: Vec<Piece>,
}

impl FrameSource {
    /// Creates a source with address `mac`. It sends frames of `size` bytes (at least 60, including
    /// the Ethernet header) to the station `to`, `rate_pps` frames per second, or as fast as the
    /// caller takes them. At most `window` frames are in flight (0: one per buffer), if the supply
    /// knows their number. The source sends `count` frames in total, or any number of frames if
    /// `count` is `None`.
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
        let size = (size as usize).clamp(60, FRAME_MAX);
        let parts = to.into_iter().chain(mac).chain(ETHERTYPE);
        let mut template: Vec<u8> = parts.collect();
        template.resize(size, FILL_BYTE);
        Self {
            template,
            size,
            rate_pps,
            window: window as usize,
            left: count.unwrap_or(u64::MAX),
            touch,
            flows: 0,
            sent: 0,
            start_ns: None,
            written: Vec::new(),
            free_max: 0,
            in_flight_max: 0,
            blocked: false,
            starved: false,
            short: 0,
            pieces: Vec::new(),
        }
    }

    /// Sends UDP packets of this many flows in turn; 0: frames that are not IP.
    #[must_use]
    pub fn with_flows(mut self, flows: u16) -> Self {
        self.flows = flows;
        if flows == 0 {
            return self;
        }
        let ip_len = (self.size - 14) as u16;
        let mut header = vec![8, 0, 0x45, 0];
        header.extend(ip_len.to_be_bytes());
        header.extend([0, 0, 0x40, 0, 64, protocol::UDP, 0, 0]);
        header.extend([FROM_IP, TO_IP].concat());
        let mut sum = Sum::default();
        sum.add_bytes(header.get(2..).unwrap_or_default());
        let ports = [FIRST_PORT, FIRST_PORT, ip_len - 20, 0];
        header.extend(ports.map(u16::to_be_bytes).concat());
        if let Some(place) = header.get_mut(12..14) {
            place.copy_from_slice(&sum.finish().to_be_bytes());
        }
        self.template.splice(12..12 + header.len(), header);
        self
    }

    /// Returns the flow hash of the source's frames, or of its first flow if it has several.
    #[must_use]
    pub fn flow(&self) -> u32 {
        // The frame's number lies behind the fields that the flow hash covers.
        flow_hash(&self.template)
    }

    /// Returns the number of frames that may be generated now.
    fn allowed(&mut self, now_ns: u64, budget: usize, buffers: &dyn Buffers) -> usize {
        let mut allowed = budget.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if let Some(pps) = self.rate_pps {
            let start_ns = *self.start_ns.get_or_insert(now_ns);
            let due = (now_ns.saturating_sub(start_ns) as f64 * pps / 1e9).floor() + 1.0;
            let behind = due - self.sent as f64;
            if behind > CATCH_UP {
                // Frames missed beyond the burst are not sent later: the rate continues from here.
                let from = (self.sent as f64 + CATCH_UP) / pps * 1e9;
                self.start_ns = Some(now_ns.saturating_sub(from as u64));
            }
            allowed = allowed.min(behind.clamp(0.0, CATCH_UP) as usize);
        }
        self.blocked = false;
        let free = buffers.free();
        self.free_max = self.free_max.max(free.unwrap_or(0));
        if self.window != 0
            && let Some(free) = free
        {
            let room = self.window.saturating_sub(self.free_max - free);
            self.blocked = room < allowed;
            allowed = allowed.min(room);
        }
        allowed
    }

    /// Generates a frame in each buffer, up to the first buffer that is too short or inaccessible.
    /// Returns the number of frames.
    fn make(&mut self, buffers: &mut [Piece]) -> usize {
        let size = self.size;
        let ahead = self.touch.then(|| frames_ahead(size));
        for at in 0..buffers.len() {
            if let Some(ahead) = ahead {
                fetch_ahead(buffers, at, ahead, |piece| {
                    piece.span.take(size).prefetch_write();
                });
            }
            let Some(buffer) = buffers.get_mut(at) else {
                return at;
            };
            let Some(frame) = self.frame(buffer) else {
                return at;
            };
            buffer.span = frame;
        }
        buffers.len()
    }

    /// Generates the next frame in this buffer, if possible.
    #[inline]
    fn frame(&mut self, buffer: &Piece) -> Option<Span> {
        if buffer.span.len() < self.size {
            self.short += 1;
            return None;
        }
        let frame = buffer.span.take(self.size);
        if self.touch {
            frame.write(&self.template).ok()?;
            // One store suffices, because buffers lie at multiples of 8.
            let at = match self.flows {
                0 => NUMBER,
                _ => NUMBER_IN_UDP,
            };
            frame.store_u64(at, self.sent).ok()?;
        } else {
            self.write_once(buffer.buffer, frame)?;
        }
        if let Some(flow) = self.sent.checked_rem(self.flows.into()) {
            let port = FIRST_PORT + flow as u16;
            frame.sub(PORT, 2)?.write(&port.to_be_bytes()).ok()?;
        }
        self.sent += 1;
        self.left -= 1;
        Some(frame)
    }

    /// Fills a buffer, unless an earlier use has done so.
    #[inline]
    fn write_once(&mut self, buffer: BufferId, frame: Span) -> Option<()> {
        let index = buffer.0 as usize;
        if self.written.get(index) == Some(&frame.addr()) {
            return Some(());
        }
        frame.write(&self.template).ok()?;
        // Ids of pools are small. A buffer with a larger id is filled every time.
        if index < 1 << 16 {
            if self.written.len() <= index {
                self.written.resize(index + 1, 0);
            }
            if let Some(place) = self.written.get_mut(index) {
                *place = frame.addr();
            }
        }
        Some(())
    }
}

impl SmallFrames for FrameSource {
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
        let made = first + self.make(out.get_mut(first..).unwrap_or_default());
        for rest in out.drain(made..) {
            buffers.put(rest.buffer);
        }
        self.starved = made - first < allowed;
        if let Some(free) = buffers.free() {
            let under_way = self.free_max.saturating_sub(free);
            self.in_flight_max = self.in_flight_max.max(under_way);
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

impl Nic for FrameSource {
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

    /// Forgets which buffers are filled, because the next connection has empty buffers.
    fn release(&mut self, _buffers: &mut dyn Buffers) {
        self.written.clear();
    }

    fn small_frames(&mut self) -> Option<&mut dyn SmallFrames> {
        Some(self)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("source_frames", self.sent),
            ("source_under_way_max", self.in_flight_max as u64),
            ("source_short_buffers", self.short),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use net::packet::{Network, Packet};
    use nic::Pool;
    use shmem::Area;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const TO: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn pool(buffers: usize) -> Pool {
        Pool::new(Area::anonymous(buffers * 2048).unwrap(), 2048)
    }

    #[test]
    fn frames_are_as_ordered_and_bounded_by_buffers() {
        let mut source = FrameSource::new(MAC, TO, 64, None, 0, None, false);
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
    fn buffers_are_refilled_after_a_reconnect() {
        let mut source = FrameSource::new(MAC, TO, 64, None, 0, None, false);
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
        let mut source = FrameSource::new(MAC, TO, 1514, None, 0, Some(3), true);
        let (mut pool, mut out) = (pool(1), Vec::new());
        for number in 0..3u64 {
            assert_eq!(source.rx(0, 1, &mut pool, &mut out), 1);
            let mut frame = out.pop().unwrap();
            assert_eq!(frame.to_vec().unwrap()[16..24], number.to_le_bytes());
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
    fn flows_follow_each_other() {
        let source = FrameSource::new(MAC, TO, 64, None, 0, Some(5), true);
        let mut source = source.with_flows(3);
        let (mut pool, mut out) = (pool(8), Vec::new());
        source.rx(0, 9, &mut pool, &mut out);
        let ports = out.iter_mut().zip(0u64..).map(|(frame, number)| {
            let bytes = frame.to_vec().unwrap();
            assert_eq!(bytes[48..56], number.to_le_bytes());
            let packet = Packet::parse(&bytes).unwrap();
            let Network::Ipv4(ip) = packet.network else {
                panic!("an IPv4 packet");
            };
            assert_eq!((ip.protocol, ip.total_len), (protocol::UDP, 50));
            let mut sum = Sum::default();
            sum.add_bytes(&bytes[14..34]);
            assert_eq!(sum.folded(), 0xffff);
            u16::from_be_bytes([bytes[34], bytes[35]])
        });
        assert_eq!(
            ports.collect::<Vec<_>>(),
            [10_000, 10_001, 10_002, 10_000, 10_001]
        );
    }

    #[test]
    fn a_rate_is_kept_without_bursts_after_a_delay() {
        let mut source = FrameSource::new(MAC, TO, 60, Some(1000.0), 0, None, false);
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
    fn window_bounds_frames_in_flight() {
        let mut source = FrameSource::new(MAC, TO, 60, None, 4, None, false);
        let (mut pool, mut out) = (pool(32), Vec::new());
        assert_eq!(source.rx(0, 64, &mut pool, &mut out), 4);
        assert_eq!(source.rx(0, 64, &mut pool, &mut out), 0);
        assert_eq!(source.next_due(7), Some(7 + WINDOW_POLL_NS));
        out.pop().unwrap().recycle(&mut pool);
        assert_eq!(source.rx(0, 64, &mut pool, &mut out), 1);
        assert!(source.counters().contains(&("source_under_way_max", 4)));
    }
}
