//! The form of pprof: its message `Profile`, uncompressed.

use super::flame;
use crate::model::{DomainKind, SampledEvent, Session};
use crate::unit::Unit;
use anyhow::Context as _;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;

/// Wire type of a message, a text or packed numbers.
const BYTES: u64 = 2;

/// A message of Protocol Buffers.
#[derive(Default)]
struct Protobuf(Vec<u8>);

impl Protobuf {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u64, value: u64) -> &mut Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) -> &mut Self {
        self.varint(field << 3 | BYTES);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn packed(&mut self, field: u64, values: impl Iterator<Item = u64>) -> &mut Self {
        let mut packed = Self::default();
        values.for_each(|value| packed.varint(value));
        self.bytes(field, &packed.0)
    }
}

/// The table of texts; others refer to them by number, and number 0 is empty.
struct Texts<'a> {
    numbers: HashMap<&'a str, u64>,
    all: Vec<&'a str>,
}

impl<'a> Texts<'a> {
    fn new() -> Self {
        Self {
            numbers: HashMap::from([("", 0)]),
            all: vec![""],
        }
    }

    fn of(&mut self, text: &'a str) -> u64 {
        let next = self.all.len() as u64;
        let number = *self.numbers.entry(text).or_insert(next);
        if number == next {
            self.all.push(text);
        }
        number
    }
}

/// Writes a session without its idle time: by stack, the samples of the first event, nanoseconds of
/// exact CPU time or occurrences of each event, and the domain as a label.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub fn write(session: &Session, out: &mut impl Write) -> anyhow::Result<()> {
    let events: Vec<SampledEvent> = session.head.events().collect();
    out.write_all(&profile(session, &events).0)
        .context("write a profile")
}

fn profile(session: &Session, events: &[SampledEvent]) -> Protobuf {
    let (mut profile, mut texts) = (Protobuf::default(), Texts::new());
    let [samples, count, domain_key] = ["samples", "count", "domain"].map(|text| texts.of(text));
    let types: Vec<(u64, u64)> = types(events)
        .map(|[kind, unit]| (texts.of(kind), texts.of(unit)))
        .collect();
    profile.bytes(1, &value_type((samples, count)).0);
    for of_event in &types {
        profile.bytes(1, &value_type(*of_event).0);
    }

    let mut used = BTreeSet::new();
    for ((index, stack), values) in values(session, events.len()) {
        let Some(domain) = session.domains.get(index) else {
            continue;
        };
        if domain.kind == DomainKind::Idle {
            continue;
        }
        let frames: Vec<u64> = session
            .frames_of(stack)
            .map(|(n, _)| n as u64 + 1)
            .collect();
        let (mut label, mut sample) = (Protobuf::default(), Protobuf::default());
        label
            .number(1, domain_key)
            .number(2, texts.of(&domain.name));
        sample.packed(1, frames.iter().copied());
        sample.packed(2, values.into_iter());
        sample.bytes(3, &label.0);
        profile.bytes(2, &sample.0);
        used.extend(frames);
    }
    for (number, module) in (1..).zip(&session.modules) {
        let mut mapping = Protobuf::default();
        mapping.number(1, number).number(5, texts.of(&module.path));
        if let Some(id) = &module.build_id {
            mapping.number(6, texts.of(id));
        }
        // The functions have names already.
        mapping.number(7, 1);
        profile.bytes(3, &mapping.0);
    }
    let mut functions: HashMap<(u32, &str), u64> = HashMap::new();
    for (number, frame) in (1..).zip(&session.frames) {
        if !used.contains(&number) {
            continue;
        }
        let [mut line, mut location, mut function] = std::array::from_fn(|_| Protobuf::default());
        let next = functions.len() as u64 + 1;
        let key = (frame.module, frame.symbol.as_str());
        let of_frame = *functions.entry(key).or_insert(next);
        let source = session.source(frame);
        line.number(1, of_frame);
        line.number(2, source.map_or(0, |(_, line)| line.into()));
        location
            .number(1, number)
            .number(2, u64::from(frame.module) + 1)
            .number(3, frame.code.map_or(0, |code| code.0));
        location.bytes(4, &line.0);
        profile.bytes(4, &location.0);
        if of_frame == next {
            let name = texts.of(&frame.symbol);
            function.number(1, next).number(2, name).number(3, name);
            function.number(4, texts.of(source.map_or("", |(file, _)| file)));
            profile.bytes(5, &function.0);
        }
    }
    for text in &texts.all {
        profile.bytes(6, text.as_bytes());
    }
    profile.number(9, session.head.started_unix_ns);
    profile.number(10, session.head.ran_ns);
    let is_cycles = session.head.unit() == Unit::Cycles;
    if let Some(first) = types.first().filter(|_| !is_cycles) {
        profile.bytes(11, &value_type(*first).0);
        profile.number(12, session.head.period);
    }
    profile
}

