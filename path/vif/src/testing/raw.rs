//! Peers that write words: the other end of a ring without a handle, so without any rule.

use crate::ring::{HEADER_BYTES, SLOTS_PER_PAGE};
use shmem::Span;
use std::sync::atomic::Ordering;

/// The pages of a ring whose slots have `N` words, as bytes for anybody.
#[derive(Clone, Debug)]
struct Raw<const N: usize>(Vec<Span>);

impl<const N: usize> Raw<N> {
    fn word(&self, offset: usize) -> u32 {
        self.0[0].load_u32(offset).expect("own memory")
    }

    fn set_word(&self, offset: usize, value: u32) {
        self.0[0].store_u32(offset, value).expect("own memory");
    }

    fn slot(&self, index: u32, n: usize) -> (Span, usize) {
        let index = index as usize % (self.0.len() * SLOTS_PER_PAGE as usize);
        let page = self.0[index / SLOTS_PER_PAGE as usize];
        (
            page,
            HEADER_BYTES + (index % SLOTS_PER_PAGE as usize) * N * 4 + n * 4,
        )
    }

    fn get(&self, index: u32) -> [u32; N] {
        std::array::from_fn(|n| {
            let (page, at) = self.slot(index, n);
            page.u32(at).expect("aligned").load(Ordering::Relaxed)
        })
    }

    fn set(&self, index: u32, words: &[u32]) {
        for (n, &word) in words.iter().enumerate() {
            let (page, at) = self.slot(index, n);
            page.u32(at)
                .expect("aligned")
                .store(word, Ordering::Release);
        }
    }
}

macro_rules! header {
    ($($(#[$doc:meta])* $get:ident $set:ident $offset:literal;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $get(&self) -> u32 {
            self.0.word($offset)
        }

        $(#[$doc])*
        pub fn $set(&self, value: u32) {
            self.0.set_word($offset, value);
        }
    )*};
}

/// A frontend without rules.
#[derive(Clone, Debug)]
pub struct RawFront<const N: usize>(Raw<N>);

/// A backend without rules.
#[derive(Clone, Debug)]
pub struct RawBack<const N: usize>(Raw<N>);

impl<const N: usize> RawFront<N> {
    /// The front of the ring in `pages`.
    #[must_use]
    pub fn new(pages: &[Span]) -> Self {
        Self(Raw(pages.to_vec()))
    }

    header! {
        /// Requests published.
        req_prod set_req_prod 0;
        /// The front's wish to be told.
        rsp_event set_rsp_event 12;
        /// Responses that the back has published.
        rsp_prod set_rsp_prod 8;
        /// The back's wish to be told.
        req_event set_req_event 4;
    }

    /// Writes request `index`.
    pub fn request(&self, index: u32, words: [u32; N]) {
        self.0.set(index, &words);
    }

    /// Writes requests after those that are published and publishes them.
    pub fn send(&self, requests: &[[u32; N]]) {
        let prod = self.req_prod();
        for (n, words) in requests.iter().enumerate() {
            self.request(prod.wrapping_add(n as u32), *words);
        }
        self.set_req_prod(prod.wrapping_add(requests.len() as u32));
    }

    /// What lies at `index`.
    #[must_use]
    pub fn slot(&self, index: u32) -> [u32; N] {
        self.0.get(index)
    }

    /// Every response from `from` on.
    #[must_use]
    pub fn responses(&self, from: u32) -> Vec<[u32; N]> {
        (0..self.rsp_prod().wrapping_sub(from))
            .map(|n| self.slot(from.wrapping_add(n)))
            .collect()
    }
}

impl<const N: usize> RawBack<N> {
    /// The back of the ring in `pages`.
    #[must_use]
    pub fn new(pages: &[Span]) -> Self {
        Self(Raw(pages.to_vec()))
    }

    header! {
        /// Requests that the front has published.
        req_prod set_req_prod 0;
        /// Responses published.
        rsp_prod set_rsp_prod 8;
        /// The back's wish to be told.
        req_event set_req_event 4;
        /// The front's wish to be told.
        rsp_event set_rsp_event 12;
    }

    /// What lies at `index`.
    #[must_use]
    pub fn slot(&self, index: u32) -> [u32; N] {
        self.0.get(index)
    }

    /// Writes response `index`; a response may have fewer words than a slot.
    pub fn response(&self, index: u32, words: &[u32]) {
        self.0.set(index, words);
    }

    /// Writes responses after those that are published and publishes them.
    pub fn answer(&self, responses: &[&[u32]]) {
        let prod = self.rsp_prod();
        for (n, words) in responses.iter().enumerate() {
            self.response(prod.wrapping_add(n as u32), words);
        }
        self.set_rsp_prod(prod.wrapping_add(responses.len() as u32));
    }
}
