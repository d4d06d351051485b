//! The command `prof export`: the Firefox Profiler's processed profile.

use crate::attribute::rules::Rules;
use crate::model::{Session, Space};
use anyhow::ensure;
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame, FrameFlags, FrameInfo, Profile,
    ReferenceTimestamp, SamplingInterval, Timestamp,
};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

/// Colours of the classes, in the order of the rules; they repeat.
const COLORS: &[CategoryColor] = &[
    CategoryColor::Purple,
    CategoryColor::Red,
    CategoryColor::Blue,
    CategoryColor::LightBlue,
    CategoryColor::Green,
    CategoryColor::Orange,
    CategoryColor::Magenta,
    CategoryColor::Yellow,
    CategoryColor::Gray,
];

/// Maximum frames of a profile: the format stores each thread's stacks separately.
const FRAMES_MAX: u64 = 1 << 25;

/// Writes a session: domains become processes, classes become categories.
///
/// # Errors
/// Writing to `out` fails, or the session has too many stacks.
pub fn firefox(session: &Session, rules: &Rules, out: impl Write) -> anyhow::Result<()> {
    ensure!(
        frames_of_threads(session) <= FRAMES_MAX,
        "the stacks of all threads have more than {FRAMES_MAX} frames: too many to export"
    );
    let profile = build(session, rules);
    serde_json::to_writer(out, &profile)?;
    Ok(())
}

/// Counts the frames of all stacks, once for each thread with samples in them.
fn frames_of_threads(session: &Session) -> u64 {
    let pairs: BTreeSet<(u32, u32)> = session.samples.iter().map(|s| (s.2, s.3)).collect();
    let depths = session.depths();
    let depth = |stack: u32| depths.get(stack as usize).copied().unwrap_or(0);
    pairs
        .into_iter()
        .map(|(_, stack)| u64::from(depth(stack)))
        .sum()
}

fn build(session: &Session, rules: &Rules) -> Profile {
    let started = session.head.started_unix_ns as f64 / 1e6;
    // Other events have no duration, but the profiler's axis needs one.
    let interval = match session.head.event.as_str() {
        "cpu-clock" => session.head.period,
        _ => 1_000_000,
    };
    let mut profile = Profile::new(
        "Grantway",
        ReferenceTimestamp::from_millis_since_unix_epoch(started),
        SamplingInterval::from_nanos(interval),
    );
    profile.set_os_name("Linux");
    let categories: Vec<CategoryHandle> = rules
        .classes()
        .iter()
        .zip(COLORS.iter().cycle())
        .map(|(class, color)| profile.add_category(class, *color))
        .collect();
    let start = Timestamp::from_nanos_since_reference(0);
    let processes: Vec<_> = (1u32..)
        .zip(&session.domains)
        .map(|(number, domain)| profile.add_process(&domain.name, number, start))
        .collect();
    let mut threads = Vec::new();
    for thread in &session.threads {
        let Some(process) = processes.get(thread.domain as usize) else {
            continue;
        };
        let handle = profile.add_thread(*process, thread.tid, start, thread.pid == thread.tid);
        profile.set_thread_name(handle, &thread.name);
        threads.push(handle);
    }
    let mut stacks = BTreeMap::new();
    for sample in &session.samples {
        let Some(&thread) = threads.get(sample.2 as usize) else {
            continue;
        };
        let stack = match stacks.get(&(sample.2, sample.3)) {
            Some(stack) => *stack,
            None => {
                let kind = session
                    .domains
                    .get(session.domain_of(sample))
                    .map_or(crate::model::DomainKind::Other, |domain| domain.kind);
                let mut frames: Vec<FrameInfo> = Vec::new();
                for (_, frame) in session.frames_of(sample.3) {
                    let module = session.module(frame);
                    let class = module.and_then(|module| {
                        let function = crate::attribute::rules::Function {
                            space: module.space,
                            module: module.name(),
                            symbol: &frame.symbol,
                        };
                        rules.class(kind, function)
                    });
                    let category = categories
                        .get(class.unwrap_or_else(|| rules.rest()))
                        .copied()
                        .unwrap_or(CategoryHandle::OTHER);
                    let name = match module.map(|module| module.space) {
                        Some(Space::Kernel) => format!("{} [kernel]", frame.symbol),
                        _ => frame.symbol.clone(),
                    };
                    frames.push(FrameInfo {
                        frame: Frame::Label(profile.intern_string(&name)),
                        category_pair: category.into(),
                        flags: FrameFlags::empty(),
                    });
                }
                let stack = profile.intern_stack_frames(thread, frames.into_iter().rev());
                stacks.insert((sample.2, sample.3), stack);
                stack
            }
        };
        let at = Timestamp::from_nanos_since_reference(sample.0);
        profile.add_sample(thread, at, stack, CpuDelta::from_nanos(interval), 1);
    }
    profile
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::session;

    #[test]
    fn too_many_exported_frames_are_rejected() {
        let mut session = session();
        session.stacks = (0..1024u32)
            .map(|n| crate::model::Stack(n.checked_sub(1), 0))
            .collect();
        let threads = FRAMES_MAX as u32 / 1024 + 1;
        session.threads = vec![session.threads[0].clone(); threads as usize];
        session.samples = (0..threads)
            .map(|thread| crate::model::Sample(0, 0, thread, 1023))
            .collect();
        let error = firefox(&session, &Rules::thesis(), Vec::new()).unwrap_err();
        assert!(error.to_string().contains("too many to export"), "{error}");
    }

    #[test]
    fn exports_contain_every_sample() {
        let mut out = Vec::new();
        firefox(&session(), &Rules::thesis(), &mut out).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
        let threads = json["threads"].as_array().unwrap();
        let count = |thread: &serde_json::Value| thread["samples"]["length"].as_u64().unwrap();
        assert_eq!(threads.iter().map(count).sum::<u64>(), 200);
        let names: Vec<&str> = threads
            .iter()
            .filter_map(|thread| thread["processName"].as_str())
            .collect();
        assert!(
            names.contains(&"driver") && names.contains(&"idle"),
            "{names:?}"
        );
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("tcp_v4_rcv [kernel]") && text.contains("shmem::engine::copy"));
        assert!(json["meta"]["categories"].as_array().unwrap().len() >= 9);
    }
}
