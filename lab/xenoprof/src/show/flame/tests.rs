use super::*;
use crate::model::{Sample, Thread};
use crate::testing::{session, with_page_faults};
use quick_xml::Reader;
use quick_xml::events::Event;

/// Parses the whole flame graph as XML and returns its texts.
fn texts_of(svg: &[u8]) -> String {
    let mut reader = Reader::from_reader(svg);
    reader.config_mut().check_end_names = true;
    let (mut buffer, mut depth, mut texts) = (Vec::new(), 0i32, String::new());
    loop {
        match reader.read_event_into(&mut buffer).expect("well-formed") {
            Event::Start(_) => depth += 1,
            Event::End(_) => depth -= 1,
            Event::Text(text) => texts.push_str(&text),
            Event::Eof => break,
            _ => {}
        }
        buffer.clear();
    }
    assert_eq!(depth, 0);
    texts
}

#[test]
fn flame_graphs_are_well_formed_and_name_functions() {
    let mut session = session();
    session.frames[1].symbol = "<shmem::Span as a::B<\"x\">>::copy; & more".to_owned();
    let mut svg = Vec::new();
    picture(&session, &Rules::thesis(), None, &mut svg).unwrap();
    let texts = texts_of(&svg);
    for name in ["driver", "tcp_v4_rcv", "driver::turn::run"] {
        assert!(texts.contains(name), "{name}");
    }
    assert!(!texts.contains("pv_native_safe_halt"), "idle is not drawn");
}

#[test]
fn symbols_are_escaped_in_flame_graphs() {
    let mut session = session();
    session.frames[1].symbol = "a\x1b]0;x\x07\u{202e};b\n\u{9b}".to_owned();
    session.domains[0].name = "driver\x1b[2J".to_owned();
    session.domains[0].ledger.as_mut().unwrap().hops = [("copy\x1b[2J".to_owned(), 1)].into();
    let active = |text: &str| text.chars().any(|c| c != '\n' && c.is_control());
    let mut svg = Vec::new();
    picture(&session, &Rules::thesis(), None, &mut svg).unwrap();
    assert!(!active(&texts_of(&svg)), "{}", texts_of(&svg));
    session.clean();
    let mut bytes = Vec::new();
    crate::model::file::write(&mut bytes, &session).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    assert!(!text.contains("u001b") && !active(&text), "{text}");
}

#[test]
fn widths_are_exact_times() {
    let mut session = session();
    session.domains[0].cpu_ns = Some(300_000_000);
    let lines = folded(&session, Some(0)).unwrap();
    assert_eq!(
        lines,
        [
            "driver;driver::turn::run;shmem::engine::copy 180000",
            "driver;driver::turn::run;tun_get_user;tcp_v4_rcv;tcp_v4_rcv 120000",
        ]
    );
}

/// Returns the colour of the frame with this function.
fn color_of<'a>(svg: &'a str, function: &str) -> &'a str {
    let title = format!("<title>{function} (");
    let (_, frame) = svg.split_once(&title).expect("the function is drawn");
    let (_, color) = frame.split_once("fill=\"").expect("a frame has a colour");
    color.split('"').next().unwrap()
}

