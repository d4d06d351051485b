//! What domains tell their devices goes to netd, by a link of its own. The domain's worker waits at
//! most 50 ms for a sign of life.

use abi::core::{Outcome, Record, Task};
use abi::hypercall::TapControl;
use abi::xdp::XdpControl;
use link::Link;
use monitor::DeviceControl;
use rustix::event::PollFlags;
use rustix::io::Errno;
use shmem::rate::TokenBucket;
use shmem::time::monotonic_ns;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a domain's worker waits for netd to answer, or to say that it works at it.
const SIGN_NS: u64 = 50_000_000;
/// How long it waits then: some grace periods of the kernel's.
const WORK_NS: u64 = 1_000_000_000;
/// While nothing ends a socket, netd is asked this often.
const AGAIN: Duration = Duration::from_millis(5);

/// Changes of a TAP's steering in a row, before [`STEERS_PER_SECOND`] counts: more than one for
/// each guest interface.
const STEERS_BURST: u32 = 4 * abi::layout::fd::CONNECTIONS_MAX;
/// The same, a second, in the long run: each asks the whole system for a grace period.
const STEERS_PER_SECOND: u64 = 4096;

/// The link to the netd that runs, if one does.
#[derive(Debug, Default)]
pub(crate) struct Control {
    link: Mutex<(Option<Link>, u32)>,
    /// Sockets that no domain has any more.
    closed: Mutex<Vec<u32>>,
    /// Whether everything ends: nobody waits for netd then.
    ending: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Control {
    /// There is another netd, or none.
    pub(crate) fn replace(&self, link: Option<Link>) {
        lock(&self.link).0 = link;
    }

    /// Everything ends.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Sockets that no domain has any more.
    pub(crate) fn take_closed(&self) -> Vec<u32> {
        std::mem::take(&mut lock(&self.closed))
    }

    /// Has netd do something. EAGAIN: it does not answer.
    fn ask(&self, message: Task) -> Result<u64, Errno> {
        let mut guard = lock(&self.link);
        let (link, tokens) = &mut *guard;
        let link = link.as_ref().ok_or(Errno::AGAIN)?;
        *tokens = tokens.wrapping_add(1);
        let token = *tokens;
        link.send(&Record { token, message }, &[])
            .map_err(|_| Errno::AGAIN)?;
        let mut until_ns = monotonic_ns().saturating_add(SIGN_NS);
        loop {
            let received = link.receive::<Outcome>().map_err(|_| Errno::AGAIN)?;
            let Some(received) = received else {
                let now = monotonic_ns();
                if now >= until_ns {
                    return Err(Errno::AGAIN);
                }
                link.wait(PollFlags::IN, Some(until_ns - now));
                continue;
            };
            // A late answer, to an ask whose time was up.
            if received.record.token != token {
                continue;
            }
            match received.record.message {
                Outcome::Value { value } => return Ok(value),
                Outcome::Failed { errno } => {
                    return Err(Errno::from_raw_os_error(errno.clamp(1, 4095)));
                }
                Outcome::Working {} => until_ns = monotonic_ns().saturating_add(WORK_NS),
                _ => return Err(Errno::AGAIN),
            }
        }
    }
}

/// A device of a TAP's kind, whose domain may lead frames to its queues. How many MACs may be led
/// at once follows from these, and each life may lead as often as the one before.
#[derive(Debug)]
pub(crate) struct Tap {
    netd: Arc<Control>,
    unit: u32,
    budget: Mutex<TokenBucket>,
}

impl Tap {
    pub(crate) fn control(netd: &Arc<Control>, unit: u32) -> Arc<dyn DeviceControl> {
        let budget = Mutex::new(TokenBucket::new(STEERS_PER_SECOND, STEERS_BURST));
        let netd = Arc::clone(netd);
        Arc::new(Self { netd, unit, budget })
    }
}

impl DeviceControl for Tap {
    fn control(&self, words: [u64; 2]) -> Result<u64, Errno> {
        if let TapControl::Steer { .. } = TapControl::decode(words).ok_or(Errno::INVAL)?
            && !lock(&self.budget).take(monotonic_ns(), 1)
        {
            return Err(Errno::AGAIN);
        }
        let unit = self.unit;
        self.netd.ask(Task::Control { unit, words })
    }
}

/// A socket. When no domain has it any more, netd forgets it.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) netd: Arc<Control>,
    pub(crate) unit: u32,
    /// Whether frames come into another domain's memory by it.
    pub(crate) is_queue: bool,
    /// Whether the domain that has it has said that another one can go on with it.
    pub(crate) is_sound: AtomicBool,
}

