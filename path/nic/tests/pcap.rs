//! Tests reading, writing and rejecting capture files.

mod common;

use common::{TestNic, bytes, contents, counter, pool};
use nic::pcap::{FRAME_BYTES, FrameReader, FrameWriter, Pace, PcapError, PcapNic, Tee};
use nic::{Frame, Nic};
use proptest::prelude::*;
use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::rc::Rc;

type NoFile = io::Empty;

/// A file that a test can read while it is written.
#[derive(Clone, Default)]
struct Shared(Rc<RefCell<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that becomes full after this number of writes.
#[derive(Debug)]
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn header(magic: u32, link: u32) -> Vec<u8> {
    let mut file = magic.to_le_bytes().to_vec();
    file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0]);
    file.extend(link.to_le_bytes());
    file
}

fn record(file: &mut Vec<u8>, seconds: u32, fraction: u32, whole: u32, data: &[u8]) {
    for field in [seconds, fraction, data.len() as u32, whole] {
        file.extend(field.to_le_bytes());
    }
    file.extend(data);
}

const MICRO: u32 = 0xa1b2_c3d4;
const NANO: u32 = 0xa1b2_3c4d;

fn file_of(frames: &[(u32, u32, Vec<u8>)]) -> Vec<u8> {
    let mut file = header(MICRO, 1);
    for (seconds, fraction, data) in frames {
        record(&mut file, *seconds, *fraction, data.len() as u32, data);
    }
    file
}

/// Size limit that exceeds the output of every test.
const LARGE_LIMIT: u64 = 1 << 30;

fn ignore_error(_: &PcapError) {}

fn play(file: &[u8], pace: Pace) -> PcapNic<&[u8], NoFile> {
    PcapNic::new(
        Some(FrameReader::new(file).unwrap()),
        None,
        pace,
        ignore_error,
    )
}

#[test]
fn a_file_is_played_at_the_receiver_s_speed() {
    let frames: Vec<_> = (0..5).map(|n| (n, 0, bytes(n as u8, 100))).collect();
    let file = file_of(&frames);
    let mut nic = play(&file, Pace::Fast);
    let mut buffers = pool(8, 2048);
    let mut out = Vec::new();
    assert_eq!(nic.next_due(7), Some(7));
    assert_eq!(nic.rx(7, 3, &mut buffers, &mut out), 3);
    assert_eq!(nic.next_due(7), Some(7));
    assert_eq!(nic.rx(7, 9, &mut buffers, &mut out), 2);
    assert_eq!(
        contents(&out),
        frames.iter().map(|f| f.2.clone()).collect::<Vec<_>>()
    );
    assert_eq!((nic.next_due(7), nic.failure()), (None, None));
    assert_eq!(nic.rx(7, 9, &mut buffers, &mut out), 0);
    assert_eq!(counter(&nic, "file_frames"), 5);
    assert_eq!(counter(&nic, "file_failed"), 0);
}

#[test]
fn recorded_times_are_kept() {
    let frames = [
        (10, 5, bytes(0, 60)),
        (10, 7, bytes(1, 60)),
        (11, 5, bytes(2, 60)),
    ];
    let file = file_of(&frames);
    let mut nic = play(&file, Pace::Recorded);
    let mut buffers = pool(8, 2048);
    let mut out = Vec::new();
    assert_eq!(nic.rx(100, 9, &mut buffers, &mut out), 1);
    assert_eq!(nic.next_due(100), Some(2_100));
    assert_eq!(nic.rx(2_099, 9, &mut buffers, &mut out), 0);
    assert_eq!(nic.rx(2_100, 9, &mut buffers, &mut out), 1);
    assert_eq!(nic.next_due(2_100), Some(1_000_000_100));
    assert_eq!(nic.rx(2_000_000_000, 9, &mut buffers, &mut out), 1);
    assert_eq!(out.len(), 3);
    assert_eq!(nic.next_due(2_000_000_000), None);
}

