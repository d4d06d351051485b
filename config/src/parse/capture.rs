//! Reads the keys of capture files.

use crate::model::CaptureFiles;
use crate::table::TomlTable;

pub(super) fn files(t: &TomlTable<'_, '_>) -> CaptureFiles {
    let usual = CaptureFiles::default();
    CaptureFiles {
        read: t.text("read"),
        write: t.text("write"),
        write_mib: t.number("write_mib").unwrap_or(usual.write_mib),
    }
}
