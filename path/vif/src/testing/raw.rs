//! Peers that write raw words: an end of a ring without the rules of a handle.

use crate::ring::{GrantedRingPages, RingIndex, RingMemory};
use std::sync::atomic::Ordering;

/// A ring whose slots have `REQ` and `RSP` words, for either end.
#[derive(Clone, Copy, Debug)]
struct Raw<const REQ: usize, const RSP: usize>(GrantedRingPages);

impl<const REQ: usize, const RSP: usize> Raw<REQ, RSP> {
    fn index(&self, index: RingIndex) -> u32 {
        self.0.index(index, Ordering::Acquire)
    }

    fn set_index(&self, index: RingIndex, value: u32) {
        self.0.set_index(index, value, Ordering::Release);
    }

    fn masked(&self, index: u32) -> u32 {
        index % (self.0.pages() as u32 * crate::ring::SLOTS_PER_PAGE)
    }

    fn request_place(&self, index: u32) -> (usize, usize) {
        let place = self.0.format().requests(REQ);
        place.of(self.masked(index))
    }

    fn response_place(&self, index: u32) -> (usize, usize) {
        let place = self.0.format().responses(REQ, RSP);
        place.of(self.masked(index))
    }

    fn request(&self, index: u32) -> [u32; REQ] {
        let mut slot = [[0; REQ]];
        let (page, offset) = self.request_place(index);
        self.0.read(page, offset, REQ * 4, &mut slot);
        slot[0]
    }

    fn response(&self, index: u32) -> [u32; RSP] {
        let mut slot = [[0; RSP]];
        let (page, offset) = self.response_place(index);
        self.0.read(page, offset, RSP * 4, &mut slot);
        slot[0]
    }

    fn set_request(&self, index: u32, words: [u32; REQ]) {
        let (page, offset) = self.request_place(index);
        self.0.write(page, offset, words);
    }

    fn set_response(&self, index: u32, words: [u32; RSP]) {
        let (page, offset) = self.response_place(index);
        self.0.write(page, offset, words);
    }
}

macro_rules! shared {
    ($($(#[$doc:meta])* $get:ident $set:ident $index:ident;)*) => {
        /// Opens the ring in its pages.
        #[must_use]
        pub fn new(pages: GrantedRingPages) -> Self {
            Self(Raw(pages))
        }

        /// Returns the words of request `index`.
        #[must_use]
        pub fn request_at(&self, index: u32) -> [u32; REQ] {
            self.0.request(index)
        }

        /// Returns the words of response `index`.
        #[must_use]
        pub fn response_at(&self, index: u32) -> [u32; RSP] {
            self.0.response(index)
        }

        $(
            $(#[$doc])*
            #[must_use]
            pub fn $get(&self) -> u32 {
                self.0.index(RingIndex::$index)
            }

            $(#[$doc])*
            pub fn $set(&self, value: u32) {
                self.0.set_index(RingIndex::$index, value);
            }
        )*
    };
}

/// A frontend without rules.
#[derive(Clone, Copy, Debug)]
pub struct RawFront<const REQ: usize, const RSP: usize>(Raw<REQ, RSP>);

/// A backend without rules.
#[derive(Clone, Copy, Debug)]
pub struct RawBack<const REQ: usize, const RSP: usize>(Raw<REQ, RSP>);

impl<const REQ: usize, const RSP: usize> RawFront<REQ, RSP> {
    shared! {
        /// Requests published.
        req_prod set_req_prod ReqProd;
        /// The front's event index.
        rsp_event set_rsp_event RspEvent;
        /// Responses that the back has published.
        rsp_prod set_rsp_prod RspProd;
        /// The back's event index.
        req_event set_req_event ReqEvent;
    }

    /// Writes request `index`.
    pub fn request(&self, index: u32, words: [u32; REQ]) {
        self.0.set_request(index, words);
    }

    /// Writes requests behind the published ones and publishes them.
    pub fn send(&self, requests: &[[u32; REQ]]) {
        let prod = self.req_prod();
        for (n, words) in requests.iter().enumerate() {
            self.request(prod.wrapping_add(n as u32), *words);
        }
        self.set_req_prod(prod.wrapping_add(requests.len() as u32));
    }

    /// Returns every response starting at `from`.
    #[must_use]
    pub fn responses(&self, from: u32) -> Vec<[u32; RSP]> {
        (0..self.rsp_prod().wrapping_sub(from))
            .map(|n| self.response_at(from.wrapping_add(n)))
            .collect()
    }
}

impl<const REQ: usize, const RSP: usize> RawBack<REQ, RSP> {
    shared! {
        /// Requests that the front has published.
        req_prod set_req_prod ReqProd;
        /// Responses published.
        rsp_prod set_rsp_prod RspProd;
        /// The back's event index.
        req_event set_req_event ReqEvent;
        /// The front's event index.
        rsp_event set_rsp_event RspEvent;
    }

    /// Writes response `index`.
    pub fn response(&self, index: u32, words: [u32; RSP]) {
        self.0.set_response(index, words);
    }

    /// Writes responses behind the published ones and publishes them.
    pub fn answer(&self, responses: &[[u32; RSP]]) {
        let prod = self.rsp_prod();
        for (n, words) in responses.iter().enumerate() {
            self.response(prod.wrapping_add(n as u32), *words);
        }
        self.set_rsp_prod(prod.wrapping_add(responses.len() as u32));
    }
}
