//! The file of a program or library, with the separate file of its debug information.
//!
//! Both may belong to another user, who may also control their folders. Such files are copied,
//! because truncating a file that is mapped would end this process, and the names of further files
//! in them are not followed.

use crate::host::files;
use crate::sampler::elf::{self, DebugLinks};
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{Input, Sym, Symbolized, Symbolizer};
use rustix::fs::{MemfdFlags, OFlags, memfd_create};
use std::fs::{File, Metadata};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

/// Maximum bytes of the copies of files.
const COPIES_MAX: u64 = 1 << 30;
/// Folder of the debug files of packages.
const DEBUG: &str = "/usr/lib/debug";
/// Permission of the group and of other users to write.
const OTHERS_WRITE: u32 = 0o022;
/// Bytes that are read at once.
const CHUNK: usize = 1 << 16;

/// Space for copies of files.
#[derive(Debug)]
pub(crate) struct CopyRoom {
    /// Remaining bytes.
    left: u64,
    /// Whether a file was too large.
    is_exceeded: bool,
}

impl Default for CopyRoom {
    fn default() -> Self {
        Self {
            left: COPIES_MAX,
            is_exceeded: false,
        }
    }
}

impl CopyRoom {
    /// Returns a note if a file was too large.
    pub(super) fn note(&self) -> Option<String> {
        let note = "files that other users can change exceed 1 GiB: some have no function names";
        self.is_exceeded.then(|| note.to_owned())
    }
}

/// A file with symbols.
#[derive(Debug)]
struct SymbolFile {
    source: Source<'static>,
    /// Keeps a copy open, which has no other path.
    _copy: Option<File>,
}

/// A program or library.
#[derive(Debug)]
pub(crate) struct Program {
    main: SymbolFile,
    /// The debug file, and the segments of the program.
    debug: Option<(SymbolFile, elf::Segments)>,
    /// Offset of the first function of its process.
    pub(super) start: Option<u64>,
    /// Build id.
    pub(super) build_id: Option<String>,
}

impl Program {
    /// Opens a file of the host. Returns `None` if there is no regular file at the path.
    pub(crate) fn open(path: &str, room: &mut CopyRoom) -> Option<Self> {
        let file = files::open(path, OFlags::empty()).ok()?;
        let open = |path: &str| files::open(path, OFlags::empty()).ok();
        Self::new(
            &file,
            is_private(path, &file).then_some(path),
            path,
            open,
            room,
        )
    }

    /// Returns the program in an open file, which a process has at this path of its root.
    pub(super) fn of_process(
        pid: u32,
        path: &str,
        file: &File,
        room: &mut CopyRoom,
    ) -> Option<Self> {
        let of_host = |path: &str| {
            let is_debug = path.starts_with(DEBUG);
            is_debug.then(|| files::open(path, OFlags::empty()).ok())?
        };
        let own = |path: &str| files::open_of(pid, path, OFlags::empty()).ok();
        let open = |path: &str| of_host(path).or_else(|| own(path));
        Self::new(file, None, path, open, room)
    }

    /// Returns the program in an open file of this process.
    pub(super) fn of_memory(file: &File, room: &mut CopyRoom) -> Option<Self> {
        Self::new(file, None, "", |_| None, room)
    }

    /// `private` is a path at which only trusted users can put files.
    fn new(
        file: &File,
        private: Option<&str>,
        path: &str,
        open: impl Fn(&str) -> Option<File>,
        room: &mut CopyRoom,
    ) -> Option<Self> {
        let links = elf::debug_links(file).unwrap_or_default();
        let owner = file.metadata().ok()?.uid();
        let of_owner = |path: &str| {
            let file = open(path)?;
            let is_allowed = [0, owner].contains(&file.metadata().ok()?.uid());
            is_allowed.then_some((path.to_owned(), file))
        };
        let found = match links.has_lines {
            true => None,
            false => debug_file(&links, path, of_owner),
        };
        let debug = found.and_then(|(path, file)| {
            let private = is_private(&path, &file).then_some(path.as_str());
            let inner = elf::debug_links(&file)?;
            Some((
                SymbolFile::new(&file, private, &inner, room)?,
                elf::segments_of(&file)?,
            ))
        });
        let debug = debug.and_then(|(debug, _)| Some((debug, elf::segments_of(file)?)));
        Some(Self {
            main: SymbolFile::new(file, private, &links, room)?,
            debug,
            start: elf::start(file),
            build_id: links.build_id,
        })
    }

