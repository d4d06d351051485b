//! Profiles with a hostile author: files, and sessions of agents.

use crate::input::Input;
use xenoprof::attribute::Classing;
use xenoprof::attribute::rules::Rules;
use xenoprof::loss::Loss;
use xenoprof::model::{
    BridgeTraffic, CallStack, Code, DomainKind, HopLedger, Location, Mode, Module, ProfiledDomain,
    Sample, SampledEvent, Session, Space, StackFrame, Thread, Tier, file,
};
use xenoprof::select::Selection;
use xenoprof::show::diff::Diff;
use xenoprof::show::report::{Form, Listing};
use xenoprof::show::{export, flame, pprof, report, script};

/// Names with a special meaning for a terminal, a folded stack, XML or a path.
const NAMES: [&str; 16] = [
    "f 18446744073709551615",
    "f 1.5",
    "a;b",
    "</title><script>x()</script>",
    "]]><a href=\"x\">",
    "&amp;<!--",
    "\"'",
    "\u{1b}[2J",
    "\u{9b}2J",
    "\u{202e}",
    "../a",
    "/",
    "#",
    " ",
    "a_[k]",
    "=1+1",
];
/// Elements of a picture; nothing else begins with `<`.
const ELEMENTS: [&str; 12] = [
    "?xml",
    "!DOCTYPE",
    "!--",
    "svg",
    "defs",
    "linearGradient",
    "stop",
    "style",
    "rect",
    "text",
    "g",
    "title",
];

/// Reads a profile with mostly well-formed lines. An accepted profile is unchanged after a round
/// trip, and every form shows it without terminal control codes. Its pictures contain only elements
/// of the kinds that every picture contains.
pub fn profiles(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut text = Vec::new();
    file::write(&mut text, &session(&mut input)).expect("memory can be written");
    for _ in 0..input.below(4) {
        let at = usize::from(input.u16()) % text.len();
        match input.below(3) {
            0 => drop(text.remove(at)),
            1 => text.insert(at, input.u8()),
            _ => text
                .iter_mut()
                .skip(at)
                .take(1)
                .for_each(|b| *b = input.u8()),
        }
    }
    if input.below(8) != 0 {
        sign(&mut text);
    }
    let Ok(session) = file::from_bytes(&text) else {
        return;
    };
    let mut again = Vec::new();
    file::write(&mut again, &session).expect("memory can be written");
    let again = file::from_bytes(&again).expect("what was written can be read");
    assert!(again == session, "{}", String::from_utf8_lossy(&text));

    let rules = Rules::thesis();
    for form in [Form::Text, Form::Json, Form::Csv] {
        for classing in [Classing::Nearest, Classing::Flat] {
            let mut shown = Vec::new();
            let listing = Listing {
                children: input.bool(),
                callers: input.bool(),
                lines: input.bool(),
                ..Listing::first(3)
            };
            report(&session, &rules, classing, form, &listing, &mut shown).expect("can be shown");
            let shown = String::from_utf8(shown).expect("text");
            has_no_control_codes(&shown);
        }
    }
    let diff = Diff::new(&session, &session, &rules, Classing::Nearest, None);
    has_no_control_codes(&diff.text(3));
    for domain in [None, Some(0), Some(1)] {
        let mut picture = Vec::new();
        // The session may have no sample to draw.
        if flame::picture(&session, &rules, domain, &mut picture).is_ok() {
            is_a_picture(&String::from_utf8(picture).expect("XML is text"));
        }
    }
    export::firefox(&session, &rules, Vec::new()).expect("can be exported");
    let mut text = Vec::new();
    script::folded(&session, &mut text).expect("can be exported");
    has_no_control_codes(&String::from_utf8(std::mem::take(&mut text)).expect("text"));
    script::perf(&session, &mut text).expect("can be exported");
    has_no_control_codes(&String::from_utf8(text).expect("text").replace('\t', ""));
    pprof::write(&session, &mut Vec::new()).expect("can be exported");
    shows_a_part(&mut input, session, &rules);
}

/// Checks a report of some of a session's time.
fn shows_a_part(input: &mut Input<'_>, session: Session, rules: &Rules) {
    let from = f64::from(input.u8()) / 1e3;
    let selection = Selection {
        threads: Vec::new(),
        time: format!("{from},{}", from + 0.1).parse().ok(),
        event: None,
    };
    // This time may have no samples.
    let Ok(part) = selection.apply(session) else {
        return;
    };
    let listing = Listing {
        selection: Some(&selection),
        ..Listing::first(3)
    };
    let mut shown = Vec::new();
    let (form, classing) = (Form::Text, Classing::Nearest);
    report(&part, rules, classing, form, &listing, &mut shown).expect("can be shown");
    has_no_control_codes(&String::from_utf8(shown).expect("text"));
}

fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn has_no_control_codes(shown: &str) {
    let is_active = |c: char| c != '\n' && is_active(c);
    assert!(!shown.contains(is_active), "{shown:?}");
}

