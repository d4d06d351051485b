//! Example crates: with cycles of each kind, and without.

use super::*;
use std::fs;

/// Returns the cycles of a crate with these files. The first file is its root.
fn cycles_of(files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    cycles_of_crate("planted", &folder.path().join(files[0].0)).unwrap()
}

#[track_caller]
fn expect_cycle(files: &[(&str, &str)], wanted: &str) {
    let found = cycles_of(files);
    let found: Vec<&String> = (found.iter())
        .filter(|line| line.starts_with("cycle"))
        .collect();
    assert_eq!(found, [&format!("cycle in planted: {wanted}")]);
}

#[track_caller]
fn expect_no_cycle(files: &[(&str, &str)]) {
    assert_eq!(cycles_of(files), [""; 0]);
}

#[test]
fn cycles_by_imports_are_found() {
    expect_cycle(
        &[
            ("lib.rs", "mod a;\nmod b;"),
            ("a.rs", "use crate::b::B;\npub struct A(B);"),
            (
                "b.rs",
                "\nuse super::{a::{A as Other}};\npub struct B(Other);",
            ),
        ],
        "a.rs:1 (B) -> b.rs:2 (A) -> a.rs",
    );
}

#[test]
fn by_paths_in_code() {
    expect_cycle(
        &[
            ("lib.rs", "mod a;\nmod b;"),
            ("a.rs", "pub fn f() {\n    super::b::g();\n}"),
            ("b.rs", "pub fn g() {\n    let f = crate::a::f;\n}"),
        ],
        "a.rs:2 (g) -> b.rs:2 (f) -> a.rs",
    );
}

#[test]
fn by_paths_through_an_imported_module() {
    expect_cycle(
        &[
            ("lib.rs", "mod a;\nmod b;"),
            ("a.rs", "use crate::b;\n\npub type A = b::B;"),
            ("b.rs", "pub enum B { One }\nfn f(_: super::a::A) {}"),
        ],
        "a.rs:3 (B) -> b.rs:2 (A) -> a.rs",
    );
}

#[test]
fn by_a_re_export() {
    expect_cycle(
        &[
            ("lib.rs", "mod a;\nmod b;\npub use b::*;"),
            ("a.rs", "pub use crate::B;\npub struct A;"),
            ("b/mod.rs", "mod c;\npub use c::B;"),
            ("b/c.rs", "use crate::a::A;\npub struct B(A);"),
        ],
        "a.rs:1 (B) -> b/c.rs:1 (A) -> a.rs",
    );
}

#[test]
fn cycles_by_globs_are_found() {
    expect_cycle(
        &[
            ("lib.rs", "mod a;\nmod b;"),
            ("a.rs", "use crate::b::*;\npub fn f(b: B) { h(b) }"),
            (
                "b.rs",
                "use super::a;\npub struct B;\npub fn h(_: B) { a::f }",
            ),
        ],
        "a.rs:2 (B, h) -> b.rs:3 (f) -> a.rs",
    );
}

#[test]
fn by_parent_and_child() {
    let child = "use super::Parent;\nimpl Parent { fn f(&self) {} }\npub struct Child;";
    expect_cycle(
        &[
            ("lib.rs", "mod a;"),
            (
                "a/mod.rs",
                "mod child;\nuse child::Child;\npub struct Parent(Child);",
            ),
            ("a/child.rs", child),
        ],
        "a/mod.rs:2 (Child) -> a/child.rs:1 (Parent) -> a/mod.rs",
    );
    expect_cycle(
        &[
            ("lib.rs", "mod a;"),
            (
                "a.rs",
                "mod child;\npub use child::Child;\npub struct Parent(Child);",
            ),
            ("a/child.rs", child),
        ],
        "a.rs:3 (Child) -> a/child.rs:1 (Parent) -> a.rs",
    );
    expect_no_cycle(&[
        ("lib.rs", "mod a;"),
        (
            "a.rs",
            "mod child;\npub use child::Child;\npub struct Parent;",
        ),
        ("a/child.rs", child),
    ]);
}

