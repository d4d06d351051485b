//! Fuzz bodies: no input causes a panic, and invariants hold whatever a peer does.

use super::formats::with_format;
use super::grants::FakeGrants;
use super::memory::TestMemory;
use super::packets::{frame_at, ipv4_tcp, packet};
use super::raw::RawBack;
use super::rig::{Rig, back_record, sizes};
use crate::netback::{ACCESSES_MAX, Netback};
use crate::netfront::Netfront;
use crate::netfront::Sizes;
use crate::netif::rings::{RX_REQUEST, RX_RESPONSE, TX_REQUEST, TX_RESPONSE};
use crate::netif::{
    BackRecord, ExtraInfo, Features, FrontRecord, Negotiated, RxRequest, RxResponse, TxRequest,
    TxResponse, transport,
};
use crate::ring::Format;
use abi::RECORD_BYTES;
use nic::{BufferId, Buffers, Checksum, Frame, Gso, GsoKind, Piece, SmallBatch};

/// Numbers read from the input; zeros once it is used up.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        match self.0 {
            [first, rest @ ..] => {
                self.0 = rest;
                *first
            }
            [] => 0,
        }
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The codecs: decoded words encode back to the same words.
///
/// # Panics
/// Panics if they do not.
pub fn hostile_words(data: &[u8]) {
    let mut input = Input(data);
    let words: [u32; TX_REQUEST] = std::array::from_fn(|_| input.word());
    let [one, two, three] = words;
    assert_eq!(TxRequest::decode(words).encode(), words);
    assert_eq!(TxResponse::decode([one]).encode(), [one]);
    assert_eq!(RxRequest::decode([one, two]).encode(), [one, two]);
    assert_eq!(RxResponse::decode([one, two]).encode(), [one, two]);
    // One byte of an extra info is padding.
    assert_eq!(
        ExtraInfo::decode(one, three).encode(),
        [one, three & 0xffff_00ff]
    );
    if let Some(found) = transport::find(data) {
        assert!(usize::from(found.start) < found.checksum_end());
    }
}

/// The records: any body decodes to an error or to a record that encodes to the same fields.
///
/// # Panics
/// Panics if it does not.
pub fn hostile_records(data: &[u8]) {
    let mut body = [0; RECORD_BYTES];
    for (to, from) in body.iter_mut().zip(data) {
        *to = *from;
    }
    let back = BackRecord::decode(&body);
    if let Ok(back) = &back {
        assert_eq!(BackRecord::decode(&back.encode()).as_ref(), Ok(back));
    }
    if let Ok(front) = FrontRecord::decode(&body) {
        assert_eq!(FrontRecord::decode(&front.encode()).as_ref(), Ok(&front));
        let offers = back_record(Features::ALL);
        if let Ok(negotiated) = Negotiated::of(&offers, &front) {
            assert!(negotiated.to_guest.max_slots <= offers.max_slots);
            assert!(
                negotiated.tx_order <= offers.max_order && negotiated.rx_order <= offers.max_order
            );
        }
    }
}

