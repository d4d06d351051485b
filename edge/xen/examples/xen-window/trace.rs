//! Parser of the output of `xentrace`: records of 4-byte words, which Xen's <public/trace.h>
//! defines.

use std::collections::BTreeMap;
use std::ops::Range;

/// `TRC_LOST_RECORDS`.
const LOST: u32 = 0x0001_f001;
/// `TRC_SCHED_SWITCH`: domain and virtual CPU that stop, then those that run.
const SWITCH: u32 = 0x0002_800a;
/// `TRC_PV_HYPERCALL_V2`: a hypercall.
const HYPERCALL: u32 = 0x0020_100d;
/// `TRC_PV_HYPERCALL_SUBCALL`: one hypercall within a multicall.
const SUBCALL: u32 = 0x0020_200e;

/// `DOMID_IDLE`.
const IDLE: u32 = 0x7fff;

/// `__HYPERVISOR_grant_table_op`.
const GRANT_TABLE_OP: u32 = 20;

/// The sums of a window.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Ticks in which each domain ran, including Xen's work for it.
    pub(crate) ran: BTreeMap<String, u64>,
    /// Hypercalls of each domain, by name.
    pub(crate) calls: BTreeMap<String, BTreeMap<String, u64>>,
    /// Operations in the grant hypercalls of each domain, by name: copies, maps.
    pub(crate) operations: BTreeMap<String, BTreeMap<String, u64>>,
}

/// A record.
#[derive(Clone, Copy, Debug)]
struct Record<'a> {
    event: u32,
    at: Option<u64>,
    extra: &'a [u32],
}

/// Removes the first record from `words`.
fn take<'a>(words: &mut &'a [u32]) -> Option<Record<'a>> {
    let (head, rest) = words.split_first()?;
    // Bits 0 … 27: event; 28 … 30: words that follow; 31: a time stamp precedes them.
    let (at, rest) = match (head >> 31, rest) {
        (0, _) => (None, rest),
        (_, [low, high, rest @ ..]) => (Some(u64::from(*high) << 32 | u64::from(*low)), rest),
        _ => return None,
    };
    let (extra, rest) = rest.split_at_checked((head >> 28 & 7) as usize)?;
    *words = rest;
    Some(Record {
        event: head & 0x0fff_ffff,
        at,
        extra,
    })
}

/// Summarizes the records whose time stamps lie in `window`.
///
/// # Errors
///
/// Returns an error if the bytes are not a trace, or the trace is incomplete.
pub(crate) fn sums(bytes: &[u8], window: Range<u64>) -> Result<Sums, String> {
    let words: Vec<u32> = bytes
        .chunks_exact(4)
        .map(|word| {
            word.iter()
                .rev()
                .fold(0, |sum, byte| sum << 8 | u32::from(*byte))
        })
        .collect();
    let mut words = words.as_slice();
    let mut sums = Sums::default();
    // The running domain, and the start of its run within the window.
    let mut running: Option<(u32, u64)> = None;
    while !words.is_empty() {
        let record = take(&mut words).ok_or("the trace is truncated")?;
        if record.event == LOST {
            return Err("Xen's trace buffer was too small: records were lost".into());
        }
        let Some(at) = record.at else { continue };
        match (record.event, record.extra) {
            (SWITCH, [before, _, next, ..]) => {
                let (domain, since) = running.unwrap_or((*before, window.start));
                sums.add_ran(domain, since..at.clamp(window.start, window.end));
                running = Some((*next, at.clamp(window.start, window.end)));
            }
            (HYPERCALL | SUBCALL, [op, arguments @ ..]) if window.contains(&at) => {
                // The first hypercalls of a trace are the tracer's own.
                let domain = running.map_or(0, |(domain, _)| domain);
                sums.add_call(domain, record.event, op & 0xf_ffff, arguments);
            }
            _ => {}
        }
    }
    let (domain, since) = running.ok_or("no domain was ever switched to")?;
    sums.add_ran(domain, since..window.end);
    Ok(sums)
}

impl Sums {
    fn add_ran(&mut self, domain: u32, time: Range<u64>) {
        *self.ran.entry(named(domain)).or_default() += time.end.saturating_sub(time.start);
    }

