//! The terminal: reads single keys and draws whole screens. Restores the terminal when dropped.

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers, poll, read};
use crossterm::style::{Attribute, SetAttribute};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use crossterm::{execute, queue};
use rustix::event::{self as ready, PollFd, PollFlags, Timespec};
use std::io::{self, Write};
use std::panic;
use std::sync::Once;
use std::time::Duration;

/// The alternate screen. Restores the terminal when dropped, and on a panic.
#[derive(Debug)]
pub(crate) struct Screen {
    keys: Keys,
}

/// The keyboard in raw mode: reads each key when it is pressed, without echo. Leaves raw mode when
/// dropped, and on a panic.
#[derive(Debug)]
pub(crate) struct Keys {
    /// Whether the last read found a key. More keys may then be buffered.
    has_read: bool,
}

/// A key press, or another event of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyPress {
    /// A letter.
    Letter(char),
    Up,
    Down,
    Return,
    Escape,
    /// Ctrl-C.
    Interrupt,
    /// The terminal was closed.
    Gone,
    /// The terminal was resized.
    Resized,
}

impl Keys {
    /// Switches the terminal to raw mode.
    pub(crate) fn open() -> io::Result<Self> {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                leave_screen();
                before(info);
            }));
        });
        enable_raw_mode()?;
        Ok(Self { has_read: false })
    }

    /// Returns the next key, or `None` if none is pressed in time.
    pub(crate) fn key(&mut self, within: Duration) -> io::Result<Option<KeyPress>> {
        let within = match self.has_read {
            true => Duration::ZERO,
            false => within,
        };
        if wait_for_hangup(within)? {
            return Ok(Some(KeyPress::Gone));
        }
        self.has_read = match poll(Duration::ZERO) {
            // A signal has arrived, for which the caller checks next.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => false,
            ready => ready?,
        };
        if !self.has_read {
            return Ok(None);
        }
        Ok(match read()? {
            Event::Resize(..) => Some(KeyPress::Resized),
            Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                    Some(KeyPress::Interrupt)
                }
                KeyCode::Esc => Some(KeyPress::Escape),
                KeyCode::Enter => Some(KeyPress::Return),
                KeyCode::Up => Some(KeyPress::Up),
                KeyCode::Down => Some(KeyPress::Down),
                KeyCode::Char(letter) => Some(KeyPress::Letter(letter)),
                _ => None,
            },
            _ => None,
        })
    }
}

impl Screen {
    /// Switches to the alternate screen.
    pub(crate) fn open() -> io::Result<Self> {
        let screen = Self {
            keys: Keys::open()?,
        };
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(screen)
    }

    /// Returns the next key, or `None` if none is pressed in time.
    pub(crate) fn key(&mut self, within: Duration) -> io::Result<Option<KeyPress>> {
        self.keys.key(within)
    }

    /// Draws lines from the top of the screen. Omits lines that do not fit, but always shows the
    /// line `marked`, which it highlights.
    pub(crate) fn draw(&self, head: &[String], lines: &[String], marked: usize) -> io::Result<()> {
        let (columns, rows) = size()?;
        let mut out = io::BufWriter::new(io::stdout().lock());
        let room = usize::from(rows).saturating_sub(head.len());
        let from = first_shown(lines.len(), marked, room);
        let below = lines.iter().enumerate().skip(from).take(room);
        let all = head.iter().map(|line| (false, line));
        let all = all.chain(below.map(|(n, line)| (n == marked, line)));
        for (row, (is_marked, line)) in (0..rows).zip(all) {
            let line: String = line.chars().take(columns.into()).collect();
            queue!(out, MoveTo(0, row), Clear(ClearType::CurrentLine))?;
            if is_marked {
                queue!(out, SetAttribute(Attribute::Reverse))?;
            }
            write!(out, "{line}")?;
            if is_marked {
                queue!(out, SetAttribute(Attribute::Reset))?;
            }
        }
        let used = (head.len() + lines.len().min(room)) as u16;
        if used < rows {
            queue!(out, MoveTo(0, used), Clear(ClearType::FromCursorDown))?;
        }
        out.flush()
    }
}

/// Waits for input. Returns true if the terminal was closed, because reads of keys would then never
/// return.
fn wait_for_hangup(within: Duration) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut terminal = [PollFd::new(&stdin, PollFlags::IN)];
    let within = Timespec::try_from(within).map_err(io::Error::other)?;
    match ready::poll(&mut terminal, Some(&within)) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error.into()),
        _ => Ok(terminal[0]
            .revents()
            .intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL)),
    }
}

/// Returns the index of the first visible line if `room` of `lines` lines fit on the screen.
fn first_shown(lines: usize, marked: usize, room: usize) -> usize {
    let last = lines.saturating_sub(room);
    (marked + 1).saturating_sub(room).min(last)
}

impl Drop for Screen {
    fn drop(&mut self) {
        leave_screen();
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        leave_raw_mode();
    }
}

/// Restores the terminal, unless it was closed.
fn leave_screen() {
    let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
    leave_raw_mode();
}

fn leave_raw_mode() {
    let _ = disable_raw_mode();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marked_line_is_always_shown() {
        assert_eq!(first_shown(10, 0, 20), 0);
        assert_eq!(first_shown(10, 9, 4), 6);
        assert_eq!(first_shown(10, 4, 4), 1);
        assert_eq!(first_shown(3, 9, 2), 1);
        assert_eq!(first_shown(3, 0, 0), 1);
    }
}
