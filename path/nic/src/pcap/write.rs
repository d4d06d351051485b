//! Writes a capture file.

use super::format::{FRAME_BYTES, PcapError};
use crate::frame::Frame;
use pcap_file::pcap::{PcapHeader, PcapWriter};
use pcap_file::{DataLink, Endianness, TsResolution};
use shmem::Fault;
use std::io::Write;

/// A writer of a capture file of Ethernet frames with nanosecond timestamps. It collects frames,
/// and [`FrameWriter::flush`] writes them in one call. It stops at the first frame that exceeds the
/// file's size limit.
#[derive(Debug)]
pub struct FrameWriter<W> {
    output: W,
    /// Nanoseconds from 1970 to the zero of the monotonic clock.
    epoch_ns: u64,
    collected: Vec<u8>,
    /// Number of bytes that the writer may still collect.
    remaining_bytes: u64,
    limit_bytes: u64,
    /// Whether a frame has exceeded the limit.
    full: bool,
}

impl<W: Write> FrameWriter<W> {
    /// Begins a file of at most `limit_bytes`. `epoch_ns` is the time since 1970 minus the
    /// monotonic time.
    ///
    /// # Errors
    /// Returns an error if the file is not writable.
    pub fn new(mut output: W, epoch_ns: u64, limit_bytes: u64) -> Result<Self, PcapError> {
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            endianness: Endianness::Little,
            ts_resolution: TsResolution::NanoSecond,
            snaplen: FRAME_BYTES as u32,
            ..PcapHeader::default()
        };
        let begun = PcapWriter::with_header(Vec::new(), header);
        let begun = begun.map_err(|_| PcapError::NotPcap("its header cannot be written"))?;
        let header = begun.into_writer();
        output.write_all(&header)?;
        Ok(Self {
            output,
            epoch_ns,
            collected: Vec::new(),
            remaining_bytes: limit_bytes.saturating_sub(header.len() as u64),
            limit_bytes,
            full: false,
        })
    }

    /// Adds a frame that passed at `now_ns`, truncated to [`FRAME_BYTES`]. Returns whether the
    /// frame fits the limit. After a frame that does not fit, the writer adds no more frames.
    ///
    /// # Errors
    /// Returns an error if the frame's memory is inaccessible; the frame is then not added.
    pub fn write_frame(&mut self, now_ns: u64, frame: &Frame) -> Result<bool, Fault> {
        let bytes = frame.to_vec()?;
        let kept = bytes.get(..FRAME_BYTES).unwrap_or(&bytes);
        let bytes_more = (size_of::<[u32; 4]>() + kept.len()) as u64;
        self.full |= bytes_more > self.remaining_bytes;
        if self.full {
            return Ok(false);
        }
        self.remaining_bytes -= bytes_more;
        let at_ns = now_ns.saturating_add(self.epoch_ns);
        let record = [
            (at_ns / 1_000_000_000) as u32,
            (at_ns % 1_000_000_000) as u32,
            kept.len() as u32,
            bytes.len() as u32,
        ];
        for field in record {
            self.collected.extend_from_slice(&field.to_le_bytes());
        }
        self.collected.extend_from_slice(kept);
        Ok(true)
    }

    /// Writes the collected frames.
    ///
    /// # Errors
    /// Returns an error if the file is not writable, or a frame exceeded the limit; in the latter
    /// case the file holds all earlier frames. The writer discards the collected bytes in both
    /// cases.
    pub fn flush(&mut self) -> Result<(), PcapError> {
        let done = self
            .output
            .write_all(&self.collected)
            .and_then(|()| self.output.flush());
        self.collected.clear();
        done?;
        match self.full {
            true => Err(PcapError::Full {
                limit_bytes: self.limit_bytes,
            }),
            false => Ok(()),
        }
    }
}
