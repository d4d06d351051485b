//! The connection to the back end.

use std::thread::sleep;
use std::time::Duration;
use vhost_edge::testing::Remote;

/// Time between two attempts to connect.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Connects to the back end, retries until that succeeds, and starts the device with these
/// features.
pub(crate) fn connected(vm: &mut Remote, features: u64) {
    while !matches!(vm.connect(features), Ok(true)) {
        sleep(RETRY_INTERVAL);
    }
}
