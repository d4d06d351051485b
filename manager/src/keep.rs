//! What a manager wants the next one to know: a memory file that the core has a duplicate of, and
//! does not look into.
//!
//! Its first line says how everything stood when it was begun, each line behind that what has
//! become otherwise since. A line is there as soon as it is written: nobody is asked. So an attach
//! costs lines about the guest that comes, however many others there are. A file that has become
//! much longer than its first line is begun anew.

use crate::core::{Core, Refusal};
use crate::restart::Restart;
use crate::shape::{Shape, ShapeChange};
use crate::world::World;
use abi::core::{Ask, KEPT_MAX};
use abi::machine::Restarts;
use rustix::fs::{MemfdFlags, fstat, memfd_create};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Bytes of lines behind the first that no file is begun anew for.
const ROOM: usize = 256 << 10;

/// How everything stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Keep<'a> {
    /// When the machine was complete, by the monotonic clock.
    pub(crate) complete_ns: u64,
    /// What the system could not provide, in words.
    pub(crate) missing: Cow<'a, BTreeSet<String>>,
    /// What is known of domains that are started again, by their place in the machine.
    pub(crate) restarts: Cow<'a, BTreeMap<usize, Restarts>>,
    /// The machine, if it is not what it began as.
    #[serde(default)]
    pub(crate) shape: Option<Cow<'a, Shape>>,
    /// What has become of the machine since.
    #[serde(skip)]
    pub(crate) changes: Vec<ShapeChange>,
}

/// What has become otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum KeptLine {
    /// The machine.
    Shape(ShapeChange),
    /// What the system could not provide.
    Missing(BTreeSet<String>),
    /// What is known of the domain at a place; none: it is not started again any more.
    Restarts(usize, Option<Restarts>),
}

impl Keep<'_> {
    /// What a manager before has left in a file. Nothing, if that makes no sense; its lines are
    /// believed as far as they do, and to the last whole one.
    pub(crate) fn read(file: &OwnedFd) -> Option<Self> {
        Self::of(&bytes_of(file).ok()?)
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
        let mut keep: Self = serde_json::from_slice(lines.next()?).ok()?;
        for line in lines.take_while(|line| line.ends_with(b"\n")) {
            match serde_json::from_slice(line) {
                Ok(KeptLine::Shape(change)) => keep.changes.push(change),
                Ok(KeptLine::Missing(missing)) => keep.missing = Cow::Owned(missing),
                Ok(KeptLine::Restarts(place, known)) => {
                    let restarts = keep.restarts.to_mut();
                    match known {
                        Some(known) => restarts.insert(place, known),
                        None => restarts.remove(&place),
                    };
                }
                Err(_) => break,
            }
        }
        Some(keep)
    }
}

/// Nobody is waited for, whatever the file is: what has no places to read at is refused.
fn bytes_of(file: &OwnedFd) -> io::Result<Vec<u8>> {
    let len = usize::try_from(fstat(file)?.st_size).unwrap_or(usize::MAX);
    if len > KEPT_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let mut bytes = vec![0; len];
    File::from(file.try_clone()?).read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// What the core keeps of us.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    /// The file; none: it is to be begun.
    file: Option<File>,
    /// Bytes that it may have before it is begun anew, and that it has.
    bytes_max: usize,
    bytes: usize,
    /// What it says, but for the machine.
    missing: BTreeSet<String>,
    restarts: BTreeMap<usize, Restarts>,
    /// Whether the machine is not what it began as.
    is_changed: bool,
    /// Whether domains may have been started again, or not be any more, since this was kept.
    looks_again: bool,
}

impl Keeper {
    /// Goes on where the manager before has ended, whose file is as it stands.
    pub(crate) fn took_up(&mut self, is_changed: bool) {
        self.is_changed = is_changed;
    }

    /// Domains that are started again may not be what they were.
    pub(crate) fn look_again(&mut self) {
        self.looks_again = true;
    }

    /// Whether the next manager knows all there is to know. Asked in every turn: it takes as long
    /// however many domains there are.
    pub(crate) fn has(&self, world: &World) -> bool {
        let has_changed = self.looks_again || world.has_changed();
        self.file.is_some() && !has_changed && self.missing == world.missing
    }

