//! Merges the participants' results into one session.

use super::message::AddressName;
use super::outcome::{FinalState, SessionOutcome};
use crate::model::{DomainKind, Mode, ProfiledDomain, RingStats, SampledEvent, Session};
use crate::resolve::{Resolver, Symbolizer, lookup};
use crate::sampler::parse::{Address, PerfRecord, RecordKind};
use std::collections::{BTreeMap, BTreeSet};

/// Adds the names that participants sent to the resolver of the samples, before it processes them.
pub fn names(
    outcome: &SessionOutcome,
    records: &[PerfRecord],
    resolver: &mut Resolver,
    symbolizer: &mut Symbolizer,
) {
    for member in &outcome.members {
        let outer: BTreeMap<u32, u32> = member
            .delivered
            .pids
            .iter()
            .map(|(outer, inner)| (*inner, *outer))
            .collect();
        for named in &member.received.names {
            // Ignore names of processes outside the participant's domain.
            if let Some(pid) = outer.get(&named.pid) {
                learn(&member.name, *pid, named, resolver, symbolizer);
            }
        }
        if !member.received.symbols.is_empty() {
            saved(member, records, resolver, symbolizer);
        }
    }
}

fn learn(
    domain: &str,
    pid: u32,
    named: &AddressName,
    resolver: &mut Resolver,
    symbolizer: &mut Symbolizer,
) {
    // The domain's files may differ from the host's files with the same names.
    let module = format!("{domain}:{}", named.module);
    symbolizer.add_names(&module, named.offset, named.frames.clone());
    resolver.named(pid, named.address, &module, named.offset);
}

/// Looks up a passive domain's addresses in its saved symbols.
fn saved(
    member: &FinalState,
    records: &[PerfRecord],
    resolver: &mut Resolver,
    symbolizer: &mut Symbolizer,
) {
    let mut done = BTreeSet::new();
    for record in records {
        let RecordKind::Sample { pid, chain, .. } = &record.kind else {
            continue;
        };
        if !member.delivered.pids.contains_key(pid) {
            continue;
        }
        for (depth, address) in chain.iter().enumerate() {
            let Address::User(address) = *address else {
                continue;
            };
            let address = lookup(depth, address);
            if !done.insert((*pid, address)) {
                continue;
            }
            if let Some((start, symbol)) = member.received.symbols.find(address) {
                let named = AddressName {
                    pid: *pid,
                    address,
                    module: "[saved symbols]".to_owned(),
                    offset: start,
                    frames: vec![(symbol.to_owned(), false)],
                };
                learn(&member.name, *pid, &named, resolver, symbolizer);
            }
        }
    }
}

/// Records the participants and their modes in a session, and adds agents' sessions.
pub fn domains(outcome: SessionOutcome, session: &mut Session) {
    for member in outcome.members {
        let buffer = (member.mode == Mode::Active).then(|| RingStats {
            offered: member.delivered.counts.offered,
            dropped: member.delivered.counts.dropped,
            unread: member
                .delivered
                .counts
                .written
                .saturating_sub(member.received.read.unwrap_or(0)),
        });
        let missing = missing(&member, buffer);
        if member.mode == Mode::AgentOnly {
            match member.received.session {
                Some(agent) if member.lost.is_none() => add_agent(&member.name, *agent, session),
                _ => absent(&member.name, Mode::AgentOnly, missing, session),
            }
            continue;
        }
        let is_it =
            |d: &&mut ProfiledDomain| d.name == member.name && d.kind == DomainKind::Process;
        match session.domains.iter_mut().find(is_it) {
            Some(domain) => {
                // The initiator has attributed the samples of a participant without results.
                domain.mode = match member.lost {
                    Some(_) => Mode::Passive,
                    None => member.mode,
                };
                domain.buffer = buffer;
                if missing.is_some() {
                    domain.missing = missing;
                }
            }
            None => absent(&member.name, member.mode, missing, session),
        }
    }
    for name in outcome.absent {
        if session.domains.iter().all(|domain| domain.name != name) {
            let why = "was not ready when the session began".to_owned();
            absent(&name, Mode::Active, Some(why), session);
        }
    }
}

