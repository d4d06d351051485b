//! Starts the program `device` manually, without the monitor.

#[test]
fn start_by_hand_is_rejected() {
    testing::rejects_a_start_by_hand(env!("CARGO_BIN_EXE_device"));
}