/// A guest that writes anything anywhere in both rings, the event page and its grant table while
/// the netback works.
///
/// # Panics
/// Panics if the netback violates an invariant.
pub fn hostile_frontend(data: &[u8]) {
    let mut input = Input(data);
    let mut rig = with_format(format(&mut input), || {
        Rig::with(sizes(), Features::ALL, features(&mut input))
    });
    let (tx, rx) = (rig.raw_tx(), rig.raw_rx());
    let source = TestMemory::new(24);
    let mut out = Vec::new();
    let mut turns = 0;
    while !input.is_empty() && turns < 4096 {
        turns += 1;
        match input.byte() % 15 {
            0 => tx.set_req_prod(near(&mut input, tx.req_prod())),
            1 => rx.set_req_prod(near(&mut input, rx.req_prod())),
            2 => tx.set_rsp_event(input.word()),
            3 => {
                let count = u32::from(input.byte() % 70);
                let requests: Vec<_> = (0..count).map(|_| request(&mut input).encode()).collect();
                tx.send(&requests);
            }
            4 => {
                let count = u32::from(input.byte() % 70);
                let requests: Vec<_> = (0..count)
                    .map(|_| {
                        let (id, offset) = (u16::from(input.byte()), offset(&mut input));
                        RxRequest {
                            id,
                            offset,
                            gref: u32::from(input.byte()),
                        }
                        .encode()
                    })
                    .collect();
                rx.send(&requests);
            }
            5 => {
                let at = u32::from(input.byte());
                tx.request(at, std::array::from_fn(|_| input.word()));
            }
            6 => {
                let at = usize::from(input.byte()) * 8;
                let entry = u64::from(input.word()) << 32 | u64::from(input.word());
                let _ = rig.table_span().store_u64(at, entry);
            }
            7 => {
                let word = usize::from(input.byte() % 4);
                let _ = rig.event_page().store_u32(word * 64, input.word());
            }
            8 | 9 => take(&mut rig.back, usize::from(input.byte()), &mut out),
            10 => deliver_frames(&mut rig.back, &mut input, &source),
            11 => post(&mut rig.back, &mut input),
            12 => take_small_frames(&mut rig.back, usize::from(input.byte())),
            13 => give_small_frames(&mut rig.back, &mut input, &source),
            _ => {
                rig.back.publish();
                let _ = rig.back.notify();
                let _ = rig.back.prepare_sleep();
                rig.back.disarm();
            }
        }
    }
    let mut grants = rig.back.into_grants();
    assert!(
        !std::mem::take(&mut grants.reading),
        "no grant outlives the interface"
    );
}

/// A driver domain that writes anything anywhere in both rings, the event page and the receive
/// buffers while the netfront works.
///
/// # Panics
/// Panics if the netfront violates an invariant.
pub fn hostile_backend(data: &[u8]) {
    let mut input = Input(data);
    // With some inputs, pages of receive buffers enter and leave the pool; with others they stay.
    let elastic = input.byte() & 1 != 0;
    let mut rig = with_format(format(&mut input), || {
        Rig::with_threshold(
            Sizes {
                rx_spare_pages: if elastic { 16 } else { 0 },
                ..sizes()
            },
            Features::ALL,
            back_record(features(&mut input)),
            elastic.then_some(4),
        )
    });
    let mut small_frames = Vec::new();
    let (tx, rx) = (rig.raw_tx_back(), rig.raw_rx_back());
    let mut frames = Vec::new();
    let mut held = Vec::new();
    let mut turns = 0;
    while !input.is_empty() && turns < 4096 {
        turns += 1;
        match input.byte() % 17 {
            0 => tx.set_rsp_prod(near(&mut input, tx.rsp_prod())),
            1 => rx.set_rsp_prod(near(&mut input, rx.rsp_prod())),
            2 => tx.set_req_event(input.word()),
            3 => lie_about_sent(&mut input, &tx),
            4 | 5 => lie_about_received(&mut input, &rx),
            6 => {
                let at = u32::from(input.byte());
                rx.response(at, [input.word(), input.word()]);
            }
            7 => {
                let word = usize::from(input.byte() % 4);
                let _ = rig.event_page().store_u32(word * 64, input.word());
            }
            8 => {
                let _ = rig.front.receive(usize::from(input.byte()), &mut frames);
                for frame in &frames {
                    let bytes = frame
                        .to_vec()
                        .expect("a frame lies in the guest's own memory");
                    assert_eq!(bytes.len(), frame.len());
                }
            }
            9 => rig.front.receive_done(&mut frames),
            14 => {
                let budget = usize::from(input.byte());
                let _ = rig
                    .front
                    .receive_small_frames(budget, 2048, &mut small_frames);
                for piece in &small_frames {
                    let mut bytes = vec![0; piece.span.len()];
                    piece.span.read(&mut bytes).expect("its own memory");
                    assert!(bytes.len() >= 14);
                }
            }
            15 => rig.front.small_frames_done(&mut small_frames),
            16 => transmit_some(&mut input, &mut rig.front),
            12 => rig.front.refill(&mut rig.table),
            13 => rig.front.release(&mut rig.table),
            10 => {
                let bytes = packet(usize::from(input.byte()) * 40 + 14, 1);
                held.extend(rig.guest_frame(&bytes));
                if rig.front.transmit(&mut held).is_err() {
                    held.clear();
                }
            }
            _ => {
                rig.front.publish();
                let _ = rig.front.notify();
                let _ = rig.front.prepare_sleep(true);
                rig.front.disarm();
            }
        }
    }
}

