//! The limit on a process's mappings.

/// Returns `vm.max_map_count`, or the kernel's default if it cannot be read.
#[must_use]
pub fn mappings_max() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(65_530)
}
