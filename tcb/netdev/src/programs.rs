//! Loads BPF programs, in this process or through a privileged process.

use crate::bpf::{
    self, Assembler, BPF_PSEUDO_MAP_FD, CALL, CALL_REGISTER, HELPERS, Instruction, LOAD_IMMEDIATE,
    ProgramType,
};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

/// Function that loads a program of the given type. The program's instructions refer to maps by
/// their index in the list.
pub type Loader = dyn Fn(u32, &[u8], &[BorrowedFd<'_>]) -> io::Result<OwnedFd> + Send + Sync;

static LOADER: OnceLock<Box<Loader>> = OnceLock::new();

/// Types of programs that access only packets.
const KINDS: [u32; 3] = [
    ProgramType::SocketFilter as u32,
    ProgramType::SchedCls as u32,
    ProgramType::Xdp as u32,
];

/// Sets the function that loads all programs, for a process that may not load programs itself.
/// Later calls have no effect.
pub fn load_by(loader: Box<Loader>) {
    let _ = LOADER.set(loader);
}

impl Assembler {
    /// Loads the program, in this process or through its loader.
    pub(crate) fn load(&self, kind: ProgramType) -> io::Result<OwnedFd> {
        load(kind as u32, self.finish()?)
    }
}

/// Loads a program whose instructions refer to maps by descriptor.
fn load(kind: u32, mut code: Vec<Instruction>) -> io::Result<OwnedFd> {
    let Some(loader) = LOADER.get() else {
        return bpf::load(kind, &code);
    };
    let mut maps: Vec<i32> = Vec::new();
    for_each_map(&mut code, |fd| {
        let place = maps.iter().position(|map| *map == fd);
        let place = place.unwrap_or_else(|| {
            maps.push(fd);
            maps.len() - 1
        });
        i32::try_from(place).ok()
    })?;
    // SAFETY: the numbers are descriptors of maps that the assembler's caller keeps open until the
    // program is loaded.
    let maps = maps.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) });
    loader(kind, code.as_flattened(), &maps.collect::<Vec<_>>())
}

/// Loads a program of an untrusted process. Its instructions refer to maps by their index in
/// `maps`. The program can access only packets and its maps.
///
/// # Errors
/// Returns `EPERM` if the program has another type, or calls a helper that programs of this crate
/// do not use; otherwise the kernel's error.
pub fn load_here(kind: u32, code: &[u8], maps: &[BorrowedFd<'_>]) -> io::Result<OwnedFd> {
    let (code, rest) = code.as_chunks();
    if !KINDS.contains(&kind) || !rest.is_empty() {
        return Err(Errno::PERM.into());
    }
    let mut code = code.to_vec();
    let place = |place: i32| {
        let map = usize::try_from(place)
            .ok()
            .and_then(|place| maps.get(place));
        map.map(AsRawFd::as_raw_fd)
    };
    for_each_map(&mut code, place)?;
    bpf::load(kind, &code)
}

/// Replaces all references to maps. Rejects calls of helpers that are not in [`HELPERS`], and
/// immediates that are neither numbers nor maps.
fn for_each_map(
    code: &mut [Instruction],
    mut replace: impl FnMut(i32) -> Option<i32>,
) -> io::Result<()> {
    let mut instructions = code.iter_mut();
    while let Some([opcode, registers, _, _, immediate @ ..]) = instructions.next() {
        let (number, source) = (i32::from_le_bytes(*immediate), *registers >> 4);
        match (*opcode, source) {
            // The next instruction contains the upper half of the number.
            (LOAD_IMMEDIATE, 0) => {
                instructions.next();
            }
            (LOAD_IMMEDIATE, BPF_PSEUDO_MAP_FD) => {
                *immediate = replace(number).ok_or(Errno::PERM)?.to_le_bytes();
                instructions.next();
            }
            (CALL, 0) if HELPERS.contains(&number) => {}
            (LOAD_IMMEDIATE | CALL | CALL_REGISTER, _) => return Err(Errno::PERM.into()),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXIT: Instruction = [0x95, 0, 0, 0, 0, 0, 0, 0];
    const PERM: Option<i32> = Some(libc::EPERM);

    fn refused(kind: u32, code: &[Instruction]) -> Option<i32> {
        load_here(kind, code.as_flattened(), &[])
            .unwrap_err()
            .raw_os_error()
    }

    #[test]
    fn programs_that_reach_other_memory_are_rejected() {
        let xdp = ProgramType::Xdp as u32;
        let call = |source: u8, helper: u8| [CALL, source << 4, 0, 0, helper, 0, 0, 0];
        // probe_read_kernel, probe_write_user, a kernel function, a function of another program.
        for call in [call(0, 113), call(0, 36), call(2, 1), call(1, 1)] {
            assert_eq!(refused(xdp, &[call, EXIT]), PERM, "{call:?}");
        }
        assert_eq!(
            refused(xdp, &[[CALL_REGISTER, 1, 0, 0, 0, 0, 0, 0], EXIT]),
            PERM
        );
        // A map that was not passed, a kernel variable, and a map by its index.
        for source in [1, 3, 5] {
            let load = [LOAD_IMMEDIATE, source << 4, 0, 0, 0, 0, 0, 0];
            assert_eq!(refused(xdp, &[load, [0; 8], EXIT]), PERM, "{source}");
        }
        // Trace points, kprobes, and an incomplete instruction.
        for kind in [2, 5, 17, 26, 27] {
            assert_eq!(refused(kind, &[EXIT]), PERM, "{kind}");
        }
        let part = load_here(xdp, &[0; 7], &[]).unwrap_err();
        assert_eq!(part.raw_os_error(), PERM);
    }

    #[test]
    fn an_immediate_is_not_mistaken_for_a_call() {
        let number = [LOAD_IMMEDIATE, 0, 0, 0, 1, 0, 0, 0];
        let mut code = [number, [CALL, 0, 0, 0, 113, 0, 0, 0], EXIT];
        for_each_map(&mut code, |_| None).unwrap();
    }
}
