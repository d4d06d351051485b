//! Where figures come from: the first line of every report.

use serde::Serialize;

/// The congestion control of every load. Systems differ in their default, and a rate-paced one
/// changes what the same path seems to carry.
pub const CONGESTION: &str = "cubic";

/// Who measured what on which machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Provenance {
    /// The commit, with `+` if the tree differed from it; `unknown` outside a repository.
    pub commit: String,
    /// Version of this program.
    pub version: &'static str,
    /// The kernel's release.
    pub kernel: String,
    /// Model of the CPU.
    pub cpu: String,
    /// Cores that the run may use.
    pub cores: Vec<usize>,
    /// Rate of the time-stamp counter, Hz.
    pub tsc_hz: u64,
    /// Congestion control of the loads.
    pub congestion_control: &'static str,
    /// What counts cycles, here always CPU time × TSC rate, and other events of the hardware.
    pub pmu: &'static str,
    /// Which core does what.
    pub placement: String,
    /// Whether the run has root's rights, or those of a user namespace.
    pub root: &'static str,
    /// Bytes of the pages that frames lie in.
    pub page_bytes: usize,
    /// Whether it was a short run, by windows or their number, whose figures only show that
    /// everything works.
    pub quick: bool,
}

impl Provenance {
    /// Of this process.
    #[must_use]
    pub fn collect(placement: String, quick: bool) -> Self {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            commit: commit(),
            version: env!("CARGO_PKG_VERSION"),
            kernel: kernel.trim().to_owned(),
            cpu: cpu_model(&info).unwrap_or("unknown").to_owned(),
            cores: crate::measure::cores(),
            tsc_hz: shmem::time::tsc_hz(),
            congestion_control: CONGESTION,
            pmu: "none: CPU time x TSC rate",
            placement,
            root: rights(),
            page_bytes: abi::PAGE,
            quick,
        }
    }

    /// For people, in a few lines.
    #[must_use]
    pub fn text(&self) -> String {
        let rights = match self.root {
            "yes" => "root",
            "no" => "no root",
            other => other,
        };
        let mut text = format!(
            "{} · kernel {} · {} cores · TSC {:.2} GHz · {}\ncommit {} · {}\n{}",
            self.cpu,
            self.kernel,
            self.cores.len(),
            self.tsc_hz as f64 / 1e9,
            self.congestion_control,
            self.commit,
            rights,
            self.placement,
        );
        if self.quick {
            text.push_str("\nquick: short windows show that everything works, not how fast");
        }
        text
    }
}

fn cpu_model(info: &str) -> Option<&str> {
    info.lines()
        .find_map(|line| line.strip_prefix("model name"))?
        .split_once(':')
        .map(|(_, model)| model.trim())
}

/// Root is root only where every user of the system is mapped; in a user namespace it is not.
fn rights() -> &'static str {
    if !rustix::process::geteuid().is_root() {
        return "no";
    }
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let words: Vec<&str> = map.split_whitespace().collect();
    match words.as_slice() {
        ["0", "0", "4294967295"] => "yes",
        _ => "user namespace",
    }
}

/// The commit of the checkout that the program lies in, or else of the one that it was built in;
/// with a `+` if files had been changed.
fn commit() -> String {
    let git = |args: &[&str]| {
        let folder = std::env::current_exe().ok()?;
        let output = std::process::Command::new("git")
            .arg("-C")
            .arg(folder.parent()?)
            .args(args)
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return option_env!("GRANTWAY_COMMIT")
            .unwrap_or("unknown")
            .to_owned();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => commit + "+",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_found() {
        assert_eq!(
            cpu_model("processor\t: 0\nmodel name\t: Some CPU\n"),
            Some("Some CPU")
        );
        assert_eq!(cpu_model(""), None);
    }
}
