//! What ports see, for `grantway capture`: the first bytes of each frame that comes in by a port or
//! goes out by it, and why it was dropped.
//!
//! Nothing is kept before somebody asks, and what is kept is bounded. Frames wait for nobody: where
//! there is no room for one it is counted, not held. Who asks does so again and again; a capture
//! that nobody has asked for in two seconds is over.

use config::domain::VifConfig;
use net::bridge::Verdict;
use net::packet::checksum::finish;
use nic::{Checksum, Frame};
use runtime::report::hex;
use runtime::trace::dropped_by_bridge;
use serde_json::{Value, json};

/// How long a capture waits for who asked for it.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Bytes of frames that are kept. As text they are twice as many, and must fit into an answer.
const BYTES_MAX: usize = 128 * 1024;
/// Frames that are kept.
const FRAMES_MAX: usize = 512;
/// Bytes of one frame: 64 KB of IP and its Ethernet header.
const FRAME_MAX: usize = 65_535 + 18;

/// What somebody asked to see.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// Who asks: nobody else gets frames meanwhile.
    pub id: u64,
    /// A NIC, a guest, or one interface of a guest (`GUEST-N`).
    pub of: &'a str,
    /// Bytes of each frame; 0: no more frames.
    pub snaplen: u32,
}

/// Which way a frame went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It came into the bridge.
    In,
    /// It was to leave the bridge.
    Out,
}

/// The capture, if there is one.
#[derive(Debug, Default)]
pub struct Capture(Option<Box<Running>>);

#[derive(Debug)]
struct Running {
    id: u64,
    of: String,
    snaplen: usize,
    asked_ns: u64,
    frames: Vec<CapturedFrame>,
    bytes: usize,
    lost: u64,
}

/// A frame that was seen.
#[derive(Debug)]
struct CapturedFrame {
    at_ns: u64,
    port: String,
    direction: Direction,
    /// Bytes that it has.
    len: usize,
    /// Its first ones.
    data: Vec<u8>,
    /// Why it was dropped.
    dropped: Option<String>,
}

impl Capture {
    /// What was seen since the last request; goes on until the next.
    ///
    /// # Errors
    /// Somebody else captures.
    pub fn request(&mut self, asked: Asked<'_>, now_ns: u64) -> Result<Value, String> {
        self.end_if_forgotten(now_ns);
        if let Some(running) = self.0.as_ref().filter(|running| running.id != asked.id) {
            return Err(format!("somebody else captures {} now", running.of));
        }
        let (frames, lost) = match &mut self.0 {
            Some(running) => running.take(),
            None => (Vec::new(), 0),
        };
        if asked.snaplen == 0 {
            self.0 = None;
        } else {
            let running = self.0.get_or_insert_with(|| {
                Box::new(Running {
                    id: asked.id,
                    of: asked.of.to_owned(),
                    snaplen: FRAME_MAX.min(asked.snaplen as usize),
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

    /// Whether frames have to come by where they are seen.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether what comes and goes by a port is to be seen.
    #[inline]
    #[must_use]
    pub fn sees(&self, port: &str) -> bool {
        self.0.as_ref().is_some_and(|running| running.sees(port))
    }

    /// A batch came in by a port, and the bridge has decided on each frame.
    pub fn came_in(&mut self, port: &str, frames: &[Frame], verdicts: &[Verdict], now_ns: u64) {
        self.end_if_forgotten(now_ns);
        for (frame, verdict) in frames.iter().zip(verdicts) {
            let dropped = match verdict {
                Verdict::Drop(reason) => Some(dropped_by_bridge(*reason)),
                Verdict::Unicast(_) | Verdict::Many(_) => None,
            };
            self.see(port, Direction::In, frame, dropped, now_ns);
        }
    }

    /// A frame was to go out by a port.
    pub fn went_out(&mut self, port: &str, frame: &Frame, dropped: Option<String>, now_ns: u64) {
        self.see(port, Direction::Out, frame, dropped, now_ns);
    }

    fn see(
        &mut self,
        port: &str,
        direction: Direction,
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
        // Memory that is not there any more: the snapshot is.
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

/// Returns a copy of a frame whose checksum is blank, with the checksum filled in: what its last
/// hop would have sent. One that is still to be cut gets that of the whole.
fn with_checksum(frame: &Frame) -> Option<Frame> {
    if !matches!(frame.offload.checksum, Checksum::Blank { .. }) {
        return None;
    }
    let mut copy = frame.clone();
    copy.offload.gso = None;
    finish(&mut copy).ok().map(|()| copy)
}

impl Running {
    fn sees(&self, port: &str) -> bool {
        let name = port.split_once('.').map_or(port, |(_, name)| name);
        let guest = VifConfig::guest_of(name);
        let is_guests = port.starts_with("vif.") && guest == Some(self.of.as_str());
        name == self.of || is_guests
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
            "in": self.direction == Direction::In,
            "bytes": self.len,
            "data": hex(&self.data),
            "dropped": self.dropped,
        })
    }
}

#[cfg(test)]
mod tests;
