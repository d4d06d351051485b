//! A program on a terminal of its own, whose keys are pressed when it shows what they are for.

use crate::place::{Place, wait};
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use testing::{Killed, child_of};

/// Behind all that the program shows: how it has ended, and whether the terminal is as it was.
const ENDED: &str = "ended with ";

pub(crate) struct Terminal {
    keys: ChildStdin,
    shown: Arc<Mutex<Vec<u8>>>,
    /// Where the terminal is, for who changes it from outside.
    device: String,
    script: Killed,
}

impl Terminal {
    /// Runs `grantway` with these words. It takes `script`.
    pub(crate) fn new(place: &Place, args: &[&str]) -> Self {
        let line = format!(
            "trap : INT; tty; stty cols 120 rows 30; before=$(stty -g); {} {}; status=$?; \
             test \"$(stty -g)\" = \"$before\" && echo \"{ENDED}$status\"",
            place.path("grantway").display(),
            args.join(" ")
        );
        let mut command = Command::new("script");
        command
            .args(["-qec", &line, "/dev/null"])
            .env("GRANTWAY_RUNTIME_DIR", place.path("run"))
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child: Child = command.spawn().unwrap();
        let keys = child.stdin.take().unwrap();
        let mut out = child.stdout.take().unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let all = shown.clone();
        std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(bytes @ 1..) = out.read(&mut chunk) {
                all.lock().unwrap().extend(&chunk[..bytes]);
            }
        });
        let mut terminal = Self {
            keys,
            shown,
            device: String::new(),
            script: Killed(child),
        };
        terminal.device = wait(|| {
            let shown = terminal.shown();
            let (line, _) = shown.split_once("\r\n")?;
            Some(line.to_owned())
        });
        terminal
    }

    /// All that was shown so far.
    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// The last whole screen: what was drawn from its first line on.
    pub(crate) fn screen(&self) -> Option<String> {
        let shown = self.shown();
        let end = shown.rfind("\x1b[1;1H")?;
        let begin = shown[..end].rfind("\x1b[1;1H")?;
        Some(shown[begin..end].to_owned())
    }

    /// Presses keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Has another size from now on.
    pub(crate) fn resize(&self, columns: u32, rows: u32) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let mut stty = Command::new("stty");
        stty.args(["-F", &self.device, "cols", &columns, "rows", &rows]);
        assert!(stty.status().unwrap().success());
    }

    /// The terminal goes, as a window is closed. The program that was on it.
    pub(crate) fn hang_up(self) -> u64 {
        let program = wait(|| child_of(child_of(self.script.0.id().into(), "sh")?, "grantway"));
        drop(self);
        program
    }

    /// The exit status of the program, which has left the terminal as it was.
    pub(crate) fn end(self) -> u8 {
        wait(|| {
            let shown = self.shown();
            let (_, status) = shown.rsplit_once(ENDED)?;
            status.strip_suffix("\r\n")?.parse().ok()
        })
    }
}
