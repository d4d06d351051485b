//! A DPDK guest that writes and reads every byte of its frames, like our guests with `touch`. It is
//! a C program (`peers/touch.c`), which is compiled when a run needs it.

use super::process::{self, TIMEOUT, output};
use super::testpmd::{self, Forwarded, Site};
use crate::kernel;
use anyhow::Context as _;
use figures::Failure;
use figures::helper::LineChild;
use serde::Deserialize;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = include_str!("../../peers/touch.c");
const LIBRARY: &str = "libdpdk";

/// The compiled program. Its file is deleted on drop.
#[derive(Debug)]
pub struct TouchProgram {
    folder: tempfile::TempDir,
}

impl TouchProgram {
    /// Compiles the program.
    ///
    /// # Errors
    /// Returns [`Failure::CannotRun`] with the missing part, or the compiler's error.
    pub fn build() -> Result<Self, Failure> {
        kernel::require_programs(&["cc", "pkg-config"])?;
        let cannot = |why: String| Failure::CannotRun(format!("peers/touch.c: {why}"));
        let flags = |which| {
            let known = output(Command::new("pkg-config").args([which, LIBRARY]));
            known.map_err(|_| cannot(format!("{LIBRARY} is not installed: package libdpdk-dev")))
        };
        let (compiling, linking) = (flags("--cflags")?, flags("--libs")?);
        let folder = tempfile::tempdir().map_err(|error| cannot(error.to_string()))?;
        let this = Self { folder };
        let source = this.folder.path().join("touch.c");
        std::fs::write(&source, SOURCE).map_err(|error| cannot(error.to_string()))?;
        let mut compiler = Command::new("cc");
        compiler
            .args(["-O3", "-Wall"])
            .args(compiling.split_whitespace())
            // Follows the library's flags to override them, because Debian's build of DPDK is not
            // optimized for this processor.
            .args(["-march=native", "-o"])
            .arg(this.path())
            .arg(source)
            .args(linking.split_whitespace());
        output(&mut compiler).map_err(cannot)?;
        Ok(this)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("touch")
    }
}

/// A running guest with one port.
#[derive(Debug)]
pub struct TouchingGuest {
    child: LineChild,
    last: Sums,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
struct Sums {
    frames: f64,
    cycles: f64,
    ns: f64,
}

impl Sums {
    /// Returns the frames per second since `earlier`.
    fn rate_since(&self, earlier: &Self) -> f64 {
        let seconds = (self.ns - earlier.ns) / 1e9;
        (self.frames - earlier.frames) / seconds.max(f64::MIN_POSITIVE)
    }
}

impl TouchingGuest {
    /// Starts the guest with port `vdev` and keeps this many frames of `size` bytes in flight.
    ///
    /// # Errors
    /// Returns an error if it does not start.
    pub fn start(
        program: &TouchProgram,
        place: Site<'_>,
        vdev: &str,
        size: u32,
        under_way: u32,
    ) -> anyhow::Result<Self> {
        let path = program.path();
        let mut command = process::killed_with_parent(path.to_str().context("no name of a file")?);
        command
            .env("RUNTIME_DIRECTORY", place.folder)
            .args(testpmd::environment(place.core))
            .arg(format!("--vdev={vdev}"))
            .arg("--")
            .args([size, testpmd::BURST, under_way].map(|number| number.to_string()));
        let child = LineChild::start(place.name, command, TIMEOUT)?;
        let last = Sums::default();
        Ok(Self { child, last })
    }

    /// Returns the process id.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.pid()
    }

    /// Waits until its port is connected.
    ///
    /// # Errors
    /// Returns an error if the wait times out.
    pub fn wait_for_link(&mut self) -> anyhow::Result<()> {
        process::wait("the port of the guest that touches", || {
            let output = self.child.request("link", TIMEOUT)?;
            Ok(output["up"] == true)
        })
    }

    /// Starts sending.
    ///
    /// # Errors
    /// Returns an error if the process has exited.
    pub fn go(&mut self) -> anyhow::Result<()> {
        self.child.request("start", TIMEOUT).map(drop)
    }

    /// Returns the frames per second received since the last call, by the guest's clock.
    ///
    /// # Errors
    /// Returns an error if the process has exited.
    pub fn rate(&mut self) -> anyhow::Result<f64> {
        let now = self.sums()?;
        let rate = now.rate_since(&self.last);
        self.last = now;
        Ok(rate)
    }

    /// Returns the statistics since the start. The guest resends frames that the switch rejects, so
    /// it drops none.
    ///
    /// # Errors
    /// Returns an error if the process has exited.
    pub fn forwarded(&mut self) -> anyhow::Result<Forwarded> {
        let sums = self.sums()?;
        Ok(Forwarded {
            cycles: sums.cycles / sums.frames.max(1.0),
            dropped: 0.0,
        })
    }

    fn sums(&mut self) -> anyhow::Result<Sums> {
        let output = self.child.request("show", TIMEOUT)?;
        Ok(serde_json::from_value(output)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_covers_the_time_between_readings() {
        let at = |frames, ns| Sums {
            frames,
            cycles: 0.0,
            ns,
        };
        let (first, second) = (at(100.0, 1e9), at(2_100.0, 3e9));
        assert_eq!(second.rate_since(&first), 1000.0);
        assert_eq!(first.rate_since(&first), 0.0);
    }

    #[test]
    fn the_program_compiles_where_dpdk_is_installed() {
        match TouchProgram::build() {
            Ok(program) => assert!(program.path().is_file()),
            Err(error) => testing::skip(error),
        }
    }
}