/// Publishes responses, mostly to real requests.
fn lie_about_sent(input: &mut Input<'_>, tx: &RawBack<TX_REQUEST, TX_RESPONSE>) {
    let count = u32::from(input.byte() % 40);
    for _ in 0..count {
        let at = tx.rsp_prod();
        let request = TxRequest::decode(tx.request_at(at));
        let lie = input.byte();
        let id = if lie == 255 {
            u16::from(input.byte())
        } else {
            request.id
        };
        let status = if lie == 254 { 1 } else { 0 };
        tx.answer(&[TxResponse { id, status }.encode()]);
    }
}

/// Publishes responses, mostly to posted buffers.
fn lie_about_received(input: &mut Input<'_>, rx: &RawBack<RX_REQUEST, RX_RESPONSE>) {
    let count = u32::from(input.byte() % 40);
    for _ in 0..count {
        let at = rx.rsp_prod();
        let request = RxRequest::decode(rx.request_at(at));
        let lie = input.byte();
        let response = RxResponse {
            id: if lie == 255 {
                request.id ^ 1
            } else {
                request.id
            },
            offset: request
                .offset
                .wrapping_add(if lie > 250 { 2047 } else { 0 }),
            flags: u16::from(input.byte()) | (u16::from(lie) & 3) << 8,
            status: input.word() as i16 & if lie < 200 { 0x7ff } else { -1 },
        };
        rx.answer(&[response.encode()]);
    }
}

/// Sends some small frames from the guest.
fn transmit_some(input: &mut Input<'_>, front: &mut Netfront) {
    let mut pieces = Vec::new();
    let pool = front.buffers();
    pool.take_many(usize::from(input.byte()), &mut pieces);
    let cut = |piece: Piece| Piece {
        span: piece.span.take(60),
        ..piece
    };
    let mut pieces: Vec<_> = pieces.into_iter().map(cut).collect();
    let _ = front.transmit_small_frames(&mut pieces);
    for left in pieces {
        front.buffers().put(left.buffer);
    }
}

/// Chooses the format of the rings.
fn format(input: &mut Input<'_>) -> Format {
    match input.byte() & 1 {
        0 => Format::Native,
        _ => Format::Xen,
    }
}

/// Chooses a backend's features: all, with or without `rx-meta`.
fn features(input: &mut Input<'_>) -> Features {
    match input.byte() & 1 {
        0 => Features::ALL,
        _ => Features::ALL.with(Features::RX_META),
    }
}

/// Returns an index that is mostly near `now`, because a distant one ends the interface
/// immediately.
fn near(input: &mut Input<'_>, now: u32) -> u32 {
    match input.byte() {
        255 => input.word(),
        step => now.wrapping_add(u32::from(step) % 80).wrapping_sub(4),
    }
}

fn offset(input: &mut Input<'_>) -> u16 {
    match input.byte() {
        255 => input.word() as u16,
        half => u16::from(half & 1) * 2048,
    }
}

/// Returns a transmit request that is mostly valid.
fn request(input: &mut Input<'_>) -> TxRequest {
    let flags = input.byte();
    TxRequest {
        gref: u32::from(input.byte()),
        offset: offset(input),
        flags: u16::from(if flags > 200 { flags } else { flags & 0b0111 }),
        id: u16::from(input.byte()),
        size: input.word() as u16 & if flags & 64 == 0 { 0x7ff } else { 0xffff },
    }
}

fn take(back: &mut Netback<FakeGrants>, budget: usize, out: &mut Vec<Frame>) {
    match back.from_guest(budget, out) {
        Ok(taken) => {
            assert!(taken <= budget && taken == out.len());
            let pieces: usize = out.iter().map(|frame| frame.pieces.len()).sum();
            assert!(pieces <= ACCESSES_MAX);
            for frame in out.iter() {
                let bytes = frame.to_vec().expect("granted memory");
                assert_eq!(bytes.len(), frame.len());
                assert!(bytes.len() >= 14);
            }
            back.from_guest_done();
        }
        Err(fatal) => assert_eq!(back.fatal(), Some(fatal)),
    }
    out.clear();
}

