//! Packet captures for `grantway capture`: records the first bytes of each frame that enters or
//! leaves the bridge at a port, and the reason if the frame was dropped.
//!
//! The driver records only while a client requests it, and bounds the records. Forwarding never
//! waits for a capture: a frame that exceeds the bounds is counted and not recorded. The client
//! repeats its request; a capture ends two seconds after the last request.

use crate::ports::belongs_to;
use net::packet::checksum::finish;
use nic::{Checksum, Frame};
use runtime::report::hex;
use serde_json::{Value, json};

/// Time from the last request to the end of the capture.
const TIMEOUT_NS: u64 = 2_000_000_000;
/// Maximum number of recorded bytes of all frames. Their text form has twice that number of bytes,
/// and must fit into an answer.
const BYTES_MAX: usize = 128 * 1024;
/// Maximum number of recorded frames.
const FRAMES_MAX: usize = 512;
/// Maximum number of bytes of one frame: a 64 KB IP packet with its Ethernet header.
const FRAME_MAX: usize = 65_535 + 18;

/// A capture request.
#[derive(Clone, Copy, Debug)]
pub struct CaptureRequest<'a> {
    /// The client's id. While a capture is active, requests of other clients fail.
    pub id: u64,
    /// The captured device or domain: a NIC, a guest, or one interface of a guest (`GUEST-N`).
    pub of: &'a str,
    /// Number of bytes to record of each frame; 0: end the capture.
    pub snaplen: u32,
}

/// Direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureDirection {
    /// The frame enters the bridge.
    In,
    /// The frame leaves the bridge.
    Out,
}

/// The active capture, if any.
#[derive(Debug, Default)]
pub struct CaptureSet(Option<Box<RunningCapture>>);

#[derive(Debug)]
struct RunningCapture {
    id: u64,
    of: String,
    snaplen: usize,
    requested_ns: u64,
    frames: Vec<CapturedFrame>,
    bytes: usize,
    lost: u64,
}

/// A recorded frame.
#[derive(Debug)]
struct CapturedFrame {
    at_ns: u64,
    port: String,
    direction: CaptureDirection,
    /// Length of the frame.
    len: usize,
    /// The first bytes of the frame.
    data: Vec<u8>,
    /// Reason why the frame was dropped, if it was.
    dropped: Option<String>,
}

impl CaptureSet {
    /// Returns the frames recorded since the last request, and starts or continues the capture.
    ///
    /// # Errors
    /// Returns an error if another client is capturing.
    pub fn request(&mut self, request: CaptureRequest<'_>, now_ns: u64) -> Result<Value, String> {
        self.end_if_expired(now_ns);
        if let Some(running) = self.0.as_ref().filter(|running| running.id != request.id) {
            return Err(format!("another client is capturing {}", running.of));
        }
        let (frames, lost) = match &mut self.0 {
            Some(running) => running.take(),
            None => (Vec::new(), 0),
        };
        if request.snaplen == 0 {
            self.0 = None;
        } else {
            let running = self.0.get_or_insert_with(|| {
                Box::new(RunningCapture {
                    id: request.id,
                    of: request.of.to_owned(),
                    snaplen: FRAME_MAX.min(request.snaplen as usize),
                    requested_ns: now_ns,
                    frames: Vec::new(),
                    bytes: 0,
                    lost: 0,
                })
            });
            running.requested_ns = now_ns;
        }
        let frames: Vec<Value> = frames.iter().map(CapturedFrame::json).collect();
        Ok(json!({ "frames": frames, "lost": lost }))
    }

    /// Returns whether a capture is active, so that frames must be recorded.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether frames of a port are recorded.
    #[inline]
    #[must_use]
    pub fn captures(&self, port: &str) -> bool {
        self.0
            .as_ref()
            .is_some_and(|running| running.captures(port))
    }

    /// Records a frame that entered the bridge at a port. If the bridge drops it, `dropped` returns
    /// the reason.
    pub fn received_at(
        &mut self,
        port: &str,
        frame: &Frame,
        dropped: Option<impl Fn() -> String>,
        now_ns: u64,
    ) {
        self.end_if_expired(now_ns);
        if self.captures(port) {
            let dropped = dropped.map(|why| why());
            self.record(port, CaptureDirection::In, frame, dropped, now_ns);
        }
    }

    /// Records a frame that was sent to a port, or was dropped there.
    pub fn sent_by(&mut self, port: &str, frame: &Frame, dropped: Option<String>, now_ns: u64) {
        self.record(port, CaptureDirection::Out, frame, dropped, now_ns);
    }

    fn record(
        &mut self,
        port: &str,
        direction: CaptureDirection,
        frame: &Frame,
        dropped: Option<String>,
        now_ns: u64,
    ) {
        let Some(running) = self.0.as_mut().filter(|running| running.captures(port)) else {
            return;
        };
        let finished = with_checksum(frame);
        let frame = finished.as_ref().unwrap_or(frame);
        let most = frame.len().min(running.snaplen);
        if running.frames.len() >= FRAMES_MAX || running.bytes + most > BYTES_MAX {
            running.lost += 1;
            return;
        }
        let mut data = vec![0; most];
        // If the frame's memory is no longer accessible, only the snapshot is recorded.
        let known = frame.prefix(&mut data).unwrap_or(frame.header().len());
        data.truncate(known);
        running.bytes += data.len();
        running.frames.push(CapturedFrame {
            at_ns: now_ns,
            port: port.to_owned(),
            direction,
            len: frame.len(),
            data,
            dropped,
        });
    }

    fn end_if_expired(&mut self, now_ns: u64) {
        let requested_ns = self.0.as_ref().map(|running| running.requested_ns);
        if requested_ns.is_some_and(|at| now_ns.saturating_sub(at) > TIMEOUT_NS) {
            self.0 = None;
        }
    }
}

/// Returns a copy of a frame with its blank checksum computed, as the last hop would send it. For a
/// frame with pending segmentation, the checksum covers the whole frame.
fn with_checksum(frame: &Frame) -> Option<Frame> {
    if !matches!(frame.offload.checksum, Checksum::Blank { .. }) {
        return None;
    }
    let mut copy = frame.clone();
    copy.offload.gso = None;
    finish(&mut copy).ok().map(|()| copy)
}

impl RunningCapture {
    fn captures(&self, port: &str) -> bool {
        belongs_to(port, &self.of)
    }

    fn take(&mut self) -> (Vec<CapturedFrame>, u64) {
        self.bytes = 0;
        let lost = std::mem::take(&mut self.lost);
        (std::mem::take(&mut self.frames), lost)
    }
}

impl CapturedFrame {
    fn json(&self) -> Value {
        json!({
            "at_ns": self.at_ns,
            "port": self.port,
            "in": self.direction == CaptureDirection::In,
            "bytes": self.len,
            "data": hex(&self.data),
            "dropped": self.dropped,
        })
    }
}

#[cfg(test)]
mod tests;
