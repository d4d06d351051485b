//! Firewall rules of a port, for frames that arrive at it or leave through it.
//!
//! A rule sees only a frame's snapshot. A field that the snapshot does not show (the ports of a
//! later fragment, anything behind unparsable headers) counts against the frame: it matches the
//! field of every deny rule and of no allow rule.
//!
//! A *stateful* rule matches frames by the state of their flow. A port with stateful rules has a
//! flow table ([`crate::flows`]).

use super::compiled_rule::CompiledRule;
use super::drops::DropReason;
use super::frame_properties::{Inspected, Missing, Properties};
use super::rule::Rule;
pub use crate::flows::Direction;
use crate::flows::{Classification, FlowState, Flows, Lookup, PlainPacket, SteadyFlow, Subject};

/// A frame being filtered. It is parsed when the first rule needs it.
#[derive(Debug)]
pub(super) struct Filtered<'a> {
    header: &'a [u8],
    len: usize,
    inspected: Option<Inspected>,
    subject: Option<Subject>,
}

impl<'a> Filtered<'a> {
    /// Begins to filter a frame of `len` bytes with this snapshot.
    pub(super) fn new(header: &'a [u8], len: usize) -> Self {
        Self {
            header,
            len,
            inspected: None,
            subject: None,
        }
    }

    #[inline]
    fn inspected(&mut self) -> &Inspected {
        let header = self.header;
        self.inspected.get_or_insert_with(|| Inspected::of(header))
    }

    #[inline]
    fn subject(&mut self) -> &Subject {
        let header = self.header;
        self.subject.get_or_insert_with(|| Subject::of(header))
    }
}

/// A frame of a flow, at one of the two ports that it passes.
#[derive(Debug)]
pub(super) struct RoutedFrame {
    pub(super) flow: SteadyFlow,
    pub(super) len: usize,
}

/// Decision of a port's rules about the frames of admitted flows in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EstablishedDecision {
    /// No rule applies to the frames.
    #[default]
    NoRule,
    /// The rule with this index decides on all of the frames.
    Rule(usize),
    /// The decision depends on the frames' headers.
    Depends,
}

/// Properties of a port's rules for frames that pass in one direction.
#[derive(Clone, Copy, Debug, Default)]
struct DirectionSummary {
    established: EstablishedDecision,
    /// Whether a rule tests a field of the header.
    test_fields: bool,
}

impl DirectionSummary {
    fn of(rules: &[CompiledRule], direction: Direction) -> Self {
        let of_direction = |(_, rule): &(usize, &CompiledRule)| !rule.tests(direction.opposite());
        let rules = rules.iter().enumerate().filter(of_direction);
        let of_others =
            |rule: &CompiledRule| rule.tests(FlowState::New) || rule.tests(FlowState::Related);
        let established = rules.clone().find(|(_, rule)| !of_others(rule));
        Self {
            established: match established {
                None => EstablishedDecision::NoRule,
                Some((_, rule)) if rule.tests(Properties::FIELDS) => EstablishedDecision::Depends,
                Some((at, _)) => EstablishedDecision::Rule(at),
            },
            test_fields: rules
                .clone()
                .any(|(_, rule)| rule.tests(Properties::FIELDS)),
        }
    }
}

/// Number of frames that a rule has allowed or denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCount {
    /// Frames; an aggregate counts once.
    pub frames: u64,
    /// Bytes in these frames.
    pub bytes: u64,
}

/// The rules of one port, in order, and its flow table.
#[derive(Debug, Default)]
pub(super) struct PortFirewall {
    rules: Vec<CompiledRule>,
    /// Counts of each rule.
    counts: Vec<RuleCount>,
    /// Properties of the rules for [`Direction::In`] and [`Direction::Out`], in this order.
    by_direction: [DirectionSummary; 2],
    /// The port's flow table, if its rules are stateful.
    pub(super) flows: Option<Box<Flows>>,
}

impl PortFirewall {
    /// Replaces the rules and keeps the flow table.
    pub(super) fn set(&mut self, rules: &[Rule]) {
        self.rules = rules.iter().map(CompiledRule::of).collect();
        self.counts = vec![RuleCount::default(); rules.len()];
        self.by_direction = [Direction::In, Direction::Out]
            .map(|direction| DirectionSummary::of(&self.rules, direction));
    }

    /// Returns the first rule that matches a frame, and whether the rule allows the frame.
    pub(super) fn find(
        &self,
        direction: Direction,
        filtered: &mut Filtered<'_>,
        now_ns: u64,
    ) -> Option<(usize, bool)> {
        let lookup = self.classify(direction, filtered, now_ns);
        self.first(direction, lookup.map(|it| it.classification), filtered)
    }

