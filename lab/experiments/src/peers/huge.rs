//! Huge pages, reserved for the duration of a run.

use figures::Failure;
use std::path::{Path, PathBuf};

/// The kernel's pool of 2 MB pages.
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// Reserved huge pages, released on drop.
#[derive(Debug)]
pub struct HugePages {
    pool: PathBuf,
    /// Size of the pool before.
    before: u64,
}

impl HugePages {
    /// Grows the pool until `pages` pages are free.
    ///
    /// If free memory is fragmented, makes the kernel drop clean page cache and compact memory
    /// before the last attempt.
    ///
    /// # Errors
    /// Returns [`Failure::CannotRun`] if the kernel has too little memory.
    pub fn reserve(pages: u64) -> Result<Self, Failure> {
        Self::of(Path::new(POOL), pages, defragment)
    }

    fn of(pool: &Path, pages: u64, defragment: impl Fn()) -> Result<Self, Failure> {
        let before = read(pool, "nr_hugepages")?;
        let wanted = before + pages.saturating_sub(read(pool, "free_hugepages")?);
        let lent = Self {
            pool: pool.to_owned(),
            before,
        };
        if wanted > before {
            let grow = || {
                write(pool, wanted)?;
                read(pool, "nr_hugepages")
            };
            let mut got = grow()?;
            if got < wanted {
                defragment();
                got = grow()?;
            }
            if got < wanted {
                return Err(Failure::CannotRun(format!(
                    "{wanted} huge pages of 2 MB are needed; the kernel has memory for {got} only"
                )));
            }
        }
        Ok(lent)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        if read(&self.pool, "nr_hugepages").is_ok_and(|now| now != self.before)
            && let Err(error) = write(&self.pool, self.before)
        {
            eprintln!("cannot release huge pages: {error}");
        }
    }
}

/// Defragments memory if possible. A container may not write these files.
fn defragment() {
    for file in ["drop_caches", "compact_memory"] {
        let _ = std::fs::write(Path::new("/proc/sys/vm").join(file), "1\n");
    }
}

fn read(pool: &Path, name: &str) -> Result<u64, Failure> {
    let path = pool.join(name);
    std::fs::read_to_string(&path)
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .ok_or_else(|| Failure::CannotRun(format!("no huge pages here: {}", path.display())))
}

fn write(pool: &Path, pages: u64) -> Result<(), Failure> {
    std::fs::write(pool.join("nr_hugepages"), format!("{pages}\n"))
        .map_err(|error| Failure::CannotRun(format!("cannot reserve huge pages: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(pages: u64, free: u64) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), pages).unwrap();
        std::fs::write(folder.path().join("free_hugepages"), format!("{free}\n")).unwrap();
        folder
    }

    #[test]
    fn missing_pages_are_reserved_and_released() {
        let folder = pool(8, 3);
        let lent = HugePages::of(folder.path(), 10, || ()).unwrap();
        assert_eq!(read(folder.path(), "nr_hugepages").unwrap(), 15);
        drop(lent);
        assert_eq!(read(folder.path(), "nr_hugepages").unwrap(), 8);
    }

    #[test]
    fn a_sufficient_pool_is_not_changed() {
        let folder = pool(8, 8);
        let lent = HugePages::of(folder.path(), 8, || ()).unwrap();
        assert_eq!(read(folder.path(), "nr_hugepages").unwrap(), 8);
        drop(lent);
        assert_eq!(read(folder.path(), "nr_hugepages").unwrap(), 8);
    }

    #[test]
    fn missing_huge_pages_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        let error = HugePages::of(folder.path(), 1, || ()).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("no huge pages here"), "{error}");
    }
}
