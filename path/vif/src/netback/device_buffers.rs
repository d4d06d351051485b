//! Requests that a device keeps across turns. A dedicated queue of the NIC writes received frames
//! into the guest's pages as they arrive, not when the driver polls (`specs/xdp.md`, XDP-14).
//!
//! ```text
//!   ring ── post_to_device ──► device ── deliver ───────► response with the frame
//!                                     ── return_buffer ─► response without: unused, or an error
//! ```
//!
//! A posted request is no longer in the ring, and its page is in use. Responses have the order in
//! which the device finishes, which the guest must accept (NETIF-27). Other frames for the guest
//! use the requests behind the posted ones; the argument `leave` of [`Netback::post_to_device`]
//! reserves some for them.

use super::buffers::buffer;
use super::completions::{
    DeliveryReport, RxCompletion, RxResponseWriter, WrittenPart, completions, put_merged_header,
};
use super::interface::Netback;
use super::outstanding::{DeviceBuffer, OutstandingRequest, Returned};
use crate::counters::VifDrop;
use crate::grants::{GrantAccess, GrantMechanism};
use crate::netif::{MAX_PACKET, RxRequest, rsp, transport};
use abi::GrantRef;
use nic::{BufferId, Frame};
use smallvec::SmallVec;

impl<G: GrantMechanism> Netback<G> {
    /// Returns whether a device can borrow buffers that hold frames of `bytes` bytes.
    #[must_use]
    pub fn can_post_to_device(&self, bytes: usize) -> bool {
        self.negotiated.any_order && self.negotiated.rx_offset && self.can_post(bytes)
    }

    /// Returns whether the guest accepts a frame of any length that a device has merged in two or
    /// more lent buffers.
    #[must_use]
    pub fn takes_merged(&self) -> bool {
        let to_guest = &self.negotiated.to_guest;
        let segments = to_guest.gso_tcpv4 && to_guest.gso_tcpv6;
        let checksums = to_guest.csum && to_guest.ipv6_csum;
        let most = usize::from(to_guest.max_slots) * usize::from(self.negotiated.rx_buffer);
        segments && checksums && most >= MAX_PACKET
    }

