use super::*;
use crate::model::NAME_MAX;
use crate::testing::{session, with_page_faults};

fn bytes() -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, &session()).unwrap();
    out
}

#[test]
fn written_sessions_can_be_read() {
    assert_eq!(parse(&bytes()[..]).unwrap(), session());
    let both = with_page_faults();
    let mut out = Vec::new();
    write(&mut out, &both).unwrap();
    assert_eq!(from_bytes(&out).unwrap(), both);
}

/// Returns the bytes with a valid last line.
fn signed(text: &str) -> Vec<u8> {
    let mut lines: Vec<&str> = text.split_inclusive('\n').collect();
    lines.pop();
    let end = End {
        lines: lines.len() as u64,
        crc32: crc32fast::hash(lines.concat().as_bytes()),
    };
    let end = serde_json::to_string(&Line::End(end)).unwrap();
    format!("{}{end}\n", lines.concat()).into()
}

/// Version 3 has the same lines as a session of one event.
#[test]
fn files_of_earlier_versions_are_read() {
    let text = String::from_utf8(bytes()).unwrap();
    assert!(text.contains("{\"sample\":[0,0,0,1]}") && !text.contains("event\":0"));
    for version in OLDEST..VERSION {
        let number = format!("\"version\":{version}");
        let earlier = signed(&text.replacen("\"version\":4", &number, 1));
        let read = from_bytes(&earlier).unwrap();
        assert_eq!(
            (read.head.version, read.samples),
            (version, session().samples)
        );
    }
}

#[test]
fn too_many_events_are_rejected() {
    let mut many = with_page_faults();
    many.head.more_events = vec![many.head.more_events[0].clone(); EVENTS_MAX];
    let mut out = Vec::new();
    write(&mut out, &many).unwrap();
    let error = from_bytes(&out).unwrap_err();
    assert_eq!(error, "line 1: more than 64 events");
}

#[test]
fn truncated_files_are_rejected() {
    let whole = bytes();
    for len in 0..whole.len() {
        assert!(parse(&whole[..len]).is_err(), "{len}");
    }
}

#[test]
fn modified_bytes_are_rejected() {
    let whole = bytes();
    for at in 0..whole.len() {
        for flip in [1, 0x20] {
            let mut changed = whole.clone();
            changed[at] ^= flip;
            if let Ok(read) = parse(&changed[..]) {
                assert_eq!(read, session(), "byte {at} ^ {flip}");
            }
        }
    }
}

