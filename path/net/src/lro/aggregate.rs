//! A held aggregate: the packets that may follow, and its final header.

use super::layout::{SnapshotLayout, TcpSegment, be16, be32};
use super::prediction::Prediction;
use super::reason::Reason;
use super::rules::{FieldTest, MergeProgram, PacketField, RULES, broken, test};
use super::settings::{AggregateForm, MergeRules};
use super::verify::pseudo;
use crate::packet::checksum::fold;
use crate::packet::{TCP_CHECKSUM, flags, put};
use nic::{Checksum, Frame, Gso, GsoKind};

/// Capacity for pieces once a frame's inline storage is full: one allocation for most aggregates,
/// of a size class that allocators cache.
const PIECES: usize = 29;
/// Value of `id_step` until a second packet shows the increment of the identification.
const UNDECIDED: u16 = 2;

/// An aggregate, initially of one segment. Its header stays that of the first packet until
/// [`Aggregate::finish`].
#[derive(Clone, Debug, Default)]
pub(super) struct Aggregate {
    pub(super) frame: Frame,
    pub(super) layout: SnapshotLayout,
    pub(super) program: u16,
    pub(super) hash: u64,
    /// Next sequence number.
    sequence: u32,
    /// Payload bytes of the first segment, or under `lro` of the longest.
    size: u32,
    pub(super) segments: u32,
    /// Maximum length of the frame in bytes.
    max_len: u32,
    /// IPv4 identification of the last packet, and the increment per packet.
    id: u16,
    id_step: u16,
    /// Fields that `lro` takes from the last packet.
    last: LastHeader,
    /// Union of all segments' flags.
    flags: u8,
    /// Whether the last segment had PSH.
    pub(super) pushed: bool,
    /// Arrival of the first segment, in nanoseconds.
    pub(super) first_ns: u64,
    /// Poll of the last segment.
    pub(super) poll: u64,
    /// Poll at whose end the engine last decided to hold the aggregate.
    pub(super) decided: u64,
}

/// Header fields that are taken from the last packet under [`MergeRules::Lro`].
#[derive(Clone, Copy, Debug, Default)]
struct LastHeader {
    acknowledgement: u32,
    window: u16,
    echo: u32,
}

impl LastHeader {
    fn of(frame: &Frame, layout: SnapshotLayout) -> Self {
        let tcp = layout.tcp();
        Self {
            acknowledgement: be32(frame, tcp + 8),
            window: be16(frame, tcp + 14),
            echo: be32(frame, tcp + 28),
        }
    }
}

/// Returns whether sequence number `a` is not before `b`.
fn not_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) as i32 >= 0
}

/// Tests that are not comparisons of bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct MergeTests {
    pub(super) rules: MergeRules,
    acknowledgement: FieldTest,
    options: FieldTest,
    identification: FieldTest,
    length: FieldTest,
    flags: FieldTest,
}

impl MergeTests {
    pub(super) fn new(rules: MergeRules) -> Self {
        Self {
            rules,
            acknowledgement: test(rules, PacketField::Acknowledgement),
            options: test(rules, PacketField::Options),
            identification: test(rules, PacketField::Identification),
            length: test(rules, PacketField::Length),
            flags: test(rules, PacketField::Flags),
        }
    }
}

impl Aggregate {
    /// Begins an aggregate of at most `max_len` bytes with its first packet. Takes the frame and
    /// leaves an empty one.
    pub(super) fn begin(
        &mut self,
        frame: &mut Frame,
        segment: &TcpSegment,
        (program, hash): (u16, u64),
        max_len: usize,
        (now_ns, poll): (u64, u64),
    ) {
        let layout = segment.layout;
        let sequence = be32(frame, layout.tcp() + 4);
        self.layout = layout;
        self.program = program;
        self.hash = hash;
        self.sequence = sequence.wrapping_add(segment.payload as u32);
        self.size = segment.payload as u32;
        self.segments = 1;
        self.max_len = max_len as u32;
        self.id = identification(frame, layout);
        self.id_step = if layout.v6 { 0 } else { UNDECIDED };
        self.last = LastHeader::of(frame, layout);
        self.flags = segment.flags;
        self.pushed = segment.flags & flags::PSH != 0;
        self.first_ns = now_ns;
        self.poll = poll;
        self.decided = 0;
        std::mem::swap(&mut self.frame, frame);
    }

