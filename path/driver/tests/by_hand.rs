//! The program `driver`, started by a person instead of the monitor.

#[test]
fn says_who_must_start_it() {
    testing::refuses_a_person(env!("CARGO_BIN_EXE_driver"));
}
