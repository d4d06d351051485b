use super::*;
use crate::host::process::mappings;
use crate::model::{CallStack, Code, Module, Sample};
use crate::testing::{session, with_page_faults};
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Symbolized, Symbolizer};

#[test]
fn a_function_is_found_by_the_end_of_its_path() {
    let session = session();
    for name in ["shmem::engine::copy", "engine::copy", "copy", "engine::c"] {
        let found = annotate(&session, name, None).unwrap();
        assert_eq!(found.function, "shmem::engine::copy", "{name}");
    }
    let error = |name: &str| annotate(&session, name, None).unwrap_err().to_string();
    let near = error("cpoy");
    assert!(
        near.contains("similar names: shmem::engine::copy"),
        "{near}"
    );
    let several = error("::");
    assert!(
        several.contains("driver::turn::run, shmem::engine::copy"),
        "{several}"
    );
    let kernel = error("tcp_v4_rcv");
    assert!(kernel.contains("is a function of the kernel"), "{kernel}");
}

#[test]
fn shares_are_of_each_domains_time() {
    let mut session = session();
    // A guest spends half of its time in the same function.
    let thread = crate::model::Thread {
        domain: 2,
        ..session.threads[0].clone()
    };
    session.threads.push(thread);
    session
        .samples
        .extend([Sample(0, 0, 2, 1, 0), Sample(0, 0, 2, 0, 0)]);
    let found = annotate(&session, "engine::copy", None).unwrap();
    assert_eq!(found.domains, ["driver", "guest"]);
    let own: Vec<f64> = found.shares.iter().map(|share| share.own).collect();
    assert_eq!(own, [0.6, 0.5]);
    let only = annotate(&session, "turn::run", Some("guest")).unwrap();
    assert_eq!(only.domains, ["guest"]);
    assert_eq!([only.shares[0].own, only.shares[0].total], [0.5, 1.0]);
    let line = only.lines.iter().find(|line| line.line == 10).unwrap();
    assert_eq!([line.shares[0].own, line.shares[0].total], [0.5, 1.0]);
}

#[test]
fn missing_files_are_named_with_a_remedy() {
    let mut session = session();
    session.modules[0].path = "/nonexistent/driver".to_owned();
    let text = annotate(&session, "copy", None).unwrap().text();
    assert!(text.contains("source /src/shmem/engine.rs: "), "{text}");
    assert!(
        text.contains("no instructions: /nonexistent/driver: "),
        "{text}"
    );
    // The sampled addresses remain.
    assert!(
        text.lines()
            .any(|line| line.split_whitespace().eq(["60.00", "2004", "?"])),
        "{text}"
    );
    session.frames[1].source = None;
    let text = annotate(&session, "copy", None).unwrap().text();
    assert!(
        text.contains("no source lines: /nonexistent/driver has no line"),
        "{text}"
    );
}

#[test]
fn a_source_file_that_blocks_is_no_source() {
    assert!(
        source("/dev/zero")
            .unwrap_err()
            .contains("not a regular file")
    );
    assert!(
        source("/rustc/x/library/core/src/lib.rs")
            .unwrap_err()
            .contains("rust-src")
    );
}

#[test]
fn a_program_that_blocks_has_no_instructions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&path).status();
    assert!(made.unwrap().success());
    let mut session = session();
    session.modules[0].path = path.to_str().unwrap().to_owned();
    let found = annotate(&session, "copy", None).unwrap();
    let is_named = |note: &String| note.ends_with("fifo: not a regular file");
    assert!(found.notes.iter().any(is_named), "{:?}", found.notes);
}

/// Returns a session with one sample, in this function of this program.
fn own_session() -> Session {
    let mut session = session();
    let path = std::env::current_exe().unwrap();
    let path = path.to_str().unwrap().to_owned();
    let address = own_session as *const () as u64;
    let mappings = mappings(std::process::id());
    let mapping = mappings
        .iter()
        .find(|m| (m.start..m.start + m.len).contains(&address))
        .unwrap();
    let offset = mapping.offset + (address - mapping.start);
    let (symbolizer, file) = (Symbolizer::new(), Source::Elf(Elf::new(&path)));
    let found = symbolizer.symbolize_single(&file, Input::FileOffset(offset));
    let Symbolized::Sym(symbol) = found.unwrap() else {
        panic!("this program has symbols");
    };
    session.modules = vec![Module {
        path,
        space: Space::User,
        build_id: None,
    }];
    session.files = vec![file!().to_owned()];
    session.frames.truncate(1);
    session.frames[0].symbol = symbol.name.to_string();
    session.frames[0].code = Some(Code(symbol.addr, symbol.addr));
    session.stacks = vec![CallStack(None, 0)];
    session.samples = vec![Sample(0, 0, 0, 0, 0)];
    session
}

#[test]
fn instructions_have_texts_and_lines() {
    let mut session = own_session();
    let found = annotate(&session, "own_session", None).unwrap();
    let first = &found.instructions[0];
    assert_eq!(first.shares[0].own, 1.0);
    assert!(
        first
            .text
            .as_ref()
            .is_some_and(|text| text.contains("push") || text.contains("sub")),
        "{first:?}"
    );
    let (file, line) = first.source.as_ref().unwrap();
    assert!(
        file.ends_with("annotate/tests.rs") && *line > 50,
        "{first:?}"
    );
    assert!(
        (2..=5).contains(&found.instructions.len()),
        "those around it"
    );
    session.modules[0].build_id = Some("00".to_owned());
    let other = annotate(&session, "own_session", None).unwrap();
    let is_rebuilt = |note: &String| note.contains("another build");
    assert!(other.notes.iter().any(is_rebuilt), "{:?}", other.notes);
    assert_eq!(other.instructions.len(), 1);
}

#[test]
fn samples_of_one_event_are_annotated() {
    let own = |session: &Session| annotate(session, "engine::copy", None).unwrap().shares[0].own;
    let both = with_page_faults();
    assert_eq!([own(&both), own(&both.of_event(1))], [0.6, 0.75]);
    let of = |session: &Session| annotate(session, "engine::copy", None).unwrap().text();
    assert!(!of(&both).contains("% of the"));
    assert!(of(&both.of_event(1)).contains("\n% of the page-faults\n"));
}
