//! Samples of a domain in a function.

use crate::attribute::functions_of;
use crate::model::{Code, Session, StackFrame};
use crate::show::functions::stacks;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Share of a domain's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TimeShare {
    /// Samples in the function, the line or the instruction itself.
    #[serde(rename = "self")]
    pub own: f64,
    /// Including the functions that are called from there.
    pub total: f64,
}

/// Samples of one domain in a function.
#[derive(Debug, Default)]
pub(super) struct FunctionCounts<'a> {
    pub(super) name: &'a str,
    pub(super) all: u64,
    pub(super) own: u64,
    pub(super) total: u64,
    /// Own and total samples by source line.
    pub(super) lines: BTreeMap<(&'a str, u32), [u64; 2]>,
    /// Samples of instructions, also of functions that are inlined there.
    pub(super) code: BTreeMap<Code, u64>,
}

impl<'a> FunctionCounts<'a> {
    pub(super) fn of(
        session: &'a Session,
        domain: usize,
        is_it: impl Fn(&StackFrame) -> bool,
    ) -> Option<Self> {
        let domain = session.domains.get(domain)?;
        let mut counts = Self {
            name: &domain.name,
            ..Self::default()
        };
        for (stack, count) in stacks(session, domain) {
            counts.all += count;
            let frames = || session.frames_of(stack).map(|(_, frame)| frame);
            let matching: Vec<&StackFrame> = frames().filter(|frame| is_it(frame)).collect();
            if matching.is_empty() {
                continue;
            }
            counts.total += count;
            let innermost = functions_of(session, stack).next();
            let own = innermost.filter(|frame| is_it(frame));
            if let Some(frame) = own {
                counts.own += count;
                if let Some(line) = session.source(frame) {
                    counts.lines.entry(line).or_default()[0] += count;
                }
            }
            let lines = matching.iter().filter_map(|frame| session.source(frame));
            for line in lines.collect::<BTreeSet<_>>() {
                counts.lines.entry(line).or_default()[1] += count;
            }
            if let Some(code) = instruction(frames(), &is_it) {
                *counts.code.entry(code).or_default() += count;
            }
        }
        (counts.total > 0).then_some(counts)
    }

    pub(super) fn share(&self, [own, total]: [u64; 2]) -> TimeShare {
        let of = |count: u64| count as f64 / self.all.max(1) as f64;
        TimeShare {
            own: of(own),
            total: of(total),
        }
    }
}

/// Returns the sampled instruction if it belongs to the function or to a function inlined there.
fn instruction<'a>(
    frames: impl Iterator<Item = &'a StackFrame>,
    is_it: impl Fn(&StackFrame) -> bool,
) -> Option<Code> {
    for frame in frames {
        if is_it(frame) {
            return frame.code;
        }
        if !frame.inlined {
            return None;
        }
    }
    None
}
