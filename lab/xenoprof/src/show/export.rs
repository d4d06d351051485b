//! The command `prof export`: the Firefox Profiler's processed profile.

use super::firefox::{IntervalMarker, Library, NewFrame, Shared, Track, VERSION};
use crate::attribute::rules::{FunctionInfo, Rules};
use crate::model::{DomainKind, Marker, MarkerKind, SampledEvent, Session, Space, StackFrame};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::io::Write;

/// Colours of the classes, in the order of the rules; they repeat.
const COLORS: [&str; 9] = [
    "purple",
    "red",
    "blue",
    "lightblue",
    "green",
    "orange",
    "magenta",
    "yellow",
    "grey",
];

/// Writes a session without its idle time: domains become processes with a thread for each CPU and
/// event, classes become categories.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub fn firefox(session: &Session, rules: &Rules, out: impl Write) -> anyhow::Result<()> {
    serde_json::to_writer(out, &profile(session, rules))?;
    Ok(())
}

fn profile(session: &Session, rules: &Rules) -> Value {
    let of_module = |module: &crate::model::Module| Library {
        name: module.name().to_owned(),
        path: module.path.clone(),
        build_id: module.build_id.clone(),
    };
    let mut tables = Tables {
        session,
        rules,
        libraries: session.modules.iter().map(of_module).collect(),
        shared: Shared::default(),
        stacks: HashMap::new(),
    };
    let mut tracks: BTreeMap<(usize, u32, u32), Track> = BTreeMap::new();
    for sample in &session.samples {
        let index = session.domain_of(sample);
        let Some(domain) = session.domains.get(index) else {
            continue;
        };
        if domain.kind == DomainKind::Idle {
            continue;
        }
        if let Some(stack) = tables.stack(domain.kind, sample.3) {
            let track = tracks.entry((index, sample.1, sample.4)).or_default();
            track.stacks.push(stack);
            track.times_ms.push(sample.0 as f64 / 1e6);
        }
    }
    for marker in &session.markers {
        let index = marker.domain as usize;
        // Each domain's markers are in the first of its tracks.
        let mut own = tracks.range((index, 0, 0)..=(index, u32::MAX, u32::MAX));
        let place = own.next().map_or((index, 0, 0), |(place, _)| *place);
        let marker = tables.marker(marker);
        tracks.entry(place).or_default().markers.push(marker);
    }
    let events: Vec<SampledEvent> = session.head.events().collect();
    let sample_ns = |number: usize| events.get(number)?.sample_ns(session.head.tsc_hz);
    let thread = |((index, cpu, event), track): (&(usize, u32, u32), &Track)| {
        let name = session
            .domains
            .get(*index)
            .map_or("", |domain| &domain.name);
        let (mut title, mut tid) = (format!("{name} CPU {cpu}"), format!("{index}.{cpu}"));
        if let (1.., Some(sampled)) = (*event, events.get(*event as usize)) {
            title = format!("{title} {}", sampled.event);
            tid = format!("{tid}.{event}");
        }
        let process = (name, index + 1);
        let cpu_us = sample_ns(*event as usize).map(|ns| ns / 1e3);
        track.json(&title, process, &tid, cpu_us)
    };
    let threads: Vec<Value> = tracks.iter().map(thread).collect();
    let libraries: Vec<Value> = tables.libraries.iter().map(Library::json).collect();
    json!({
        "meta": meta(session, rules, sample_ns(0)),
        "libs": libraries,
        "pages": [],
        "shared": tables.shared.json(),
        "threads": threads,
    })
}

