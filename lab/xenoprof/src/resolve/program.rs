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
use std::path::PathBuf;

/// Maximum bytes of files that are read as a whole: copied or compared with a checksum.
const WHOLE_MAX: u64 = 1 << 30;
/// Folder of the debug files of packages.
const DEBUG: &str = "/usr/lib/debug";
/// Permission of the group and of other users to write.
const OTHERS_WRITE: u32 = 0o022;
/// Number of bytes per read.
const CHUNK: usize = 1 << 16;
/// First bytes of a program, library or debug file.
const MAGIC: [u8; 4] = [0x7f, b'E', b'L', b'F'];

/// Bytes of files that may still be read as a whole.
#[derive(Debug)]
pub(crate) struct CopyBudget {
    left: u64,
    /// Whether a file was too large.
    is_exceeded: bool,
}

impl Default for CopyBudget {
    fn default() -> Self {
        Self {
            left: WHOLE_MAX,
            is_exceeded: false,
        }
    }
}

impl CopyBudget {
    /// Returns a note if a file was too large.
    pub(super) fn note(&self) -> Option<String> {
        let note = "files that must be copied or checked exceed 1 GiB: some have no function names";
        self.is_exceeded.then(|| note.to_owned())
    }

    /// Returns the budget without these bytes, if it suffices.
    fn without(&mut self, bytes: u64) -> Option<u64> {
        let left = self.left.checked_sub(bytes);
        self.is_exceeded |= left.is_none();
        left
    }

    /// Reads a whole file in chunks, unless it is too large.
    fn read(&mut self, file: &File, mut take: impl FnMut(&[u8]) -> Option<()>) -> Option<()> {
        self.without(file.metadata().ok()?.len())?;
        let (mut chunk, mut at) = (vec![0; CHUNK], 0);
        loop {
            let len = file.read_at(&mut chunk, at).ok()?;
            if len == 0 {
                return Some(());
            }
            // The file may grow meanwhile.
            self.left = self.without(len as u64)?;
            take(chunk.get(..len)?)?;
            at += len as u64;
        }
    }
}

/// A file whose contents do not change while they are read: only trusted users can change it, or
/// it is a copy.
#[derive(Debug)]
struct StableFile {
    file: File,
    /// The path of a file that is not a copy.
    private: Option<PathBuf>,
}

impl StableFile {
    fn new(file: &File, budget: &mut CopyBudget) -> Option<Self> {
        let private = private_path(file);
        let file = match private {
            Some(_) => file.try_clone().ok()?,
            None => copy(file, budget)?,
        };
        Some(Self { file, private })
    }
}

/// A file with symbols.
#[derive(Debug)]
struct SymbolFile {
    source: Source<'static>,
    /// The source's path is valid as long as this file is open.
    _file: File,
}

/// A program or library.
#[derive(Debug)]
pub(crate) struct ProgramFile {
    /// `None` if the file could not be copied.
    main: Option<SymbolFile>,
    /// The debug file, and the segments of the program.
    debug: Option<(SymbolFile, elf::Segments)>,
    /// Offset of the first function of its process.
    pub(super) start: Option<u64>,
    /// Build id.
    pub(crate) build_id: Option<String>,
}

impl ProgramFile {
    /// Opens a file of the host. Returns `None` if there is no regular file at the path.
    pub(super) fn open(path: &str, budget: &mut CopyBudget) -> Option<Self> {
        Self::of_host(&files::open(path, OFlags::empty()).ok()?, path, budget)
    }

    /// Returns the program in an open file, which is at this path of the host.
    pub(crate) fn of_host(file: &File, path: &str, budget: &mut CopyBudget) -> Option<Self> {
        let open = |path: &str, flags| files::open(path, flags).ok();
        Self::new(file, path, open, budget)
    }

    /// Returns the program in an open file, which a process has at this path of its root.
    pub(super) fn of_process(
        pid: u32,
        path: &str,
        file: &File,
        budget: &mut CopyBudget,
    ) -> Option<Self> {
        let of_host = |path: &str, flags| {
            let is_debug = path.starts_with(DEBUG);
            is_debug.then(|| files::open(path, flags).ok())?
        };
        let own = |path: &str, flags| files::open_of(pid, path, flags).ok();
        let open = |path: &str, flags| of_host(path, flags).or_else(|| own(path, flags));
        Self::new(file, path, open, budget)
    }

