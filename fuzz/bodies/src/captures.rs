//! Capture files of hostile authors.

use crate::input::Input;
use abi::PAGE;
use nic::pcap::{FRAME_BYTES, FrameReader, FrameWriter, Pace, PcapError, PcapNic};
use nic::{Frame, Nic as _, Pool};
use shmem::Area;
use std::cell::RefCell;
use std::io::{self, ErrorKind, Read, Write};
use std::rc::Rc;

/// Bytes of a buffer.
const BUFFER: usize = 2048;
/// Maximum number of frames that are read from a file.
const FRAMES: usize = 256;

/// A file that arrives in parts, some of them delayed.
struct Parts<'a> {
    file: &'a [u8],
    /// Lengths of the next parts; 0 means that no bytes are available yet.
    parts: &'a [u8],
}

impl Read for Parts<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let most = match self.parts.split_first() {
            // The end of the file is available immediately.
            _ if self.file.is_empty() => return Ok(0),
            Some((part, rest)) => {
                self.parts = rest;
                usize::from(*part)
            }
            None => usize::MAX,
        };
        if most == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        let (part, rest) = self.file.split_at(self.file.len().min(most).min(to.len()));
        to.iter_mut().zip(part).for_each(|(to, from)| *to = *from);
        self.file = rest;
        Ok(part.len())
    }
}

/// A file whose contents can be inspected after writing.
#[derive(Clone, Default)]
struct Written(Rc<RefCell<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the frames of a file, and the error that ended it.
fn frames(mut reader: FrameReader<impl Read>) -> (Vec<Vec<u8>>, Option<PcapError>) {
    let mut frames = Vec::new();
    let mut waits = 0;
    while frames.len() < FRAMES {
        match reader.peek() {
            Ok(Some(record)) => {
                assert!(reader.bytes().len() <= FRAME_BYTES, "longer than any frame");
                if record.complete {
                    frames.push(reader.bytes().to_vec());
                }
                reader.advance();
                assert!(!reader.ended() || matches!(reader.peek(), Ok(None)));
            }
            Ok(None) if reader.ended() => break,
            Ok(None) => {
                waits += 1;
                assert!(waits < 1024, "the reader makes no progress");
            }
            Err(error) => return (frames, Some(error)),
        }
    }
    (frames, None)
}

/// Reads a file as a whole and in parts, with results that must agree. Then plays the file and
/// records it into a file with a limit, which must then have complete frames within that limit.
pub fn captures(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let limit = 24 + u64::from(input.u16()) * 4;
    let count = input.below(32);
    let parts = input.bytes(count);
    let file = file(&mut input);
    let whole = FrameReader::new(&file[..]).map(frames);
    // The header is available immediately, because it is read before a domain is ready.
    let (head, rest) = file.split_at(file.len().min(24));
    let in_parts = head.chain(Parts { file: rest, parts });
    let in_parts = FrameReader::new(in_parts).map(frames);
    assert!(whole == in_parts, "{whole:?} {in_parts:?}");
    let Ok((frames, _)) = whole else {
        return;
    };

    thread_local!(static BUFFERS: RefCell<Pool> = RefCell::new({
        Pool::new(Area::anonymous(32 * PAGE).expect("memory"), BUFFER)
    }));
    let played = BUFFERS.with_borrow_mut(|buffers| play(&file, limit, buffers));
    assert!(
        frames.starts_with(&played),
        "the frame differs from the file's"
    );
}

/// Returns the frames that a player yields. Also records as many complete frames as the limit
/// allows.
fn play(file: &[u8], limit: u64, buffers: &mut Pool) -> Vec<Vec<u8>> {
    let out = Written::default();
    let writer = FrameWriter::new(out.clone(), 0, limit).expect("memory can be written");
    let mut player: PcapNic<_, Written> = PcapNic::new(
        Some(FrameReader::new(file).expect("it was read before")),
        Some(writer),
        Pace::Fast,
        |_| (),
    );
    let mut played = Vec::new();
    while played.len() < FRAMES {
        let mut taken: Vec<Frame> = Vec::new();
        if player.rx(0, 8, buffers, &mut taken) == 0 {
            break;
        }
        let all: Vec<u32> = (0..taken.len() as u32).collect();
        assert_eq!(player.tx(0, &taken, &all).sent as usize, taken.len());
        for mut frame in taken {
            played.push(frame.to_vec().expect("own memory"));
            frame.recycle(buffers);
        }
    }
    played.truncate(FRAMES);
    let out = out.0.borrow();
    assert!(out.len() as u64 <= limit.max(24), "more than its limit");
    let (recorded, error) = frames(FrameReader::new(&out[..]).expect("a header"));
    assert!(
        played.starts_with(&recorded) && error.is_none(),
        "{error:?}"
    );
    played
}

/// Returns a mostly valid header, and valid records.
fn file(input: &mut Input<'_>) -> Vec<u8> {
    let mut file = match input.below(8) {
        0 => return input.bytes(4096).to_vec(),
        1..4 => 0xa1b2_3c4du32.to_le_bytes().to_vec(),
        _ => 0xa1b2_c3d4u32.to_le_bytes().to_vec(),
    };
    file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0]);
    file.extend(u32::from(input.below(16) != 0).to_le_bytes());
    while !input.is_empty() && file.len() < 1 << 18 {
        let len = match input.below(16) {
            0 => usize::from(input.u16()),
            1 => FRAME_BYTES + input.below(3) - 1,
            _ => input.below(120),
        };
        let mut length = len as u32;
        let mut original = length;
        match input.below(24) {
            0 => length = input.near(length),
            1 => original = input.near(original),
            2 => original = input.u32(),
            _ => {}
        }
        for field in [input.u32(), u32::from(input.u16()), length, original] {
            file.extend(field.to_le_bytes());
        }
        let some = input.bytes(len.min(40));
        file.extend_from_slice(some);
        file.resize(file.len() + len - some.len(), 0x5a);
    }
    if input.below(4) == 0 {
        let cut = usize::from(input.u16()) % (file.len() + 1);
        file.truncate(cut);
    }
    file
}