    /// Returns the symbols at offsets of the program's file.
    pub(super) fn at_offsets<'a>(
        &self,
        blazesym: &'a Symbolizer,
        offsets: &[u64],
    ) -> Vec<Option<Sym<'a>>> {
        let found = self.main.symbols(blazesym, Input::FileOffset(offsets));
        let Some((debug, segments)) = &self.debug else {
            return found;
        };
        let address = |offset: &u64| segments.address_of(*offset).unwrap_or(u64::MAX);
        let addresses: Vec<u64> = offsets.iter().map(address).collect();
        let better = debug.symbols(blazesym, Input::VirtOffset(&addresses));
        better
            .into_iter()
            .zip(found)
            .map(|(a, b)| a.or(b))
            .collect()
    }

    /// Returns the symbol at an address of the program's file.
    pub(crate) fn at_address<'a>(&self, blazesym: &'a Symbolizer, address: u64) -> Option<Sym<'a>> {
        let sources = self.debug.iter().map(|(debug, _)| debug);
        let mut sources = sources.chain([&self.main]);
        let find = |source: &SymbolFile| {
            let input = Input::VirtOffset(&[address][..]);
            source.symbols(blazesym, input).pop().flatten()
        };
        sources.find_map(find)
    }
}

impl SymbolFile {
    fn new(
        file: &File,
        private: Option<&str>,
        links: &DebugLinks,
        room: &mut CopyRoom,
    ) -> Option<Self> {
        let copy = match private {
            Some(_) => None,
            None => Some(copy(file, room)?),
        };
        let path = match (&copy, private) {
            (None, Some(path)) => path.to_owned(),
            (Some(copy), _) => files::path_of(copy),
            (None, None) => return None,
        };
        let mut elf = Elf::new(path);
        // The symbolizer opens the files that these links name, of whatever type and owner.
        elf.debug_syms = private.is_some() || !links.name_files();
        Some(Self {
            source: Source::Elf(elf),
            _copy: copy,
        })
    }

    fn symbols<'a>(&self, blazesym: &'a Symbolizer, input: Input<&[u64]>) -> Vec<Option<Sym<'a>>> {
        symbols(blazesym, &self.source, input)
    }
}

/// Returns the symbol at each address, if there is one.
pub(super) fn symbols<'a>(
    blazesym: &'a Symbolizer,
    source: &Source<'_>,
    input: Input<&[u64]>,
) -> Vec<Option<Sym<'a>>> {
    let found = blazesym.symbolize(source, input).unwrap_or_default();
    let symbol = |found| match found {
        Symbolized::Sym(symbol) => Some(symbol),
        Symbolized::Unknown(_) => None,
    };
    let none = std::iter::repeat_with(|| None);
    let found = found.into_iter().map(symbol).chain(none);
    found.take(input.into_inner().len()).collect()
}

/// Returns whether the host has this file at this path, and only root and this user can change it
/// and the files beside it.
fn is_private(path: &str, file: &File) -> bool {
    let path = Path::new(path);
    let is_ours = |there: &Metadata| {
        let owners = [0, rustix::process::geteuid().as_raw()];
        owners.contains(&there.uid()) && there.mode() & OTHERS_WRITE == 0
    };
    let check = || {
        let (folder, here) = (path.parent()?.metadata().ok()?, path.metadata().ok()?);
        let there = file.metadata().ok()?;
        let is_it = (here.dev(), here.ino()) == (there.dev(), there.ino());
        Some(is_it && is_ours(&there) && is_ours(&folder))
    };
    check().unwrap_or(false)
}

/// Copies a file into memory, if there is room.
fn copy(file: &File, room: &mut CopyRoom) -> Option<File> {
    let mut copy = File::from(memfd_create("program", MemfdFlags::CLOEXEC).ok()?);
    let written = chunks(file, room.left, |chunk| copy.write_all(chunk).is_ok());
    room.is_exceeded |= written.is_none();
    room.left -= written?;
    Some(copy)
}

