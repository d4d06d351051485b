//! Packets from the guest: frames → requests, and the driver domain's responses.

use super::interface::Netfront;
use super::pool::{RequestLocation, TX_SMALL_BYTES, rx_index};
use crate::counters::VifDrop;
use crate::fatal::Fatal;
use crate::netif::{ExtraInfo, TxRequest, TxResponse, rsp, transport, txf};
use net::packet::checksum::{FinishError, finish_in_place};
use nic::{BufferId, Buffers, Checksum, Frame, Offload, Piece};
use shmem::Span;

/// Result of [`Netfront::transmit`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransmitReport {
    /// Frames sent.
    pub sent: u32,
    /// Bytes of those frames.
    pub bytes: u64,
    /// Frames dropped; the counters have the reasons.
    pub dropped: u32,
}

/// Reason why a frame was not sent.
pub(super) enum SendError {
    /// The ring or the pool has no room now; the frame can be sent later.
    NoSpace,
    /// The frame can never be sent.
    Rejected(VifDrop),
}

impl Netfront {
    /// Sends `frames` in order and removes them from the list. Frames for which the ring or the
    /// buffers to copy to have no room stay in it.
    ///
    /// A frame whose pieces lie in [`Netfront::buffers`] is sent in place, one piece per slot; a
    /// changed snapshot is written back first. Other frames are copied into buffers. The netfront
    /// frees the buffers of sent and dropped frames.
    ///
    /// # Errors
    /// Returns [`Fatal`]; the interface is then disabled.
    pub fn transmit(&mut self, frames: &mut Vec<Frame>) -> Result<TransmitReport, Fatal> {
        self.transmit_by(frames, Self::send)
    }

    /// Implements [`Netfront::transmit`]; `send` sends one frame.
    #[inline]
    pub(super) fn transmit_by(
        &mut self,
        frames: &mut Vec<Frame>,
        mut send: impl FnMut(&mut Self, &mut Frame) -> Result<(), SendError>,
    ) -> Result<TransmitReport, Fatal> {
        self.reap()?;
        let mut report = TransmitReport::default();
        let mut done = 0;
        for frame in frames.iter_mut() {
            match send(self, frame) {
                Ok(()) => {
                    report.sent += 1;
                    report.bytes += frame.len() as u64;
                }
                Err(SendError::NoSpace) => break,
                Err(SendError::Rejected(reason)) => {
                    self.recycle(frame);
                    self.counters.from_guest_drops.count(reason);
                    report.dropped += 1;
                }
            }
            done += 1;
        }
        frames.drain(..done);
        self.counters.from_guest += u64::from(report.sent);
        self.counters.from_guest_bytes += report.bytes;
        Ok(report)
    }

    /// Processes the driver domain's responses, frees their buffers, and returns their number.
    /// [`Netfront::transmit`] does this, too.
    ///
    /// # Errors
    /// Returns [`Fatal`] for a response to a request that is not in flight (NETIF-10); the
    /// interface is then disabled.
    pub fn reap(&mut self) -> Result<u32, Fatal> {
        self.check_fatal()?;
        let ready = match self.tx.ready_for(u32::MAX) {
            Ok(ready) => ready,
            Err(overrun) => return self.fail(overrun),
        };
        for n in 0..ready {
            let Some(words) = self.tx.peek(n) else {
                break;
            };
            let response = TxResponse::decode(words);
            let known = if response.status == rsp::NULL {
                let open = self.tx_extras > 0;
                self.tx_extras = self.tx_extras.saturating_sub(1);
                open
            } else {
                if response.status < rsp::OKAY {
                    self.counters.from_guest_drops.count(VifDrop::PeerError);
                }
                self.complete_request(response.id)
            };
            if !known {
                return self.fail(Fatal::ResponseId);
            }
        }
        self.tx.consume(ready);
        Ok(ready)
    }

    /// Ends an answered request; returns false if its id is not in flight.
    #[inline]
    pub(super) fn complete_request(&mut self, id: u16) -> bool {
        self.tx_pool.complete_request(id)
            || self
                .tracked
                .as_mut()
                .is_some_and(|own| own.complete_request(id))
    }