fn meta(session: &Session, rules: &Rules, sample_ns: Option<f64>) -> Value {
    let category = |(name, color): (&str, &str)| {
        let subcategories = ["Other"];
        json!({ "name": name, "color": color, "subcategories": subcategories })
    };
    // The front end needs a grey category.
    let classes = rules.classes().iter().map(String::as_str);
    let classes = classes.zip(COLORS.into_iter().cycle());
    let categories = classes.chain([("no class", "grey")]).map(category);
    let product = match session.head.command.as_slice() {
        [] => "Grantway".to_owned(),
        command => command.join(" "),
    };
    let mut units = json!({ "time": "ms", "eventDelay": "ms" });
    // A track of an event that measures no time has no such column.
    if session
        .head
        .events()
        .any(|of| of.sample_ns(session.head.tsc_hz).is_some())
    {
        units["threadCPUDelta"] = json!("µs");
    }
    json!({
        "preprocessedProfileVersion": VERSION,
        "version": 24,
        "product": product,
        // The front end's axis needs one.
        "interval": sample_ns.unwrap_or(1e6) / 1e6,
        "startTime": session.head.started_unix_ns as f64 / 1e6,
        "startTimeAsClockMonotonicNanosecondsSinceBoot": session.head.started_raw_ns,
        "profilingStartTime": 0,
        "profilingEndTime": session.head.ran_ns as f64 / 1e6,
        "processType": 0,
        "stackwalk": 1,
        "debug": false,
        "extensions": { "length": 0, "baseURL": [], "id": [], "name": [] },
        "categories": categories.collect::<Vec<Value>>(),
        "oscpu": "Linux x86_64",
        "platform": "Linux",
        // All names are in the file.
        "symbolicated": true,
        "sampleUnits": units,
        "usesOnlyOneStackType": true,
        "markerSchema": marker_schema(),
    })
}

/// Returns the name of a kind of events.
const fn marker_name(kind: MarkerKind) -> &'static str {
    match kind {
        MarkerKind::Restart => "Restart",
        MarkerKind::Grants => "Grants",
        MarkerKind::Drops => "Drops",
    }
}

/// Returns how the front end shows markers, by kind.
fn marker_schema() -> Value {
    let field = |&(key, label, format): &(&str, &str, &str)| {
        let field = [("key", key), ("label", label), ("format", format)];
        json!(BTreeMap::from(field))
    };
    let schema = |kind, label: &str, description: &str, fields: &[(&str, &str, &str)]| {
        json!({
            "name": marker_name(kind),
            "chartLabel": label,
            "tableLabel": label,
            "description": description,
            "display": ["marker-chart", "marker-table", "timeline-overview"],
            "fields": fields.iter().map(field).collect::<Vec<Value>>(),
        })
    };
    json!([
        schema(
            MarkerKind::Restart,
            "restart",
            "From the end of the domain's process until its successor was connected.",
            &[],
        ),
        schema(
            MarkerKind::Grants,
            "{marker.data.granted} granted, {marker.data.revoked} revoked",
            "Grants of all domains of the machine between two readings.",
            &[
                ("granted", "Granted", "integer"),
                ("revoked", "Revoked", "integer"),
                ("forced", "Revoked by force while in use", "integer"),
            ],
        ),
        schema(
            MarkerKind::Drops,
            "{marker.data.frames} frames: {marker.data.reasons}",
            "Frames that the domain dropped between two readings, by reason.",
            &[
                ("frames", "Frames", "integer"),
                ("reasons", "Reasons", "string"),
            ],
        ),
    ])
}

/// The profile's tables, and the session's stacks in them.
struct Tables<'a> {
    session: &'a Session,
    rules: &'a Rules,
    libraries: Vec<Library>,
    shared: Shared,
    /// Indices of stacks, by the kind of the domain, which determines classes, and by the session's
    /// stack.
    stacks: HashMap<(DomainKind, u32), Option<usize>>,
}

