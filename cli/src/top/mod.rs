//! `grantway top`: who sends, who receives, who drops and why, whose CPU: live, or once.

mod sample;
mod screen;
mod table;

use crate::which::Which;
use crate::{output, prof, trace};
use clap::Args;
use client::Instance;
use figures::{Failure, clean, interrupt};
use sample::{Row, Sample, Span, Who};
use screen::{Key, Keys, Screen};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};
use table::Order;

/// Seconds that the trace of a selected row waits for a packet.
const TRACE_S: u32 = 5;
/// How long the profile of a selected row takes …
const PROFILE: Duration = Duration::from_secs(3);
/// … and how many functions of it are shown.
const FUNCTIONS: usize = 15;
/// How often signals are looked for.
const LOOK: Duration = Duration::from_millis(100);
/// The line of keys above the table.
const KEYS: &str = "q, Esc quit · by: s sent r received d drops c CPU n name · ↑↓ select · \
                    t trace · p profile";
/// The line of keys below a trace and below a profile.
const KEYS_BELOW: &str = "q, Esc, Return back to the table · Ctrl-C quit";

/// What was asked for.
#[derive(Debug, Args)]
pub(crate) struct TopOptions {
    /// Seconds from one table to the next
    #[arg(long, value_name = "S", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    interval: u32,
    /// Print one table and end
    #[arg(long)]
    once: bool,
    /// By what rows are in order
    #[arg(long, value_name = "WHAT", default_value = "sends")]
    sort: Order,
    #[command(flatten)]
    which: Which,
}

impl TopOptions {
    fn interval(&self) -> Duration {
        Duration::from_secs(self.interval.into())
    }
}

/// `grantway top`. Where nobody can press a key it prints one table.
pub(crate) fn top(options: &TopOptions, json: bool) -> anyhow::Result<()> {
    let instance = Instance::connect(&options.which.name)?;
    interrupt::watch();
    let watched = io::stdout().is_terminal() && io::stdin().is_terminal();
    if json || options.once || !watched {
        once(&instance, options, json)
    } else {
        live(&instance, options)
    }
}

fn once(instance: &Instance, options: &TopOptions, json: bool) -> anyhow::Result<()> {
    let before = Sample::take(instance)?;
    interrupt::sleep(options.interval())?;
    let mut span = Sample::take(instance)?.since(&before);
    table::sort(&mut span.rows, options.sort);
    if json {
        return output::json(&span.json());
    }
    let lines = table::lines(&span).join("\n");
    output::print(&format!("{lines}\n"))
}

/// What is shown now.
struct LiveView<'a> {
    instance: &'a Instance,
    order: Order,
    last: Sample,
    span: Option<Span>,
    /// Who is selected: rows change their places.
    selected: Option<(Who, String)>,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    GoOn,
    Trace,
    Profile,
    End,
}

fn live(instance: &Instance, options: &TopOptions) -> anyhow::Result<()> {
    let mut view = LiveView {
        instance,
        order: options.sort,
        last: Sample::take(instance)?,
        span: None,
        selected: None,
    };
    let mut screen = Screen::take()?;
    let mut due = Instant::now() + options.interval();
    // Whether the screen shows something else than there is.
    let mut is_stale = true;
    loop {
        interrupt::check()?;
        if Instant::now() >= due {
            view.sample()?;
            due = Instant::now() + options.interval();
            is_stale = true;
        }
        if std::mem::take(&mut is_stale) {
            view.draw(&screen)?;
        }
        let Some(key) = screen.key(due.saturating_duration_since(Instant::now()).min(LOOK))? else {
            continue;
        };
        is_stale = true;
        let next = view.press(key);
        match next {
            Next::GoOn => {}
            Next::End => return Ok(()),
            Next::Trace | Next::Profile => {
                // It has the terminal as it was before.
                drop(screen);
                view.look_closer(next)?;
                screen = Screen::take()?;
                // What was shown is old by now.
                due = Instant::now();
            }
        }
    }
}