#[test]
fn nanoseconds_and_big_endian_are_read() {
    let mut file = header(NANO, 1);
    record(&mut file, 1, 999, 3, &[1, 2, 3]);
    let mut reader = FrameReader::new(&file[..]).unwrap();
    assert_eq!(reader.peek().unwrap().unwrap().at_ns, 1_000_000_999);
    assert_eq!(reader.peeked_ns(), Some(1_000_000_999));
    assert_eq!(reader.bytes(), [1, 2, 3]);

    let mut file = 0xa1b2_c3d4u32.to_be_bytes().to_vec();
    file.extend([
        0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 1,
    ]);
    file.extend([0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, 8, 9]);
    let mut reader = FrameReader::new(&file[..]).unwrap();
    assert_eq!(reader.peek().unwrap().unwrap().at_ns, 1_000_002_000);
    assert_eq!(reader.bytes(), [8, 9]);
    reader.advance();
    assert_eq!(reader.peek(), Ok(None));
    assert!(reader.ended());
}

#[test]
fn a_file_waits_for_a_buffer() {
    let file = file_of(&[(0, 0, bytes(0, 60)), (0, 1, bytes(1, 60))]);
    let mut nic = play(&file, Pace::Fast);
    let mut buffers = pool(1, 2048);
    let mut out = Vec::new();
    assert_eq!(nic.rx(0, 9, &mut buffers, &mut out), 1);
    assert_eq!((nic.next_due(0), nic.starved()), (Some(0), true));
    out[0].recycle(&mut buffers);
    assert_eq!(nic.rx(0, 9, &mut buffers, &mut out), 1);
    assert_eq!(out[1].to_vec().unwrap(), bytes(1, 60));
    nic.rx(0, 9, &mut buffers, &mut out);
    assert!(!nic.starved());
}

#[test]
fn truncated_recorded_frames_are_skipped() {
    let mut file = header(MICRO, 1);
    record(&mut file, 0, 0, 1514, &bytes(0, 96));
    record(&mut file, 0, 0, 60, &bytes(1, 60));
    let mut nic = play(&file, Pace::Fast);
    let mut out = Vec::new();
    assert_eq!(nic.rx(0, 9, &mut pool(4, 2048), &mut out), 1);
    assert_eq!(contents(&out), [bytes(1, 60)]);
    assert_eq!(counter(&nic, "file_incomplete"), 1);
}

#[test]
fn non_ethernet_captures_are_rejected() {
    let error = |file: &[u8]| FrameReader::new(file).unwrap_err();
    assert_eq!(error(b""), PcapError::NotPcap("it is too short"));
    assert!(matches!(error(&[0; 24]), PcapError::NotPcap(_)));
    assert_eq!(
        error(&[[0x0a, 0x0d, 0x0d, 0x0a].repeat(6)].concat()),
        PcapError::PcapNg
    );
    let wrong = error(&header(MICRO, 101));
    assert_eq!(wrong.to_string(), "its link type is RAW, not ETHERNET");
}

#[test]
fn a_broken_file_plays_up_to_the_reported_frame() {
    let good = file_of(&[(0, 0, bytes(0, 60)), (0, 1, bytes(1, 60))]);
    let mut buffers = pool(16, 2048);

    let mut nic = play(&good[..good.len() - 1], Pace::Fast);
    let mut out = Vec::new();
    assert_eq!(nic.rx(0, 9, &mut buffers, &mut out), 1);
    assert_eq!(nic.failure(), Some(&PcapError::Truncated { frame: 2 }));
    assert_eq!(nic.next_due(0), None);
    assert_eq!(counter(&nic, "file_failed"), 1);

    let mut endless = good.clone();
    endless.extend([0; 8]);
    endless.extend((FRAME_BYTES as u32 + 1).to_le_bytes());
    endless.extend([0; 4]);
    let mut nic = play(&endless, Pace::Fast);
    assert_eq!(nic.rx(0, 9, &mut buffers, &mut out), 2);
    let why = nic.failure().unwrap().to_string();
    assert_eq!(why, "frame 3: it is longer than any frame");
}

#[test]
fn an_empty_pipe_is_not_at_its_end() {
    struct Pipe(Vec<Result<Vec<u8>, io::ErrorKind>>);
    impl Read for Pipe {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let part = self.0.remove(0)?;
            to[..part.len()].copy_from_slice(&part);
            Ok(part.len())
        }
    }
    let file = file_of(&[(0, 0, bytes(0, 60))]);
    let (start, record) = file.split_at(24);
    let (some, rest) = record.split_at(30);
    let pipe = Pipe(vec![
        Ok(start.to_vec()),
        Err(io::ErrorKind::WouldBlock),
        Ok(some.to_vec()),
        Err(io::ErrorKind::Interrupted),
        Ok(rest.to_vec()),
        Err(io::ErrorKind::ConnectionReset),
    ]);
    let reader = FrameReader::new(pipe).unwrap();
    let mut nic: PcapNic<_, NoFile> = PcapNic::new(Some(reader), None, Pace::Fast, ignore_error);
    let mut buffers = pool(4, 2048);
    let mut out = Vec::new();
    assert_eq!(nic.rx(0, 1, &mut buffers, &mut out), 0);
    assert_eq!(nic.rx(0, 1, &mut buffers, &mut out), 0);
    assert_eq!(nic.rx(0, 1, &mut buffers, &mut out), 1);
    assert_eq!(nic.failure(), None);
    assert_eq!(nic.rx(0, 1, &mut buffers, &mut out), 0);
    assert_eq!(
        nic.failure(),
        Some(&PcapError::Io(io::ErrorKind::ConnectionReset))
    );
}

