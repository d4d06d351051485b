//! Properties of a program that its start needs: that it has no dynamic loader, its entry point,
//! the range that its start-up code protects, and the version of the monitor for which it was
//! built.

use abi::PAGE;
use abi::version::version_in;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
/// The maximum number of program headers, above that of any real program.
const SEGMENTS_MAX: u16 = 64;
/// The maximum size of notes in bytes, above that of any real program.
const NOTES_MAX: u64 = 4096;
const PT_INTERP: u32 = 3;
const PT_NOTE: u32 = 4;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const EM_X86_64: u16 = 62;

/// A program that can run as a domain. Its addresses are those in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElfProgram {
    entry: u64,
    relro: Option<(u64, u64)>,
    version: Option<u32>,
}

/// Returns the `N` bytes at `offset`, or zeros if `of` is too short.
fn bytes<const N: usize>(of: &[u8], offset: usize) -> [u8; N] {
    let field = of
        .get(offset..offset + N)
        .and_then(|field| field.try_into().ok());
    field.unwrap_or([0; N])
}

impl ElfProgram {
    /// Reads the headers of a program.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::InvalidData`] with the defect of the file, or the error of a read.
    pub(crate) fn read(file: &File) -> io::Result<Self> {
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0)?;
        if !header.starts_with(b"\x7fELF\x02\x01")
            || u16::from_le_bytes(bytes(&header, 18)) != EM_X86_64
        {
            return Err(invalid("not an x86-64 ELF program"));
        }
        let segments_at = u64::from_le_bytes(bytes(&header, 32));
        let segments = u16::from_le_bytes(bytes(&header, 56));
        if u16::from_le_bytes(bytes(&header, 54)) as usize != SEGMENT_BYTES
            || segments > SEGMENTS_MAX
        {
            return Err(invalid("unusual program headers"));
        }
        let mut program = Self {
            entry: u64::from_le_bytes(bytes(&header, 24)),
            relro: None,
            version: None,
        };
        for n in 0..u64::from(segments) {
            let at = segments_at.checked_add(n * SEGMENT_BYTES as u64);
            let mut segment = [0; SEGMENT_BYTES];
            file.read_exact_at(
                &mut segment,
                at.ok_or_else(|| invalid("unusual program headers"))?,
            )?;
            match u32::from_le_bytes(bytes(&segment, 0)) {
                PT_INTERP => return Err(invalid("needs a dynamic loader: link it statically")),
                PT_GNU_RELRO => {
                    let addr = u64::from_le_bytes(bytes(&segment, 16));
                    let len = u64::from_le_bytes(bytes(&segment, 40));
                    program.relro = Some((addr, len));
                }
                PT_NOTE if program.version.is_none() => {
                    let field = |at| u64::from_le_bytes(bytes(&segment, at));
                    let mut notes = vec![0; field(32).min(NOTES_MAX) as usize];
                    file.read_exact_at(&mut notes, field(8))?;
                    // Notes are aligned like their segment, to 4 or 8 bytes.
                    let align = if field(48) == 8 { 8 } else { 4 };
                    program.version = version_in(&notes, align);
                }
                _ => {}
            }
        }
        Ok(program)
    }

    /// Returns the version of the monitor for which the program was built, if it is a domain's
    /// program.
    pub(crate) fn version(&self) -> Option<u32> {
        self.version
    }

    /// Returns the address and length of the range that the start-up code makes read-only, if the
    /// program begins at `entry`. The range is the relocated data, with both ends rounded down to
    /// pages, as in glibc.
    pub(crate) fn relro(&self, entry: u64) -> Option<(u64, u64)> {
        let (addr, len) = self.relro?;
        let base = entry.wrapping_sub(self.entry);
        let page = !(PAGE as u64 - 1);
        let start = base.wrapping_add(addr) & page;
        let end = base.wrapping_add(addr).wrapping_add(len) & page;
        (end > start).then(|| (start, end - start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn file(interp: bool) -> File {
        let mut image = vec![0u8; HEADER_BYTES + SEGMENT_BYTES];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        image[18] = EM_X86_64 as u8;
        image[24..32].copy_from_slice(&0x1234u64.to_le_bytes());
        image[32] = HEADER_BYTES as u8;
        image[54] = SEGMENT_BYTES as u8;
        image[56] = 1;
        let kind = if interp { PT_INTERP } else { PT_GNU_RELRO };
        image[64..68].copy_from_slice(&kind.to_le_bytes());
        image[80..88].copy_from_slice(&0x5080u64.to_le_bytes());
        image[104..112].copy_from_slice(&0x2f80u64.to_le_bytes());
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(&image).expect("written");
        file
    }

    #[test]
    fn relro_is_rounded_as_glibc_does() {
        let program = ElfProgram::read(&file(false)).expect("a program");
        assert_eq!(
            program.relro(0x7f00_0000_1234),
            Some((0x7f00_0000_5000, 0x3000))
        );
    }

    #[test]
    fn programs_that_cannot_run_are_rejected() {
        assert!(ElfProgram::read(&file(true)).is_err());
        let mut script = tempfile::tempfile().expect("a file");
        write!(script, "#!/bin/sh\n{:80}", "").expect("written");
        assert!(ElfProgram::read(&script).is_err());
        assert!(ElfProgram::read(&tempfile::tempfile().expect("a file")).is_err());
    }
}
