//! Huge pages, lent by the kernel for the time of a run.

use figures::Failure;
use std::path::{Path, PathBuf};

/// Pages of 2 MB that the kernel sets aside.
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// Huge pages that were set aside; given back with the value.
#[derive(Debug)]
pub struct HugePages {
    pool: PathBuf,
    /// How many there were before.
    before: u64,
}

impl HugePages {
    /// Sees to it that so many are free.
    ///
    /// # Errors
    /// [`Failure::CannotRun`] if the kernel has not as many.
    pub fn reserve(pages: u64) -> Result<Self, Failure> {
        Self::of(Path::new(POOL), pages)
    }

    fn of(pool: &Path, pages: u64) -> Result<Self, Failure> {
        let before = read(pool, "nr_hugepages")?;
        let wanted = before + pages.saturating_sub(read(pool, "free_hugepages")?);
        let lent = Self {
            pool: pool.to_owned(),
            before,
        };
        if wanted > before {
            write(pool, wanted)?;
            let got = read(pool, "nr_hugepages")?;
            if got < wanted {
                return Err(Failure::CannotRun(format!(
                    "the kernel has memory for {got} huge pages of 2 MB only, {wanted} are needed"
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
            eprintln!("huge pages are not given back: {error}");
        }
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
        .map_err(|error| Failure::CannotRun(format!("huge pages cannot be set aside: {error}")))
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
    fn what_is_missing_is_lent_and_given_back() {
        let folder = pool(8, 3);
        let lent = HugePages::of(folder.path(), 10).unwrap();
        assert_eq!(read(folder.path(), "nr_hugepages").unwrap(), 15);
        drop(lent);
        assert_eq!(read(folder.path(), "nr_hugepages").unwrap(), 8);
    }

    #[test]
    fn enough_is_left_alone() {
        let folder = pool(8, 8);
        let lent = HugePages::of(folder.path(), 8).unwrap();
        assert_eq!(read(folder.path(), "nr_hugepages").unwrap(), 8);
        drop(lent);
        assert_eq!(read(folder.path(), "nr_hugepages").unwrap(), 8);
    }

    #[test]
    fn a_kernel_without_them_is_one_sentence() {
        let folder = tempfile::tempdir().unwrap();
        let error = HugePages::of(folder.path(), 1).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("no huge pages here"), "{error}");
    }
}