    /// Returns the program in an open file of this process.
    pub(super) fn of_memory(file: &File, budget: &mut CopyBudget) -> Option<Self> {
        Self::new(file, "", |_, _| None, budget)
    }

    fn new(
        file: &File,
        path: &str,
        open: impl Fn(&str, OFlags) -> Option<File>,
        budget: &mut CopyBudget,
    ) -> Option<Self> {
        let owner = file.metadata().ok()?.uid();
        let of_owner = |path: &str, flags| {
            let file = open(path, flags)?;
            let is_allowed = [0, owner].contains(&file.metadata().ok()?.uid());
            is_allowed.then_some(file)
        };
        // All parts are read from the copy, because the file may change meanwhile.
        let stable = StableFile::new(file, budget).map(|stable| stable.file);
        let file = stable.as_ref().unwrap_or(file);
        let links = elf::debug_links(file).unwrap_or_default();
        let start = elf::start(file);
        let has_own_lines = links.has_lines && !links.names_files;
        let debug = match has_own_lines {
            true => None,
            false => elf::segments_of(file)
                .and_then(|segments| Some((debug_file(&links, path, of_owner, budget)?, segments))),
        };
        Some(Self {
            main: stable.map(|file| SymbolFile::new(file, has_own_lines)),
            debug,
            start,
            build_id: links.build_id,
        })
    }

    /// Returns the symbols at offsets of the program's file.
    pub(super) fn at_offsets<'a>(
        &self,
        blazesym: &'a Symbolizer,
        offsets: &[u64],
    ) -> Vec<Option<Sym<'a>>> {
        let in_main = |main: &SymbolFile| main.symbols(blazesym, Input::FileOffset(offsets));
        let found = self.main.as_ref().map(in_main).unwrap_or_default();
        let Some((debug, segments)) = &self.debug else {
            return found;
        };
        let address = |offset: &u64| segments.address_of(*offset).unwrap_or(u64::MAX);
        let addresses: Vec<u64> = offsets.iter().map(address).collect();
        let better = debug.symbols(blazesym, Input::VirtOffset(&addresses));
        let found = found.into_iter().chain(std::iter::repeat_with(|| None));
        better
            .into_iter()
            .zip(found)
            .map(|(a, b)| a.or(b))
            .collect()
    }

    /// Returns the symbol at an address of the program's file.
    pub(crate) fn at_address<'a>(&self, blazesym: &'a Symbolizer, address: u64) -> Option<Sym<'a>> {
        let debug = self.debug.iter().map(|(debug, _)| debug);
        let mut sources = debug.chain(&self.main);
        let find = |source: &SymbolFile| {
            let input = Input::VirtOffset(&[address][..]);
            source.symbols(blazesym, input).pop().flatten()
        };
        sources.find_map(find)
    }
}

