//! Declares what tests need of their machine, and makes skipped tests visible.
//!
//! A test that lacks something returns as if it had passed, because libtest has no other result. So
//! the test reports the skip past libtest's capture, and adds a line to [`LIST`] in the target
//! folder, which `cargo xtask test` prints at the end. With `GRANTWAY_REQUIRE=all` it fails
//! instead.

mod build;
mod by_hand;
mod child_guard;
mod flood;
mod forged;
mod groups;
mod install;
mod kernel;
mod processes;
mod promtool;
pub mod requirements;
mod running;
mod scripts;
mod signals;
mod skips;
mod tracer;
mod waiting;

pub use build::build_missing;
pub use by_hand::assert_needs_monitor;
pub use child_guard::ChildGuard;
pub use flood::{StopOnDrop, flood};
pub use forged::{FORGER, forged_frame_drops};
pub use groups::group_id;
pub use install::{place_machine, place_program, place_script};
pub use kernel::{Kernel, kernel};
pub use processes::{KillOnDrop, child_of, cpu_ticks};
pub use promtool::promtool;
pub use running::{ProgramOutput, Running};
pub use scripts::{run_script, run_script_on_debian_13};
pub use signals::default_signals;
pub use skips::{LIST, skip};
pub use tracer::Tracer;
pub use waiting::{TIMEOUT, accept, output_of, wait_for, wait_for_exit, wait_until, with_timeout};

/// Returns from the test, or from a function that prepares for it, unless every need is met. The
/// needs are the functions of [`requirements`]: `require!(root, tap, tool("iperf3"))`. The returned
/// value is the default of the function's type: `()`, `None`.
#[macro_export]
macro_rules! require {
    ($($need:ident $(($($what:expr),*))?),+ $(,)?) => {
        $(if let Err(missing) = $crate::requirements::$need($($($what),*)?) {
            return $crate::skip(missing);
        })+
    };
}
