//! Unwind tables of programs and libraries.
//!
//! The files belong to profiled processes and may contain anything: a malformed one has no tables.

use crate::host::files;
use crate::host::process::CodeMapping;
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::Arc;

/// Name of the mapping with the kernel's code for programs.
pub(crate) const VDSO: &str = "[vdso]";
/// Maximum bytes of one table.
const TABLE_MAX: u64 = 64 << 20;
/// Maximum bytes of a section with notes or the name of a debug file.
const LINK_MAX: u64 = 4096;
/// Maximum bytes of all tables.
const TABLES_MAX: usize = 1 << 30;
/// Size of the header.
const HEAD_BYTES: usize = 64;
/// Size of an entry of the table of sections.
const SECTION_BYTES: usize = 64;
/// Size of an entry of the table of segments.
const SEGMENT_BYTES: usize = 56;
/// Type of a section with notes.
const NOTES: u32 = 7;
/// Sections with the name of a further file with debug information.
const NAMES: [&[u8]; 3] = [DEBUG_LINK, b".gnu_debugaltlink\0", b".debug_sup\0"];
/// Section with the name of the debug file.
const DEBUG_LINK: &[u8] = b".gnu_debuglink\0";
/// Type and flag of a segment with code: loaded, executable.
const CODE: [u32; 2] = [1, 1];
/// Size of a page.
const PAGE: u64 = 4096;

/// A section and its addresses before relocation.
type Section = (Arc<[u8]>, Range<u64>);

/// The tables of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct Sections {
    /// `.eh_frame`.
    pub(super) frames: Option<Section>,
    /// `.eh_frame_hdr`, the index of `.eh_frame`.
    pub(super) header: Option<Section>,
    pub(super) segments: Segments,
}

/// Segments with code: address, offset in the file and size.
#[derive(Clone, Debug, Default)]
pub(crate) struct Segments(Vec<[u64; 3]>);

impl Segments {
    /// Returns the address, before relocation, of an offset in the file.
    pub(crate) fn address_of(&self, offset: u64) -> Option<u64> {
        self.0.iter().find_map(|&[address, from, len]| {
            // A mapping begins at a page boundary, but its segment may begin within that page.
            let mapped = from - from % PAGE..from.saturating_add(len);
            let is_in = mapped.contains(&offset);
            is_in.then(|| address.wrapping_sub(from).wrapping_add(offset))
        })
    }
}

/// References of a program to its debug information.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DebugLinks {
    /// Build id, in hexadecimal.
    pub(crate) build_id: Option<String>,
    /// Name of the debug file, and the CRC-32 of its contents.
    pub(crate) file: Option<(String, u32)>,
    /// Whether the program names further files with debug information, even by invalid names. A
    /// reader of the debug information opens them.
    pub(crate) names_files: bool,
    /// Whether the program has source lines itself.
    pub(crate) has_lines: bool,
}

impl Sections {
    fn bytes(&self) -> usize {
        let sections = [&self.frames, &self.header];
        let len = |section: &Option<Section>| section.as_ref().map_or(0, |(bytes, _)| bytes.len());
        sections.into_iter().map(len).sum()
    }
}

/// The tables of all files that are mapped.
#[derive(Default)]
pub(super) struct Files {
    /// The tables of each file, by device and inode.
    known: HashMap<(u64, u64), Option<Arc<Sections>>>,
    vdso: Option<Option<Arc<Sections>>>,
    bytes: usize,
    foreign: Foreign,
}

/// Maximum number of open files of other mount namespaces.
const FOREIGN_MAX: usize = 256;

/// Files that are not the host's files of the same path, because their processes have other mount
/// namespaces. They stay open: the namespace may end before their functions are named.
#[derive(Debug, Default)]
pub(crate) struct Foreign {
    /// The path and the open file, by device and inode.
    open: HashMap<(u64, u64), (String, File)>,
    /// The device and inode of each file, by process and path in its namespace.
    known: HashMap<(u32, String), (u64, u64)>,
}