#[test]
fn cycles_by_macros_are_found() {
    expect_cycle(
        &[
            ("lib.rs", "#[macro_use]\nmod a;\nmod b;"),
            (
                "a.rs",
                "macro_rules! m { () => { $crate::b::f() }; }\npub(crate) use m;",
            ),
            ("b.rs", "pub fn f() {}\nfn g() { crate::a::m!(); }"),
        ],
        "a.rs:1 (f) -> b.rs:2 (m) -> a.rs",
    );
    expect_cycle(
        &[
            ("lib.rs", "mod a;\nmod b;"),
            (
                "a.rs",
                "fn f() { println!(\"{}\", [super::b::MAX + 1][0]) }\npub struct A;",
            ),
            (
                "b.rs",
                "pub const MAX: u8 = 1;\nfn g() -> crate::a::A { panic!() }",
            ),
        ],
        "a.rs:1 (MAX) -> b.rs:2 (A) -> a.rs",
    );
    expect_cycle(
        &[
            (
                "lib.rs",
                "macro_rules! id { ($n:ident) => { pub struct $n; }; }\nmod a;\nfn f(_: a::A) {}",
            ),
            ("a.rs", "id!(A);"),
        ],
        "lib.rs:3 (A) -> a.rs:1 (id!) -> lib.rs",
    );
}

#[test]
fn cycles_across_files_and_folders_are_found() {
    let files = [
        ("main.rs", "mod a;\nmod b;\nmod c;\nfn main() { a::f() }"),
        ("a.rs", "pub fn f() { crate::b::f() }"),
        ("b/mod.rs", "mod d;\npub fn f() { d::f() }"),
        ("b/d.rs", "use crate::c;\npub fn f() { c::inner::f() }"),
        (
            "c.rs",
            "pub mod inner {\n    pub fn f() { super::super::a::f() }\n}",
        ),
    ];
    let found = cycles_of(&files);
    assert_eq!(
        found,
        [
            "4 files of planted depend on each other: a.rs b/mod.rs b/d.rs c.rs",
            "cycle in planted: a.rs:1 (f) -> b/mod.rs:2 (f) -> b/d.rs:2 (f) -> c.rs:2 (f) -> a.rs",
        ]
    );
}

#[test]
fn none_by_tests_and_re_exports_of_others() {
    expect_no_cycle(&[
        ("lib.rs", "mod a;\nmod b;\npub use a::A;\npub use b::B;"),
        (
            "a.rs",
            "pub struct A;\n#[cfg(test)]\nmod tests {\n    use crate::B;\n}\n\
             #[cfg(test)]\nuse crate::b::B;\n#[cfg(all(test, loom))]\nmod model;",
        ),
        ("a/model.rs", "use crate::B;"),
        ("b.rs", "use crate::A;\npub struct B(A);"),
    ]);
}

#[test]
fn no_cycle_through_similar_names() {
    expect_no_cycle(&[
        ("lib.rs", "mod a;\nmod b;"),
        (
            "a.rs",
            "pub fn f() {}\npub fn g() {}\npub struct T;\nstruct Hidden;",
        ),
        (
            "b.rs",
            "use super::a::*;\nuse std::fmt::*;\npub struct B { g: u8 }\n\
             fn h<T>(_: T, f: u8) { let _ = (f, Self::f, other::a::f, Hidden); g() }",
        ),
    ]);
    expect_no_cycle(&[
        ("lib.rs", "mod a;\nmod b;"),
        (
            "a.rs",
            "use crate::b::B;\npub fn f() {}\npub fn g(_: B) {}\npub struct T;\nstruct Hidden;",
        ),
        (
            "b.rs",
            "use super::a::*;\nuse std::fmt::*;\npub struct B { g: u8 }\n\
             fn h<T>(_: T, f: u8) { let _ = (f, Self::f, other::a::f, Hidden, |g| g); }",
        ),
    ]);
}

#[test]
fn none_by_vectors_of_the_standard_library() {
    expect_no_cycle(&[
        ("lib.rs", "mod vec;\nmod b;"),
        ("vec.rs", "use crate::b::B;\npub struct V(B);"),
        (
            "b.rs",
            "use std::vec::Vec;\nuse ::std::vec;\npub struct B(Vec<u8>);\nfn f() { std::vec::V }",
        ),
    ]);
}
