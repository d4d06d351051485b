//! Starts the program `guest` manually, without the monitor.

#[test]
fn only_the_monitor_can_start_the_guest() {
    testing::assert_needs_monitor(env!("CARGO_BIN_EXE_guest"));
}
