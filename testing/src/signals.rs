//! Signal dispositions of the programs that tests start.

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Once};

/// Gives programs that this process starts the default signal dispositions, even if this process
/// was started with signals ignored, by `nohup` or by a shell as a background job.
///
/// A new program inherits ignored signals, and resets handled ones. So this process installs
/// handlers that perform the default action.
///
/// # Panics
///
/// Panics if the kernel rejects a handler.
pub fn default_signals() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2] {
            let always = Arc::new(AtomicBool::new(true));
            let set = signal_hook::flag::register_conditional_default(signal, always);
            set.expect("a handler");
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    /// The environment variable that is set in the process that runs
    /// [`the_child_of_a_background_job`].
    const ROLE: &str = "GRANTWAY_TEST_SIGNALS";

    /// This is not a test itself. The test below runs it with signals ignored.
    #[test]
    fn the_child_of_a_background_job() {
        if std::env::var_os(ROLE).is_none() {
            return;
        }
        default_signals();
        for (name, number) in [("INT", SIGINT), ("QUIT", SIGQUIT), ("HUP", SIGHUP)] {
            let script = format!("ulimit -c 0; kill -{name} $$; exit 3");
            let status = Command::new("sh").args(["-c", &script]).status().unwrap();
            assert_eq!(status.signal(), Some(number), "{status}");
        }
    }

    #[test]
    fn children_of_a_background_job_take_signals() {
        let status = Command::new("sh")
            .args(["-c", "trap '' INT QUIT HUP; exec \"$0\" --exact \"$1\""])
            .arg(std::env::current_exe().unwrap())
            .arg("signals::tests::the_child_of_a_background_job")
            .env(ROLE, "1")
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
    }
}
