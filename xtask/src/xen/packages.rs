//! Downloads Debian's packages by name, and unpacks them without installing them.

use crate::workspace;
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package whose dependency is the kernel of dom0 and of the guests.
const KERNEL: &str = "linux-image-amd64";

/// The unpacked packages.
#[derive(Debug)]
pub(crate) struct Packages {
    /// A file system with all packages in it.
    pub(crate) root: PathBuf,
    /// The kernel's release.
    pub(crate) release: String,
    /// Whether the packages include the emulator.
    pub(crate) emulator: bool,
}

/// Downloads and unpacks missing packages. Existing packages are kept, so later runs need no
/// network.
///
/// # Errors
///
/// Returns an error if this system cannot download or unpack the packages. The error contains the
/// reason.
pub(crate) fn ready(home: &Path) -> Result<Packages> {
    let listed = wanted()?;
    let emulator = listed.iter().any(|name| name == "qemu-system-x86");
    let root = home.join("root");
    let stamp = home.join("packages");
    let wanted = listed.join("\n");
    if fs::read_to_string(&stamp).is_ok_and(|there| there == wanted) {
        let release = release(&root)?;
        return Ok(Packages {
            root,
            release,
            emulator,
        });
    }
    let kernel = kernel()?;
    let debs = home.join("debs");
    for folder in [&debs, &root] {
        fs::create_dir_all(folder)?;
    }
    println!(
        "downloading {} packages to {}",
        listed.len() + 1,
        debs.display()
    );
    let mut download = Command::new("apt-get");
    download
        .args(["-qq", "download"])
        .args(&listed)
        .arg(&kernel);
    workspace::output(download.current_dir(&debs))
        .context("packages cannot be downloaded (`apt-get update` may help)")?;
    for file in fs::read_dir(&debs)? {
        let mut unpack = Command::new("dpkg");
        workspace::output(unpack.arg("-x").arg(file?.path()).arg(&root))?;
    }
    fs::remove_dir_all(&debs)?;
    fs::write(stamp, &wanted)?;
    let release = release(&root)?;
    Ok(Packages {
        root,
        release,
        emulator,
    })
}

/// Returns the packages in `packages.txt` that this system needs.
fn wanted() -> Result<Vec<String>> {
    let list = workspace::root().join("xtask/xen/packages.txt");
    let text = fs::read_to_string(&list).with_context(|| format!("{}", list.display()))?;
    Ok(names(&text, |program| find(program).is_some()))
}

fn names(text: &str, has: impl Fn(&str) -> bool) -> Vec<String> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .filter_map(|line| match line.split_once(':') {
            Some((name, program)) => (!has(program.trim())).then(|| name.trim().to_owned()),
            None => Some(line.to_owned()),
        })
        .collect()
}

/// Returns the path of a program of this system, if it is installed.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(program));
    places.find(|place| place.is_file())
}

/// Returns the name of the newest kernel's package.
fn kernel() -> Result<String> {
    let asked = Command::new("apt-cache").args(["depends", KERNEL]).output();
    let asked = asked.context("cannot run apt-cache: this system is not Debian")?;
    let text = String::from_utf8_lossy(&asked.stdout);
    let mut named = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "));
    let kernel = named.find(|name| name.starts_with("linux-image-"));
    let kernel = kernel.with_context(|| format!("apt-cache knows no {KERNEL}"))?;
    Ok(kernel.to_owned())
}

/// Returns the release of the unpacked kernel.
fn release(root: &Path) -> Result<String> {
    let modules = root.join("lib/modules");
    let mut all: Vec<String> = fs::read_dir(&modules)
        .with_context(|| format!("{}", modules.display()))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    all.sort_by_cached_key(|release| numbers(release));
    all.pop().context("no kernel was unpacked")
}

/// Returns the numbers of the version in a kernel's name: a sort key that puts the newest kernel
/// last. The version ends before the first part without a leading digit, such as `amd64`.
pub(crate) fn numbers(name: &str) -> Vec<u64> {
    let number = |part: &str| {
        let digits = part.split(|letter: char| !letter.is_ascii_digit()).next()?;
        digits.parse().ok()
    };
    let parts = name.split(['.', '-', '+']).map(number);
    parts.skip_while(Option::is_none).map_while(|n| n).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_programs_are_not_downloaded() {
        let text = "# a comment\n\nxl\nqemu: qemu-system\nlib: qemu-system\nless: more\n";
        let all = names(text, |_| false);
        assert_eq!(all, ["xl", "qemu", "lib", "less"]);
        assert_eq!(
            names(text, |program| program == "qemu-system"),
            ["xl", "less"]
        );
    }

    #[test]
    fn newest_kernel_is_last() {
        let mut names = [
            "vmlinuz-6.1.0-10-amd64",
            "vmlinuz-6.12.3-amd64",
            "vmlinuz-6.12-amd64",
            "vmlinuz-6.1.0-9-cloud-amd64",
            "System.map",
        ];
        names.sort_by_key(|name| numbers(name));
        let expected = [
            "System.map",
            "vmlinuz-6.1.0-9-cloud-amd64",
            "vmlinuz-6.1.0-10-amd64",
            "vmlinuz-6.12-amd64",
            "vmlinuz-6.12.3-amd64",
        ];
        assert_eq!(names, expected);
    }
}