impl Tables<'_> {
    /// Returns an event for a track.
    fn marker(&mut self, marker: &Marker) -> IntervalMarker {
        let name = marker_name(marker.kind);
        let count = |name: &str| marker.counts.get(name).copied().unwrap_or(0);
        let data = match marker.kind {
            MarkerKind::Restart => json!({ "type": name }),
            MarkerKind::Grants => json!({
                "type": name,
                "granted": count("granted"),
                "revoked": count("revoked"),
                "forced": count("forced"),
            }),
            MarkerKind::Drops => {
                let reason = |(reason, count): (&String, &u64)| format!("{reason} {count}");
                let reasons: Vec<String> = marker.counts.iter().map(reason).collect();
                let frames = marker
                    .counts
                    .values()
                    .fold(0, |a: u64, b| a.saturating_add(*b));
                json!({ "type": name, "frames": frames, "reasons": reasons.join(", ") })
            }
        };
        IntervalMarker {
            name: self.shared.text(name),
            category: self.rules.classes().len(),
            start_ms: marker.from_ns as f64 / 1e6,
            end_ms: marker.to_ns as f64 / 1e6,
            data,
        }
    }

    /// Returns the index of a stack of the session.
    fn stack(&mut self, kind: DomainKind, stack: u32) -> Option<usize> {
        // Finds the outermost caller that is not yet in the tables.
        let (mut missing, mut next) = (Vec::new(), Some(stack));
        let mut caller = None;
        while let Some(number) = next {
            if let Some(known) = self.stacks.get(&(kind, number)) {
                caller = *known;
                break;
            }
            missing.push(number);
            next = self.session.stacks.get(number as usize)?.0;
        }
        for number in missing.into_iter().rev() {
            let frame = self.frame(kind, number)?;
            caller = Some(self.shared.stack(frame, caller));
            self.stacks.insert((kind, number), caller);
        }
        caller
    }

    /// Returns the index of the frame of a stack.
    fn frame(&mut self, kind: DomainKind, stack: u32) -> Option<usize> {
        let frames: Vec<&StackFrame> = {
            let mut outwards = self.session.frames_of(stack).map(|(_, frame)| frame);
            let first = outwards.next()?;
            let mut frames = vec![first];
            // The frames into which it is inlined.
            while frames.last().is_some_and(|frame| frame.inlined) {
                match outwards.next() {
                    Some(frame) => frames.push(frame),
                    None => break,
                }
            }
            frames
        };
        let (frame, outer) = (frames.first()?, frames.last()?);
        let module = self.session.module(frame)?;
        let class = self.rules.class(
            kind,
            FunctionInfo {
                space: module.space,
                module: module.name(),
                symbol: &frame.symbol,
            },
        );
        let name = match module.space {
            Space::Kernel => format!("{} [kernel]", frame.symbol),
            Space::User => frame.symbol.clone(),
        };
        let new = NewFrame {
            name: &name,
            library: Some(frame.module as usize),
            address: frame.code.map(|code| code.0),
            native: frame.code.map(|code| (outer.symbol.as_str(), code.1)),
            inline_depth: frames.len() as u32 - 1,
            category: class.unwrap_or(self.rules.classes().len()),
            source: self.session.source(frame),
        };
        Some(self.shared.frame(&new, &self.libraries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{session, with_page_faults};

    fn exported(session: &Session) -> Value {
        let mut out = Vec::new();
        firefox(session, &Rules::thesis(), &mut out).unwrap();
        serde_json::from_slice(&out).unwrap()
    }

    fn array<'a>(table: &'a Value, column: &str) -> &'a Vec<Value> {
        table[column]
            .as_array()
            .unwrap_or_else(|| panic!("{column}: {table}"))
    }

    /// Checks that a table's columns have the same length, and returns the length.
    fn length(table: &Value) -> usize {
        let length = table["length"].as_u64().unwrap() as usize;
        for (name, column) in table.as_object().unwrap() {
            let len = column.as_array().map(Vec::len);
            assert!(
                len.is_none_or(|len| len == length),
                "{name} has {len:?} of {length} rows"
            );
        }
        length
    }

    /// Checks that all indices of a column are below a limit; other values are `null` or -1.
    fn refers(table: &Value, column: &str, limit: usize) {
        for value in array(table, column) {
            let is_none = value.is_null() || value == -1;
            let is_valid = value.as_u64().is_some_and(|index| (index as usize) < limit);
            assert!(is_none || is_valid, "{column}: {value} of {limit}");
        }
    }

    /// Checks the invariants of the format's tables.
    fn is_valid(profile: &Value) {
        assert_eq!(profile["meta"]["preprocessedProfileVersion"], 61);
        let categories = array(&profile["meta"], "categories");
        assert!(
            categories
                .iter()
                .any(|category| category["color"] == "grey")
        );
        let (shared, libs) = (&profile["shared"], array(profile, "libs").len());
        let texts = array(shared, "stringArray").len();
        let of = |table: &str| length(&shared[table]);
        let (sources, resources, natives) =
            (of("sources"), of("resourceTable"), of("nativeSymbols"));
        let (functions, frames, stacks) = (of("funcTable"), of("frameTable"), of("stackTable"));
        for (table, column, limit) in [
            ("sources", "filename", texts),
            ("resourceTable", "lib", libs),
            ("resourceTable", "name", texts),
            ("funcTable", "name", texts),
            ("funcTable", "resource", resources),
            ("funcTable", "source", sources),
            ("nativeSymbols", "libIndex", libs),
            ("nativeSymbols", "name", texts),
            ("frameTable", "func", functions),
            ("frameTable", "nativeSymbol", natives),
            ("frameTable", "category", categories.len()),
            ("stackTable", "frame", frames),
        ] {
            refers(&shared[table], column, limit);
        }
        // Callers are before their callees.
        for (at, caller) in array(&shared["stackTable"], "prefix").iter().enumerate() {
            assert!(caller.as_u64().is_none_or(|caller| (caller as usize) < at));
        }
        let meta = &profile["meta"];
        for name in [
            "interval",
            "startTime",
            "processType",
            "product",
            "stackwalk",
        ] {
            assert!(!meta[name].is_null(), "{name} is required");
        }
        for category in categories {
            assert_eq!(category["subcategories"][0], "Other");
        }
        let schemas = array(meta, "markerSchema");
        for schema in schemas {
            assert!(
                !array(schema, "display").is_empty() && !array(schema, "fields").is_empty()
                    || schema["name"] == "Restart"
            );
        }
        for library in array(profile, "libs") {
            for name in [
                "arch",
                "name",
                "path",
                "debugName",
                "debugPath",
                "breakpadId",
            ] {
                assert!(library[name].is_string(), "{name}: {library}");
            }
            let id = library["breakpadId"].as_str().unwrap();
            assert_eq!(id.len(), 33, "a GUID and an age: {id}");
        }
        let mut tids = std::collections::BTreeSet::new();
        for thread in array(profile, "threads") {
            assert!(thread["pid"].is_string() && thread["name"].is_string());
            assert!(
                tids.insert(thread["tid"].to_string()),
                "thread ids are unique"
            );
            length(&thread["samples"]);
            length(&thread["markers"]);
            refers(&thread["markers"], "name", texts);
            refers(&thread["markers"], "category", categories.len());
            for (at, data) in array(&thread["markers"], "data").iter().enumerate() {
                let of = |column: &str| &thread["markers"][column][at];
                let schema = schemas.iter().find(|schema| schema["name"] == data["type"]);
                let schema = schema.unwrap_or_else(|| panic!("no schema: {data}"));
                for field in array(schema, "fields") {
                    assert!(!data[field["key"].as_str().unwrap()].is_null(), "{data}");
                }
                assert_eq!(of("phase"), 1);
                assert!(of("startTime").as_f64() <= of("endTime").as_f64());
            }
            refers(&thread["samples"], "stack", stacks);
            let times = array(&thread["samples"], "time");
            assert!(times.is_sorted_by_key(|time| time.as_f64().unwrap().to_bits()));
        }
    }

    #[test]
    fn exports_satisfy_the_formats_invariants() {
        is_valid(&exported(&session()));
        let empty = Session {
            samples: Vec::new(),
            ..session()
        };
        is_valid(&exported(&empty));
    }

    #[test]
    fn only_events_with_a_duration_have_cpu_time() {
        for (event, us) in [
            ("cpu-clock", Some(1000.0)),
            ("cycles", Some(500.0)),
            ("cache-misses", None),
        ] {
            let mut session = session();
            session.head.event = event.to_owned();
            session.head.tsc_hz = 2_000_000_000;
            let profile = exported(&session);
            is_valid(&profile);
            let delta = &profile["threads"][0]["samples"]["threadCPUDelta"];
            assert_eq!(delta.get(0).and_then(Value::as_f64), us, "{event}");
            let unit = &profile["meta"]["sampleUnits"]["threadCPUDelta"];
            assert_eq!(unit.is_string(), us.is_some(), "{event}");
        }
    }

    #[test]
    fn a_domain_has_a_track_on_each_of_its_cpus() {
        let mut session = session();
        session.samples[0].1 = 1;
        let profile = exported(&session);
        is_valid(&profile);
        let track = |thread: &Value| {
            let length = thread["samples"]["length"].as_u64().unwrap();
            (thread["name"].as_str().unwrap().to_owned(), length)
        };
        let tracks: Vec<_> = array(&profile, "threads").iter().map(track).collect();
        let expected = [
            ("driver CPU 0", 99),
            ("driver CPU 1", 1),
            ("guest CPU 0", 0),
        ];
        assert_eq!(
            tracks,
            expected.map(|(name, n)| (name.to_owned(), n)),
            "idle has none"
        );
    }

    #[test]
    fn another_event_has_tracks_without_cpu_time() {
        let profile = exported(&with_page_faults());
        is_valid(&profile);
        let threads = array(&profile, "threads");
        let names: Vec<&Value> = threads.iter().map(|thread| &thread["name"]).collect();
        let driver = ["driver CPU 0", "driver CPU 0 page-faults"];
        assert_eq!(names, [driver[0], driver[1], "guest CPU 0"]);
        let lengths = |thread: &Value| thread["samples"]["length"].as_u64().unwrap();
        assert_eq!([&threads[0], &threads[1]].map(lengths), [100, 120]);
        let has_time = |thread: &Value| thread["samples"]["threadCPUDelta"].is_array();
        assert_eq!([&threads[0], &threads[1]].map(has_time), [true, false]);
        assert_eq!(threads[0]["pid"], threads[1]["pid"]);
        assert_ne!(threads[0]["tid"], threads[1]["tid"]);
        let has_markers = |thread: &Value| thread["markers"]["length"] != 0;
        assert_eq!([&threads[0], &threads[1]].map(has_markers), [true, false]);
    }

    #[test]
    fn markers_are_in_a_track_of_their_domain() {
        let profile = exported(&session());
        let text =
            |index: &Value| &profile["shared"]["stringArray"][index.as_u64().unwrap() as usize];
        let of = |name: &str| {
            let threads = array(&profile, "threads").iter();
            let mut found = threads.filter(|thread| thread["name"] == name);
            found.next().unwrap_or_else(|| panic!("no thread {name}"))
        };
        let driver = &of("driver CPU 0")["markers"];
        assert_eq!(driver["length"], 2);
        assert_eq!(text(&driver["name"][0]), "Restart");
        assert_eq!(driver["startTime"][0], 10.0);
        assert_eq!(driver["endTime"][0], 30.0);
        let drops = json!({"type": "Drops", "frames": 7, "reasons": "no_request 5, too_long 2"});
        assert_eq!(driver["data"][1], drops);
        // The guest has no samples.
        let guest = of("guest CPU 0");
        assert_eq!(guest["samples"]["length"], 0);
        assert_eq!(guest["showMarkersInTimeline"], true);
        let grants = json!({"type": "Grants", "granted": 64, "revoked": 3, "forced": 0});
        assert_eq!(guest["markers"]["data"][0], grants);
    }

    #[test]
    fn frames_have_libraries_symbols_and_lines() {
        let mut session = session();
        // `copy` is inlined in `run`.
        session.frames[1].inlined = true;
        session.frames[1].code = session.frames[0].code;
        let profile = exported(&session);
        is_valid(&profile);
        let shared = &profile["shared"];
        let text = |index: &Value| &shared["stringArray"][index.as_u64().unwrap() as usize];
        let frames = &shared["frameTable"];
        let name_of = |frame: usize| {
            let function = frames["func"][frame].as_u64().unwrap() as usize;
            text(&shared["funcTable"]["name"][function])
        };
        let all = 0..frames["length"].as_u64().unwrap() as usize;
        let copy = all
            .clone()
            .find(|at| name_of(*at) == "shmem::engine::copy")
            .unwrap();
        assert_eq!(frames["line"][copy], 20);
        assert_eq!(frames["address"][copy], 0x1010);
        assert_eq!(frames["inlineDepth"][copy], 1);
        let native = frames["nativeSymbol"][copy].as_u64().unwrap() as usize;
        let natives = &shared["nativeSymbols"];
        assert_eq!(text(&natives["name"][native]), "driver::turn::run");
        assert_eq!(natives["address"][native], 0x1000);
        let library = &profile["libs"][natives["libIndex"][native].as_u64().unwrap() as usize];
        assert_eq!(library["codeId"], "c0de");
        assert!(all.clone().any(|at| name_of(at) == "tcp_v4_rcv [kernel]"));
    }
}