fn missing(member: &FinalState, buffer: Option<RingStats>) -> Option<String> {
    if let Some(why) = &member.lost {
        let rest = match member.mode {
            Mode::AgentOnly => "its profile is missing",
            _ => "its samples were attributed on its behalf",
        };
        return Some(format!("its profiler {why}: {rest}"));
    }
    let buffer = buffer.filter(|buffer| buffer.dropped + buffer.unread > 0)?;
    Some(format!(
        "its profiler was too slow for {} of {} samples",
        buffer.dropped + buffer.unread,
        buffer.offered
    ))
}

fn absent(name: &str, mode: Mode, missing: Option<String>, session: &mut Session) {
    let none = || "none of its processes ran".to_owned();
    session.domains.push(ProfiledDomain {
        name: name.to_owned(),
        kind: DomainKind::Process,
        mode,
        cpu_ns: None,
        agent_ns: None,
        ledger: None,
        traffic: None,
        buffer: None,
        missing: Some(missing.unwrap_or_else(none)),
    });
}

/// Returns the number that each event of an agent's session has in a session, which receives those
/// that it lacks.
fn events(agent: &Session, session: &mut Session) -> Vec<u32> {
    let number = |sampled: SampledEvent| {
        let found = session.event(&sampled.event).unwrap_or_else(|_| {
            session.head.more_events.push(sampled);
            session.head.more_events.len()
        });
        found as u32
    };
    agent.head.events().map(number).collect()
}

/// Adds an agent's session. Its domains belong to the agent; their time never counts as the host's.
fn add_agent(name: &str, agent: Session, session: &mut Session) {
    let events = events(&agent, session);
    let event = |number: u32| events.get(number as usize).copied().unwrap_or(0);
    let used: BTreeSet<u32> = agent.threads.iter().map(|thread| thread.domain).collect();
    let mut places = BTreeMap::new();
    for (place, mut domain) in (0u32..).zip(agent.domains) {
        if used.contains(&place) {
            domain.name = match used.len() {
                1 => name.to_owned(),
                _ => format!("{name}/{}", domain.name),
            };
            domain.mode = Mode::AgentOnly;
            places.insert(place, session.domains.len() as u32);
            session.domains.push(domain);
        }
    }
    let [threads, modules, frames, stacks] = [
        session.threads.len(),
        session.modules.len(),
        session.frames.len(),
        session.stacks.len(),
    ]
    .map(|len| len as u32);
    session
        .threads
        .extend(agent.threads.into_iter().map(|mut thread| {
            thread.domain = places.get(&thread.domain).copied().unwrap_or(0);
            thread
        }));
    session
        .modules
        .extend(agent.modules.into_iter().map(|mut module| {
            module.path = format!("{name}:{}", module.path);
            module
        }));
    session
        .frames
        .extend(agent.frames.into_iter().map(|mut frame| {
            frame.module += modules;
            frame
        }));
    session
        .stacks
        .extend(agent.stacks.into_iter().map(|mut stack| {
            stack.0 = stack.0.map(|caller| caller + stacks);
            stack.1 += frames;
            stack
        }));
    session
        .samples
        .extend(agent.samples.into_iter().map(|mut sample| {
            sample.2 += threads;
            sample.3 += stacks;
            sample.4 = event(sample.4);
            sample
        }));
    session.samples.sort_by_key(|sample| sample.0);
    session
        .losses
        .extend(agent.losses.into_iter().filter_map(|mut loss| {
            loss.domain = Some(*places.get(&loss.domain?)?);
            loss.event = event(loss.event);
            Some(loss)
        }));
}

#[cfg(test)]
mod tests {
    use super::super::demux::Delivered;
    use super::super::outcome::ParticipantData;
    use super::super::ring::RingCounts;
    use super::*;
    use crate::testing;

    fn final_state(name: &str, mode: Mode, lost: Option<&str>) -> FinalState {
        FinalState {
            name: name.to_owned(),
            mode,
            lost: lost.map(str::to_owned),
            delivered: Delivered::default(),
            received: ParticipantData::default(),
        }
    }

