//! Runs a program on a terminal. Tests press keys only after the program has shown their meaning.

use crate::test_dir::{TestDir, wait};
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use testing::{KillOnDrop, child_of};

/// Start of the line that is printed after the program has exited and restored the terminal.
const ENDED: &str = "ended with ";

pub(crate) struct Terminal {
    keys: ChildStdin,
    shown: Arc<Mutex<Vec<u8>>>,
    /// The terminal's device, through which tests change its settings.
    device: String,
    script: KillOnDrop,
}

impl Terminal {
    /// Runs `grantway` with these arguments. Requires `script`.
    pub(crate) fn new(place: &TestDir, args: &[&str]) -> Self {
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
            script: KillOnDrop(child),
        };
        terminal.device = wait(|| {
            let shown = terminal.shown();
            let (line, _) = shown.split_once("\r\n")?;
            Some(line.to_owned())
        });
        terminal
    }

    /// Returns all output so far.
    pub(crate) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// Returns the last complete screen.
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

    /// Resizes the terminal.
    pub(crate) fn resize(&self, columns: u32, rows: u32) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        let mut stty = Command::new("stty");
        stty.args(["-F", &self.device, "cols", &columns, "rows", &rows]);
        assert!(stty.status().unwrap().success());
    }

    /// Closes the terminal as if its window were closed. Returns the process id of the program on
    /// it.
    pub(crate) fn hang_up(self) -> u64 {
        let program = wait(|| child_of(child_of(self.script.0.id().into(), "sh")?, "grantway"));
        drop(self);
        program
    }

    /// Waits until the program has exited and restored the terminal. Returns its exit status.
    pub(crate) fn end(self) -> u8 {
        wait(|| {
            let shown = self.shown();
            let (_, status) = shown.rsplit_once(ENDED)?;
            status.strip_suffix("\r\n")?.parse().ok()
        })
    }
}