impl LiveView<'_> {
    fn sample(&mut self) -> anyhow::Result<()> {
        let now = Sample::take(self.instance)?;
        let mut span = now.since(&self.last);
        table::sort(&mut span.rows, self.order);
        self.span = Some(span);
        self.last = now;
        Ok(())
    }

    fn rows(&self) -> &[Row] {
        self.span.as_ref().map_or(&[], |span| &span.rows)
    }

    /// The place of the selected row; the first one, if it is gone.
    fn place(&self) -> usize {
        let is_selected = |row: &Row| {
            let selected = self.selected.as_ref();
            selected.is_some_and(|(who, name)| *who == row.who && *name == row.name)
        };
        self.rows().iter().position(is_selected).unwrap_or(0)
    }

    fn draw(&self, screen: &Screen) -> io::Result<()> {
        let name = self.instance.name();
        let title = match &self.span {
            Some(span) => format!("{name}: {} rows", span.rows.len()),
            None => format!("{name}: counting"),
        };
        let mut head = vec![title, KEYS.to_owned(), String::new()];
        let mut lines = self.span.as_ref().map(table::lines).unwrap_or_default();
        let rows = lines.split_off(lines.len().min(table::HEADER));
        head.extend(lines);
        screen.draw(&head, &rows, self.place())
    }

    fn press(&mut self, key: Key) -> Next {
        match key {
            Key::Letter('q') | Key::Escape | Key::Interrupt | Key::Gone => return Next::End,
            Key::Letter('t') if !self.rows().is_empty() => return Next::Trace,
            Key::Letter('p') if !self.rows().is_empty() => return Next::Profile,
            Key::Letter('s') => self.order(Order::Sends),
            Key::Letter('r') => self.order(Order::Receives),
            Key::Letter('d') => self.order(Order::Drops),
            Key::Letter('c') => self.order(Order::Cpu),
            Key::Letter('n') => self.order(Order::Name),
            Key::Up | Key::Letter('k') => self.select(self.place().saturating_sub(1)),
            Key::Down | Key::Letter('j') => self.select(self.place().saturating_add(1)),
            Key::Letter(_) | Key::Return | Key::Resized => {}
        }
        Next::GoOn
    }

    fn order(&mut self, order: Order) {
        self.order = order;
        if let Some(span) = &mut self.span {
            table::sort(&mut span.rows, order);
        }
    }

    fn select(&mut self, place: usize) {
        let row = self.rows().get(place);
        if let Some(row) = row {
            self.selected = Some((row.who, row.name.clone()));
        }
    }

    fn selected_row(&self) -> Option<&Row> {
        self.rows().get(self.place())
    }

    /// Traces or profiles the selected row, and returns when the user goes back to the table.
    fn look_closer(&self, next: Next) -> anyhow::Result<()> {
        let row = self.selected_row();
        let done = match next {
            Next::Profile => row.map_or(Ok(()), |row| {
                let domain = profiled(row);
                let seconds = PROFILE.as_secs();
                let said = clean::line(domain);
                output::print(&format!("Sampling {said} for {seconds} s …\n"))?;
                prof::look_at(self.instance.name(), domain, PROFILE, FUNCTIONS)
            }),
            _ => {
                let domain = row.filter(|row| matches!(row.who, Who::Guest | Who::Driver));
                let domain = domain.map(|row| row.name.as_str());
                trace::trace(self.instance.name(), domain, TRACE_S, false)
            }
        };
        match done {
            Err(error) if matches!(error.downcast_ref(), Some(Failure::Interrupted)) => {
                return Err(error);
            }
            Err(error) => output::print(&format!("{error:#}\n"))?,
            Ok(()) => {}
        }
        output::print(KEYS_BELOW)?;
        io::stdout().flush()?;
        let went = wait_to_go_back();
        output::print("\n")?;
        went
    }
}

/// Waits for a key that goes back to the table.
///
/// # Errors
/// [`Failure::Interrupted`] on Ctrl-C, on a signal, and where the terminal has been closed.
fn wait_to_go_back() -> anyhow::Result<()> {
    let mut keys = Keys::take()?;
    loop {
        interrupt::check()?;
        match keys.key(LOOK)? {
            Some(Key::Letter('q') | Key::Escape | Key::Return) => return Ok(()),
            Some(Key::Interrupt | Key::Gone) => return Err(Failure::Interrupted.into()),
            _ => {}
        }
    }
}

/// The domain whose CPU time a row's is.
fn profiled(row: &Row) -> &str {
    match row.who {
        Who::Guest | Who::Driver => row.name.as_str(),
        Who::Nic => "driver",
        Who::Monitor => "monitor",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_selected_is_profiled() {
        let mut span = sample::tests::span(Duration::from_secs(1));
        table::sort(&mut span.rows, Order::Receives);
        assert_eq!(profiled(&span.rows[0]), "web-2");
        let wire = span.rows.iter().find(|row| row.who == Who::Nic).unwrap();
        assert_eq!(profiled(wire), "driver");
    }
}
