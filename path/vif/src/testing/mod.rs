//! Mock peers and harnesses, for tests, benches and fuzzers.