    #[inline]
    pub(super) fn send(&mut self, frame: &mut Frame) -> Result<(), SendError> {
        match *frame.pieces.as_slice() {
            [piece] if frame.offload == Offload::default() && !frame.is_header_changed() => {
                match self.tx_pool.request(&piece, frame.len()) {
                    Some(request) => self.send_one(piece.buffer, request),
                    None => self.send_any(frame),
                }
            }
            _ => self.send_any(frame),
        }
    }

    /// Sends a frame that lies in one transmit buffer and needs no offloads, the most frequent
    /// case.
    #[inline]
    fn send_one(&mut self, buffer: BufferId, request: TxRequest) -> Result<(), SendError> {
        if self.tx.free() == 0 {
            return Err(SendError::NoSpace);
        }
        self.tx_pool.mark_in_flight(buffer);
        self.tx.request(request.encode());
        Ok(())
    }

    fn send_any(&mut self, frame: &mut Frame) -> Result<(), SendError> {
        self.check(frame).map_err(SendError::Rejected)?;
        let extra = u32::from(frame.offload.gso.is_some());
        if frame.pieces.len() > usize::from(self.peer().max_slots) || !self.is_ours(frame) {
            self.copy_in(frame, extra)?;
        } else {
            if self.tx.free() < frame.pieces.len() as u32 + extra {
                return Err(SendError::NoSpace);
            }
            if frame.is_header_changed() {
                write_header(frame).map_err(|()| SendError::Rejected(VifDrop::Fault))?;
            }
        }
        self.request(frame, Self::mark_in_flight);
        Ok(())
    }

    /// Returns an error if the frame can never be sent. Computes a checksum that the driver domain
    /// would not compute.
    pub(super) fn check(&self, frame: &mut Frame) -> Result<(), VifDrop> {
        transport::check_len(frame.len())?;
        let Err(reason) = transport::check(frame, self.peer()) else {
            return Ok(());
        };
        if frame.offload.gso.is_some() {
            return Err(reason);
        }
        // The driver domain parses only the outer IP header. The frame can be changed in place,
        // because no other frame shares its memory yet.
        finish_in_place(frame).map_err(|why| match why {
            FinishError::Fault(_) => VifDrop::Fault,
            FinishError::FieldOutsideHeader | FinishError::Segmented => VifDrop::BadOffload,
        })
    }

    /// Returns whether every piece of a frame lies in a separate transmit buffer.
    fn is_ours(&self, frame: &Frame) -> bool {
        let pieces = &frame.pieces;
        pieces.iter().enumerate().all(|(n, piece)| {
            let slot = self.tx_pool.get(piece.buffer);
            let inside = slot.is_some_and(|slot| slot.find(piece).is_some());
            // A buffer's index is its request's id, so it can be in flight only once.
            inside
                && pieces
                    .iter()
                    .take(n)
                    .all(|before| before.buffer != piece.buffer)
        })
    }

    /// Copies a frame into transmit buffers, which replace its pieces.
    pub(super) fn copy_in(&mut self, frame: &mut Frame, extra: u32) -> Result<(), SendError> {
        let mut copy = Frame::empty();
        let mut left = frame.len();
        while left > 0 {
            let buffer = if left <= TX_SMALL_BYTES {
                self.tx_pool.take()
            } else {
                self.tx_pool.take_large()
            };
            let Some(buffer) = buffer else {
                copy.recycle(&mut self.tx_pool);
                // If the peer holds no transmit buffer, waiting does not help, because none will be
                // returned.
                return Err(if self.tx.unanswered() > 0 {
                    SendError::NoSpace
                } else {
                    SendError::Rejected(VifDrop::NoBuffer)
                });
            };
            let span = buffer.span.take(left);
            left -= span.len();
            copy.push(Piece {
                span,
                buffer: buffer.id,
            });
        }
        let held = if copy.pieces.len() > usize::from(self.peer().max_slots) {
            Some(SendError::Rejected(VifDrop::TooManySlots))
        } else if self.tx.free() < copy.pieces.len() as u32 + extra {
            Some(SendError::NoSpace)
        } else {
            scatter(frame, &copy.pieces)
                .err()
                .map(|()| SendError::Rejected(VifDrop::Fault))
        };
        if let Some(held) = held {
            copy.recycle(&mut self.tx_pool);
            return Err(held);
        }
        self.recycle(frame);
        frame.pieces.extend(copy.pieces.drain(..));
        Ok(())
    }

