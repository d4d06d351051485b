//! Immutable bytes: memory files that cannot be written, grown or shrunk.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, memfd_create};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

const SEALS: SealFlags = SealFlags::WRITE
    .union(SealFlags::GROW)
    .union(SealFlags::SHRINK)
    .union(SealFlags::SEAL);

/// Creates a sealed file with these bytes.
///
/// # Errors
/// Returns an error if the kernel has no memory or no descriptors left.
pub fn write(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(memfd_create(name, flags)?);
    file.write_all(bytes)?;
    fcntl_add_seals(&file, SEALS)?;
    Ok(file.into())
}

/// Returns the bytes of a sealed file of up to `max` bytes.
///
/// # Errors
/// Returns `InvalidData` if the descriptor is not a sealed memory file, or the file is longer than
/// `max`. Other files are rejected because reading from them may block.
pub fn read(file: &impl AsFd, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; check(file, max)?];
    // The read does not depend on the file offset, which the other end shares.
    File::from(file.as_fd().try_clone_to_owned()?).read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Checks that a descriptor is a sealed file of up to `max` bytes, and returns the file's length.
///
/// # Errors
/// Returns the errors of [`read`].
pub fn check(file: &impl AsFd, max: usize) -> io::Result<usize> {
    let seals =
        fcntl_get_seals(file).map_err(|_| refused("a descriptor that is not a memory file"))?;
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
    fn only_sealed_files_are_read() {
        let file = write("x", b"abc").unwrap();
        assert_eq!(read(&file, 3).unwrap(), b"abc");
        assert_eq!(read(&file, 3).unwrap(), b"abc", "and again");
        assert!(read(&file, 2).is_err(), "it is longer than the maximum");
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
                .contains("not a memory file")
        );
    }
}