impl DeviceControl for Socket {
    fn control(&self, words: [u64; 2]) -> Result<u64, Errno> {
        if words == XdpControl::Sound.encode() {
            self.is_sound.store(true, Ordering::Relaxed);
            return Ok(0);
        }
        let unit = self.unit;
        self.netd.ask(Task::Control { unit, words })
    }

    /// Waits for netd as long as it takes: until it has ended the queue, frames may still come
    /// into memory that has another owner then. One that cannot end it may be followed by one that
    /// can.
    fn end(&self) {
        let unit = self.unit;
        while self.is_queue && !self.netd.ending.load(Ordering::Relaxed) {
            if self.netd.ask(Task::End { unit }).is_ok() {
                return;
            }
            std::thread::sleep(AGAIN);
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        lock(&self.netd.closed).push(self.unit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// A netd that answers each task by what `answer` says.
    fn netd(answer: impl Fn(Task) -> Vec<Outcome> + Send + 'static) -> Arc<Control> {
        let (ours, theirs) = Link::pair().unwrap();
        std::thread::spawn(move || {
            loop {
                match theirs.receive::<Task>() {
                    Ok(Some(received)) => {
                        let token = received.record.token;
                        for message in answer(received.record.message) {
                            theirs.send(&Record { token, message }, &[]).unwrap();
                        }
                    }
                    Ok(None) => {
                        theirs.wait(PollFlags::IN, None);
                    }
                    Err(_) => return,
                }
            }
        });
        let control = Control::default();
        control.replace(Some(ours));
        Arc::new(control)
    }

    /// What netd says once it has got a CPU.
    fn told(control: &Control, unit: u32) -> Result<u64, Errno> {
        let ask = |words| control.ask(Task::Control { unit, words });
        testing::wait_for("netd says nothing", || {
            Some(ask([0, 5])).filter(|told| *told != Err(Errno::AGAIN))
        })
    }

    #[test]
    fn a_domain_is_told_what_netd_says() {
        let control = netd(|task| match task {
            Task::Control { unit: 1, words } => vec![Outcome::Value { value: words[1] }],
            Task::Control { unit: 2, .. } => vec![Outcome::Working {}, Outcome::Value { value: 7 }],
            _ => vec![Outcome::Failed { errno: 22 }],
        });
        let ask = |unit| told(&control, unit);
        assert_eq!((ask(1), ask(2)), (Ok(5), Ok(7)));
        assert_eq!(ask(3), Err(Errno::INVAL));
    }

    #[test]
    fn a_netd_that_is_silent_or_gone_or_talks_nonsense_costs_a_moment() {
        let words = [0, 0];
        let silent = netd(|_| Vec::new());
        assert_eq!(
            silent.ask(Task::Control { unit: 1, words }),
            Err(Errno::AGAIN)
        );
        let gone = Control::default();
        assert_eq!(
            gone.ask(Task::Control { unit: 1, words }),
            Err(Errno::AGAIN)
        );
        let strange = netd(|_| vec![Outcome::Made {}]);
        assert_eq!(
            strange.ask(Task::Control { unit: 1, words }),
            Err(Errno::AGAIN)
        );
        let worse = netd(|_| vec![Outcome::Failed { errno: i32::MIN }]);
        assert_eq!(told(&worse, 1), Err(Errno::PERM));
    }

    #[test]
    fn a_queue_has_ended_when_netd_says_so_and_not_before() {
        let asked = Arc::new(AtomicU32::new(0));
        let times = Arc::clone(&asked);
        let netd = netd(move |_| match times.fetch_add(1, Ordering::Relaxed) {
            0..3 => vec![Outcome::Failed { errno: 22 }],
            _ => vec![Outcome::Value { value: 0 }],
        });
        let (unit, is_queue) = (1, true);
        let queue = Socket {
            netd,
            unit,
            is_queue,
            is_sound: AtomicBool::new(false),
        };
        queue.end();
        assert!(asked.load(Ordering::Relaxed) > 3);
    }

    #[test]
    fn a_late_answer_is_not_the_next_ones() {
        let (ours, theirs) = Link::pair().unwrap();
        let control = Control::default();
        control.replace(Some(ours));
        let ask = |unit| {
            control.ask(Task::Control {
                unit,
                words: [0, 0],
            })
        };
        assert_eq!(ask(1), Err(Errno::AGAIN));
        let late = theirs.receive::<Task>().unwrap().unwrap().record.token;
        let answer = |token, value| {
            let message = Outcome::Value { value };
            theirs.send(&Record { token, message }, &[]).unwrap();
        };
        answer(late, 1);
        answer(late + 1, 2);
        assert_eq!(ask(2), Ok(2));
    }
}
