//! The fuzz bodies on random bytes, on every seed and on every regression.

use fuzz_bodies::BODIES;
use proptest::prelude::*;
use std::path::Path;

macro_rules! properties {
    ($($name:ident)*) => {
        $(proptest! {
            #![proptest_config(ProptestConfig {
                cases: 1024,
                max_shrink_iters: 4096,
                ..ProptestConfig::default()
            })]
            #[test]
            fn $name(bytes in prop::collection::vec(any::<u8>(), 0..1500)) {
                fuzz_bodies::$name(&bytes);
            }
        })*
    };
}

properties! {
    ring netif hypercalls frames bridge lro flows config captures profiles control records state
    sessions xenstore containers metrics kernel dma vhost
}

/// Runs each file `<body>-<description>` of a folder through its body.
fn run_all(folder: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let body = BODIES
            .iter()
            .find(|body| name.starts_with(&format!("{}-", body.0)));
        let (_, body) = body.unwrap_or_else(|| panic!("{name} names no body"));
        body(&std::fs::read(&path).unwrap());
    }
}

#[test]
fn regressions_stay_fixed() {
    run_all("regressions");
}

#[test]
fn seeds_break_no_guarantee() {
    run_all("seeds");
}

/// libFuzzer runs the same bodies as these tests and as `smoke`.
#[test]
fn every_body_has_a_target() {
    let targets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz_targets");
    for (name, _) in BODIES {
        let text = std::fs::read_to_string(targets.join(format!("{name}.rs"))).unwrap();
        assert!(
            text.contains(&format!("fuzz_bodies::{name}(bytes)")),
            "{name}"
        );
    }
    assert_eq!(std::fs::read_dir(targets).unwrap().count(), BODIES.len());
}

#[test]
fn empty_and_uniform_inputs_are_handled() {
    for (_, body) in BODIES {
        for byte in [0, 1, 0x7f, 0xff] {
            body(&vec![byte; 3000]);
        }
        body(&[]);
    }
}