/// Returns the type and the unit of the value that each event has.
fn types(events: &[SampledEvent]) -> impl Iterator<Item = [&str; 2]> {
    let numbered = (0..).zip(events);
    numbered.map(|(number, sampled)| match (number, sampled.unit()) {
        (_, Unit::Occurrences) => [sampled.event.as_str(), "count"],
        (0, _) => ["cpu", "nanoseconds"],
        (_, _) => [sampled.event.as_str(), "nanoseconds"],
    })
}

fn value_type((kind, unit): (u64, u64)) -> Protobuf {
    let mut value = Protobuf::default();
    value.number(1, kind).number(2, unit);
    value
}

/// Returns the values of each domain and stack: samples of the first event, then the time or the
/// occurrences of each of the `events`.
fn values(session: &Session, events: usize) -> BTreeMap<(usize, u32), Vec<u64>> {
    let mut values: BTreeMap<(usize, u32), Vec<u64>> = BTreeMap::new();
    for number in 0..events {
        for (whose, (samples, width)) in flame::times(&session.of_event(number)) {
            let values = values.entry(whose).or_insert_with(|| vec![0; events + 1]);
            if let (0, Some(first)) = (number, values.first_mut()) {
                *first = samples;
            }
            if let Some(value) = values.get_mut(number + 1) {
                *value = width as u64;
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{session, with_page_faults};

    /// A field: its number, and its value or its bytes.
    type Field<'a> = (u64, u64, &'a [u8]);

    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (first, rest) = bytes.split_first().expect("a number");
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                break;
            }
        }
        value
    }

    fn fields(mut bytes: &[u8]) -> Vec<Field<'_>> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let value = varint(&mut bytes);
            let mut content = &bytes[..0];
            if key & 7 == BYTES {
                (content, bytes) = bytes.split_at(value as usize);
            }
            fields.push((key >> 3, value, content));
        }
        fields
    }

    fn numbers(mut bytes: &[u8]) -> Vec<u64> {
        std::iter::from_fn(|| (!bytes.is_empty()).then(|| varint(&mut bytes))).collect()
    }

    #[test]
    fn each_event_has_a_value() {
        let session = with_page_faults();
        let events: Vec<SampledEvent> = session.head.events().collect();
        let profile = profile(&session, &events);
        let fields = fields(&profile.0);
        let all = |field: u64| fields.iter().filter(move |f| f.0 == field).map(|f| f.2);
        let text = |number: u64| {
            let mut texts = all(6);
            String::from_utf8(texts.nth(number as usize).unwrap().to_vec()).unwrap()
        };
        let types = all(1).map(|of| {
            let of = super::tests::fields(of);
            [text(of[0].1), text(of[1].1)].join(" ")
        });
        let types: Vec<String> = types.collect();
        assert_eq!(
            types,
            ["samples count", "cpu nanoseconds", "page-faults count"]
        );
        let values = all(2).map(|sample| numbers(super::tests::fields(sample)[1].2));
        let values: Vec<Vec<u64>> = values.collect();
        // 90 and 30 samples of every second page fault.
        assert_eq!(values, [[60, 60_000_000, 180], [40, 40_000_000, 60]]);
    }

    #[test]
    fn profiles_have_stacks_times_and_domains() {
        let mut session = session();
        session.domains[0].cpu_ns = Some(300_000_000);
        let events: Vec<SampledEvent> = session.head.events().collect();
        let profile = profile(&session, &events);
        let fields = fields(&profile.0);
        let all = |field: u64| fields.iter().filter(move |f| f.0 == field).map(|f| f.2);
        let texts: Vec<&str> = all(6)
            .map(|text| std::str::from_utf8(text).unwrap())
            .collect();
        assert_eq!(texts[0], "");
        let functions: BTreeMap<u64, &str> = all(5)
            .map(|function| {
                let fields = super::tests::fields(function);
                (fields[0].1, texts[fields[1].1 as usize])
            })
            .collect();
        let samples: Vec<(Vec<&str>, Vec<u64>, &str)> = all(2)
            .map(|sample| {
                let fields = super::tests::fields(sample);
                let label = super::tests::fields(fields[2].2);
                let stack = numbers(fields[0].2)
                    .iter()
                    .map(|id| functions[id])
                    .collect();
                (stack, numbers(fields[1].2), texts[label[1].1 as usize])
            })
            .collect();
        let copy = vec!["shmem::engine::copy", "driver::turn::run"];
        assert_eq!(samples[0], (copy, vec![60, 180_000_000], "driver"));
        assert_eq!(samples.len(), 2, "idle is left out: {samples:?}");
        assert!(
            !functions
                .values()
                .any(|name| *name == "pv_native_safe_halt")
        );
    }
}
