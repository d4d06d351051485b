//! What is measured.

/// What is compared; the first is what the others are compared with.
pub(super) const COLUMNS: [&str; 3] = ["netback", "grantway-copy", "grantway-map"];
/// The wires, and what is measured on each: direction (receive or transmit, as the guests see it)
/// and guests. `xtask/xen/exp.sh` has what they are.
pub(super) const WIRES: [(&str, &[&str]); 3] = [
    ("large", &["r1", "r2", "t1", "t2"]),
    ("mtu", &["r1", "r2", "t1", "t2"]),
    ("lro", &["r1", "r2"]),
];

/// Wires and what is measured on them, in the order of tables.
pub(super) fn cells() -> impl Iterator<Item = (&'static str, &'static str)> {
    WIRES
        .iter()
        .flat_map(|(wire, cells)| cells.iter().map(move |cell| (*wire, *cell)))
}