    /// Moves the payload of predicted packets into the frame.
    #[inline]
    pub(super) fn collect(&mut self, predicted: &mut Prediction, form: AggregateForm) {
        let count = predicted.pieces.len();
        if count == 0 {
            return;
        }
        self.strip_payload(form);
        if !self.layout.v6 {
            self.id_step = predicted.step;
            self.id = predicted.id.wrapping_sub(predicted.step);
        }
        self.sequence = predicted.sequence;
        self.segments += count as u32;
        self.frame
            .append_pieces(&mut predicted.pieces, form == AggregateForm::Page);
    }

    /// Completes a prediction that was derived from the last packet, for as many packets as fit.
    #[inline]
    pub(super) fn predict(&self, next: &mut Prediction, segments_max: u32) {
        next.sequence = self.sequence;
        next.step = match self.id_step {
            UNDECIDED => 1,
            step => step,
        };
        next.id = self.id.wrapping_add(next.step);
        let bytes = (self.max_len as usize).saturating_sub(self.frame.len());
        let fit = bytes.checked_div(self.size as usize).unwrap_or(0) as u32;
        let segments = segments_max.saturating_sub(self.segments);
        next.room = fit.min(segments).try_into().unwrap_or(u16::MAX);
    }

    /// Strips payload bytes from the snapshot before payload is appended.
    fn strip_payload(&mut self, form: AggregateForm) {
        if form == AggregateForm::Page && self.segments == 1 {
            self.frame.make_header_bare(self.layout.payload());
        }
    }

    /// Returns whether the compiled rules alone allow a packet of the same flow to follow.
    #[inline]
    pub(super) fn equal(
        &self,
        program: &MergeProgram,
        frame: &Frame,
        segment: &TcpSegment,
    ) -> bool {
        self.layout == segment.layout
            && program.equal(self.frame.snapshot_array(), frame.snapshot_array())
    }

    /// Checks whether a packet with an [equal](Aggregate::equal) header may follow.
    ///
    /// # Errors
    /// Returns the rule that it breaks.
    #[inline]
    pub(super) fn follows(
        &self,
        tests: &MergeTests,
        frame: &Frame,
        segment: &TcpSegment,
    ) -> Result<(), Reason> {
        if be32(frame, self.layout.tcp() + 4) != self.sequence {
            return Err(Reason::Sequence);
        }
        if tests.flags == FieldTest::EqualFlags && segment.flags & flags::CWR != 0 {
            return Err(Reason::Flags);
        }
        if tests.acknowledgement == FieldTest::Advances {
            let acknowledgement = be32(frame, self.layout.tcp() + 8);
            if !not_before(acknowledgement, self.last.acknowledgement) {
                return Err(Reason::Acknowledgement);
            }
        }
        if tests.options == FieldTest::Timestamp && !self.timestamp_follows(frame) {
            return Err(Reason::TcpOptions);
        }
        if tests.length == FieldTest::NoLonger && segment.payload > self.size as usize {
            return Err(Reason::Length);
        }
        if tests.identification == FieldTest::Step && !self.id_follows(frame) {
            return Err(Reason::Identification);
        }
        if self.frame.len() + segment.payload > self.max_len as usize {
            return Err(Reason::Bytes);
        }
        if frame.bare() > self.layout.payload() {
            return Err(Reason::Bare);
        }
        Ok(())
    }

    /// Returns whether the timestamp is not before the first packet's, which the aggregate keeps.
    fn timestamp_follows(&self, frame: &Frame) -> bool {
        let at = self.layout.tcp() + 24;
        self.layout.payload() < at || not_before(be32(frame, at), be32(&self.frame, at))
    }

    #[inline]
    fn id_follows(&self, frame: &Frame) -> bool {
        let step = identification(frame, self.layout).wrapping_sub(self.id);
        if self.id_step != UNDECIDED {
            return step == self.id_step;
        }
        step <= 1
    }

    /// Returns the first rule that a packet of the same flow breaks.
    #[inline(never)]
    pub(super) fn first_broken_rule(
        &self,
        tests: &MergeTests,
        frame: &Frame,
        segment: &TcpSegment,
    ) -> Reason {
        if self.layout != segment.layout {
            return Reason::HeaderLengths;
        }
        let ours = self.frame.snapshot_array();
        let other = self.follows(tests, frame, segment).err();
        for rule in &RULES {
            let theirs = frame.snapshot_array();
            if other == Some(rule.reason)
                || broken(tests.rules, rule.field, self.layout, ours, theirs)
            {
                return rule.reason;
            }
        }
        other.unwrap_or(Reason::Bytes)
    }