    /// Returns the number of requests that the device holds.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.count
    }

    /// Removes up to `most` requests from the ring for a device, but leaves at least `leave` there,
    /// and appends their buffers to `out`. Answers invalid and unwritable buffers with an error.
    pub fn post_to_device(&mut self, most: usize, leave: usize, out: &mut Vec<DeviceBuffer>) {
        if self.fatal.is_some() || self.zero_copy.running || !self.negotiated.any_order {
            return;
        }
        let want = most.saturating_add(leave).min(u32::MAX as usize);
        let ready = self.posted(want as u32) as usize;
        let count = ready.saturating_sub(leave).min(most);
        if count == 0 {
            return;
        }
        let mut requests = std::mem::take(&mut self.outstanding.requests);
        let mut accesses = std::mem::take(&mut self.outstanding.accesses);
        let mut frames = std::mem::take(&mut self.outstanding.frames);
        for n in 0..count {
            let Some(words) = self.rx.peek(n as u32) else {
                break;
            };
            let request = RxRequest::decode(words);
            // An invalid request gets a length of 0, so that its span is empty.
            let (offset, len) = buffer(&request, &self.negotiated).unwrap_or((0, 0));
            requests.push(request);
            let gref = GrantRef(request.gref);
            accesses.push(GrantAccess::new(gref, offset as u16, len as u16));
        }
        self.rx.consume(requests.len() as u32);
        self.grants.hold(&mut accesses, &mut frames);
        for ((request, access), &frame) in requests.iter().zip(&accesses).zip(&frames) {
            let reason = match access.result {
                Ok(span) if !span.is_empty() => {
                    let (request, offset) = (*request, access.offset);
                    let id = self.outstanding.put(OutstandingRequest { request, span });
                    out.push(DeviceBuffer {
                        id,
                        frame,
                        entry: access.gref.index(),
                        offset,
                        span,
                    });
                    continue;
                }
                Ok(_) => {
                    self.grants.hold_end(access.gref);
                    VifDrop::BadRequest
                }
                Err(_) => VifDrop::Grant,
            };
            self.counters.to_guest_drops.count(reason);
            self.respond_empty(request.id, request.offset, rsp::ERROR);
        }
        requests.clear();
        accesses.clear();
        frames.clear();
        self.outstanding.requests = requests;
        self.outstanding.accesses = accesses;
        self.outstanding.frames = frames;
    }

    /// Delivers a frame that lies in one posted buffer, or was merged from several, and returns
    /// these buffers to the guest.
    pub fn deliver(&mut self, frame: &Frame, report: &mut DeliveryReport) {
        let mut parts: SmallVec<[WrittenPart; 1]> = SmallVec::new();
        let mut grefs: SmallVec<[GrantRef; 1]> = SmallVec::new();
        for piece in &frame.pieces {
            if let Some(outstanding) = self.outstanding.take(piece.buffer) {
                grefs.push(GrantRef(outstanding.request.gref));
                parts.push(WrittenPart {
                    request: outstanding.request.id,
                    offset: outstanding.request.offset,
                    buffer: outstanding.span,
                    piece: piece.span,
                });
            }
        }
        let completed =
            include_bare_header(frame, &mut parts).and_then(|()| self.complete(frame, &parts));
        // The uses end only here, so the guest could not take its pages back while the header was
        // written.
        for gref in grefs {
            self.grants.hold_end(gref);
        }
        match completed {
            Ok(()) => {
                self.counters.to_guest += 1;
                self.counters.to_guest_bytes += frame.len() as u64;
                report.deliver(frame.len());
            }
            Err(reason) => {
                // A merged frame counts as the packets that its sender must retransmit.
                for part in parts {
                    self.counters.to_guest_drops.count(reason);
                    report.drops.count(reason);
                    self.respond_empty(part.request, part.offset, rsp::ERROR);
                }
            }
        }
    }

    /// Like [`Netback::deliver`], for a batch of frames without offloads, each of which lies
    /// completely at the start of one lent buffer. `frames` yields `(buffer, bytes, is_valid)` for
    /// each, where `is_valid` states whether the transport checksum is verified.
    pub fn deliver_small(
        &mut self,
        frames: impl Iterator<Item = (BufferId, usize, bool)>,
    ) -> DeliveryReport {
        let mut report = DeliveryReport::default();
        for (buffer, bytes, is_valid) in frames {
            let Some(outstanding) = self.outstanding.take(buffer) else {
                continue;
            };
            let OutstandingRequest { request, span } = outstanding;
            let checked = match transport::check_len(bytes) {
                Ok(()) if bytes > span.len() => Err(VifDrop::CrossesPage),
                checked => checked,
            };
            let len = match checked {
                Ok(()) => {
                    report.deliver(bytes);
                    bytes as i16
                }
                Err(reason) => {
                    report.drops.count(reason);
                    rsp::ERROR
                }
            };
            let completion = RxCompletion::new(request.id, request.offset, len);
            self.responses
                .push(completion.whole_frame_response(is_valid));
            self.grants.hold_end(GrantRef(request.gref));
        }
        self.respond(&report);
        report
    }

    /// Answers the requests of a frame, or returns an error if the frame is invalid.
    fn complete(&mut self, frame: &Frame, parts: &[WrittenPart]) -> Result<(), VifDrop> {
        let completions = completions(frame, &self.negotiated, parts.iter().copied().map(Some))?;
        // The segment size occupies the slot of a request that is still in the ring.
        let extra = match self.extra(frame) {
            Some(extra) if self.ready(1) == 1 => {
                let words = self.rx.peek(0).ok_or(VifDrop::NoRequest)?;
                Some(self.extra_for_request(extra, RxRequest::decode(words).id))
            }
            Some(_) => return Err(VifDrop::NoRequest),
            None => None,
        };
        put_bare_header(frame, parts)?;
        put_merged_header(frame)?;
        if extra.is_some() {
            self.rx.consume(1);
            self.reserved = self.reserved.saturating_sub(1);
            self.counters.meta_requests += 1;
        }
        let mut writer = RxResponseWriter::new(frame, &self.negotiated, extra, completions.len());
        for &completion in &completions {
            writer.respond(completion, |words| {
                self.rx.respond(words);
            });
        }
        Ok(())
    }

    /// Takes back a posted buffer without a frame. The device no longer uses it.
    pub fn return_buffer(&mut self, id: BufferId, how: Returned) {
        if let Some(out) = self.take_outstanding(id) {
            let status = match how {
                Returned::Unused => rsp::DROPPED,
                Returned::Failed => rsp::ERROR,
            };
            self.respond_empty(out.request.id, out.request.offset, status);
        }
    }

    fn take_outstanding(&mut self, id: BufferId) -> Option<OutstandingRequest> {
        let out = self.outstanding.take(id)?;
        self.grants.hold_end(GrantRef(out.request.gref));
        Some(out)
    }

    /// Answers a request without a frame.
    fn respond_empty(&mut self, request: u16, offset: u16, len: i16) {
        self.rx
            .respond(RxCompletion::new(request, offset, len).plain_response());
    }
}

/// Extends the first part by a header that the device has stored apart, whose place is in front of
/// it.
fn include_bare_header(frame: &Frame, parts: &mut [WrittenPart]) -> Result<(), VifDrop> {
    let bare = frame.bare();
    if bare > 0
        && let Some(first) = parts.first_mut()
    {
        let whole = first.buffer.take(bare + first.piece.len());
        if whole.skip(bare) != first.piece {
            return Err(VifDrop::Fault);
        }
        first.piece = whole;
    }
    Ok(())
}

/// Writes a header that the device has stored apart to its place in the first part, so that the
/// guest gets the header that was checked.
fn put_bare_header(frame: &Frame, parts: &[WrittenPart]) -> Result<(), VifDrop> {
    match (frame.header().get(..frame.bare()), parts.first()) {
        (Some(header), Some(first)) => first.piece.write(header).map_err(|_| VifDrop::Fault),
        _ => Err(VifDrop::Fault),
    }
}