impl Foreign {
    /// Adds the file that a process has mapped, if the host has another one at its path.
    fn add_if_foreign(&mut self, pid: u32, path: &str, file: &File, key: (u64, u64)) {
        let here = std::fs::metadata(path).ok();
        if here.is_some_and(|here| (here.dev(), here.ino()) == key) {
            return;
        }
        if !self.open.contains_key(&key) && self.open.len() < FOREIGN_MAX {
            let Ok(file) = file.try_clone() else {
                return;
            };
            let name = format!("/proc/{pid}/root{path}");
            self.open.insert(key, (name, file));
        }
        self.known.insert((pid, path.to_owned()), key);
    }

    /// Returns the path, in the host's mount namespace, of a file that a process has mapped.
    pub(crate) fn path(&self, pid: u32, path: &str) -> Option<&str> {
        let key = self.known.get(&(pid, path.to_owned()))?;
        self.open.get(key).map(|(name, _)| name.as_str())
    }

    /// Returns a process that has mapped the file whose path [`Self::path`] returned, the file's
    /// path below that process's root, and the file.
    pub(crate) fn file<'a>(&'a self, path: &'a str) -> Option<(u32, &'a str, &'a File)> {
        let (_, file) = self.open.values().find(|(name, _)| name == path)?;
        let (pid, inner) = path.strip_prefix("/proc/")?.split_once("/root")?;
        Some((pid.parse().ok()?, inner, file))
    }
}

impl Files {
    /// Returns the files of other mount namespaces.
    pub(super) fn into_foreign(self) -> Foreign {
        self.foreign
    }

    /// Returns the tables of a file that a process has mapped.
    pub(super) fn sections(&mut self, pid: u32, mapping: &CodeMapping) -> Option<Arc<Sections>> {
        let path = mapping.path.as_str();
        if path == VDSO {
            let read = || {
                let (memory, range) = vdso()?;
                parse(&memory, range.start).map(Arc::new)
            };
            return self.vdso.get_or_insert_with(read).clone();
        }
        if !path.starts_with('/') {
            return None;
        }
        let file = files::open_mapped(pid, mapping).ok()?;
        let status = file.metadata().ok()?;
        let key = (status.dev(), status.ino());
        self.foreign.add_if_foreign(pid, path, &file, key);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let read = || parse(&file, 0).map(Arc::new);
        let read = (self.bytes < TABLES_MAX).then(read).flatten();
        self.bytes += read.as_ref().map_or(0, |sections| sections.bytes());
        self.known.insert(key, read.clone());
        read
    }
}

/// Returns this process's memory and the range of its vDSO, which is the same in all processes.
pub(crate) fn vdso() -> Option<(File, Range<u64>)> {
    let mappings = crate::host::process::mappings(std::process::id());
    let mapping = mappings.into_iter().find(|mapping| mapping.path == VDSO)?;
    let memory = File::open("/proc/self/mem").ok()?;
    Some((memory, mapping.start..mapping.start + mapping.len))
}

/// An ELF file at an offset of a file.
struct Image<'a> {
    file: &'a File,
    at: u64,
    head: Arc<[u8]>,
}

impl<'a> Image<'a> {
    fn new(file: &'a File, at: u64) -> Option<Self> {
        let head = [].into();
        let mut image = Self { file, at, head };
        image.head = image.read(0, HEAD_BYTES)?;
        // 64 bits, little-endian.
        (image.head.get(..6)? == [0x7f, b'E', b'L', b'F', 2, 1]).then_some(image)
    }