fn take_small_frames(back: &mut Netback<FakeGrants>, budget: usize) {
    let mut small_frames = SmallBatch::default();
    match back.small_frames_from_guest(budget, &mut small_frames) {
        Ok(taken) => {
            assert!(taken.requests <= budget.min(ACCESSES_MAX));
            assert!(small_frames.len() <= taken.requests);
            assert_eq!(
                taken.bytes,
                small_frames.iter().map(|s| s.len() as u64).sum::<u64>()
            );
            assert!(small_frames.iter().all(|single| single.len() >= 14));
            back.from_guest_done();
        }
        Err(fatal) => assert_eq!(back.fatal(), Some(fatal)),
    }
}

fn give_small_frames(back: &mut Netback<FakeGrants>, input: &mut Input<'_>, source: &TestMemory) {
    let longest = back.longest_small_frame();
    if longest == 0 {
        return;
    }
    let mut small_frames = SmallBatch::default();
    for n in 0..input.byte() % 80 {
        let len = 14 + input.word() as usize % (longest - 13);
        let span = source.area().at(usize::from(n) * 512, len);
        small_frames
            .push(span.expect("a frame fits"))
            .expect("own memory");
    }
    let pick: Vec<u32> = (0..small_frames.len() as u32).rev().collect();
    let report = back.small_frames_to_guest(&small_frames, &pick, 0);
    assert_eq!(
        u64::from(report.delivered) + report.drops.total(),
        pick.len() as u64
    );
    back.publish();
}

fn deliver_frames(back: &mut Netback<FakeGrants>, input: &mut Input<'_>, source: &TestMemory) {
    let frames: Vec<Frame> = (0..3)
        .map(|n| {
            let len = 14 + input.word() as usize % 20_000;
            let mut frame = frame_at(source, n * 32_768, &packet(len, n as u64), 1 + len / 2);
            if input.byte() & 1 != 0 {
                frame.offload.gso = Some(Gso {
                    kind: GsoKind::Tcp4,
                    size: 1448,
                });
                frame.offload.checksum = Checksum::Blank {
                    start: 34,
                    offset: 16,
                };
            }
            frame
        })
        .collect();
    let report = back.to_guest(&frames, &[2, 0, 1, 9]);
    assert_eq!(u64::from(report.delivered) + report.drops.total(), 3);
    back.publish();
}

/// Acts as a device that writes frames to the guest's posted buffers and merges adjacent frames.
fn post(back: &mut Netback<FakeGrants>, input: &mut Input<'_>) {
    const BYTES: usize = 100;
    back.expect_merged(input.byte() & 1 != 0);
    let mut whole: Option<Frame> = None;
    let mut last = BufferId::NONE;
    let gso = Gso {
        kind: GsoKind::Tcp4,
        size: 46,
    };
    for _ in 0..input.byte() % 64 {
        let Some(buffer) = back.post(1519) else { break };
        match input.byte() % 8 {
            0 => back.put_back(buffer.id, input.byte() & 1 != 0),
            1 => back.refuse(buffer.id),
            merge => {
                let bytes = ipv4_tcp(BYTES - 54, u64::from(merge));
                buffer.span.write(&bytes).expect("granted memory");
                let piece = Piece {
                    span: buffer.span.take(BYTES),
                    buffer: buffer.id,
                };
                match &mut whole {
                    Some(whole) if merge > 3 && back.may_follow(last, buffer.id) => {
                        whole.push(piece);
                        whole.offload.gso = Some(gso);
                    }
                    _ => {
                        if let Some(frame) = whole.take() {
                            back.accept(&frame);
                        }
                        whole = Frame::new(piece, BYTES).ok();
                    }
                }
                last = buffer.id;
            }
        }
    }
    if let Some(frame) = whole {
        back.accept(&frame);
    }
    let report = back.post_end();
    assert!(u64::from(report.delivered) * BYTES as u64 <= report.bytes);
    back.publish();
}
