//! A machine with two neighbours and many attached guests. The last guest is detached and attached
//! repeatedly.

use crate::many_guests::{GuestPlace, ManyGuests, ms_since};
use crate::soak::probe::{Probe, ProbeSpec, ProbeTimes};
use anyhow::Context as _;
use figures::interrupt;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The program that is started for comparison with a guest. It exits immediately.
pub(super) const PROGRAM: &str = "true";
/// Port of the probe.
const PORT: u16 = 5301;
/// Interval of checks whether the kernel has removed an interface.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Timeout for the removal of an interface.
const LINK_TIMEOUT: Duration = Duration::from_secs(20);

/// Durations of attaches and detaches in milliseconds.
#[derive(Debug, Default)]
pub(super) struct AttachTimes {
    pub(super) attach_ms: Vec<f64>,
    pub(super) detach_ms: Vec<f64>,
    /// Time from the reply to a detach until the interface was removed.
    pub(super) link_gone_ms: Vec<f64>,
    /// Number of processes that all attaches started.
    pub(super) processes: usize,
}

/// Results of the probe.
#[derive(Debug)]
pub(super) struct Neighbour {
    pub(super) times: ProbeTimes,
    pub(super) lost: u64,
}

/// A running machine with all of its guests.
pub(super) struct AttachMachine<'a> {
    probe: Probe,
    many_guests: ManyGuests,
    places: &'a [GuestPlace],
    /// Time to attach all guests, one after another.
    pub(super) up_all: Duration,
}

impl<'a> AttachMachine<'a> {
    /// Starts the machine and attaches a guest to each of these namespaces.
    ///
    /// # Errors
    /// Returns an error if the machine does not start, or a guest cannot be attached.
    pub(super) fn new(places: &'a [GuestPlace]) -> anyhow::Result<Self> {
        let many_guests = ManyGuests::start("attach", "")?;
        let [(from, _), (to, address)] = many_guests.neighbours();
        let probe = Probe::start(&ProbeSpec {
            from,
            to,
            address: SocketAddr::new(address, PORT),
        })?;
        let began = Instant::now();
        for (number, place) in places.iter().enumerate() {
            interrupt::check()?;
            many_guests.attach(number, place)?;
        }
        Ok(Self {
            probe,
            up_all: began.elapsed(),
            many_guests,
            places,
        })
    }

    /// Runs `action` and observes the probe meanwhile.
    ///
    /// # Errors
    /// Returns an error if `action` fails, or the probe's process has exited.
    pub(super) fn observe_probe<T>(
        &mut self,
        action: impl FnOnce(&Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Neighbour)> {
        self.probe.mark()?;
        self.probe.times()?;
        let happened = action(self)?;
        let times = self.probe.times()?;
        let probed = self.probe.mark()?;
        let lost = probed.sent.saturating_sub(probed.received);
        Ok((happened, Neighbour { times, lost }))
    }

    /// Detaches and attaches the last guest at a fixed interval.
    ///
    /// # Errors
    /// Returns an error if a request fails, or the user asked to stop.
    pub(super) fn attach_repeatedly(
        &self,
        window: Duration,
        every: Duration,
    ) -> anyhow::Result<AttachTimes> {
        let number = self.places.len().checked_sub(1).context("no guest")?;
        let place = self.places.get(number).context("no guest")?;
        let mut all = AttachTimes::default();
        paced(window, every, || {
            all.detach_ms.push(self.many_guests.detach(number)?);
            let answered = Instant::now();
            while place.has_interface()? {
                interrupt::sleep(POLL_INTERVAL)?;
                anyhow::ensure!(
                    answered.elapsed() < LINK_TIMEOUT,
                    "the interface of a detached guest still exists"
                );
            }
            all.link_gone_ms.push(ms_since(answered));
            all.attach_ms.push(self.many_guests.attach(number, place)?);
            Ok(())
        })?;
        let guest = self.many_guests.guest(number)?;
        let guest = guest.context("the guest did not attach")?;
        let each = 1 + usize::from(guest.agent_pid > 0);
        all.processes = each * all.attach_ms.len();
        Ok(all)
    }

    /// Stops the machine and removes the namespaces of its neighbours.
    ///
    /// # Errors
    /// Returns an error if it does not stop in time.
    pub(super) fn end(self) -> anyhow::Result<()> {
        self.many_guests.down()
    }
}

/// Starts `processes` processes at a fixed interval, two at a time, and waits for each pair.
///
/// # Errors
/// Returns an error if a process cannot be started, or the user asked to stop.
pub(super) fn spawn(window: Duration, processes: usize) -> anyhow::Result<()> {
    let pairs = u32::try_from(processes / 2)?.max(1);
    let start = || {
        let mut command = Command::new(PROGRAM);
        command.stdin(Stdio::null()).spawn()
    };
    paced(window, window / pairs, || {
        let pair = [start().context(PROGRAM)?, start().context(PROGRAM)?];
        for mut child in pair {
            Child::wait(&mut child)?;
        }
        Ok(())
    })
}

/// Repeats an action until a window is over, at a fixed interval or as often as possible.
fn paced(
    window: Duration,
    every: Duration,
    mut turn: impl FnMut() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let mut due = Duration::ZERO;
    while due < window && began.elapsed() < window {
        interrupt::sleep(due.saturating_sub(began.elapsed()))?;
        turn()?;
        due += every;
    }
    Ok(interrupt::sleep(window.saturating_sub(began.elapsed()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_all_turns_that_fit() {
        let mut turns = 0;
        let window = Duration::from_millis(20);
        let began = Instant::now();
        paced(window, window / 4, || {
            turns += 1;
            Ok(())
        })
        .unwrap();
        assert!((1..=4).contains(&turns) && began.elapsed() >= window);
    }
}