    fn read(&self, offset: u64, len: usize) -> Option<Arc<[u8]>> {
        let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, len).collect();
        let offset = self.at.checked_add(offset)?;
        self.file
            .read_exact_at(Arc::get_mut(&mut bytes)?, offset)
            .ok()?;
        Some(bytes)
    }

    /// Reads a table of entries. The header has its offset and its length at these positions.
    fn table(&self, at: usize, counted_at: usize, entry: usize) -> Option<Arc<[u8]>> {
        let count = u16::from_le_bytes(*self.head.get(counted_at..)?.first_chunk()?);
        self.read(number(&self.head, at)?, usize::from(count) * entry)
    }

    fn segments(&self) -> Option<Segments> {
        let segments = self.table(32, 56, SEGMENT_BYTES)?;
        let segment = |entry: &[u8]| {
            let start = number(entry, 0)?;
            let [kind, flags] = [start as u32, (start >> 32) as u32];
            let values = [number(entry, 16)?, number(entry, 8)?, number(entry, 32)?];
            (kind == CODE[0] && flags & CODE[1] != 0).then_some(values)
        };
        let segments = segments.chunks_exact(SEGMENT_BYTES);
        Some(Segments(segments.filter_map(segment).collect()))
    }

    fn headers(&self) -> Option<Headers<'_>> {
        let sections = self.table(40, 60, SECTION_BYTES)?;
        let of_names = usize::from(u16::from_le_bytes(*self.head.get(62..)?.first_chunk()?));
        let entry = sections.chunks_exact(SECTION_BYTES).nth(of_names)?;
        let (names, _) = self.content(entry, TABLE_MAX)?;
        Some(Headers {
            image: self,
            sections,
            names,
        })
    }

    /// Reads the section of an entry, if it has at most `most` bytes.
    fn content(&self, entry: &[u8], most: u64) -> Option<Section> {
        let [address, offset, len] = [16, 24, 32].map(|at| number(entry, at));
        let (address, len) = (address?, len.filter(|len| *len <= most)?);
        let bytes = self.read(offset?, usize::try_from(len).ok()?)?;
        Some((bytes, address..address.checked_add(len)?))
    }
}

/// The sections of an ELF file.
struct Headers<'a> {
    image: &'a Image<'a>,
    sections: Arc<[u8]>,
    names: Arc<[u8]>,
}

impl Headers<'_> {
    /// Returns the entry of the section with this name, which ends with a zero.
    fn entry(&self, name: &[u8]) -> Option<&[u8]> {
        self.sections.chunks_exact(SECTION_BYTES).find(|entry| {
            let found = word(entry, 0).and_then(|at| self.names.get(at as usize..));
            found.is_some_and(|found| found.starts_with(name))
        })
    }

    fn section(&self, name: &[u8], most: u64) -> Option<Section> {
        self.image.content(self.entry(name)?, most)
    }

    /// Returns the build id, which any section with notes may contain.
    fn build_id(&self) -> Option<String> {
        let sections = self.sections.chunks_exact(SECTION_BYTES);
        let mut notes = sections.filter(|entry| word(entry, 4) == Some(NOTES));
        notes.find_map(|entry| {
            // Notes are aligned to 4 bytes, or to 8 in a section with this alignment.
            let align = number(entry, 48)?.clamp(4, 8);
            let (notes, _) = self.image.content(entry, LINK_MAX)?;
            build_id(&notes, align as usize)
        })
    }
}

/// Returns the segments of a file.
pub(crate) fn segments_of(file: &File) -> Option<Segments> {
    Image::new(file, 0)?.segments()
}

/// Returns the references of a file to its debug information.
pub(crate) fn debug_links(file: &File) -> Option<DebugLinks> {
    let image = Image::new(file, 0)?;
    let headers = image.headers()?;
    let link = headers.section(DEBUG_LINK, LINK_MAX);
    let has = |name: &[u8]| headers.entry(name).is_some();
    Some(DebugLinks {
        build_id: headers.build_id(),
        file: link.and_then(|(link, _)| debug_link(&link)),
        names_files: NAMES.into_iter().any(has),
        has_lines: has(b".debug_line\0") || has(b".zdebug_line\0"),
    })
}