    fn classify(
        &self,
        direction: Direction,
        filtered: &mut Filtered<'_>,
        now_ns: u64,
    ) -> Option<Lookup> {
        let flows = self.flows.as_ref()?;
        Some(flows.classify(direction, filtered.subject(), now_ns))
    }

    fn first(
        &self,
        direction: Direction,
        classification: Option<Classification>,
        filtered: &mut Filtered<'_>,
    ) -> Option<(usize, bool)> {
        let inspected = match self.summary(direction).test_fields {
            true => filtered.inspected(),
            false => &Inspected::NONE,
        };
        let missing = inspected.missing | Missing::of(direction, classification);
        let mut rules = self.rules.iter();
        let at = rules.position(|rule| rule.decides(inspected, missing))?;
        Some((at, self.rules.get(at)?.allow))
    }

    /// Decides about a frame that passes in this direction: counts it for the rule that decides,
    /// and for its flow if it may pass.
    ///
    /// # Errors
    /// Returns the reason why it may not pass.
    #[inline]
    pub(super) fn pass(
        &mut self,
        direction: Direction,
        filtered: &mut Filtered<'_>,
        now_ns: u64,
    ) -> Result<(), DropReason> {
        match (&self.flows, direction) {
            (Some(_), Direction::In) => self.decide_by_flow::<true>(filtered, now_ns),
            (Some(_), Direction::Out) => self.decide_by_flow::<false>(filtered, now_ns),
            (None, _) if self.rules.is_empty() => Ok(()),
            (None, _) => self.decide_by_header(direction, filtered, now_ns),
        }
    }

    // One function per direction, which is a constant of each. They are not inlined, so that `pass`
    // is short.
    #[inline(never)]
    fn decide_by_flow<const INGRESS: bool>(
        &mut self,
        filtered: &mut Filtered<'_>,
        now_ns: u64,
    ) -> Result<(), DropReason> {
        let direction = match INGRESS {
            true => Direction::In,
            false => Direction::Out,
        };
        let decision = self.summary(direction).established;
        if let Some(flows) = &self.flows
            && decision != EstablishedDecision::Depends
            && let Some(packet) = PlainPacket::of(filtered.header)
            && let Some(flow) = flows.find_established(direction, &packet, now_ns)
        {
            if let EstablishedDecision::Rule(at) = decision {
                self.apply(at, filtered.len)?;
            }
            flow.count(filtered.len, now_ns);
            return Ok(());
        }
        self.decide_by_header(direction, filtered, now_ns)
    }

    #[inline(never)]
    fn decide_by_header(
        &mut self,
        direction: Direction,
        filtered: &mut Filtered<'_>,
        now_ns: u64,
    ) -> Result<(), DropReason> {
        let lookup = self.classify(direction, filtered, now_ns);
        let found = self.first(direction, lookup.map(|it| it.classification), filtered);
        if let Some((at, _)) = found {
            self.apply(at, filtered.len)?;
        }
        if let (Some(flows), Some(lookup)) = (&mut self.flows, lookup) {
            let len = filtered.len;
            let passed = flows.pass(direction, filtered.subject(), &lookup, len, now_ns);
            return passed.map_err(|_| DropReason::FirewallState);
        }
        Ok(())
    }

    /// Counts a frame about which a rule decides.
    ///
    /// # Errors
    /// Returns an error if the rule denies the frame.
    #[inline]
    fn apply(&mut self, at: usize, len: usize) -> Result<(), DropReason> {
        let (Some(rule), Some(count)) = (self.rules.get(at), self.counts.get_mut(at)) else {
            return Ok(());
        };
        count.frames += 1;
        count.bytes += len as u64;
        match rule.allow {
            true => Ok(()),
            false if rule.tests(Properties::STATES) => Err(DropReason::FirewallState),
            false => Err(DropReason::Firewall),
        }
    }

    #[inline]
    const fn summary(&self, direction: Direction) -> DirectionSummary {
        match direction {
            Direction::In => self.by_direction[0],
            Direction::Out => self.by_direction[1],
        }
    }

    /// Returns whether all frames of admitted flows pass in this direction, and no rule counts
    /// them.
    #[inline]
    pub(super) fn ignores_established(&self, direction: Direction) -> bool {
        self.rules.is_empty()
            || self.flows.is_some()
                && self.summary(direction).established == EstablishedDecision::NoRule
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = RuleCount> + '_ {
        self.counts.iter().copied()
    }
}