    /// Marks a piece's transmit buffer as in flight.
    #[inline]
    pub(super) fn mark_in_flight(&mut self, piece: &Piece) -> Option<RequestLocation> {
        let slot = self.tx_pool.get(piece.buffer)?;
        let place = RequestLocation {
            gref: slot.gref,
            offset: slot.offset + slot.find(piece).unwrap_or(0),
            id: piece.buffer.0 as u16,
        };
        self.tx_pool.mark_in_flight(piece.buffer);
        Some(place)
    }

    /// Writes the requests of a frame, for which the ring must have room. `launch` marks each piece
    /// as in flight and locates it.
    #[inline]
    pub(super) fn request(
        &mut self,
        frame: &Frame,
        mut launch: impl FnMut(&mut Self, &Piece) -> Option<RequestLocation>,
    ) {
        let extra = frame.offload.gso.map(ExtraInfo::of);
        let last = frame.pieces.len().saturating_sub(1);
        for (n, piece) in frame.pieces.iter().enumerate() {
            let Some(place) = launch(self, piece) else {
                continue;
            };
            let mut flags = if n < last { txf::MORE_DATA } else { 0 };
            let mut size = piece.span.len();
            if n == 0 {
                size = frame.len();
                flags |= match frame.offload.checksum {
                    Checksum::Unknown => 0,
                    Checksum::Blank { .. } => txf::CSUM_BLANK | txf::DATA_VALIDATED,
                    Checksum::Valid => txf::DATA_VALIDATED,
                };
                if extra.is_some() {
                    flags |= txf::EXTRA_INFO;
                }
            }
            self.tx.request(
                TxRequest {
                    gref: place.gref.0,
                    offset: place.offset,
                    flags,
                    id: place.id,
                    size: size as u16,
                }
                .encode(),
            );
            if n == 0
                && let Some(extra) = extra
            {
                let [one, two] = extra.encode();
                self.tx.request([one, two, 0]);
                self.tx_extras += 1;
            }
        }
    }

    /// Returns a frame's buffers to their pools.
    pub(super) fn recycle(&mut self, frame: &mut Frame) {
        for piece in frame.pieces.drain(..) {
            self.put(piece.buffer);
        }
    }

    /// Returns a buffer to its pool.
    #[inline(always)]
    pub(super) fn put(&mut self, id: BufferId) {
        match rx_index(id) {
            Some(index) => {
                self.rx_pool.put(index);
            }
            None => self.tx_pool.put(id),
        }
    }
}

/// Writes a frame's snapshot into its pieces, so that the peer receives the checked and possibly
/// changed header.
fn write_header(frame: &Frame) -> Result<(), ()> {
    let mut header = frame.header();
    for piece in &frame.pieces {
        if header.is_empty() {
            break;
        }
        piece.span.write(header).map_err(|_| ())?;
        header = header.get(piece.span.len()..).unwrap_or(&[]);
    }
    Ok(())
}

/// Copies a frame, snapshot first, into `pieces` of the same total length.
fn scatter(frame: &Frame, pieces: &[Piece]) -> Result<(), ()> {
    let mut header = frame.header();
    let mut payload = frame.payload();
    let mut from = Span::EMPTY;
    for piece in pieces {
        let mut to = piece.span;
        let n = header.len().min(to.len());
        to.write(header).map_err(|_| ())?;
        header = header.get(n..).unwrap_or(&[]);
        to = to.skip(n);
        while !to.is_empty() {
            if from.is_empty() {
                let Some(next) = payload.next() else { break };
                from = next;
            }
            let n = from.len().min(to.len());
            shmem::copy(to.take(n), from.take(n)).map_err(|_| ())?;
            from = from.skip(n);
            to = to.skip(n);
        }
    }
    Ok(())
}
