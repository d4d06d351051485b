//! How many mappings a process may have.

/// `vm.max_map_count`; what the kernel starts with if it does not say.
#[must_use]
pub fn mappings_max() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    text.trim().parse().unwrap_or(65_530)
}