#[test]
fn sent_frames_can_be_read_back() {
    let file = Shared::default();
    let writer = FrameWriter::new(file.clone(), 1_000_000_000, LARGE_LIMIT).unwrap();
    let mut nic: PcapNic<NoFile, _> = PcapNic::new(None, Some(writer), Pace::Fast, ignore_error);
    let mut buffers = pool(100, 2048);
    let frames: Vec<Frame> = [60, 1514, 65_000]
        .into_iter()
        .map(|len| Frame::from_bytes(&bytes(3, len), &mut buffers).unwrap())
        .collect();
    let report = nic.tx(5, &frames, &[0, 2, 7]);
    assert_eq!((report.sent, report.bytes), (2, 65_060));
    assert_eq!(nic.next_due(5), None);
    let file = file.0.borrow();
    let mut reader = FrameReader::new(&file[..]).unwrap();
    assert_eq!(reader.peek().unwrap().unwrap().at_ns, 1_000_000_005);
    assert_eq!(reader.bytes(), bytes(3, 60));
    reader.advance();
    reader.peek().unwrap();
    assert_eq!(reader.bytes(), bytes(3, 65_000));
    reader.advance();
    assert_eq!(reader.peek(), Ok(None));
}

#[test]
fn overlong_frames_are_refused() {
    let writer = FrameWriter::new(Shared::default(), 0, LARGE_LIMIT).unwrap();
    let mut nic: PcapNic<NoFile, _> = PcapNic::new(None, Some(writer), Pace::Fast, ignore_error);
    let mut buffers = pool(40, 2048);
    for (len, refused) in [(FRAME_BYTES, 0), (FRAME_BYTES + 1, 1)] {
        let mut frame = Frame::from_bytes(&vec![0; len], &mut buffers).unwrap();
        assert_eq!(
            nic.tx(0, std::slice::from_ref(&frame), &[0]).refused,
            refused
        );
        frame.recycle(&mut buffers);
    }
}

#[test]
fn without_files_no_frame_is_received() {
    let mut nic: PcapNic<NoFile, NoFile> = PcapNic::new(None, None, Pace::Fast, ignore_error);
    let mut buffers = pool(1, 2048);
    let frame = Frame::from_bytes(&bytes(0, 60), &mut buffers).unwrap();
    assert_eq!(nic.tx(0, &[frame], &[0]).sent, 1);
    assert_eq!(nic.rx(0, 9, &mut buffers, &mut Vec::new()), 0);
    assert_eq!(nic.next_due(0), None);
    assert!(nic.caps().tso && nic.caps().checksum);
}

#[test]
fn a_full_disk_stops_only_the_recording() {
    assert_eq!(
        FrameWriter::new(Full(0), 0, LARGE_LIMIT).unwrap_err(),
        PcapError::Io(io::ErrorKind::StorageFull)
    );
    let mut buffers = pool(4, 2048);
    let frames = [Frame::from_bytes(&bytes(0, 60), &mut buffers).unwrap()];
    let writer = FrameWriter::new(Full(2), 0, LARGE_LIMIT).unwrap();
    let mut nic: PcapNic<NoFile, _> = PcapNic::new(None, Some(writer), Pace::Fast, ignore_error);
    assert_eq!(nic.tx(0, &frames, &[0]).sent, 1);
    assert_eq!(nic.failure(), None);
    nic.tx(0, &frames, &[0]);
    assert_eq!(
        nic.failure(),
        Some(&PcapError::Io(io::ErrorKind::StorageFull))
    );
    assert_eq!(nic.tx(0, &frames, &[0]).sent, 1);

    let inner = TestNic::with([bytes(1, 60)]);
    let mut tee = Tee::new(
        inner.clone(),
        FrameWriter::new(Full(1), 0, LARGE_LIMIT).unwrap(),
    );
    let mut out = Vec::new();
    assert_eq!(tee.rx(0, 9, &mut buffers, &mut out), 1);
    assert_eq!(
        tee.failure(),
        Some(&PcapError::Io(io::ErrorKind::StorageFull))
    );
    assert_eq!(tee.tx(0, &frames, &[0]).sent, 1);
    assert_eq!(counter(&tee, "recording_failed"), 1);
    assert_eq!(inner.sent.borrow().len(), 1);
}