    #[test]
    fn an_agents_session_does_not_count_as_host_time() {
        let (mut session, agent) = (testing::session(), testing::session());
        let before = session.clone();
        let mut vm = final_state("vm", Mode::AgentOnly, None);
        vm.received.session = Some(Box::new(agent.clone()));
        let outcome = SessionOutcome {
            members: vec![vm],
            absent: Vec::new(),
        };
        domains(outcome, &mut session);
        assert_eq!(session.samples.len(), before.samples.len() * 2);
        let added: Vec<&ProfiledDomain> =
            session.domains.iter().skip(before.domains.len()).collect();
        let names: Vec<&str> = added.iter().map(|domain| domain.name.as_str()).collect();
        assert_eq!(names, ["vm/driver", "vm/idle"]);
        assert!(added.iter().all(|domain| domain.mode == Mode::AgentOnly));
        // The result is still a valid session that can be written and read.
        let mut bytes = Vec::new();
        crate::model::file::write(&mut bytes, &session).unwrap();
        assert_eq!(crate::model::file::from_bytes(&bytes).unwrap(), session);
        let host = |session: &Session| {
            let samples = session.samples.iter();
            let own = samples.filter(|s| session.domain_of(s) < before.domains.len());
            own.count()
        };
        assert_eq!(host(&session), before.samples.len());
    }

    #[test]
    fn an_agents_events_keep_their_names() {
        let mut session = testing::with_page_faults();
        let mut agent = testing::session();
        agent.head.event = "page-faults".to_owned();
        agent.head.more_events = testing::session().head.events().collect();
        agent.head.more_events[0].event = "cycles".to_owned();
        agent.samples[0].4 = 1;
        let before = session.samples.len();
        add_agent("vm", agent, &mut session);
        let names: Vec<String> = session.head.events().map(|of| of.event).collect();
        assert_eq!(names, ["cpu-clock", "page-faults", "cycles"]);
        let of = |event| session.samples.iter().filter(|s| s.4 == event).count();
        assert_eq!([of(0), of(1), of(2)], [200, 120 + 199, 1]);
        assert_eq!(session.samples.len(), before + 200);
        assert!(
            session
                .losses
                .iter()
                .any(|loss| loss.event == 1 && loss.domain == Some(3))
        );
    }

    #[test]
    fn missing_results_are_reported() {
        let mut slow = final_state("driver", Mode::Active, None);
        slow.delivered.counts = RingCounts {
            offered: 10,
            written: 8,
            dropped: 2,
        };
        slow.received.read = Some(7);
        let outcome = SessionOutcome {
            members: vec![
                slow,
                final_state("guest", Mode::Active, Some("disconnected")),
                final_state("vm", Mode::AgentOnly, Some("disconnected")),
            ],
            absent: vec!["db".to_owned()],
        };
        let mut session = testing::session();
        let mut namesake = session.domains[0].clone();
        for domain in &mut session.domains {
            domain.kind = DomainKind::Process;
        }
        namesake.kind = DomainKind::Driver;
        session.domains.push(namesake.clone());
        domains(outcome, &mut session);
        assert!(session.domains.contains(&namesake), "a different domain");
        let of = |name: &str| session.domains.iter().find(|d| d.name == name).unwrap();
        assert_eq!(of("driver").mode, Mode::Active);
        let buffer = of("driver").buffer.unwrap();
        assert_eq!((buffer.offered, buffer.dropped, buffer.unread), (10, 2, 1));
        assert!(of("driver").missing.as_ref().unwrap().contains("3 of 10"));
        assert_eq!(
            of("guest").mode,
            Mode::Passive,
            "attributed by the initiator"
        );
        assert!(
            of("guest")
                .missing
                .as_ref()
                .unwrap()
                .contains("disconnected")
        );
        assert!(
            of("vm")
                .missing
                .as_ref()
                .unwrap()
                .contains("profile is missing")
        );
        assert!(of("db").missing.as_ref().unwrap().contains("not ready"));
    }
}