/// Checks that no name in a picture has opened an element, and that the picture contains only the
/// program's own script.
fn is_a_picture(picture: &str) {
    assert_eq!(picture.matches("<script").count(), 1, "{picture}");
    assert!(
        !picture.contains(|c| c != '\n' && c != '\t' && is_active(c)),
        "{picture:?}"
    );
    let (before, rest) = picture.split_once("<script").expect("a script");
    let (_, after) = rest.split_once("</script>").expect("the script's end");
    for part in [before, after] {
        for element in part.split('<').skip(1) {
            let name = element.strip_prefix('/').unwrap_or(element);
            let is_known = ELEMENTS.iter().any(|known| name.starts_with(known));
            assert!(is_known, "<{element}");
        }
    }
}

/// Replaces the last line with an end record that has the correct number and checksum of the other
/// lines.
fn sign(text: &mut Vec<u8>) {
    let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    let kept = lines.len().saturating_sub(1);
    let mut signed = lines.get(..kept).unwrap_or_default().concat();
    let crc = crc32fast::hash(&signed);
    let end = format!("{{\"end\":{{\"lines\":{kept},\"crc32\":{crc}}}}}\n");
    signed.extend(end.into_bytes());
    *text = signed;
}

/// Returns a session whose references are mostly valid.
fn session(input: &mut Input<'_>) -> Session {
    let mut session = Session::default();
    session.head.version = file::VERSION;
    session.head.period = number(input);
    session.head.ran_ns = number(input);
    session.head.tsc_hz = number(input);
    session.head.cpus = (0..input.below(3) as u32).collect();
    session.head.event = name(input);
    session.head.more_events = several(input, |input| SampledEvent {
        event: name(input),
        tier: Tier::Software,
        period: number(input),
    });
    session.head.command = vec![session.head.event.clone()];
    session.head.notes = vec![session.head.event.clone()];
    session.head.provenance = session.head.event.clone().into();
    session.domains = several(input, domain);
    session.threads = several(input, |input| Thread {
        pid: input.u32(),
        tid: input.u32(),
        name: name(input),
        domain: input.below(4) as u32,
    });
    session.modules = several(input, |input| Module {
        path: name(input),
        space: if input.bool() {
            Space::Kernel
        } else {
            Space::User
        },
        build_id: input.bool().then(|| name(input)),
    });
    session.files = several(input, name);
    session.frames = several(input, |input| StackFrame {
        module: input.below(4) as u32,
        symbol: name(input),
        inlined: input.bool(),
        code: input.bool().then(|| Code(number(input), number(input))),
        source: input
            .bool()
            .then(|| Location(input.below(4) as u32, input.u32())),
    });
    session.stacks = several(input, |input| {
        let caller = input.bool().then(|| input.below(3) as u32);
        CallStack(caller, input.below(4) as u32)
    });
    session.samples = several(input, |input| {
        let (cpu, thread) = (input.below(3) as u32, input.below(4) as u32);
        Sample(
            number(input),
            cpu,
            thread,
            input.below(4) as u32,
            input.below(3) as u32,
        )
    });
    session.losses = several(input, |input| Loss {
        event: input.below(3) as u32,
        throttled: input.u64(),
        cpu: input.below(3) as u32,
        domain: input.bool().then(|| input.below(4) as u32),
        expected: number(input),
        delivered: number(input),
        kernel_lost: number(input),
        ring_dropped: number(input),
        steal: number(input),
        silent: number(input).cast_signed(),
    });
    session
}

fn domain(input: &mut Input<'_>) -> ProfiledDomain {
    let kinds = [
        DomainKind::Driver,
        DomainKind::Guest,
        DomainKind::Process,
        DomainKind::Idle,
    ];
    let modes = [Mode::Active, Mode::Passive, Mode::AgentOnly];
    ProfiledDomain {
        name: name(input),
        kind: kinds
            .get(input.below(5))
            .copied()
            .unwrap_or(DomainKind::Other),
        mode: modes.get(input.below(3)).copied().unwrap_or(Mode::Passive),
        cpu_ns: input.bool().then(|| number(input)),
        agent_ns: input.bool().then(|| number(input)),
        ledger: input.bool().then(|| HopLedger {
            corrected: input.u64(),
            waited_ns: input.u64(),
            preempted: input.u64(),
            hops: [(name(input), number(input))].into(),
            cpu_ns: number(input),
            stamps: number(input),
        }),
        traffic: input.bool().then(|| BridgeTraffic {
            frames: number(input),
            bytes: number(input),
        }),
        buffer: None,
        missing: input.bool().then(|| name(input)),
    }
}

fn several<T>(input: &mut Input<'_>, mut one: impl FnMut(&mut Input<'_>) -> T) -> Vec<T> {
    (0..input.below(5)).map(|_| one(input)).collect()
}

/// Returns mostly a small number, sometimes any number.
fn number(input: &mut Input<'_>) -> u64 {
    match input.u8() {
        255 => input.u64(),
        254 => u64::MAX,
        small => u64::from(small),
    }
}

fn name(input: &mut Input<'_>) -> String {
    let choice = usize::from(input.u8());
    if let Some(name) = choice.checked_sub(240).and_then(|at| NAMES.get(at)) {
        return (*name).to_owned();
    }
    String::from_utf8_lossy(input.bytes(choice % 6)).into_owned()
}