    /// Appends a packet that [follows](Aggregate::follows), and leaves an empty one. Returns
    /// whether it must be the last.
    #[inline]
    pub(super) fn append(
        &mut self,
        tests: &MergeTests,
        form: AggregateForm,
        frame: &mut Frame,
        segment: &TcpSegment,
    ) -> Option<Reason> {
        if !self.layout.v6 {
            let id = identification(frame, self.layout);
            self.id_step = id.wrapping_sub(self.id);
            self.id = id;
        }
        if tests.acknowledgement == FieldTest::Advances {
            self.last = LastHeader::of(frame, self.layout);
        }
        self.strip_payload(form);
        if self.frame.pieces.len() == self.frame.pieces.inline_size() {
            self.frame.pieces.reserve(PIECES);
        }
        let payload = self.layout.payload();
        self.frame
            .append_payload(frame, payload, form == AggregateForm::Page);
        self.segments += 1;
        self.sequence = self.sequence.wrapping_add(segment.payload as u32);
        self.flags |= segment.flags;
        self.pushed = segment.flags & flags::PSH != 0;
        if tests.length == FieldTest::NoLonger {
            if segment.flags & flags::FIN != 0 {
                return Some(Reason::Fin);
            }
            if segment.payload < self.size as usize {
                return Some(Reason::Short);
            }
        } else {
            self.size = self.size.max(segment.payload as u32);
        }
        None
    }

    /// Returns whether another segment of the same size would not fit.
    pub(super) fn is_full(&self) -> bool {
        self.frame.len() + self.size as usize > self.max_len as usize
    }

    /// Returns the final packet. A single segment is unchanged.
    pub(super) fn finish(&mut self, tests: &MergeTests) -> Frame {
        if self.segments > 1 {
            self.rewrite(tests);
        }
        self.frame.take()
    }

    fn rewrite(&mut self, tests: &MergeTests) {
        let (ip, tcp) = (self.layout.network(), self.layout.tcp());
        let len = self.frame.len();
        let mut sum = pseudo(&self.frame, self.layout, len - tcp);
        sum = fold(sum).into();
        let (ip_len, ip_sum) = (be16(&self.frame, ip + 2), be16(&self.frame, ip + 10));
        let header = self.frame.header_mut();
        let mut written = put(header, tcp + 13, &[self.flags])
            & put(header, tcp + TCP_CHECKSUM, &(sum as u16).to_be_bytes());
        if self.layout.v6 {
            written &= put(header, ip + 4, &((len - ip - 40) as u16).to_be_bytes());
        } else {
            // Only the length changes (RFC 1624); the sum was valid.
            let sum = [!ip_sum, !ip_len, (len - ip) as u16].map(u32::from);
            let sum = sum.iter().sum();
            written &= put(header, ip + 2, &((len - ip) as u16).to_be_bytes())
                & put(header, ip + 10, &(!fold(sum)).to_be_bytes());
        }
        if tests.acknowledgement == FieldTest::Advances {
            written &= put(header, tcp + 8, &self.last.acknowledgement.to_be_bytes())
                & put(header, tcp + 14, &self.last.window.to_be_bytes());
            if self.layout.payload() == tcp + 32 {
                written &= put(header, tcp + 28, &self.last.echo.to_be_bytes());
            }
        }
        debug_assert!(written, "the headers are in the snapshot");
        self.frame.offload.checksum = Checksum::Blank {
            start: tcp as u16,
            offset: TCP_CHECKSUM as u16,
        };
        self.frame.offload.gso = Some(Gso {
            kind: if self.layout.v6 {
                GsoKind::Tcp6
            } else {
                GsoKind::Tcp4
            },
            size: self.size as u16,
        });
        self.frame.fixed_id =
            !self.layout.v6 && tests.identification == FieldTest::Step && self.id_step == 0;
    }
}

/// Returns the IPv4 identification; 0 for IPv6.
#[inline]
fn identification(frame: &Frame, layout: SnapshotLayout) -> u16 {
    match layout.v6 {
        false => be16(frame, layout.network() + 4),
        true => 0,
    }
}
