//! Whether this system can run domains.

use std::io;

/// Whether domains can run here. What they can do without is found out at the start of one.
///
/// # Errors
/// Why not, in one sentence.
pub fn probe() -> Result<(), String> {
    let (major, minor) = kernel_version()?;
    if (major, minor) < (5, 14) {
        return Err(format!(
            "Linux 5.14 or later is needed (this is {major}.{minor})"
        ));
    }
    let action = libc::SECCOMP_RET_USER_NOTIF;
    // SAFETY: reads one u32 from this place.
    let available = unsafe {
        let operation = libc::SECCOMP_GET_ACTION_AVAIL;
        libc::syscall(libc::SYS_seccomp, operation, 0, &raw const action)
    };
    if available != 0 {
        let error = io::Error::last_os_error();
        return Err(format!(
            "the kernel has no seccomp user notification: {error}"
        ));
    }
    if setting("kernel/yama/ptrace_scope") == Some(3) {
        return Err("tracing is switched off (kernel.yama.ptrace_scope = 3)".into());
    }
    Ok(())
}

/// How many mappings a process may have here, `vm.max_map_count`; what the kernel starts with if
/// it does not say.
#[must_use]
pub fn mappings_max() -> u32 {
    setting("vm/max_map_count").unwrap_or(65_530)
}

fn kernel_version() -> Result<(u32, u32), String> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease");
    let release = release.map_err(|error| format!("/proc is not mounted: {error}"))?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => Err(format!("strange kernel version: {}", release.trim())),
    }
}

/// A number that the kernel can be told.
fn setting(name: &str) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/sys/{name}")).ok()?;
    text.trim().parse().ok()
}
