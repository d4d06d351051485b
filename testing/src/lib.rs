//! What tests need of the machine that they run on, and that a test which cannot run is seen.
//!
//! A test that lacks something ends as if it had passed: libtest knows nothing else. So it says so
//! past libtest's capture, and adds a line to [`LIST`] in the target folder, which `cargo xtask
//! test` prints at the end. With `GRANTWAY_REQUIRE=all` it fails instead.

mod by_hand;
mod flood;
mod groups;
pub mod needs;
mod placed;
mod processes;
mod promtool;
mod signals;
mod skips;
mod tied;
mod tracer;
mod waiting;

pub use by_hand::refuses_a_person;
pub use flood::{Stops, flood};
pub use groups::group_id;
pub use placed::{place_machine, place_program, place_script};
pub use processes::{Killed, child_of, cpu_ticks};
pub use promtool::promtool;
pub use signals::default_signals;
pub use skips::{LIST, skip};
pub use tied::Tied;
pub use tracer::Tracer;
pub use waiting::{PATIENCE, accept, end_of, output_of, patient, wait_for, wait_until};

/// Leaves the test, or the function that prepares for it, unless everything is there. The needs are
/// the functions of [`needs`]: `require!(root, tap, tool("iperf3"))`. What is returned is the
/// default of the function's type: `()`, `None`.
#[macro_export]
macro_rules! require {
    ($($need:ident $(($($what:expr),*))?),+ $(,)?) => {
        $(if let Err(missing) = $crate::needs::$need($($($what),*)?) {
            return $crate::skip(missing);
        })+
    };
}
