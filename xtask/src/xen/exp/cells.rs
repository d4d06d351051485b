//! The cells to measure.

/// The compared columns; the first is the reference.
pub(super) const COLUMNS: [&str; 3] = ["netback", "grantway-copy", "grantway-map"];
/// The wires and the cells of each. A cell's name has the direction (receive or transmit, as the
/// guests see it) and the number of guests. `xtask/xen/exp.sh` describes them.
pub(super) const WIRES: [(&str, &[&str]); 3] = [
    ("large", &["r1", "r2", "t1", "t2"]),
    ("mtu", &["r1", "r2", "t1", "t2"]),
    ("lro", &["r1", "r2"]),
];

/// Returns each wire with each of its cells, in the order of the tables.
pub(super) fn cells() -> impl Iterator<Item = (&'static str, &'static str)> {
    WIRES
        .iter()
        .flat_map(|(wire, cells)| cells.iter().map(move |cell| (*wire, *cell)))
}