    /// Sees to it that the next manager knows what there is to know.
    pub(crate) fn keep(
        &mut self,
        core: &mut Core,
        complete_ns: u64,
        world: &mut World,
        restarts: &[Restart],
    ) -> Result<(), Refusal> {
        let changes = world.take_changes();
        self.is_changed |= !changes.is_empty();
        let lines = self.lines(changes, world, restarts);
        let mut text = Vec::new();
        for line in &lines {
            serde_json::to_writer(&mut text, line).map_err(|error| error.to_string())?;
            text.push(b'\n');
        }
        self.bytes += text.len();
        if self.bytes <= self.bytes_max
            && let Some(file) = &mut self.file
        {
            match file.write_all(&text) {
                Ok(()) => return Ok(()),
                // Half a line is the end of what the next manager believes.
                Err(error) => {
                    self.file = None;
                    return Err(error.to_string().into());
                }
            }
        }
        self.file = None;
        self.begin(core, complete_ns, world)
    }

    /// What has become otherwise. From now on it counts as said.
    fn lines(
        &mut self,
        changes: Vec<ShapeChange>,
        world: &World,
        restarts: &[Restart],
    ) -> Vec<KeptLine> {
        self.looks_again = false;
        let mut lines: Vec<KeptLine> = changes.into_iter().map(KeptLine::Shape).collect();
        if self.missing != world.missing {
            self.missing.clone_from(&world.missing);
            lines.push(KeptLine::Missing(self.missing.clone()));
        }
        for restart in restarts {
            let (place, known) = (restart.place(), restart.known());
            if self.restarts.get(&place) != Some(known) {
                self.restarts.insert(place, known.clone());
                lines.push(KeptLine::Restarts(place, Some(known.clone())));
            }
        }
        if self.restarts.len() != restarts.len() {
            let left: BTreeSet<usize> = restarts.iter().map(Restart::place).collect();
            let gone = self
                .restarts
                .extract_if(.., |place, _| !left.contains(place));
            lines.extend(gone.map(|(place, _)| KeptLine::Restarts(place, None)));
        }
        lines
    }

