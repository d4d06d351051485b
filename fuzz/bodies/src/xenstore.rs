//! A hostile xenstore, and hostile guests of a Xen: their nodes and their control rings.

use crate::input::Input;
use abi::PAGE;
use driver::vifs::hashing::Hashing;
use shmem::{Area, Span};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vif::ring::{Format, GrantedRingPages, HEADER_BYTES, RingIndex, RingMemory};
use xen::netif::control::{ControlRing, ReadGranted, SLOTS, TakenRequest};
use xen::netif::features;
use xen::netif::settings::InterfaceSettings;
use xen::netif::states;
use xen::store::wire::{HEADER, Header, MessageType, PAYLOAD_MAX};
use xen::store::{Store, StoreChannel};

/// Queues of the interface that a control ring steers.
const QUEUES: u32 = 4;

/// Answers every request with messages from the input.
struct Daemon<'a> {
    input: Input<'a>,
    out: VecDeque<u8>,
}

impl Daemon<'_> {
    fn message(&mut self, request: u32, kind: u32) {
        let kinds = [
            kind,
            kind,
            MessageType::WatchEvent as u32,
            MessageType::Error as u32,
        ];
        let kind = match self.input.below(5) {
            4 => self.input.u32(),
            at => kinds.get(at).copied().unwrap_or(kind),
        };
        let payload = self.input.bytes(64).to_vec();
        let length = match self.input.u8() {
            255 => self.input.u32(),
            254 => PAYLOAD_MAX as u32 + 1,
            _ => payload.len() as u32,
        };
        let header = Header {
            kind,
            request: if self.input.u8() == 255 {
                self.input.u32()
            } else {
                request
            },
            transaction: 0,
            length,
        };
        self.out.extend(header.encode());
        self.out.extend(payload);
    }
}

impl StoreChannel for Daemon<'_> {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let (header, _) = message.split_first_chunk::<HEADER>().expect("a header");
        let header = Header::decode(*header).expect("requests are well-formed");
        assert_eq!(header.length as usize + HEADER, message.len());
        for _ in 0..self.input.below(4) {
            self.message(header.request, header.kind);
        }
        Ok(())
    }

    fn wait(&mut self, _: Duration) -> io::Result<bool> {
        Ok(!self.out.is_empty())
    }

    fn receive(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        for byte in bytes {
            *byte = self.out.pop_front().ok_or(io::ErrorKind::UnexpectedEof)?;
        }
        Ok(())
    }
}

/// Sends requests of every kind to a xenstore with arbitrary answers. Then reads an interface's
/// nodes with arbitrary values, and a control ring with arbitrary contents. Checks that no call
/// panics or blocks, and that no frame is steered to a missing queue.
pub fn xenstore(bytes: &[u8]) {
    let mut choices = Input::new(bytes);
    let mut store = Store::new(Daemon {
        input: Input::new(bytes),
        out: VecDeque::new(),
    });
    for _ in 0..choices.below(12) {
        // A hostile daemon may cause an error, which must affect only this request.
        match choices.below(6) {
            0 => drop(store.read("a")),
            1 => drop(store.list("a")),
            2 => drop(store.write_all("a", &[("b", "c".to_owned())])),
            3 => drop(store.remove("a")),
            4 => drop(store.watch("a")),
            _ => drop(store.event()),
        }
    }
    nodes(&mut choices);
    control_ring(&mut choices);
}

fn nodes(input: &mut Input<'_>) {
    let mut value = |_: &str| {
        let values = [
            "0",
            "1",
            "7",
            "4294967295",
            "02:00:00:00:00:01",
            "10.0.0.2 fd00::2",
            "8,1",
        ];
        match input.below(9) {
            8 => None,
            at => Some(values.get(at).map_or_else(
                || String::from_utf8_lossy(input.bytes(6)).into_owned(),
                |text| (*text).to_owned(),
            )),
        }
    };
    if let Ok(settings) = InterfaceSettings::of(&mut value) {
        assert_eq!(settings.mac[0] & 1, 0, "a group's address");
    }
    if let Ok(chosen) = features::read_choice([2, 0, 0, 0, 0, 1], &mut value) {
        let queues = chosen.queues.len();
        assert!((1..=features::QUEUES_MAX).contains(&queues), "{queues}");
    }
    let _state = states::parse_state(value("state").as_deref());
}

/// Grants pages with contents from the input.
struct Granted<'a>(&'a [u8]);

impl ReadGranted for Granted<'_> {
    fn fetch(&self, gref: u32, bytes: &mut [u8]) -> bool {
        let from = self.0.iter().cycle().skip(gref as usize % 7);
        bytes
            .iter_mut()
            .zip(from)
            .for_each(|(to, from)| *to = *from % 6);
        !gref.is_multiple_of(3)
    }
}

fn control_ring(input: &mut Input<'_>) {
    // An area is never unmapped, so all inputs of a thread share one.
    thread_local!(static MEMORY: Area = Area::anonymous(3 * PAGE).expect("memory"));
    let memory = MEMORY.with(|area| area.span());
    memory.fill(0).expect("mapped");
    let page = |n: usize| memory.sub(n * PAGE, PAGE).expect("inside");
    let pages = || GrantedRingPages::new(Format::Xen, &[page(0)], Span::EMPTY).expect("one page");
    let guest = pages();
    let hashing = Hashing::in_memory(page(1).sub(0, Hashing::BYTES).expect("inside"));
    let mut ring = ControlRing::new(pages(), TakenRequest::in_memory(page(2)));
    let (ring_page, granted) = (page(0), input.bytes(32));
    for _ in 0..input.below(6) {
        for _ in 0..input.below(8) {
            let at = HEADER_BYTES + usize::from(input.u16()) % (SLOTS as usize * 16);
            let word = request_word(input);
            ring_page.store_u32(at & !3, word).expect("mapped");
        }
        let made = input.near(0);
        guest.set_index(RingIndex::ReqProd, made, Ordering::Release);
        let _notify = ring.serve(hashing, QUEUES, &Granted(granted));
        let header = input.bytes(64);
        if let Some(queue) = hashing.queue(header, QUEUES as usize) {
            assert!(queue < QUEUES as usize, "{queue}");
        }
    }
}

/// Returns mostly a request's kind, or a small number.
fn request_word(input: &mut Input<'_>) -> u32 {
    match input.below(3) {
        0 => u32::from(input.u8() % 9) << 16,
        1 => u32::from(input.u8()),
        _ => input.u32(),
    }
}
