//! Starts the program `driver` manually, without the monitor.

#[test]
fn start_by_hand_is_rejected() {
    testing::assert_needs_monitor(env!("CARGO_BIN_EXE_driver"));
}