fn refused(lines: &[&str]) -> String {
    let whole = String::from_utf8(bytes()).unwrap();
    let head = whole.lines().next().unwrap();
    let text: String = std::iter::once(head)
        .chain(lines.iter().copied())
        .map(|line| format!("{line}\n"))
        .collect();
    match parse(text.as_bytes()) {
        Err(Problem::Damaged(line, what)) => format!("{line}: {what}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn dangling_references_are_rejected() {
    assert_eq!(refused(&[r#"{"stack":[0,0]}"#]), "2: no stack 0");
    assert_eq!(refused(&[r#"{"stack":[null,7]}"#]), "2: no frame 7");
    assert_eq!(refused(&[r#"{"sample":[0,0,3,0]}"#]), "2: no thread 3");
    assert_eq!(refused(&[r#"{"sample":[0,0,0,0,1]}"#]), "2: no event 1");
    let marker = r#"{"marker":{"domain":4,"kind":"drops","from_ns":1,"to_ns":2}}"#;
    assert_eq!(refused(&[marker]), "2: no domain 4");
    assert_eq!(
        refused(&[r#"{"frame":{"module":1,"symbol":"f"}}"#]),
        "2: no module 1"
    );
    let module = r#"{"module":{"path":"/k","space":"kernel"}}"#;
    assert_eq!(
        refused(&[module, &bytes_line(1)]),
        "3: this line is out of order"
    );
    let line = r#"{"frame":{"module":0,"symbol":"f","source":[2,1]}}"#;
    assert_eq!(refused(&[module, line]), "3: no file 2");
    assert!(refused(&[r#"{"surprise":1}"#]).starts_with("2: unknown variant"));
}

fn bytes_line(at: usize) -> String {
    let whole = String::from_utf8(bytes()).unwrap();
    whole.lines().nth(at).unwrap().to_owned()
}

/// The cost of a sample grows with the depth of its stack.
#[test]
fn endless_stacks_are_rejected() {
    let module = r#"{"module":{"path":"/k","space":"kernel"}}"#.to_owned();
    let frame = r#"{"frame":{"module":0,"symbol":"f"}}"#.to_owned();
    let outermost = r#"{"stack":[null,0]}"#.to_owned();
    let mut lines = vec![module, frame, outermost];
    lines.extend((0..DEPTH_MAX).map(|caller| format!("{{\"stack\":[{caller},0]}}")));
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let line = lines.len() + 1;
    assert_eq!(
        refused(&lines),
        format!("{line}: the stack has too many frames")
    );
    let cut = &lines[..lines.len() - 1];
    assert!(refused(cut).ends_with("the file is truncated here"));
}

#[test]
fn long_names_are_truncated() {
    let mut long = session();
    long.frames[0].symbol = "ü".repeat(NAME_MAX);
    let mut out = Vec::new();
    write(&mut out, &long).unwrap();
    let symbol = from_bytes(&out).unwrap().frames[0].symbol.clone();
    assert!(symbol.len() <= NAME_MAX && symbol.ends_with("ü…"));
}

#[test]
fn other_versions_are_rejected() {
    for text in ["", "\n", "{}\n", "\u{7f}ELF\n"] {
        let error = parse(text.as_bytes()).unwrap_err();
        let Problem::Damaged(1, what) = error else {
            panic!("{error:?}")
        };
        assert_eq!(what, "not a profile of grantway");
    }
    let later = String::from_utf8(bytes())
        .unwrap()
        .replacen("\"version\":4", "\"version\":5", 1);
    let error = parse(later.as_bytes()).unwrap_err();
    assert!(matches!(error, Problem::Damaged(1, what) if what.contains("version 5")));
}

#[test]
fn files_are_not_overwritten_or_left_behind() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.prof");
    drop(reserve(&path, false).unwrap());
    assert!(!path.exists(), "an unwritten file is removed");
    reserve(&path, false)
        .unwrap()
        .write(&path, &session())
        .unwrap();
    assert!(matches!(reserve(&path, false), Err(FileError::Exists(_))));
    drop(reserve(&path, true).unwrap());
    assert_eq!(read(&path).unwrap(), session(), "the old session is kept");
    let mut other = session();
    other.head.id = 7;
    reserve(&path, true).unwrap().write(&path, &other).unwrap();
    assert_eq!(read(&path).unwrap(), other);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn only_reservations_of_killed_recorders_are_reused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.prof");
    let mine = reserve(&path, false).unwrap();
    assert!(matches!(reserve(&path, false), Err(FileError::Exists(_))));
    drop(mine);
    File::create(&path).unwrap();
    reserve(&path, false)
        .unwrap()
        .write(&path, &session())
        .unwrap();
    assert_eq!(read(&path).unwrap(), session());
}

#[test]
fn a_device_is_written_directly() {
    let full = Path::new("/dev/full");
    let error = reserve(full, true).unwrap().write(full, &session());
    assert!(error.unwrap_err().to_string().contains("/dev/full: "));
    assert!(!std::fs::metadata(full).unwrap().is_file());
}

#[test]
fn names_lose_control_characters() {
    let mut hostile = session();
    hostile.threads[0].name = "\u{1b}]0;x\u{7}".to_owned();
    hostile.domains[0].missing = Some("a\nb".to_owned());
    let mut out = Vec::new();
    write(&mut out, &hostile).unwrap();
    let read = from_bytes(&out).unwrap();
    assert_eq!(read.threads[0].name, "\u{fffd}]0;x\u{fffd}");
    assert_eq!(read.domains[0].missing.as_deref(), Some("a\u{fffd}b"));
}
