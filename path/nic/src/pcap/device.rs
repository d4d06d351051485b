//! A device that plays one capture file and records another.

use super::format::{FRAME_BYTES, PcapError};
use super::read::FrameReader;
use super::write::FrameWriter;
use crate::buffer::Buffers;
use crate::device::{Caps, Nic, TxReport};
use crate::frame::Frame;
use crate::frame::copy::CopyError;
use std::io::{Read, Write};

/// Playback speed of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pace {
    /// As fast as possible.
    #[default]
    Fast,
    /// At the recorded intervals; the first frame immediately.
    Recorded,
}

/// A device that receives the frames of one file and writes sent frames to another.
#[derive(Debug)]
pub struct PcapNic<R, W> {
    reader: Option<FrameReader<R>>,
    writer: Option<FrameWriter<W>>,
    pace: Pace,
    /// Monotonic time minus recorded time, in [`Pace::Recorded`]; `None` before the first frame.
    shift_ns: Option<i128>,
    failure: Option<PcapError>,
    /// Called with the reason when reading or writing fails.
    report_error: fn(&PcapError),
    starved: bool,
    read: u64,
    incomplete: u64,
    written: u64,
    unwritten: u64,
}

impl<R: Read, W: Write> PcapNic<R, W> {
    /// Creates a device over open files. Without an input file it receives nothing; without an
    /// output file it discards sent frames. If reading or writing fails, the device calls
    /// `report_error` with the reason.
    #[must_use]
    pub fn new(
        reader: Option<FrameReader<R>>,
        writer: Option<FrameWriter<W>>,
        pace: Pace,
        report_error: fn(&PcapError),
    ) -> Self {
        Self {
            reader,
            writer,
            pace,
            shift_ns: None,
            failure: None,
            report_error,
            starved: false,
            read: 0,
            incomplete: 0,
            written: 0,
            unwritten: 0,
        }
    }

    /// Returns why reading or writing has failed, or `None` if it has not failed.
    #[must_use]
    pub fn failure(&self) -> Option<&PcapError> {
        self.failure.as_ref()
    }

    /// Returns the time at which to deliver a frame with this recording time.
    fn due_ns(&self, now_ns: u64, recorded_ns: u64) -> u64 {
        match (self.pace, self.shift_ns) {
            (Pace::Recorded, Some(shift)) => {
                u64::try_from(i128::from(recorded_ns) + shift).unwrap_or(now_ns)
            }
            _ => now_ns,
        }
    }

    /// Reports why reading or writing failed, and stores the first reason.
    fn fail(&mut self, why: PcapError) {
        (self.report_error)(&why);
        self.failure.get_or_insert(why);
    }
}

impl<R: Read, W: Write> Nic for PcapNic<R, W> {
    fn caps(&self) -> Caps {
        Caps {
            checksum: true,
            tso: true,
            max_frame: FRAME_BYTES,
        }
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let mut taken = 0;
        self.starved = false;
        while taken < budget {
            let Some(reader) = &mut self.reader else {
                break;
            };
            let record = match reader.peek() {
                Ok(Some(record)) => record,
                Ok(None) => {
                    if reader.ended() {
                        self.reader = None;
                    }
                    break;
                }
                Err(why) => {
                    self.reader = None;
                    self.fail(why);
                    break;
                }
            };
            let (recorded_ns, complete) = (record.at_ns, record.complete);
            let shift = i128::from(now_ns) - i128::from(recorded_ns);
            self.shift_ns.get_or_insert(shift);
            if self.due_ns(now_ns, recorded_ns) > now_ns {
                break;
            }
            let Some(reader) = &mut self.reader else {
                break;
            };
            if complete {
                match Frame::from_bytes(reader.bytes(), buffers) {
                    Ok(frame) => out.push(frame),
                    // The frame stays in the file until a buffer is free.
                    Err(CopyError::NoBuffer | CopyError::Fault(_)) => {
                        self.starved = true;
                        break;
                    }
                }
                taken += 1;
                self.read += 1;
            } else {
                self.incomplete += 1;
            }
            reader.advance();
        }
        taken
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        let mut report = TxReport::default();
        for frame in pick.iter().filter_map(|&index| frames.get(index as usize)) {
            match &mut self.writer {
                None => self.unwritten += 1,
                Some(writer) => {
                    if frame.len() > FRAME_BYTES {
                        report.refused += 1;
                        continue;
                    }
                    match writer.write_frame(now_ns, frame) {
                        Ok(true) => self.written += 1,
                        Ok(false) => self.unwritten += 1,
                        Err(_) => {
                            report.fault += 1;
                            continue;
                        }
                    }
                }
            }
            report.sent += 1;
            report.bytes += frame.len() as u64;
        }
        if let Some(writer) = &mut self.writer
            && let Err(why) = writer.flush()
        {
            self.writer = None;
            self.fail(why);
        }
        report
    }

    fn starved(&self) -> bool {
        self.starved
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        let reader = self.reader.as_ref()?;
        Some(
            reader
                .peeked_ns()
                .map_or(now_ns, |recorded| self.due_ns(now_ns, recorded)),
        )
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("file_frames", self.read),
            ("file_incomplete", self.incomplete),
            ("file_failed", self.failure.is_some().into()),
            ("file_written", self.written),
            ("file_unwritten", self.unwritten),
        ]
    }
}
