//! `grantway top`: traffic, drops and CPU time of every domain, live or once.

mod sample;
mod screen;
mod table;

use crate::instance_arg::InstanceArg;
use crate::{lab, output, trace};
use clap::Args;
use client::Instance;
use sample::{Interval, RowKind, TopRow, TopSample};
use screen::{KeyPress, Keys, Screen};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};
use table::Order;
use tool::{Failure, clean, interrupt};

/// Maximum time that a trace of the selected row waits for a packet, seconds.
const TRACE_S: u32 = 5;
/// Duration of a profile of the selected row.
const PROFILE: Duration = Duration::from_secs(3);
/// Number of functions that a profile shows.
const FUNCTIONS: usize = 15;
/// Interval between checks for signals.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The line above the table that explains its keys.
const KEYS: &str = "q, Esc quit · by: s sent r received d drops c CPU n name · ↑↓ select · \
                    t trace · p profile";
/// The line below a trace or a profile that explains its keys.
const DETAILS_KEYS: &str = "q, Esc, Return back to the table · Ctrl-C quit";

/// Options of `grantway top`.
#[derive(Debug, Args)]
pub(crate) struct TopOptions {
    /// Time between two updates, seconds
    #[arg(long, value_name = "S", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=3600))]
    interval: u32,
    /// Print one table and exit
    #[arg(long)]
    once: bool,
    /// Sort order
    #[arg(long, value_name = "ORDER", default_value = "sends")]
    sort: Order,
    #[command(flatten)]
    instance: InstanceArg,
}

impl TopOptions {
    fn interval(&self) -> Duration {
        Duration::from_secs(self.interval.into())
    }
}

/// Executes `grantway top`. Prints one table if no terminal is available.
pub(crate) fn top(options: &TopOptions, json: bool) -> anyhow::Result<()> {
    let instance = Instance::connect(&options.instance.name)?;
    interrupt::watch();
    let watched = io::stdout().is_terminal() && io::stdin().is_terminal();
    if json || options.once || !watched {
        once(&instance, options, json)
    } else {
        live(&instance, options)
    }
}

fn once(instance: &Instance, options: &TopOptions, json: bool) -> anyhow::Result<()> {
    let before = TopSample::take(instance)?;
    interrupt::sleep(options.interval())?;
    let mut span = TopSample::take(instance)?.since(&before);
    table::sort(&mut span.rows, options.sort);
    if json {
        return output::json(&span.json());
    }
    let lines = table::lines(&span).join("\n");
    output::print(&format!("{lines}\n"))
}

/// The state of the live display.
struct LiveView<'a> {
    instance: &'a Instance,
    order: Order,
    last: TopSample,
    span: Option<Interval>,
    /// The kind and name of the selected row. Its position may change.
    selected: Option<(RowKind, String)>,
}

/// The user's next action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UserAction {
    Continue,
    Trace,
    Profile,
    End,
}

fn live(instance: &Instance, options: &TopOptions) -> anyhow::Result<()> {
    let mut view = LiveView {
        instance,
        order: options.sort,
        last: TopSample::take(instance)?,
        span: None,
        selected: None,
    };
    let mut screen = Screen::open()?;
    let mut due = Instant::now() + options.interval();
    // This is true when the screen is out of date.
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
        let Some(key) = screen.key(
            due.saturating_duration_since(Instant::now())
                .min(CHECK_INTERVAL),
        )?
        else {
            continue;
        };
        is_stale = true;
        let next = view.press(key);
        match next {
            UserAction::Continue => {}
            UserAction::End => return Ok(()),
            UserAction::Trace | UserAction::Profile => {
                // Dropping the screen restores the terminal.
                drop(screen);
                view.show_details(next)?;
                screen = Screen::open()?;
                // The displayed table is out of date by now.
                due = Instant::now();
            }
        }
    }
}