#[test]
fn full_file_ends_with_a_whole_frame() {
    thread_local!(static REASONS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) });
    let report_error =
        |why: &PcapError| REASONS.with_borrow_mut(|reasons| reasons.push(why.to_string()));
    let file = Shared::default();
    let limit = (1 << 20) + 60;
    let writer = FrameWriter::new(file.clone(), 0, limit).unwrap();
    let mut nic: PcapNic<NoFile, _> = PcapNic::new(None, Some(writer), Pace::Fast, report_error);
    let mut buffers = pool(64, 2048);
    let long = Frame::from_bytes(&bytes(0, 60_000), &mut buffers).unwrap();
    let short = Frame::from_bytes(&bytes(1, 60), &mut buffers).unwrap();
    let frames = [long, short];
    for _ in 0..20 {
        assert_eq!(nic.tx(0, &frames, &[0]).sent, 1, "traffic continues");
    }
    nic.tx(0, &frames, &[1]);
    let whole = (limit - 24) / (60_000 + 16);
    assert_eq!(counter(&nic, "file_written"), whole);
    assert_eq!(counter(&nic, "file_unwritten"), 21 - whole);
    assert_eq!(counter(&nic, "file_failed"), 1);
    let reasons = REASONS.with_borrow(Vec::clone);
    assert_eq!(reasons, ["it has reached its limit of 1 MiB"]);
    let file = file.0.borrow();
    assert_eq!(file.len() as u64, 24 + whole * (60_000 + 16));
    let mut reader = FrameReader::new(&file[..]).unwrap();
    while reader.peek().unwrap().is_some() {
        assert_eq!(reader.bytes().len(), 60_000);
        reader.advance();
    }
}

#[test]
fn a_tee_records_both_directions_unchanged() {
    let file = Shared::default();
    let inner = TestNic {
        due_ns: Some(9),
        ..TestNic::with([bytes(1, 60), bytes(2, 70)])
    };
    let mut tee = Tee::new(
        inner.clone(),
        FrameWriter::new(file.clone(), 0, LARGE_LIMIT).unwrap(),
    );
    let mut buffers = pool(4, 2048);
    let mut out = vec![Frame::from_bytes(&bytes(9, 80), &mut buffers).unwrap()];
    assert_eq!(tee.rx(3, 9, &mut buffers, &mut out), 2);
    assert_eq!(tee.tx(4, &out, &[0]).sent, 1);
    assert_eq!(inner.sent.borrow()[..], [bytes(9, 80)]);
    assert_eq!((tee.caps(), tee.next_due(0)), (inner.caps(), Some(9)));
    assert_eq!(counter(&tee, "recorded"), 3);
    assert_eq!(counter(&tee, "recording_failed"), 0);
    assert_eq!(counter(&tee, "inner"), 1);
    let file = file.0.borrow();
    let mut reader = FrameReader::new(&file[..]).unwrap();
    for (at_ns, expected) in [(3, bytes(1, 60)), (3, bytes(2, 70)), (4, bytes(9, 80))] {
        assert_eq!(reader.peek().unwrap().unwrap().at_ns, at_ns);
        assert_eq!(reader.bytes(), expected);
        reader.advance();
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_cause_no_panic(
        good in any::<bool>(),
        tail in prop::collection::vec(any::<u8>(), 0..300),
        small in prop::collection::vec(0u8..40, 0..300),
    ) {
        let mut file = if good { header(MICRO, 1) } else { Vec::new() };
        file.extend(if good { small } else { tail });
        if let Ok(mut reader) = FrameReader::new(&file[..]) {
            for _ in 0..1000 {
                match reader.peek() {
                    Ok(Some(_)) => reader.advance(),
                    Ok(None) => {
                        prop_assert!(reader.ended());
                        break;
                    }
                    Err(_) => break,
                }
            }
        }
    }
}