/// Finds the build id among notes. A note consists of the lengths of its owner and of its contents,
/// its type, its owner, and its contents.
fn build_id(mut notes: &[u8], align: usize) -> Option<String> {
    const OWNER: &[u8] = b"GNU\0";
    const BUILD_ID: u32 = 3;
    const HEAD_BYTES: usize = 12;
    loop {
        let [owner, contents] = [word(notes, 0)?, word(notes, 4)?].map(|len| len as usize);
        let owner = HEAD_BYTES..HEAD_BYTES + owner;
        let start = owner.end.next_multiple_of(align);
        let contents = start..start + contents;
        let next = contents.end.next_multiple_of(align);
        let id = notes.get(contents).filter(|id| !id.is_empty());
        if word(notes, 8)? == BUILD_ID && notes.get(owner)? == OWNER {
            return Some(id?.iter().map(|byte| format!("{byte:02x}")).collect());
        }
        notes = notes.get(next..)?;
    }
}

/// Parses the name of a file, zeros up to the next word, and the checksum.
fn debug_link(link: &[u8]) -> Option<(String, u32)> {
    let len = link.iter().position(|byte| *byte == 0)?;
    let name = str::from_utf8(link.get(..len)?).ok()?;
    let sum = link.get((len + 1).next_multiple_of(4)..)?.first_chunk()?;
    let is_name = !matches!(name, "" | "." | "..") && !name.contains('/');
    is_name.then(|| (name.to_owned(), u32::from_le_bytes(*sum)))
}

/// Returns the offset in a file of the first function of its process.
pub(crate) fn start(file: &File) -> Option<u64> {
    let image = Image::new(file, 0)?;
    let entry = number(&image.head, 24).filter(|entry| *entry > 0)?;
    image
        .segments()?
        .0
        .into_iter()
        .find_map(|[address, from, len]| {
            let within = entry.checked_sub(address).filter(|within| *within < len)?;
            from.checked_add(within)
        })
}

/// Reads the code of a file at its addresses.
pub(crate) fn code(file: &File, range: &Range<u64>) -> Option<Arc<[u8]>> {
    let image = Image::new(file, 0)?;
    let [address, from, _] = image.segments()?.0.into_iter().find(|[address, _, len]| {
        let within = range.end.checked_sub(*address);
        range.start >= *address && within.is_some_and(|end| end <= *len)
    })?;
    let offset = from.checked_add(range.start - address)?;
    image.read(offset, usize::try_from(range.end - range.start).ok()?)
}

/// Reads the tables of the ELF file at an offset.
fn parse(file: &File, at: u64) -> Option<Sections> {
    let image = Image::new(file, at)?;
    let headers = image.headers()?;
    Some(Sections {
        frames: headers.section(b".eh_frame\0", TABLE_MAX),
        header: headers.section(b".eh_frame_hdr\0", TABLE_MAX),
        segments: image.segments()?,
    })
}