    /// Begins a file.
    fn begin(&mut self, core: &mut Core, complete_ns: u64, world: &World) -> Result<(), Refusal> {
        let whole = Keep {
            complete_ns,
            missing: Cow::Borrowed(&self.missing),
            restarts: Cow::Borrowed(&self.restarts),
            shape: self.is_changed.then_some(Cow::Borrowed(world.shape())),
            changes: Vec::new(),
        };
        let mut text = serde_json::to_vec(&whole).map_err(|error| error.to_string())?;
        text.push(b'\n');
        if text.len() > KEPT_MAX {
            let why =
                format!("it is longer than {KEPT_MAX} bytes, and the next manager reads no more");
            return Err(why.into());
        }
        let begin = || -> io::Result<File> {
            let mut file = File::from(memfd_create("kept", MemfdFlags::CLOEXEC)?);
            file.write_all(&text)?;
            Ok(file)
        };
        let file = begin().map_err(|error| error.to_string())?;
        core.ask(Ask::Keep {}, &[file.as_fd()])?;
        self.bytes = text.len();
        let room = text.len().saturating_mul(2).saturating_add(ROOM);
        self.bytes_max = room.min(KEPT_MAX);
        self.file = Some(file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::core::{Record, Tell};
    use config::live::LiveConfig;
    use link::{Link, Received};
    use rustix::event::PollFlags;
    use std::thread::JoinHandle;

    fn known(count: u64) -> Restarts {
        Restarts {
            count,
            ..Restarts::default()
        }
    }

    fn gone(name: &str) -> ShapeChange {
        ShapeChange::Gone { name: name.into() }
    }

    /// A file with these lines, the last of them cut.
    fn written(lines: &[KeptLine]) -> Vec<u8> {
        let first = Keep {
            complete_ns: 7,
            restarts: Cow::Owned([(0, known(1)), (2, known(2))].into()),
            ..Keep::default()
        };
        let mut text = serde_json::to_vec(&first).unwrap();
        for line in lines {
            text.push(b'\n');
            serde_json::to_writer(&mut text, line).unwrap();
        }
        text
    }

    #[test]
    fn what_has_become_otherwise_is_read_behind_what_was() {
        let missing = BTreeSet::from(["seals".to_owned()]);
        let text = written(&[
            KeptLine::Shape(gone("a")),
            KeptLine::Restarts(2, None),
            KeptLine::Restarts(0, Some(known(5))),
            KeptLine::Missing(missing.clone()),
            KeptLine::Restarts(3, Some(known(9))),
            KeptLine::Shape(gone("b")),
        ]);
        // The last line has no end: a manager may have been killed over it.
        let keep = Keep::of(&text).unwrap();
        assert_eq!(keep.complete_ns, 7);
        assert_eq!(*keep.missing, missing);
        assert_eq!(*keep.restarts, [(0, known(5)), (3, known(9))].into());
        assert_eq!(keep.changes, [gone("a")]);
        let whole = [text, b"\n".to_vec()].concat();
        assert_eq!(Keep::of(&whole).unwrap().changes, [gone("a"), gone("b")]);
    }

    #[test]
    fn nonsense_ends_what_is_believed() {
        let text = written(&[KeptLine::Shape(gone("a"))]);
        let nonsense = [text, b"\nnonsense\n".to_vec()].concat();
        let more = serde_json::to_vec(&KeptLine::Shape(gone("b"))).unwrap();
        let keep = Keep::of(&[nonsense, more, b"\n".to_vec()].concat()).unwrap();
        assert_eq!(keep.changes, [gone("a")]);
        for nothing in [&b""[..], b"\n", b"nonsense", b"{}\n"] {
            assert!(Keep::of(nothing).is_none(), "{nothing:?}");
        }
    }

    /// A core that keeps what it is told to: the file that it was given last.
    fn keeping_core() -> (Core, JoinHandle<Vec<OwnedFd>>) {
        let (ours, its) = Link::pair().unwrap();
        let keeps = std::thread::spawn(move || {
            let mut files = Vec::new();
            loop {
                match its.receive::<Ask>() {
                    Ok(Some(Received { record, fds })) => {
                        files.extend(fds);
                        let token = record.token;
                        let message = Tell::Done { value: 0 };
                        its.send(&Record { token, message }, &[]).unwrap();
                    }
                    Ok(None) => {
                        its.wait(PollFlags::IN, None);
                    }
                    Err(_) => return files,
                }
            }
        });
        (Core::new(ours), keeps)
    }

    fn world() -> World {
        let text = "[driver]\n[[guest]]\nname = \"first\"\n[[guest.vif]]\nendpoint = \"echo\"\n";
        let file = config::File {
            name: "f".into(),
            text: text.into(),
        };
        let config = config::parse("f", text).unwrap();
        World::new(config::live::machine(&config, &[file]).unwrap())
    }

    /// Attaches a guest as far as this is about; its place in the machine.
    fn attach(world: &mut World, config: &mut LiveConfig, name: &str) -> usize {
        let json = format!(r#"{{"name":"{name}","vif":[{{"endpoint":"echo"}}]}}"#);
        let came = world.admit(config, &serde_json::from_str(&json).unwrap());
        let came = came.unwrap();
        for (worker, vifs) in came.vifs {
            world.change(ShapeChange::Serves { worker, vifs });
        }
        world.change(ShapeChange::Up { name: name.into() });
        came.place
    }

    #[test]
    fn one_guest_more_is_kept_alike_however_many_there_are() {
        let (mut core, keeps) = keeping_core();
        let mut world = world();
        let mut config = world.shape().config().unwrap();
        let mut keeper = Keeper::default();
        let mut restarts = Vec::new();
        keeper.keep(&mut core, 7, &mut world, &restarts).unwrap();
        let mut took = Vec::new();
        for number in 100..356 {
            let place = attach(&mut world, &mut config, &format!("g{number}"));
            restarts.push(Restart::new(place, 100, known(number)));
            keeper.look_again();
            assert!(!keeper.has(&world));
            let before = (keeper.bytes, keeper.bytes_max);
            keeper.keep(&mut core, 7, &mut world, &restarts).unwrap();
            assert!(keeper.has(&world));
            // A file that is begun anew is as long as the machine.
            if keeper.bytes_max == before.1 {
                took.push(keeper.bytes - before.0);
            }
        }
        assert!(took.len() > 250, "{} of 256", took.len());
        // But for digits of places and slots.
        let (least, most) = (took.iter().min().unwrap(), took.iter().max().unwrap());
        assert!(most - least < 100, "{least} to {most} bytes");
        drop(core);
        let files = keeps.join().unwrap();
        assert!(
            files.len() > 1,
            "a file is begun anew before it is too long"
        );
        let kept = Keep::read(files.last().unwrap()).unwrap();
        let mut shape = kept.shape.unwrap().into_owned();
        kept.changes.into_iter().for_each(|it| shape.apply(it));
        assert_eq!(&shape, world.shape());
        assert_eq!(kept.restarts.len(), restarts.len());
        assert_eq!(kept.restarts[&restarts[9].place()], known(109));
    }

    #[test]
    fn what_cannot_be_read_at_once_is_not_read() {
        let (pipe, other) = rustix::pipe::pipe().unwrap();
        rustix::io::write(&other, b"{}\n").unwrap();
        assert!(Keep::read(&pipe).is_none());
        let file = memfd_create("kept", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, KEPT_MAX as u64 + 1).unwrap();
        let why = bytes_of(&file).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::FileTooLarge);
    }
}
