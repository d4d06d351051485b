//! Forwards domains' control calls for their devices to netd over a separate link. A domain's
//! worker waits up to 50 ms for the first reply from netd.

use abi::core::{NetdReply, NetdRequest, Record};
use abi::hypercall::TapControl;
use abi::xdp::XdpControl;
use link::Link;
use monitor::DeviceControl;
use rustix::event::PollFlags;
use rustix::io::Errno;
use shmem::io_map::IoMapping;
use shmem::lock;
use shmem::rate::TokenBucket;
use shmem::time::monotonic_ns;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Maximum time that a domain's worker waits for netd's answer, or for netd's notice that the
/// answer takes longer.
const FIRST_REPLY_TIMEOUT_NS: u64 = 50_000_000;
/// Maximum time that the worker waits after this notice: several grace periods of the kernel.
const WORK_TIMEOUT_NS: u64 = 1_000_000_000;
/// Interval of retries until netd has closed a socket.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum time that the worker waits until netd has stopped a PCI device. After that time the core
/// unmaps the device's memory, so a device that was not stopped has no access.
const PCI_STOP_TIMEOUT_NS: u64 = 2_000_000_000;

/// Burst of a TAP's steering changes before [`STEERS_PER_SECOND`] applies: more than one change for
/// each guest interface.
const STEERS_BURST: u32 = 4 * abi::layout::fd::CONNECTIONS_MAX;
/// Sustained rate of steering changes per second. Each change costs the whole system a grace
/// period.
const STEERS_PER_SECOND: u64 = 4096;

/// The link to the running netd, if any.
#[derive(Debug, Default)]
pub(crate) struct NetdLink {
    link: Mutex<(Option<Link>, u32)>,
    /// Sockets that no domain uses any longer.
    closed: Mutex<Vec<u32>>,
    /// Whether the machine is shutting down. No worker then waits for netd.
    ending: AtomicBool,
}

impl NetdLink {
    /// Replaces the link after a start or an exit of netd.
    pub(crate) fn replace(&self, link: Option<Link>) {
        lock(&self.link).0 = link;
    }

    /// Records that the machine is shutting down.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Removes and returns the list of sockets that no domain uses any longer.
    pub(crate) fn take_closed(&self) -> Vec<u32> {
        std::mem::take(&mut lock(&self.closed))
    }

    /// Sends netd a task and waits for the result. Returns EAGAIN if netd does not answer.
    fn ask(&self, message: NetdRequest) -> Result<u64, Errno> {
        let mut guard = lock(&self.link);
        let (link, tokens) = &mut *guard;
        let link = link.as_ref().ok_or(Errno::AGAIN)?;
        *tokens = tokens.wrapping_add(1);
        let token = *tokens;
        link.send(&Record { token, message }, &[])
            .map_err(|_| Errno::AGAIN)?;
        let mut until_ns = monotonic_ns().saturating_add(FIRST_REPLY_TIMEOUT_NS);
        loop {
            let received = link.receive::<NetdReply>().map_err(|_| Errno::AGAIN)?;
            let Some(received) = received else {
                let now = monotonic_ns();
                if now >= until_ns {
                    return Err(Errno::AGAIN);
                }
                link.wait(PollFlags::IN, Some(until_ns - now));
                continue;
            };
            // A reply with another token is a late answer to a request that timed out.
            if received.record.token != token {
                continue;
            }
            match received.record.message {
                NetdReply::Value { value } => return Ok(value),
                NetdReply::Failed { errno } => {
                    return Err(Errno::from_raw_os_error(errno.clamp(1, 4095)));
                }
                NetdReply::Working {} => until_ns = monotonic_ns().saturating_add(WORK_TIMEOUT_NS),
                _ => return Err(Errno::AGAIN),
            }
        }
    }
}

/// The control interface of a TAP, whose domain may steer frames to its queues. The number of
/// queues limits the number of steered MACs. A restarted domain has the full rate.
#[derive(Debug)]
pub(crate) struct NetdTap {
    netd: Arc<NetdLink>,
    dev: u32,
    budget: Mutex<TokenBucket>,
}

impl NetdTap {
    pub(crate) fn control(netd: &Arc<NetdLink>, dev: u32) -> Arc<dyn DeviceControl> {
        let budget = Mutex::new(TokenBucket::new(STEERS_PER_SECOND, STEERS_BURST));
        let netd = Arc::clone(netd);
        Arc::new(Self { netd, dev, budget })
    }
}

impl DeviceControl for NetdTap {
    fn control(&self, words: [u64; 2]) -> Result<u64, Errno> {
        if let TapControl::Steer { .. } = TapControl::decode(words).ok_or(Errno::INVAL)?
            && !lock(&self.budget).take(monotonic_ns(), 1)
        {
            return Err(Errno::AGAIN);
        }
        let dev = self.dev;
        self.netd.ask(NetdRequest::Control { dev, words })
    }
}

/// A socket. netd closes it after this handle is dropped.
#[derive(Debug)]
pub(crate) struct NetdSocket {
    pub(crate) netd: Arc<NetdLink>,
    pub(crate) dev: u32,
    /// Whether netd must end the socket before its memory is reused: the kernel writes through it
    /// into another domain's memory, or it is a PCI device.
    pub(crate) must_end: bool,
    /// Whether the domain has reported that another domain can continue with the socket.
    pub(crate) is_sound: AtomicBool,
    /// The memory that a PCI device may access.
    pub(crate) mapping: Mutex<Option<IoMapping>>,
}