/// Returns the number of 32 bits at an offset.
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Returns the number of 64 bits at an offset.
fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Returns a mapping of a file, but not one of this process.
    fn unmapped(path: &str) -> CodeMapping {
        CodeMapping {
            start: 0x1000,
            len: 0x1000,
            offset: 0,
            path: path.to_owned(),
        }
    }

    #[test]
    fn tables_of_this_program_are_found() {
        let (pid, mut files) = (std::process::id(), Files::default());
        let program = std::env::current_exe().unwrap();
        let path = program.to_str().unwrap();
        let sections = files.sections(pid, &unmapped(path)).expect("a program");
        let (frames, at) = sections.frames.clone().expect("unwind tables");
        assert_eq!(frames.len() as u64, at.end - at.start);
        assert!(sections.header.is_some());
        let mappings = crate::host::process::mappings(pid);
        let offset = mappings.iter().find(|m| m.path == path).unwrap().offset;
        assert!(sections.segments.address_of(offset).is_some());
        assert_eq!(sections.segments.address_of(u64::MAX), None);
        let again = files.sections(pid, &unmapped(path)).unwrap();
        assert!(Arc::ptr_eq(&sections, &again), "a file is read once");
        assert!(
            files
                .sections(pid, &unmapped(VDSO))
                .is_some_and(|vdso| vdso.frames.is_some())
        );
    }

    #[test]
    fn files_of_other_mount_namespaces_stay_open() {
        let dir = tempfile::tempdir().unwrap();
        let [inside, outside] = ["a", "b"].map(|name| dir.path().join(name));
        std::fs::write(&inside, "inside").unwrap();
        std::fs::write(&outside, "outside").unwrap();
        let file = File::open(&inside).unwrap();
        let status = file.metadata().unwrap();
        let key = (status.dev(), status.ino());
        let mut foreign = Foreign::default();
        foreign.add_if_foreign(5, inside.to_str().unwrap(), &file, key);
        assert_eq!(
            foreign.path(5, inside.to_str().unwrap()),
            None,
            "the host's file"
        );
        let path = outside.to_str().unwrap();
        foreign.add_if_foreign(5, path, &file, key);
        foreign.add_if_foreign(6, path, &file, key);
        let name = foreign.path(6, path).expect("another file");
        assert_eq!(name, format!("/proc/5/root{path}"), "a file is open once");
        let (pid, inner, file) = foreign.file(name).unwrap();
        assert_eq!((pid, inner), (5, path));
        assert_eq!(file.metadata().unwrap().ino(), key.1);
        assert!(foreign.file(path).is_none() && foreign.path(7, path).is_none());
    }

    #[test]
    fn malformed_files_have_no_tables() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let whole = std::fs::read("/proc/self/exe").unwrap();
        let mut files = Files::default();
        let mut is_rejected = |bytes: &[u8]| {
            std::fs::remove_file(&path).ok();
            std::fs::write(&path, bytes).unwrap();
            let path = path.to_str().unwrap();
            files.known.clear();
            files
                .sections(std::process::id(), &unmapped(path))
                .is_none()
        };
        assert!(!is_rejected(&whole));
        for len in [0, 5, 63, 64, 200, whole.len() / 2] {
            assert!(is_rejected(&whole[..len]), "{len}");
        }
        let mut huge = whole[..64].to_vec();
        huge[32..48].fill(0xff);
        assert!(is_rejected(&huge));
    }

    #[test]
    fn build_ids_are_found_among_notes() {
        let note = |owner: &[u8], kind: u32, contents: &[u8], align: usize| {
            let mut note = Vec::new();
            let lens = [owner.len() as u32, contents.len() as u32, kind];
            note.extend(lens.iter().flat_map(|word| word.to_le_bytes()));
            for part in [owner, contents] {
                note.extend(part);
                note.resize(note.len().next_multiple_of(align), 0);
            }
            note
        };
        let id = |align| note(b"GNU\0", 3, &[0xab, 0x01, 0xff], align);
        for align in [4, 8] {
            let others = [
                note(b"Linux\0", 0, b"x", align),
                note(b"GNU\0", 1, b"abcd", align),
            ];
            let notes = [others.concat(), id(align)].concat();
            assert_eq!(build_id(&notes, align).unwrap(), "ab01ff", "{align}");
            assert_eq!(build_id(&others.concat(), align), None);
            assert_eq!(build_id(&notes[..notes.len() - 6], align), None, "cut");
        }
        assert_eq!(build_id(&note(b"GNU\0", 3, b"", 4), 4), None);
        assert_eq!(build_id(&[0xff; 40], 4), None);
    }

    /// The vDSO has its build id among other notes.
    #[test]
    fn the_vdso_has_a_build_id() {
        let (memory, range) = vdso().unwrap();
        let image = Image::new(&memory, range.start).unwrap();
        let id = image.headers().unwrap().build_id().unwrap();
        assert!(id.len() >= 16, "{id}");
    }

    #[test]
    fn a_fifo_does_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        assert!(
            Command::new("mkfifo")
                .arg(&path)
                .status()
                .unwrap()
                .success()
        );
        let mut files = Files::default();
        let path = path.to_str().unwrap();
        assert!(
            files
                .sections(std::process::id(), &unmapped(path))
                .is_none()
        );
    }
}
