//! Bytes that cannot change any more: a memory file that nobody can write, grow or shrink.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

const SEALS: SealFlags = SealFlags::WRITE
    .union(SealFlags::GROW)
    .union(SealFlags::SHRINK)
    .union(SealFlags::SEAL);

/// A sealed file with these bytes.
///
/// # Errors
/// The kernel has no memory or no descriptors left.
pub fn write(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create(name, flags)?);
    file.write_all(bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// The bytes of a sealed file, at most `max`.
///
/// # Errors
/// `InvalidData`: it is no sealed memory file (only such a file is read without waiting for
/// anybody), or a longer one.
pub fn read(file: &impl AsFd, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; check(file, max)?];
    // Not by where others have read to.
    File::from(file.as_fd().try_clone_to_owned()?).read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Whether it is a sealed file of at most `max` bytes: how many it has.
///
/// # Errors
/// As [`read`].
pub fn check(file: &impl AsFd, max: usize) -> io::Result<usize> {
    let seals = fcntl_get_seals(file).map_err(|_| refused("a descriptor of something else"))?;
    if !seals.contains(SEALS) {
        return Err(refused("a memory file that is not sealed"));
    }
    let len = usize::try_from(fstat(file)?.st_size).unwrap_or(usize::MAX);
    if len > max {
        return Err(refused(&format!("{len} bytes, more than {max}")));
    }
    Ok(len)
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cannot_change_is_read() {
        let file = write("x", b"abc").unwrap();
        assert_eq!(read(&file, 3).unwrap(), b"abc");
        assert_eq!(read(&file, 3).unwrap(), b"abc", "and again");
        assert!(read(&file, 2).is_err(), "longer");
        assert!(rustix::io::write(&file, b"d").is_err());
        let open = memfd_create("x", MemfdFlags::ALLOW_SEALING).unwrap();
        assert!(
            read(&open, 3)
                .unwrap_err()
                .to_string()
                .contains("not sealed")
        );
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(
            read(&pipe, 3)
                .unwrap_err()
                .to_string()
                .contains("something else")
        );
    }
}
