//! Starts the program `driver` manually instead of by the monitor.

#[test]
fn says_who_must_start_it() {
    testing::rejects_a_start_by_hand(env!("CARGO_BIN_EXE_driver"));
}