impl LiveView<'_> {
    fn sample(&mut self) -> anyhow::Result<()> {
        let now = TopSample::take(self.instance)?;
        let mut span = now.since(&self.last);
        table::sort(&mut span.rows, self.order);
        self.span = Some(span);
        self.last = now;
        Ok(())
    }

    fn rows(&self) -> &[TopRow] {
        self.span.as_ref().map_or(&[], |span| &span.rows)
    }

    /// Returns the index of the selected row, or 0 if the row no longer exists.
    fn place(&self) -> usize {
        let is_selected = |row: &TopRow| {
            let selected = self.selected.as_ref();
            selected.is_some_and(|(kind, name)| *kind == row.kind && *name == row.name)
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

    fn press(&mut self, key: KeyPress) -> UserAction {
        match key {
            KeyPress::Letter('q') | KeyPress::Escape | KeyPress::Interrupt | KeyPress::Gone => {
                return UserAction::End;
            }
            KeyPress::Letter('t') if !self.rows().is_empty() => return UserAction::Trace,
            KeyPress::Letter('p') if !self.rows().is_empty() => return UserAction::Profile,
            KeyPress::Letter('s') => self.order(Order::Sends),
            KeyPress::Letter('r') => self.order(Order::Receives),
            KeyPress::Letter('d') => self.order(Order::Drops),
            KeyPress::Letter('c') => self.order(Order::Cpu),
            KeyPress::Letter('n') => self.order(Order::Name),
            KeyPress::Up | KeyPress::Letter('k') => self.select(self.place().saturating_sub(1)),
            KeyPress::Down | KeyPress::Letter('j') => self.select(self.place().saturating_add(1)),
            KeyPress::Letter(_) | KeyPress::Return | KeyPress::Resized => {}
        }
        UserAction::Continue
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
            self.selected = Some((row.kind, row.name.clone()));
        }
    }

    fn selected_row(&self) -> Option<&TopRow> {
        self.rows().get(self.place())
    }

    /// Traces or profiles the selected row. Returns when the user leaves that view.
    fn show_details(&self, next: UserAction) -> anyhow::Result<()> {
        let row = self.selected_row();
        let done = match next {
            UserAction::Profile => row.map_or(Ok(()), |row| {
                let domain = profiled(row);
                let seconds = PROFILE.as_secs();
                let said = clean::line(domain);
                output::print(&format!("Sampling {said} for {seconds} s …\n"))?;
                lab::print_profile(self.instance.name(), domain, PROFILE, FUNCTIONS)
            }),
            _ => {
                let domain = row.filter(|row| matches!(row.kind, RowKind::Guest | RowKind::Driver));
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
        output::print(DETAILS_KEYS)?;
        io::stdout().flush()?;
        let result = wait_to_go_back();
        output::print("\n")?;
        result
    }
}

/// Waits for a key that returns to the table.
///
/// # Errors
///
/// Returns [`Failure::Interrupted`] on Ctrl-C, on a signal, and if the terminal was closed.
fn wait_to_go_back() -> anyhow::Result<()> {
    let mut keys = Keys::open()?;
    loop {
        interrupt::check()?;
        match keys.key(CHECK_INTERVAL)? {
            Some(KeyPress::Letter('q') | KeyPress::Escape | KeyPress::Return) => return Ok(()),
            Some(KeyPress::Interrupt | KeyPress::Gone) => return Err(Failure::Interrupted.into()),
            _ => {}
        }
    }
}

/// Returns the domain whose CPU time a row shows.
fn profiled(row: &TopRow) -> &str {
    match row.kind {
        RowKind::Guest | RowKind::Driver | RowKind::Device => row.name.as_str(),
        RowKind::Nic => "driver",
        RowKind::Monitor => "monitor",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_domain_is_profiled() {
        let mut span = sample::tests::span(Duration::from_secs(1));
        table::sort(&mut span.rows, Order::Receives);
        assert_eq!(profiled(&span.rows[0]), "web-2");
        let wire = span
            .rows
            .iter()
            .find(|row| row.kind == RowKind::Nic)
            .unwrap();
        assert_eq!(profiled(wire), "driver");
    }
}