    fn add_call(&mut self, domain: u32, event: u32, op: u32, arguments: &[u32]) {
        let name = match (op, arguments) {
            (GRANT_TABLE_OP, [command, count, ..]) => {
                let name = grant_command(*command);
                let of = self.operations.entry(named(domain)).or_default();
                *of.entry(name.clone()).or_default() += u64::from(*count);
                name
            }
            _ => hypercall(op),
        };
        // The calls of a multicall enter Xen together with it.
        if event == HYPERCALL {
            let of = self.calls.entry(named(domain)).or_default();
            *of.entry(name).or_default() += 1;
        }
    }
}

fn named(domain: u32) -> String {
    match domain {
        IDLE => "idle".to_owned(),
        domain => domain.to_string(),
    }
}

/// Returns the name of a command in <public/grant_table.h>.
fn grant_command(command: u32) -> String {
    match command {
        0 => "grant_map".to_owned(),
        1 => "grant_unmap".to_owned(),
        5 => "grant_copy".to_owned(),
        other => format!("grant_{other}"),
    }
}

/// Returns the name of a hypercall in <public/xen.h>.
fn hypercall(op: u32) -> String {
    match op {
        1 => "mmu_update",
        3 => "stack_switch",
        5 => "fpu_taskswitch",
        13 => "multicall",
        14 => "update_va_mapping",
        15 => "set_timer_op",
        17 => "xen_version",
        20 => "grant_table_op",
        23 => "iret",
        24 => "vcpu_op",
        25 => "set_segment_base",
        26 => "mmuext_op",
        29 => "sched_op",
        32 => "event_channel_op",
        33 => "physdev_op",
        35 => "sysctl",
        other => return format!("hypercall_{other}"),
    }
    .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(event: u32, at: u64, extra: &[u32]) -> Vec<u8> {
        let head = event | (extra.len() as u32) << 28 | 1 << 31;
        let words = [head, at as u32, (at >> 32) as u32];
        let words = words.iter().chain(extra);
        words.flat_map(|word| word.to_le_bytes()).collect()
    }

    fn pairs(of: &BTreeMap<String, u64>) -> Vec<(&str, u64)> {
        of.iter().map(|(name, sum)| (name.as_str(), *sum)).collect()
    }

    #[test]
    fn events_of_a_window_count_for_the_running_domain() {
        let grants = |at, count| record(HYPERCALL, at, &[20 | 5 << 20, 5, count]);
        let trace = [
            grants(50, 9),
            // Domain 0 has run before the first switch.
            record(SWITCH, 150, &[0, 0, 3, 0]),
            grants(160, 16),
            record(SUBCALL, 170, &[20 | 5 << 20, 0, 2]),
            record(HYPERCALL, 171, &[32]),
            record(SWITCH, 200, &[3, 0, IDLE, 0]),
            record(SWITCH, 260, &[IDLE, 0, 0, 0]),
            grants(270, 1),
            record(SWITCH, 400, &[0, 0, 3, 0]),
            grants(410, 7),
        ];
        let sums = sums(&trace.concat(), 100..300).unwrap();
        assert_eq!(pairs(&sums.ran), [("0", 90), ("3", 50), ("idle", 60)]);
        assert_eq!(
            pairs(&sums.calls["3"]),
            [("event_channel_op", 1), ("grant_copy", 1)]
        );
        assert_eq!(pairs(&sums.calls["0"]), [("grant_copy", 1)]);
        assert_eq!(
            pairs(&sums.operations["3"]),
            [("grant_copy", 16), ("grant_map", 2)]
        );
    }

    #[test]
    fn a_trace_with_gaps_is_rejected() {
        let lost = [record(LOST, 5, &[1, 0]), record(SWITCH, 6, &[0, 0, 1, 0])];
        assert!(sums(&lost.concat(), 0..9).is_err());
        let mut broken = record(SWITCH, 6, &[0, 0, 1, 0]);
        broken.truncate(20);
        assert!(sums(&broken, 0..9).is_err());
    }
}