#[test]
fn colors_are_those_of_the_legend() {
    let mut svg = Vec::new();
    picture(&session(), &Rules::thesis(), None, &mut svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    let (_, legend) = svg.split_once("<g id=\"legend\">").unwrap();
    let (legend, _) = legend.split_once("</g>").unwrap();
    let colors: Vec<&str> = legend.split("fill=\"").skip(1).collect();
    let of = |class: &str| {
        let at = colors
            .iter()
            .position(|rest| rest.contains(&format!(">{class}<")));
        let of = |at: usize| colors[at].split('"').next().unwrap();
        [of(at.unwrap() - 1), of(at.unwrap())]
    };
    assert_eq!(color_of(&svg, "shmem::engine::copy"), of("copy")[0]);
    assert_eq!(color_of(&svg, "tcp_v4_rcv"), of("network")[1]);
    assert!(!legend.contains("netfront"), "only classes in the picture");
}

#[test]
fn a_name_has_the_class_of_most_samples() {
    let mut session = session();
    // The frames are netback in the driver domain, with 60 samples, and netfront in the guest,
    // with one sample.
    session.frames[1].symbol = "vif::send".to_owned();
    session.threads.push(Thread {
        domain: 2,
        ..session.threads[0].clone()
    });
    session.samples.push(Sample(0, 0, 2, 1, 0));
    let mut svg = Vec::new();
    picture(&session, &Rules::thesis(), None, &mut svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    assert!(
        svg.contains(">netback<") && !svg.contains(">netfront<"),
        "{svg}"
    );
    let all = color_of(&svg, "vif::send").to_owned();
    let mut svg = Vec::new();
    picture(&session, &Rules::thesis(), Some(0), &mut svg).unwrap();
    assert_eq!(color_of(&String::from_utf8(svg).unwrap(), "vif::send"), all);
}

#[test]
fn other_processes_have_no_functions_among_domains() {
    let mut session = session();
    session.domains[0].kind = DomainKind::Other;
    let all = lines(&session, is_drawn(None), true).unwrap();
    assert_eq!(all.into_keys().collect::<Vec<_>>(), ["driver"]);
    assert_eq!(lines(&session, is_drawn(Some(0)), false).unwrap().len(), 2);
}

#[test]
fn differences_are_per_packet() {
    let (a, mut b) = (session(), session());
    b.domains[0].traffic.as_mut().unwrap().frames = 2000;
    b.domains[0].traffic.as_mut().unwrap().bytes = 2 * 1_514_000;
    let mut svg = Vec::new();
    differences([&a, &b], Some("driver"), &mut svg).unwrap();
    let texts = texts_of(&svg);
    assert!(texts.contains("driver: A to B"), "{texts}");
    // The widths are cycles of 1000 packets in B: half of those in A.
    let copy = "shmem::engine::copy (69,000,000 cycles per 1000 packets";
    assert!(texts.contains(copy), "{texts}");
    assert!(differences([&a, &b], Some("web"), Vec::new()).is_err());
}

#[test]
fn the_largest_rate_is_drawn() {
    let mut b = session();
    b.head.tsc_hz = u64::MAX;
    b.domains[0].cpu_ns = Some(u64::MAX);
    let mut svg = Vec::new();
    differences([&session(), &b], Some("driver"), &mut svg).unwrap();
    let texts = texts_of(&svg);
    let copy = "shmem::engine::copy (6,000,000,000,000,000 cycles";
    assert!(texts.contains(copy), "{texts}");
}

#[test]
fn a_trailing_number_is_part_of_the_name() {
    let mut session = session();
    for frame in &mut session.frames {
        frame.symbol = "f 18446744073709551615".to_owned();
    }
    let mut svg = Vec::new();
    picture(&session, &Rules::thesis(), Some(0), &mut svg).unwrap();
    let texts = texts_of(&svg);
    assert!(texts.contains("f\u{a0}18446744073709551615 ("), "{texts}");
    assert!(texts.contains("100,000 us"), "{texts}");
    // Only the flame graph of a comparison shows differences.
    assert!(!texts.contains("%; "), "{texts}");
}

#[test]
fn the_widest_domains_are_drawn() {
    let mut session = session();
    session.head.period = u64::MAX;
    let domain = session.domains[0].clone();
    session.domains.extend(std::iter::repeat_n(domain, 2000));
    for (index, domain) in session.domains.iter_mut().enumerate() {
        domain.cpu_ns = Some(u64::MAX);
        domain.kind = DomainKind::Process;
        domain.name = format!("d{index}");
    }
    let thread = session.threads[0].clone();
    let threads = (0..session.domains.len()).map(|domain| Thread {
        domain: domain as u32,
        ..thread.clone()
    });
    session.threads = threads.collect();
    let sample = session.samples[0];
    let samples = (0..session.threads.len()).map(|n| Sample(0, 0, n as u32, sample.3, 0));
    session.samples = samples.collect();
    picture(&session, &Rules::thesis(), None, Vec::new()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let error = files(&session, &Rules::thesis(), dir.path(), "x", None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "2003 domains are too many to draw: choose one with --domain"
    );
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none());
}

#[test]
fn profiles_that_would_fill_memory_are_rejected() {
    let mut session = session();
    session.frames[0].symbol = "x".repeat(crate::model::NAME_MAX);
    session.stacks = (0..1000u32)
        .map(|n| crate::model::CallStack(n.checked_sub(1), 0))
        .collect();
    session.samples = (0..1000).map(|n| Sample(0, 0, 0, n, 0)).collect();
    let error = picture(&session, &Rules::thesis(), None, Vec::new()).unwrap_err();
    assert!(
        error.to_string().contains("take more than 256 MiB"),
        "{error}"
    );
}

#[test]
fn a_domain_is_found_by_the_end_of_its_name() {
    let mut session = session();
    session.domains[0].name = "lane/driver".to_owned();
    assert_eq!(domain(&session, "driver").unwrap(), 0);
    session.domains[2].name = "frames/driver".to_owned();
    let error = domain(&session, "driver").unwrap_err().to_string();
    assert!(error.contains("lane/driver, frames/driver"), "{error}");
}

#[test]
fn file_names_stay_in_the_folder_and_distinct() {
    let mut session = session();
    session.domains[2].name = "../a".to_owned();
    session.domains[0].name = ".._a".to_owned();
    session.threads[1].domain = 2;
    let dir = tempfile::tempdir().unwrap();
    let written = files(&session, &Rules::thesis(), dir.path(), "x", None).unwrap();
    let names: Vec<_> = written
        .iter()
        .filter_map(|p| p.strip_prefix(dir.path()).ok())
        .collect();
    let expected = ["x.svg", "x-.._a.svg", "x-.._a-2.svg"].map(Path::new);
    assert_eq!(names, expected);
    session.domains[0].name = "ü".repeat(1000);
    files(&session, &Rules::thesis(), dir.path(), "x", None).unwrap();
}

#[test]
fn each_active_domain_has_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let paths = files(&session(), &Rules::thesis(), dir.path(), "x", None).unwrap();
    let names: Vec<_> = paths.iter().filter_map(|p| p.file_name()).collect();
    assert_eq!(names, ["x.svg", "x-driver.svg"]);
    let error = files(
        &session(),
        &Rules::thesis(),
        dir.path(),
        "x",
        Some("drvier"),
    )
    .unwrap_err();
    assert!(
        error.to_string().contains("known domains: driver"),
        "{error}"
    );
    assert!(picture(&session(), &Rules::thesis(), Some(2), Vec::new()).is_err());
}

#[test]
fn an_event_without_time_is_as_wide_as_its_number() {
    let both = with_page_faults();
    let mut svg = Vec::new();
    picture(&both, &Rules::thesis(), None, &mut svg).unwrap();
    assert!(texts_of(&svg).contains("all domains: 0.10 s of CPU time"));
    let mut svg = Vec::new();
    let faults = both.of_event(1);
    picture(&faults, &Rules::thesis(), None, &mut svg).unwrap();
    let texts = texts_of(&svg);
    for part in [
        "all domains: 240 page-faults",
        "shmem::engine::copy (180 page-faults, 75.00%)",
    ] {
        assert!(texts.contains(part), "{part}: {texts}");
    }
    let mut svg = Vec::new();
    differences([&faults, &faults], None, &mut svg).unwrap();
    let texts = texts_of(&svg);
    assert!(
        texts.contains("copy (180 page-faults per 1000 packets"),
        "{texts}"
    );
    let error = differences([&both, &faults], None, Vec::new())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("A has cpu-clock and B has page-faults"),
        "{error}"
    );
}
