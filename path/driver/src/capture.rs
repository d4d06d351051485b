//! Packet captures for `grantway capture`: the first bytes of each frame that enters or leaves the
//! bridge by a port, and why it was dropped.
//!
//! The driver records only while a client requests it, and the records are bounded. Forwarding
//! never waits for a capture: a frame without room is counted and not recorded. The client repeats
//! its request; a capture ends two seconds after the last request.

use crate::ports::is_of;
use net::packet::checksum::finish;
use nic::{Checksum, Frame};
use runtime::report::hex;
use serde_json::{Value, json};

/// Time after the last request at which a capture ends.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Maximum bytes of recorded frames. Their text form has twice as many bytes, and must fit into an
/// answer.
const BYTES_MAX: usize = 128 * 1024;
/// Maximum number of recorded frames.
const FRAMES_MAX: usize = 512;
/// Maximum bytes of one frame: 64 KB of IP and its Ethernet header.
const FRAME_MAX: usize = 65_535 + 18;

/// A capture request.
#[derive(Clone, Copy, Debug)]
pub struct CaptureRequest<'a> {
    /// The client's id. Other clients cannot capture meanwhile.
    pub id: u64,
    /// The captured device or domain: a NIC, a guest, or one interface of a guest (`GUEST-N`).
    pub of: &'a str,
    /// Bytes of each frame; 0: end the capture.
    pub snaplen: u32,
}

/// Direction of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureDirection {
    /// Into the bridge.
    In,
    /// Out of the bridge.
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
    asked_ns: u64,
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
    /// Its first bytes.
    data: Vec<u8>,
    /// Why it was dropped, if it was.
    dropped: Option<String>,
}

impl CaptureSet {
    /// Returns the frames recorded since the last request, and records on until the next one.
    ///
    /// # Errors
    /// Another client is capturing.
    pub fn request(&mut self, wanted: CaptureRequest<'_>, now_ns: u64) -> Result<Value, String> {
        self.end_if_forgotten(now_ns);
        if let Some(running) = self.0.as_ref().filter(|running| running.id != wanted.id) {
            return Err(format!("another client is capturing {}", running.of));
        }
        let (frames, lost) = match &mut self.0 {
            Some(running) => running.take(),
            None => (Vec::new(), 0),
        };
        if wanted.snaplen == 0 {
            self.0 = None;
        } else {
            let running = self.0.get_or_insert_with(|| {
                Box::new(RunningCapture {
                    id: wanted.id,
                    of: wanted.of.to_owned(),
                    snaplen: FRAME_MAX.min(wanted.snaplen as usize),
                    asked_ns: now_ns,
                    frames: Vec::new(),
                    bytes: 0,
                    lost: 0,
                })
            });
            running.asked_ns = now_ns;
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
    pub fn sees(&self, port: &str) -> bool {
        self.0.as_ref().is_some_and(|running| running.sees(port))
    }

    /// Records a frame that entered the bridge by a port. If the bridge drops it, `dropped` returns
    /// why.
    pub fn received_at(
        &mut self,
        port: &str,
        frame: &Frame,
        dropped: Option<impl Fn() -> String>,
        now_ns: u64,
    ) {
        self.end_if_forgotten(now_ns);
        if self.sees(port) {
            let dropped = dropped.map(|why| why());
            self.see(port, CaptureDirection::In, frame, dropped, now_ns);
        }
    }

    /// Records a frame that left by a port or was dropped there.
    pub fn sent_by(&mut self, port: &str, frame: &Frame, dropped: Option<String>, now_ns: u64) {
        self.see(port, CaptureDirection::Out, frame, dropped, now_ns);
    }

    fn see(
        &mut self,
        port: &str,
        direction: CaptureDirection,
        frame: &Frame,
        dropped: Option<String>,
        now_ns: u64,
    ) {
        let Some(running) = self.0.as_mut().filter(|running| running.sees(port)) else {
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
        // If the memory is no longer accessible, record the snapshot alone.
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

    fn end_if_forgotten(&mut self, now_ns: u64) {
        let asked_ns = self.0.as_ref().map(|running| running.asked_ns);
        if asked_ns.is_some_and(|at| now_ns.saturating_sub(at) > PATIENCE_NS) {
            self.0 = None;
        }
    }
}

/// Returns a copy of a frame with its blank checksum computed, as its last hop would send it. A
/// frame with pending segmentation gets the checksum of the whole.
fn with_checksum(frame: &Frame) -> Option<Frame> {
    if !matches!(frame.offload.checksum, Checksum::Blank { .. }) {
        return None;
    }
    let mut copy = frame.clone();
    copy.offload.gso = None;
    finish(&mut copy).ok().map(|()| copy)
}

impl RunningCapture {
    fn sees(&self, port: &str) -> bool {
        is_of(port, &self.of)
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
