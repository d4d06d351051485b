//! Checks whether this system supports the confinement of domains.

use std::fs::read_to_string;

/// Checks whether domains can run here. Missing optional features are reported when a domain
/// starts.
///
/// # Errors
/// Returns the reason why domains cannot run, in one sentence.
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
        return Err("tracing is disabled (kernel.yama.ptrace_scope = 3)".into());
    }
    Ok(())
}

fn kernel_version(release: &str) -> Result<(u32, u32), String> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => Err(format!("unknown kernel version: {release}")),
    }
}

/// Reads a setting below /proc/sys.
fn setting(name: &str) -> Option<String> {
    let text = read_to_string(format!("/proc/sys/{name}")).ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_of_distributions_are_parsed() {
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
    fn an_unsupported_system_is_explained() {
        if let Err(why) = probe() {
            assert!(!why.is_empty() && !why.contains('\n'), "{why}");
        }
    }
}
