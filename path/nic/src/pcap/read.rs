//! Reads a capture file frame by frame, with fixed-size memory.

use super::format::{FRAME_BYTES, PcapError};
use pcap_file::pcap::PcapParser;
use pcap_file::{DataLink, PcapError as Parse, TsResolution};
use std::io::{ErrorKind, Read};
use std::ops::Range;

/// Length of the file's header in bytes.
const FILE_HEADER: usize = 24;
/// Length of a record's header in bytes.
const RECORD_HEADER: usize = 16;
/// Size of the read buffer in bytes: several records of the longest frame, for fewer and longer
/// reads.
const READ_BUFFER_BYTES: usize = 4 * (FRAME_BYTES + RECORD_HEADER);
/// First bytes of a pcapng file.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// The next frame of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PcapFrame {
    /// Recording time in nanoseconds since 1970.
    pub at_ns: u64,
    /// Whether the file holds the whole frame.
    pub complete: bool,
}

/// A reader of a capture file.
pub struct FrameReader<R> {
    input: R,
    parser: PcapParser,
    buffer: Vec<u8>,
    /// The part of `buffer` that holds unconsumed bytes.
    unread: Range<usize>,
    ended: bool,
    /// Number of consumed frames.
    frames: u64,
    /// The peeked frame, and the range of its bytes in `buffer`.
    next: Option<(PcapFrame, Range<usize>)>,
}

impl<R> std::fmt::Debug for FrameReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader")
            .field("frames", &self.frames)
            .finish_non_exhaustive()
    }
}

impl<R: Read> FrameReader<R> {
    /// Creates a reader and reads the file's header.
    ///
    /// # Errors
    /// Returns an error if the file is not a pcap file of Ethernet frames.
    pub fn new(mut input: R) -> Result<Self, PcapError> {
        let mut header = [0; FILE_HEADER];
        input
            .read_exact(&mut header)
            .map_err(|error| match error.kind() {
                ErrorKind::UnexpectedEof => PcapError::NotPcap("it is too short"),
                kind => PcapError::Io(kind),
            })?;
        if header.starts_with(&PCAPNG) {
            return Err(PcapError::PcapNg);
        }
        let (_, parser) = PcapParser::new(&header).map_err(|error| match error {
            Parse::InvalidField(why) => PcapError::NotPcap(why),
            _ => PcapError::NotPcap("its header is malformed"),
        })?;
        let link = parser.header().datalink;
        if link != DataLink::ETHERNET {
            return Err(PcapError::NotEthernet(format!("{link:?}")));
        }
        let (buffer, unread) = (vec![0; READ_BUFFER_BYTES], 0..0);
        Ok(Self {
            input,
            parser,
            buffer,
            unread,
            ended: false,
            frames: 0,
            next: None,
        })
    }

    /// Returns the next frame without consuming it, or `None` if none is available now (see
    /// [`FrameReader::ended`]).
    ///
    /// # Errors
    /// Returns an error if the file is unreadable or invalid.
    pub fn peek(&mut self) -> Result<Option<PcapFrame>, PcapError> {
        loop {
            if let Some((record, _)) = &self.next {
                return Ok(Some(*record));
            }
            if self.parse()? {
                continue;
            }
            if self.ended && !self.unread.is_empty() {
                return Err(PcapError::Truncated {
                    frame: self.frames + 1,
                });
            }
            if self.ended || !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Returns the recording time of the peeked frame.
    #[must_use]
    pub fn peeked_ns(&self) -> Option<u64> {
        self.next.as_ref().map(|(record, _)| record.at_ns)
    }

    /// Returns whether the caller has consumed the whole file.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ended && self.unread.is_empty() && self.next.is_none()
    }

    /// Returns the bytes of the peeked frame.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let range = self.next.as_ref().map_or(0..0, |(_, range)| range.clone());
        self.buffer.get(range).unwrap_or(&[])
    }

    /// Consumes the peeked frame.
    pub fn advance(&mut self) {
        if self.next.take().is_some() {
            self.frames += 1;
        }
    }

    /// Parses the next record in `buffer`, and returns whether it is complete.
    fn parse(&mut self) -> Result<bool, PcapError> {
        let malformed = |why| PcapError::Malformed {
            frame: self.frames + 1,
            why,
        };
        let unread = self.buffer.get(self.unread.clone()).unwrap_or(&[]);
        // The length is checked first: a record that exceeds the buffer would otherwise stay
        // incomplete forever.
        let header = self.parser.header();
        if let Some(length) = unread.get(8..).and_then(<[u8]>::first_chunk::<4>) {
            let length = match header.endianness {
                pcap_file::Endianness::Big => u32::from_be_bytes(*length),
                pcap_file::Endianness::Little => u32::from_le_bytes(*length),
            };
            if length as usize > FRAME_BYTES {
                return Err(malformed("it is longer than any frame"));
            }
        }
        let (rest, packet) = match self.parser.next_raw_packet(unread) {
            Ok(found) => found,
            Err(Parse::IncompleteBuffer) => return Ok(false),
            Err(Parse::InvalidField(why)) => return Err(malformed(why)),
            Err(_) => return Err(malformed("its record is malformed")),
        };
        let unit_ns = match header.ts_resolution {
            TsResolution::MicroSecond => 1000,
            TsResolution::NanoSecond => 1,
        };
        let at_ns = u64::from(packet.ts_sec) * 1_000_000_000 + u64::from(packet.ts_frac) * unit_ns;
        let record = PcapFrame {
            at_ns,
            complete: packet.incl_len >= packet.orig_len,
        };
        let end = self.unread.end - rest.len();
        let start = end - packet.data.len();
        self.unread.start = end;
        self.next = Some((record, start..end));
        Ok(true)
    }

    /// Reads more bytes. Returns false if none is available.
    fn fill(&mut self) -> Result<bool, PcapError> {
        self.buffer.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        let free = self.buffer.get_mut(self.unread.end..).unwrap_or(&mut []);
        match self.input.read(free) {
            Ok(0) => {
                self.ended = true;
                // At the end of the file the caller parses once more, and then reports the
                // remaining bytes as a truncated record.
                Ok(!self.unread.is_empty())
            }
            Ok(count) => {
                self.unread.end += count;
                Ok(true)
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }
}
