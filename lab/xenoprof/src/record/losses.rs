//! The loss ledgers of a session's events.

use crate::loss::{Loss, LossCounts};
use crate::model::Session;
use crate::resolve::Resolver;
use std::collections::BTreeMap;

/// Returns the loss ledgers of all events. `dropped` counts samples by event, CPU and domain.
pub(super) fn ledgers(
    session: &Session,
    resolver: &Resolver,
    dropped: &BTreeMap<(u32, u32, u32), u64>,
    steal_ns: &BTreeMap<u32, u64>,
) -> Vec<Loss> {
    let head = &session.head;
    let throttled_ns = resolver.throttled_ns(head.started_raw_ns.saturating_add(head.ran_ns));
    let cpu_ns = session.domains.iter().map(|d| d.cpu_ns.unwrap_or(0));
    let cpu_ns: BTreeMap<u32, u64> = (0..).zip(cpu_ns).collect();
    let mut delivered: BTreeMap<(u32, u32, u32), u64> = BTreeMap::new();
    for sample in &session.samples {
        let domain = session.domain_of(sample) as u32;
        *delivered.entry((sample.4, sample.1, domain)).or_default() += 1;
    }
    let mut rows = Vec::new();
    for (number, sampled) in (0u32..).zip(head.events()) {
        let by_cpu = |counts: &BTreeMap<(u32, u32), u64>| -> BTreeMap<u32, u64> {
            let own = counts.range((number, 0)..=(number, u32::MAX));
            own.map(|((_, cpu), n)| (*cpu, *n)).collect()
        };
        let by_domain = |counts: &BTreeMap<(u32, u32, u32), u64>| -> BTreeMap<(u32, u32), u64> {
            let own = counts.range((number, 0, 0)..=(number, u32::MAX, u32::MAX));
            own.map(|((_, cpu, domain), n)| ((*cpu, *domain), *n))
                .collect()
        };
        let counts = LossCounts {
            delivered: by_domain(&delivered),
            kernel_lost: by_cpu(resolver.kernel_lost()),
            throttled_ns: by_cpu(&throttled_ns),
            ring_dropped: by_domain(dropped),
            steal_ns: steal_ns.clone(),
            cpu_ns: cpu_ns.clone(),
        };
        let ledger = counts.ledger(&head.cpus, head.ran_ns, sampled.period, sampled.unit());
        let numbered = |row| Loss {
            event: number,
            ..row
        };
        rows.extend(ledger.into_iter().map(numbered));
    }
    rows
}