impl DeviceControl for NetdSocket {
    fn control(&self, words: [u64; 2]) -> Result<u64, Errno> {
        if words == XdpControl::ReportReusable.encode() {
            self.is_sound.store(true, Ordering::Relaxed);
            return Ok(0);
        }
        let dev = self.dev;
        self.netd.ask(NetdRequest::Control { dev, words })
    }

    /// Waits for netd without a time limit: until netd has stopped the queue, the kernel may write
    /// frames into memory that could then have another owner. If this netd fails to end the queue,
    /// a later netd may succeed. Only the memory of a PCI device can be unmapped without netd.
    fn end(&self) {
        let (dev, started_ns) = (self.dev, monotonic_ns());
        let is_pci = lock(&self.mapping).is_some();
        while self.must_end && !self.netd.ending.load(Ordering::Relaxed) {
            let is_late = is_pci && monotonic_ns() - started_ns >= PCI_STOP_TIMEOUT_NS;
            if is_late || self.netd.ask(NetdRequest::End { dev }).is_ok() {
                break;
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        *lock(&self.mapping) = None;
    }
}

impl Drop for NetdSocket {
    fn drop(&mut self) {
        lock(&self.netd.closed).push(self.dev);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    /// Returns the link to a netd that answers each task with the replies from `answer`.
    fn netd(answer: impl Fn(NetdRequest) -> Vec<NetdReply> + Send + 'static) -> Arc<NetdLink> {
        let (ours, theirs) = Link::pair().unwrap();
        std::thread::spawn(move || {
            loop {
                match theirs.receive::<NetdRequest>() {
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
        let control = NetdLink::default();
        control.replace(Some(ours));
        Arc::new(control)
    }

    /// Makes a control call. Retries while netd gets no CPU time.
    fn ask_netd(control: &NetdLink, dev: u32) -> Result<u64, Errno> {
        let ask = |words| control.ask(NetdRequest::Control { dev, words });
        testing::wait_for("netd does not answer", || {
            Some(ask([0, 5])).filter(|answer| *answer != Err(Errno::AGAIN))
        })
    }

    #[test]
    fn a_domain_gets_netds_answer() {
        let control = netd(|task| match task {
            NetdRequest::Control { dev: 1, words } => vec![NetdReply::Value { value: words[1] }],
            NetdRequest::Control { dev: 2, .. } => {
                vec![NetdReply::Working {}, NetdReply::Value { value: 7 }]
            }
            _ => vec![NetdReply::Failed { errno: 22 }],
        });
        let ask = |dev| ask_netd(&control, dev);
        assert_eq!((ask(1), ask(2)), (Ok(5), Ok(7)));
        assert_eq!(ask(3), Err(Errno::INVAL));
    }

    #[test]
    fn a_silent_dead_or_broken_netd_causes_eagain() {
        let words = [0, 0];
        let silent = netd(|_| Vec::new());
        assert_eq!(
            silent.ask(NetdRequest::Control { dev: 1, words }),
            Err(Errno::AGAIN)
        );
        let absent = NetdLink::default();
        assert_eq!(
            absent.ask(NetdRequest::Control { dev: 1, words }),
            Err(Errno::AGAIN)
        );
        let unexpected = netd(|_| vec![NetdReply::Made {}]);
        assert_eq!(
            unexpected.ask(NetdRequest::Control { dev: 1, words }),
            Err(Errno::AGAIN)
        );
        let out_of_range = netd(|_| vec![NetdReply::Failed { errno: i32::MIN }]);
        assert_eq!(ask_netd(&out_of_range, 1), Err(Errno::PERM));
    }

    #[test]
    fn a_queue_ends_only_when_netd_confirms_it() {
        let requests = Arc::new(AtomicU32::new(0));
        let times = Arc::clone(&requests);
        let netd = netd(move |_| match times.fetch_add(1, Ordering::Relaxed) {
            0..3 => vec![NetdReply::Failed { errno: 22 }],
            _ => vec![NetdReply::Value { value: 0 }],
        });
        let (dev, must_end) = (1, true);
        let queue = NetdSocket {
            netd,
            dev,
            must_end,
            is_sound: AtomicBool::new(false),
            mapping: Mutex::new(None),
        };
        queue.end();
        assert!(requests.load(Ordering::Relaxed) > 3);
    }

    #[test]
    fn a_late_answer_is_ignored() {
        let (ours, theirs) = Link::pair().unwrap();
        let control = NetdLink::default();
        control.replace(Some(ours));
        let ask = |dev| control.ask(NetdRequest::Control { dev, words: [0, 0] });
        assert_eq!(ask(1), Err(Errno::AGAIN));
        let late = theirs
            .receive::<NetdRequest>()
            .unwrap()
            .unwrap()
            .record
            .token;
        let answer = |token, value| {
            let message = NetdReply::Value { value };
            theirs.send(&Record { token, message }, &[]).unwrap();
        };
        answer(late, 1);
        answer(late + 1, 2);
        assert_eq!(ask(2), Ok(2));
    }
}
