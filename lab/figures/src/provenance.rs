//! Provenance of figures: the first line of every report.

use serde::Serialize;

/// Congestion control of every load. The default differs between systems, and an algorithm that
/// paces packets changes the throughput of a path.
pub const CONGESTION: &str = "cubic";

/// Program, machine and conditions of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Provenance {
    /// Commit, with `+` if the tree was modified; `unknown` outside a repository.
    pub commit: String,
    /// Version of this program.
    pub version: &'static str,
    /// Kernel release.
    pub kernel: String,
    /// CPU model.
    pub cpu: String,
    /// Cores that the run may use.
    pub cores: Vec<usize>,
    /// Rate of the time-stamp counter, Hz.
    pub tsc_hz: u64,
    /// Congestion control of the loads.
    pub congestion_control: &'static str,
    /// Source of cycles and of other hardware events. Cycles are always CPU time × TSC rate here.
    pub pmu: &'static str,
    /// Cores on which each component runs.
    pub placement: String,
    /// Whether the run had the privileges of root or of a user namespace.
    pub root: &'static str,
    /// Page size of frames, bytes.
    pub page_bytes: usize,
    /// True if the run had few or short windows and shows only that everything works.
    pub quick: bool,
}

impl Provenance {
    /// Collects the provenance of this process.
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
            root: privileges(),
            page_bytes: abi::PAGE,
            quick,
        }
    }

    /// Returns the provenance as text of a few lines, for users.
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
            text.push_str("\nquick: short windows show only that everything works");
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

/// Returns the privileges of this process. Root has full privileges only if all user ids are
/// mapped, which is not the case in a user namespace.
fn privileges() -> &'static str {
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

/// Returns the commit of the checkout that contains the program, otherwise that of the checkout
/// from which it was built. A `+` is appended if files were modified.
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
    fn the_cpu_model_is_parsed() {
        assert_eq!(
            cpu_model("processor\t: 0\nmodel name\t: Some CPU\n"),
            Some("Some CPU")
        );
        assert_eq!(cpu_model(""), None);
    }
}
