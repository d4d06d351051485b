//! The messages of a front end, in QEMU's order.

use super::front::{FrontEnd, GPA, RING_BYTES, Ring, UVA};
use crate::features::{protocol, virtio};
use std::os::fd::OwnedFd;

/// A front end with a connection to a back end.
pub trait Session {
    /// Returns the front end.
    fn front(&mut self) -> &mut FrontEnd;

    /// Sends a request, lets the back end serve it, and returns the reply's payload.
    fn request(&mut self, request: u32, payload: &[u8], fds: &[OwnedFd]) -> Option<Vec<u8>>;

    /// Sends a request whose payload is one number. Returns the reply's number, if a reply has
    /// arrived.
    fn number(&mut self, request: u32, value: u64) -> Option<u64> {
        let reply = self.request(request, &value.to_le_bytes(), &[])?;
        reply.first_chunk().copied().map(u64::from_le_bytes)
    }

    /// Sends the messages that start the device. Returns `None` if the back end does not answer.
    fn start(&mut self, features: u64) -> Option<()> {
        let offered = self.number(1, 0)?;
        assert_eq!(
            features & !offered,
            0,
            "the back end has not offered these features"
        );
        let protocol = self.number(15, 0)?;
        self.number(16, protocol & !protocol::CONFIG);
        self.number(3, 0);
        let rings = match (self.front().rings.len(), features & virtio::CTRL_VQ) {
            (rings, 0) => rings & !1,
            (rings, _) => rings,
        };
        for ring in 0..rings {
            self.ring_fd(13, ring, |ring| &ring.call);
            self.ring_fd(14, ring, |ring| &ring.err);
        }
        let region = self.front().region();
        self.add_region(region);
        self.number(2, features | virtio::PROTOCOL_FEATURES);
        self.front().features = features;
        for ring in 0..rings {
            self.start_ring(ring);
            self.words(18, [ring as u32, 1]);
        }
        Some(())
    }

    /// Configures one ring, which resumes at the last returned chain.
    fn start_ring(&mut self, ring: usize) {
        let (size, base) = {
            let ring = &self.front().rings[ring].ring;
            (ring.size, ring.used_index())
        };
        self.words(8, [ring as u32, size.into()]);
        self.words(10, [ring as u32, base.into()]);
        self.ring_addresses(ring, 0);
        self.ring_fd(12, ring, |ring| &ring.kick);
    }

    /// Sends a ring's addresses.
    fn ring_addresses(&mut self, ring: usize, flags: u32) {
        let at = (ring * RING_BYTES) as u64;
        let driver = &self.front().rings[ring].ring;
        let (avail, used) = (driver.avail_at() as u64, driver.used_at() as u64);
        let mut payload = Vec::new();
        payload.extend([ring as u32, flags].into_iter().flat_map(u32::to_le_bytes));
        let addresses = [UVA + at, UVA + at + used, UVA + at + avail, GPA + at + used];
        payload.extend(addresses.into_iter().flat_map(u64::to_le_bytes));
        self.request(9, &payload, &[]);
    }

    /// Sends one of a ring's descriptors.
    fn ring_fd(&mut self, request: u32, ring: usize, fd: fn(&Ring) -> &OwnedFd) {
        let fd = fd(&self.front().rings[ring])
            .try_clone()
            .expect("a descriptor");
        self.request(request, &(ring as u64).to_le_bytes(), &[fd]);
    }

    /// Sends a request of two words.
    fn words(&mut self, request: u32, words: [u32; 2]) -> Option<Vec<u8>> {
        let payload: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        self.request(request, &payload, &[])
    }

    /// Sends a region of the memory: `ADD_MEM_REG`.
    fn add_region(&mut self, region: [u64; 4]) {
        let file = self.front().file.try_clone().expect("a descriptor");
        let mut payload = vec![0; 8];
        payload.extend(region.into_iter().flat_map(u64::to_le_bytes));
        self.request(37, &payload, &[file]);
    }
}
