//! The fuzz bodies on random bytes, and on every input that once found something.

use fuzz_bodies::BODIES;
use proptest::prelude::*;

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
    ring netif hypercalls frames bridge lro config captures profiles control records state sessions
    xenstore containers
}

/// Files `<body>-<what it was>` in `regressions/`.
#[test]
fn what_was_found_once_stays_fixed() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/regressions");
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let body = BODIES
            .iter()
            .find(|body| name.starts_with(&format!("{}-", body.0)));
        let (_, body) = body.unwrap_or_else(|| panic!("whose input is {name}?"));
        body(&std::fs::read(&path).unwrap());
    }
}

#[test]
fn no_bytes_and_equal_bytes_are_fine() {
    for (_, body) in BODIES {
        for byte in [0, 1, 0x7f, 0xff] {
            body(&vec![byte; 3000]);
        }
        body(&[]);
    }
}
