//! Whether this system can run domains: what confining one stands on.

use std::fs::read_to_string;

/// Whether domains can run here. What they can do without is found out at the start of one.
///
/// # Errors
/// Why not, in one sentence.
pub fn probe() -> Result<(), String> {
    let release = setting("kernel/osrelease").ok_or("/proc is not mounted")?;
    let (major, minor) = kernel_version(&release)?;
    if (major, minor) < (5, 14) {
        return Err(format!(
            "Linux 5.14 or later is needed (this is {major}.{minor})"
        ));
    }
    let actions = setting("kernel/seccomp/actions_avail").unwrap_or_default();
    if !actions.split(' ').any(|action| action == "user_notif") {
        return Err("the kernel has no seccomp user notification".into());
    }
    if setting("kernel/yama/ptrace_scope").as_deref() == Some("3") {
        return Err("tracing is switched off (kernel.yama.ptrace_scope = 3)".into());
    }
    Ok(())
}

fn kernel_version(release: &str) -> Result<(u32, u32), String> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => Err(format!("strange kernel version: {release}")),
    }
}

/// What the kernel says of itself.
fn setting(name: &str) -> Option<String> {
    let text = read_to_string(format!("/proc/sys/{name}")).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_distributions_write() {
        for (release, version) in [
            ("6.18.44-fc-v669", (6, 18)),
            ("5.14.0-427.el9.x86_64", (5, 14)),
            ("5.4", (5, 4)),
        ] {
            assert_eq!(kernel_version(release), Ok(version));
        }
        assert!(kernel_version("next").unwrap_err().contains("next"));
    }

    #[test]
    fn a_system_that_cannot_says_why_in_a_sentence() {
        if let Err(why) = probe() {
            assert!(!why.is_empty() && !why.contains('\n'), "{why}");
        }
    }
}
