//! A machine with two neighbours and a crowd of attached guests, of which the last comes and goes.

use crate::crowd::{Crowd, GuestPlace, ms_since};
use crate::soak::probe::{Probe, ProbeSpec, ProbeTimes};
use anyhow::Context as _;
use figures::interrupt;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What is started to be compared with a guest: it does nothing.
pub(super) const PROGRAM: &str = "true";
/// The probe's port.
const PORT: u16 = 5301;
/// How often it is looked whether an interface has gone.
const LOOK: Duration = Duration::from_millis(1);
/// One that has stayed for so long will not go.
const LOST: Duration = Duration::from_secs(20);

/// What a guest's comings and goings took, milliseconds each.
#[derive(Debug, Default)]
pub(super) struct Comings {
    pub(super) attach_ms: Vec<f64>,
    pub(super) detach_ms: Vec<f64>,
    /// From the answer to a detach until the interface was gone.
    pub(super) link_gone_ms: Vec<f64>,
    /// Processes that came with all of them.
    pub(super) processes: usize,
}

/// What became of the probe meanwhile.
#[derive(Debug)]
pub(super) struct Neighbour {
    pub(super) times: ProbeTimes,
    pub(super) lost: u64,
}

/// A machine that is up, with all of its guests.
pub(super) struct Scene<'a> {
    probe: Probe,
    crowd: Crowd,
    homes: &'a [GuestPlace],
    /// How long it took until all had come, one after another.
    pub(super) up_all: Duration,
}

impl<'a> Scene<'a> {
    /// Starts the machine and attaches a guest to each of these homes.
    ///
    /// # Errors
    /// If the machine does not start, or a guest does not come.
    pub(super) fn new(homes: &'a [GuestPlace]) -> anyhow::Result<Self> {
        let crowd = Crowd::start("attach", "")?;
        let [(from, _), (to, address)] = crowd.neighbours();
        let probe = Probe::start(&ProbeSpec {
            from,
            to,
            address: SocketAddr::new(address, PORT),
        })?;
        let began = Instant::now();
        for (number, home) in homes.iter().enumerate() {
            interrupt::check()?;
            crowd.attach(number, home)?;
        }
        Ok(Self {
            probe,
            up_all: began.elapsed(),
            crowd,
            homes,
        })
    }

    /// Lets something happen, and watches the probe.
    ///
    /// # Errors
    /// Those of `happens`, or the probe has gone.
    pub(super) fn watch<T>(
        &mut self,
        happens: impl FnOnce(&Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, Neighbour)> {
        self.probe.mark()?;
        self.probe.times()?;
        let happened = happens(self)?;
        let times = self.probe.times()?;
        let probed = self.probe.mark()?;
        let lost = probed.sent.saturating_sub(probed.received);
        Ok((happened, Neighbour { times, lost }))
    }

    /// The last guest goes and comes, at a steady pace.
    ///
    /// # Errors
    /// If it does not go or come, or the user asked to stop.
    pub(super) fn comings(&self, window: Duration, every: Duration) -> anyhow::Result<Comings> {
        let number = self.homes.len().checked_sub(1).context("no guest")?;
        let home = self.homes.get(number).context("no guest")?;
        let mut all = Comings::default();
        paced(window, every, || {
            all.detach_ms.push(self.crowd.detach(number)?);
            let answered = Instant::now();
            while home.has_interface()? {
                interrupt::sleep(LOOK)?;
                anyhow::ensure!(answered.elapsed() < LOST, "an interface has stayed");
            }
            all.link_gone_ms.push(ms_since(answered));
            all.attach_ms.push(self.crowd.attach(number, home)?);
            Ok(())
        })?;
        let guest = self.crowd.guest(number)?;
        let guest = guest.context("the guest has not come")?;
        let each = 1 + usize::from(guest.agent_pid > 0);
        all.processes = each * all.attach_ms.len();
        Ok(all)
    }

    /// Ends the machine; the namespaces of its neighbours end with it.
    ///
    /// # Errors
    /// It does not end in time.
    pub(super) fn end(self) -> anyhow::Result<()> {
        self.crowd.down()
    }
}

/// Starts so many processes, two at a time, and waits for each pair, at a steady pace.
///
/// # Errors
/// If one cannot be started, or the user asked to stop.
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

/// Does something again and again until a window is over: every so often, or as often as it can.
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
    fn a_window_has_as_many_turns_as_fit() {
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
