//! Tests of a file in a guest's frames, which its station sends in place.

use super::errors;
use crate::domain::{FILE_GRANTS, GuestConfig};
use crate::parse::parse;

/// Returns a file with one guest. The guest's program sends, and has the keys `keys`.
fn text(driver: &str, keys: &str) -> String {
    format!(
        "[driver]\n{driver}\n[[guest]]\nname = \"a\"\n[[guest.vif]]\nendpoint = \"stack\"\n\
         addresses = [\"10.0.0.2/24\"]\n[[guest.vif.app]]\nkind = \"tcp-source\"\n\
         to = \"10.0.0.1:9\"\n{keys}"
    )
}

#[test]
fn a_file_has_separate_frames_and_grants() {
    let guest = |keys: &str| {
        let machine = parse("f", &text("", keys)).unwrap().machine().unwrap();
        let domain = machine.domains.last().unwrap().clone();
        let parsed: GuestConfig = serde_json::from_str(&domain.config).unwrap();
        (
            domain.frames,
            domain.grant_entries,
            parsed.vifs[0].file_pages,
        )
    };
    let (none, file) = (guest(""), guest("file_kb = 64"));
    assert_eq!((none.2, file.2, file.0 - none.0), (0, 16, 16));
    assert!(file.1 >= none.1 + FILE_GRANTS, "{} {}", file.1, none.1);
    // The number of granted pages does not depend on the size of the file.
    assert_eq!(guest("file_kb = 65536").1, file.1);
}

#[test]
fn a_file_that_cannot_be_sent_in_place_is_rejected() {
    for (driver, keys, wanted) in [
        ("", "file_kb = 6", "`file_kb` is 6; write a multiple of 4"),
        ("", "file_kb = 0", "`file_kb` is 0"),
        ("", "file_kb = 1000000", "`file_kb` is 1000000"),
        ("workers = 2", "file_kb = 8", "`file_kb` is 8; leave it out"),
    ] {
        let found = errors(&text(driver, keys));
        assert!(found.contains(wanted), "{keys}: {found}");
    }
    let far = "[[nic]]\nname = \"w\"\nkind = \"sim\"\naddresses = [\"10.0.0.1/24\"]\n\
               [[nic.app]]\nkind = \"tcp-source\"\nto = \"10.0.0.2:9\"\nfile_kb = 8\n";
    let found = errors(far);
    assert!(
        found.contains("such a file needs a guest's frames"),
        "{found}"
    );
}