impl SymbolFile {
    /// If `follows` is true, the symbolizer also reads source lines. It then opens all files that
    /// this file names, of any type and owner.
    fn new(file: File, follows: bool) -> Self {
        let mut elf = Elf::new(files::path_of(&file));
        elf.debug_syms = follows;
        Self {
            source: Source::Elf(elf),
            _file: file,
        }
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

/// Returns the path of a file that only root and this user can change, if only they can change its
/// folders. The folders matter because another user could mount a file system below them that names
/// any owner.
fn private_path(file: &File) -> Option<PathBuf> {
    let is_ours = |there: &Metadata| {
        let owners = [0, rustix::process::geteuid().as_raw()];
        owners.contains(&there.uid()) && there.mode() & OTHERS_WRITE == 0
    };
    let path = std::fs::read_link(files::path_of(file)).ok()?;
    let (here, there) = (path.metadata().ok()?, file.metadata().ok()?);
    let is_it = (here.dev(), here.ino()) == (there.dev(), there.ino());
    let mut folders = path.ancestors().skip(1);
    let are_ours = folders.all(|folder| folder.metadata().is_ok_and(|there| is_ours(&there)));
    (is_it && is_ours(&there) && are_ours).then_some(path)
}

/// Copies a program, library or debug file into memory.
fn copy(file: &File, budget: &mut CopyBudget) -> Option<File> {
    let mut magic = [0; MAGIC.len()];
    file.read_exact_at(&mut magic, 0).ok()?;
    if magic != MAGIC {
        return None;
    }
    let mut copy = File::from(memfd_create("program", MemfdFlags::CLOEXEC).ok()?);
    budget.read(file, |chunk| copy.write_all(chunk).ok())?;
    Some(copy)
}

/// Finds the debug file of a program: by build id in [`DEBUG`], or by the name in the program,
/// beside it, in the folder `.debug` there, and in the same folder below [`DEBUG`].
fn debug_file(
    links: &DebugLinks,
    path: &str,
    open: impl Fn(&str, OFlags) -> Option<File>,
    budget: &mut CopyBudget,
) -> Option<SymbolFile> {
    let by_id = debug_path(links).and_then(|path| {
        let file = StableFile::new(&open(&path, OFlags::empty())?, budget)?;
        let inner = elf::debug_links(&file.file)?;
        (inner.build_id == links.build_id).then_some((file, inner))
    });
    let by_name = || {
        let (name, sum) = links.file.as_ref()?;
        let (folder, _) = path.rsplit_once('/')?;
        let places = [
            format!("{folder}/{name}"),
            format!("{folder}/.debug/{name}"),
            format!("{DEBUG}{folder}/{name}"),
        ];
        places.iter().find_map(|place| {
            let file = StableFile::new(&open(place, OFlags::NOFOLLOW)?, budget)?;
            let mut hasher = crc32fast::Hasher::new();
            budget.read(&file.file, |chunk| {
                hasher.update(chunk);
                Some(())
            })?;
            let inner = elf::debug_links(&file.file)?;
            (hasher.finalize() == *sum).then_some((file, inner))
        })
    };
    let (file, inner) = by_id.or_else(by_name)?;
    // Packages share debug information in further files, which these files name.
    let is_of_package = file.private.is_some_and(|path| path.starts_with(DEBUG));
    Some(SymbolFile::new(
        file.file,
        is_of_package || !inner.names_files,
    ))
}

/// Returns the path of a debug file in [`DEBUG`] by the program's build id.
fn debug_path(links: &DebugLinks) -> Option<String> {
    let (first, rest) = links.build_id.as_deref()?.split_at_checked(2)?;
    let path = format!("{DEBUG}/.build-id/{first}/{rest}.debug");
    (!rest.is_empty()).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, chown};
    use std::path::Path;
    use std::process::Command;
    use std::time::Duration;
    use testing::{require, skip};

    /// Deadline, which is much longer than the time to read a program.
    const DEADLINE: Duration = Duration::from_secs(60);

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

    fn open(path: &Path) -> ProgramFile {
        ProgramFile::open(path.to_str().unwrap(), &mut CopyBudget::default()).unwrap()
    }

    /// Returns the line of `hidden`, whose address is an offset in the file as well.
    fn line_of_hidden(program: &ProgramFile, dir: &Path) -> Option<u32> {
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
        let is_found = |links: &DebugLinks, at: &str| {
            let open = |path: &str, _| (path == at).then(|| File::open(&debug).unwrap());
            debug_file(links, "/opt/program", open, &mut CopyBudget::default()).is_some()
        };
        let path = format!("/usr/lib/debug/.build-id/{first}/{rest}.debug");
        assert!(is_found(&links, &path));
        assert!(!is_found(&links, "/opt/program.debug"));
        let mut other = elf::debug_links(&File::open(&debug).unwrap()).unwrap();
        other.build_id = Some(format!("{first}00"));
        let path = format!("/usr/lib/debug/.build-id/{first}/00.debug");
        assert!(!is_found(&other, &path), "another build");
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
    }

    /// Only root and this user may be able to change the folder, but not the debug file.
    #[test]
    fn private_programs_use_no_debug_files_of_others() {
        require!(root);
        let beside = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(beside.parent().unwrap()).unwrap();
        let Some(files) = built(dir.path()) else {
            return;
        };
        link(&files);
        set_mode(dir.path(), 0o700);
        let [program, debug] = &files;
        assert_eq!(line_of_hidden(&open(program), dir.path()), Some(1));
        chown(debug, Some(12345), None).unwrap();
        assert_eq!(line_of_hidden(&open(program), dir.path()), None);
    }

    #[test]
    fn files_below_folders_of_others_are_not_private() {
        let is_private = |path: &Path| private_path(&File::open(path).unwrap()).is_some();
        assert!(is_private(Path::new("/bin/sh")));
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let file = dir.path().join("x");
        std::fs::write(&file, "x").unwrap();
        set_mode(dir.path(), 0o700);
        assert!(!is_private(&file), "every user can write to /tmp");
        let file = File::open(&file).unwrap();
        dir.close().unwrap();
        assert!(private_path(&file).is_none(), "it has no path");
    }

    /// A program can name any file.
    #[test]
    fn named_files_are_not_opened() {
        let dir = tempfile::tempdir().unwrap();
        if built(dir.path()).is_none() {
            return;
        }
        let [whole, fifo, contents] = ["whole", "fifo", "contents"].map(|x| dir.path().join(x));
        let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
        assert!(made.success());
        let name = [fifo.to_str().unwrap().as_bytes(), b"\0"].concat();
        let padded = |mut link: Vec<u8>| {
            link.resize(link.len().next_multiple_of(4) + 4, 0);
            link
        };
        let links = [
            (".gnu_debuglink", padded(name.clone())),
            (".gnu_debuglink", padded(b"./fifo\0".into())),
            (".gnu_debugaltlink", [&name[..], &[1; 20]].concat()),
            (".debug_sup", [&[5, 0, 0], &name[..], &[1, 1]].concat()),
        ];
        for (section, link) in links {
            std::fs::write(&contents, link).unwrap();
            let program = dir.path().join("program");
            let mut option = std::ffi::OsString::from(format!("--add-section={section}="));
            option.push(&contents);
            let mut objcopy = Command::new("objcopy");
            let made = objcopy.arg(option).args([&whole, &program]).status();
            assert!(made.unwrap().success());
            let (ended, end) = std::sync::mpsc::channel();
            let folder = dir.path().to_owned();
            std::thread::spawn(move || ended.send(line_of_hidden(&open(&program), &folder)));
            let line = end.recv_timeout(DEADLINE).expect("opening a FIFO blocks");
            assert_eq!(line, None, "{section}");
        }
    }

    #[test]
    fn large_files_are_not_read() {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        let Some([program, _]) = built(dir.path()) else {
            return;
        };
        let path = program.to_str().unwrap();
        let budget = |left| CopyBudget {
            left,
            is_exceeded: false,
        };
        let mut small = budget(100);
        let opened = ProgramFile::open(path, &mut small).unwrap();
        assert!(opened.main.is_none() && opened.build_id.is_some() && opened.start.is_some());
        assert_eq!(opened.at_offsets(&Symbolizer::new(), &[1]).len(), 0);
        assert_eq!((small.left, small.note().is_some()), (100, true));
        let len = program.metadata().unwrap().len();
        let mut enough = budget(len + 1);
        assert!(ProgramFile::open(path, &mut enough).unwrap().main.is_some());
        assert_eq!((enough.left, enough.note()), (1, None));
        let text = dir.path().join("x.c");
        let opened = ProgramFile::open(text.to_str().unwrap(), &mut enough).unwrap();
        assert!(opened.main.is_none(), "no program");
        assert_eq!((enough.left, enough.note()), (1, None));
        // A file may grow after its length was read.
        let endless = File::open("/dev/zero").unwrap();
        let mut read = 0;
        let done = enough.read(&endless, |chunk| {
            read += chunk.len();
            Some(())
        });
        assert_eq!((done, read), (None, 0));
        assert!(enough.note().is_some());
    }
}