/// Reads a whole file of at most `most` bytes in chunks, and returns its length.
fn chunks(file: &File, most: u64, mut take: impl FnMut(&[u8]) -> bool) -> Option<u64> {
    let (mut chunk, mut at) = (vec![0; CHUNK], 0u64);
    loop {
        let len = file.read_at(&mut chunk, at).ok()?;
        let read = chunk.get(..len).filter(|read| !read.is_empty());
        let Some(read) = read else {
            return Some(at);
        };
        at += len as u64;
        if at > most || !take(read) {
            return None;
        }
    }
}

/// Finds the debug file of a program: by build id in [`DEBUG`], or by the name in the program,
/// beside it, in the folder `.debug` there, and in the same folder below [`DEBUG`].
fn debug_file<T>(
    links: &DebugLinks,
    path: &str,
    open: impl Fn(&str) -> Option<(T, File)>,
) -> Option<(T, File)> {
    let by_id = || {
        let id = links.build_id.as_deref()?;
        let (first, rest) = id
            .split_at_checked(2)
            .filter(|(_, rest)| !rest.is_empty())?;
        let (path, file) = open(&format!("{DEBUG}/.build-id/{first}/{rest}.debug"))?;
        let is_its = elf::debug_links(&file)?.build_id.as_deref() == Some(id);
        is_its.then_some((path, file))
    };
    let by_name = || {
        let (name, sum) = links.file.as_ref()?;
        let (folder, _) = path.rsplit_once('/')?;
        let places = [
            format!("{folder}/{name}"),
            format!("{folder}/.debug/{name}"),
            format!("{DEBUG}{folder}/{name}"),
        ];
        places.iter().find_map(|place| {
            let (path, file) = open(place)?;
            let mut hasher = crc32fast::Hasher::new();
            chunks(&file, COPIES_MAX, |chunk| {
                hasher.update(chunk);
                true
            })?;
            (hasher.finalize() == *sum).then_some((path, file))
        })
    };
    by_id().or_else(by_name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, chown};
    use std::path::PathBuf;
    use std::process::Command;
    use testing::{require, skip};

    /// Builds a stripped program in a folder, and its debug file there. Returns their paths, or
    /// reports that this machine has no compiler.
    fn built(dir: &Path) -> Option<[PathBuf; 2]> {
        let [source, whole, program, debug] =
            ["x.c", "whole", "program", "program.dbg"].map(|name| dir.join(name));
        let text = "__attribute__((noinline)) int hidden(int n) { return n * 3; }\n\
                    int main(int n, char **a) { return hidden(n) + !a; }\n";
        std::fs::write(&source, text).unwrap();
        let run = |command: &mut Command| command.status().is_ok_and(|status| status.success());
        let is_built = run(Command::new("cc")
            .args(["-g", "-Wl,--build-id", "-o"])
            .args([&whole, &source]))
            && run(Command::new("objcopy")
                .arg("--only-keep-debug")
                .args([&whole, &debug]))
            && run(Command::new("objcopy")
                .arg("--strip-all")
                .args([&whole, &program]));
        match is_built {
            true => Some([program, debug]),
            false => skip("a C compiler and objcopy"),
        }
    }

    /// Adds the name of the debug file to the program.
    fn link([program, debug]: &[PathBuf; 2]) {
        let mut option = std::ffi::OsString::from("--add-gnu-debuglink=");
        option.push(debug);
        let done = Command::new("objcopy").arg(option).arg(program).status();
        assert!(done.unwrap().success());
    }

    fn open(path: &Path) -> Program {
        Program::open(path.to_str().unwrap(), &mut CopyRoom::default()).unwrap()
    }

    /// Returns the line of `hidden`, whose address is an offset in the file as well.
    fn line_of_hidden(program: &Program, dir: &Path) -> Option<u32> {
        let listed = Command::new("nm").arg(dir.join("whole")).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let line = listed
            .lines()
            .find(|line| line.ends_with(" hidden"))
            .unwrap();
        let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        let blazesym = Symbolizer::new();
        let symbol = program.at_offsets(&blazesym, &[address]).pop()??;
        assert_eq!(symbol.name, "hidden");
        assert_eq!(symbol.addr, address);
        let same = program.at_address(&blazesym, address).unwrap();
        assert_eq!(same.name, "hidden");
        symbol.code_info.as_ref()?.line
    }

    fn set_mode(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn debug_files_are_found_by_their_names() {
        let dir = tempfile::tempdir().unwrap();
        let Some(files) = built(dir.path()) else {
            return;
        };
        let [program, debug] = &files;
        assert_eq!(
            line_of_hidden(&open(program), dir.path()),
            None,
            "it has no link"
        );
        link(&files);
        let hidden = dir.path().join(".debug");
        std::fs::create_dir(&hidden).unwrap();
        for mode in [0o700, 0o777] {
            set_mode(dir.path(), mode);
            assert_eq!(
                line_of_hidden(&open(program), dir.path()),
                Some(1),
                "{mode:o}"
            );
            let moved = hidden.join("program.dbg");
            std::fs::rename(debug, &moved).unwrap();
            assert_eq!(
                line_of_hidden(&open(program), dir.path()),
                Some(1),
                "{mode:o}"
            );
            std::fs::rename(moved, debug).unwrap();
        }
        // Another build has another checksum.
        let mut other = std::fs::read(debug).unwrap();
        other.push(0);
        std::fs::write(debug, other).unwrap();
        assert_eq!(line_of_hidden(&open(program), dir.path()), None);
    }

    #[test]
    fn debug_files_are_found_by_build_id() {
        let dir = tempfile::tempdir().unwrap();
        let Some([program, debug]) = built(dir.path()) else {
            return;
        };
        let links = elf::debug_links(&File::open(program).unwrap()).unwrap();
        let id = links.build_id.clone().unwrap();
        let (first, rest) = id.split_at(2);
        let found = |at: &str| {
            let file = |path: &str| (path == at).then(|| File::open(&debug).unwrap());
            let open = |path: &str| Some((path.to_owned(), file(path)?));
            debug_file(&links, "/opt/program", open).map(|(path, _)| path)
        };
        let path = format!("/usr/lib/debug/.build-id/{first}/{rest}.debug");
        assert_eq!(found(&path), Some(path.clone()));
        assert_eq!(found("/opt/program.debug"), None);
        let mut other = elf::debug_links(&File::open(&debug).unwrap()).unwrap();
        other.build_id = Some(format!("{first}00"));
        let open = |path: &str| Some((path.to_owned(), File::open(&debug).unwrap()));
        assert!(
            debug_file(&other, "/opt/program", open).is_none(),
            "another build"
        );
    }

    /// Another user may own the folder, the program or the debug file.
    #[test]
    fn files_of_others_do_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let Some(files) = built(dir.path()) else {
            return;
        };
        link(&files);
        let [program, debug] = &files;
        set_mode(dir.path(), 0o777);
        let saved = std::fs::read(debug).unwrap();
        std::fs::remove_file(debug).unwrap();
        assert!(
            Command::new("mkfifo")
                .arg(debug)
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(
            line_of_hidden(&open(program), dir.path()),
            None,
            "a FIFO blocks"
        );
        std::fs::remove_file(debug).unwrap();
        std::fs::write(debug, saved).unwrap();
        require!(root);
        chown(debug, Some(12345), None).unwrap();
        assert_eq!(
            line_of_hidden(&open(program), dir.path()),
            None,
            "another user's"
        );
        chown(program, Some(12345), None).unwrap();
        let opened = open(program);
        for path in &files {
            // Reading a truncated file that is mapped raises SIGBUS.
            let file = File::options().write(true).open(path).unwrap();
            file.set_len(0).unwrap();
        }
        assert_eq!(line_of_hidden(&opened, dir.path()), Some(1));
        let large = dir.path().join("whole");
        chown(&large, Some(12345), None).unwrap();
        let mut full = CopyRoom {
            left: 100,
            is_exceeded: false,
        };
        assert!(Program::open(large.to_str().unwrap(), &mut full).is_none());
        assert_eq!(full.left, 100);
        assert!(full.note().is_some());
    }
}
