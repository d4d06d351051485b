//! A TAP as the wire behind a device.

use crate::rate::LinkRate;
use nic::dma::Wire;
use rustix::io::{Errno, read, write};
use std::os::fd::OwnedFd;

/// A TAP without offloads: each read or write of the descriptor transfers one complete frame.
pub struct TapWire {
    /// Descriptor of the TAP; `None` after the interface was removed.
    fd: Option<OwnedFd>,
    /// Called once, when the interface has been removed.
    on_removed: Option<Box<dyn FnOnce()>>,
    /// Read buffer, one byte longer than the longest frame. A frame that is too long therefore
    /// remains too long even if the read truncates it.
    buffer: Vec<u8>,
    inbound: LinkRate,
    outbound: LinkRate,
    /// Time of the last call.
    now_ns: u64,
    /// Whether the TAP may have a frame to read.
    may_read: bool,
    /// Number of sent frames that the TAP has not accepted.
    lost: u64,
}

impl std::fmt::Debug for TapWire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TapWire")
            .field("fd", &self.fd)
            .finish_non_exhaustive()
    }
}

impl TapWire {
    /// Creates a wire from the descriptor of a TAP; `None`: the interface was removed. Each
    /// direction has a rate of `bytes_per_s`; frames have at most `longest` bytes. Calls
    /// `on_removed` when the interface is removed, after it has closed the descriptor.
    #[must_use]
    pub fn new(
        fd: Option<OwnedFd>,
        longest: usize,
        bytes_per_s: Option<u64>,
        on_removed: Box<dyn FnOnce()>,
    ) -> Self {
        Self {
            may_read: fd.is_some(),
            fd,
            on_removed: Some(on_removed),
            buffer: vec![0; longest + 1],
            inbound: LinkRate::new(bytes_per_s),
            outbound: LinkRate::new(bytes_per_s),
            now_ns: 0,
            lost: 0,
        }
    }

    /// Sets the current time, which [`Wire::has_room`] uses.
    pub fn advance(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    fn read(&mut self) -> Option<Vec<u8>> {
        match read(self.fd.as_ref()?, &mut self.buffer) {
            // The copy is no larger than the frame, because the device bounds waiting frames by
            // their lengths.
            Ok(len) => self.buffer.get(..len).map(<[u8]>::to_vec),
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(_) => {
                self.fd = None;
                if let Some(removed) = self.on_removed.take() {
                    removed();
                }
                None
            }
        }
    }
}

impl Wire for TapWire {
    fn has_room(&self, _len: usize) -> bool {
        self.outbound.is_free(self.now_ns)
    }

    fn send(&mut self, now_ns: u64, bytes: Vec<u8>) {
        self.now_ns = now_ns;
        self.outbound.start_frame(now_ns, bytes.len());
        let is_sent = self.fd.as_ref().is_some_and(|fd| write(fd, &bytes).is_ok());
        self.lost += u64::from(!is_sent);
    }

    fn receive(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        self.now_ns = now_ns;
        if !self.inbound.is_free(now_ns) {
            return None;
        }
        let frame = self.read();
        self.may_read = frame.is_some();
        if let Some(frame) = &frame {
            self.inbound.start_frame(now_ns, frame.len());
        }
        frame
    }

    fn due_ns(&self, n: usize) -> Option<u64> {
        let free_at = self.inbound.free_at(self.now_ns);
        free_at.filter(|_| n == 0 && self.may_read)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("lost", self.lost),
            ("no_device", u64::from(self.fd.is_none())),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::os::unix::net::UnixDatagram;
    use std::rc::Rc;

    /// Returns a wire whose descriptor is a datagram socket, and the socket's other end. Like a
    /// TAP, the socket preserves frame boundaries.
    fn wire(bytes_per_s: Option<u64>) -> (TapWire, UnixDatagram) {
        let (near, far) = UnixDatagram::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let wire = TapWire::new(Some(near.into()), 1518, bytes_per_s, Box::new(|| ()));
        (wire, far)
    }

    #[test]
    fn frames_pass_both_ways() {
        let (mut wire, far) = wire(None);
        assert_eq!(wire.receive(5), None);
        assert_eq!(
            wire.due_ns(0),
            None,
            "the device waits only for the descriptor"
        );
        for len in [60, 1518, 1519, 1600] {
            far.send(&vec![7; len]).unwrap();
            let frame = wire.receive(6).unwrap();
            assert_eq!(frame.len(), len.min(1519));
            assert!(frame.capacity() < frame.len() + 64);
            assert!(wire.due_ns(0).is_some(), "the TAP may have another frame");
        }
        assert!(wire.has_room(1518));
        wire.send(7, vec![9; 64]);
        let mut bytes = [0; 100];
        assert_eq!(far.recv(&mut bytes).unwrap(), 64);
        assert_eq!(wire.counters(), [("lost", 0), ("no_device", 0)]);
    }

    #[test]
    fn each_direction_has_the_rate() {
        const START_NS: u64 = 1_000_000_000;
        let (mut wire, far) = wire(Some(1_000_000));
        let mut received = 0;
        // A frame of 100 bytes takes 100 µs. The burst allows 200 µs more at the first call.
        for now_ns in (START_NS..=START_NS + 1_000_000).step_by(10_000) {
            while far.send(&[7; 100]).is_ok() {}
            received += std::iter::from_fn(|| wire.receive(now_ns)).count();
            assert!(wire.due_ns(0).unwrap() > now_ns, "{now_ns}");
            wire.advance(now_ns);
            if wire.has_room(100) {
                wire.send(now_ns, vec![1; 100]);
            }
        }
        assert_eq!(received, 13);
        let sent = std::iter::from_fn(|| far.recv(&mut [0; 100]).ok()).count();
        assert_eq!(sent, 13);
    }

    #[test]
    fn removed_interface_is_reported_once() {
        // Reading a directory fails, like reading the TAP of a removed interface.
        let broken = std::fs::File::open("/").unwrap();
        let removed = Rc::new(Cell::new(0));
        let count = Rc::clone(&removed);
        let on_removed = Box::new(move || count.set(count.get() + 1));
        let mut wire = TapWire::new(Some(broken.into()), 1518, None, on_removed);
        assert_eq!((wire.receive(1), wire.receive(2)), (None, None));
        wire.send(3, vec![0; 60]);
        assert_eq!((removed.get(), wire.due_ns(0)), (1, None));
        assert_eq!(wire.counters(), [("lost", 1), ("no_device", 1)]);
    }
}
