//! Which queue of a TAP a frame goes to: by its destination MAC, in the kernel, changed while
//! traffic runs.
//!
//! Two small programs look into one map from MACs to queues. The *steering* program runs when the
//! kernel chooses a frame's queue: a MAC that is in the map has its queue, everything else the last
//! one, which is the bridge's. Then the frame may wait, in a queueing discipline say. So the
//! *filter* program looks once more, at the moment when the frame is put into the queue, under the
//! same RCU read lock: a frame that is in the wrong queue by now is dropped by the kernel, and
//! counted as one of the interface's drops. After a change of the map and one RCU grace period
//! nothing can come into a queue that the map does not lead to: that is what
//! [`Steering::effective`] tells.

use crate::bpf::{
    Assembler, Kind, Label, MAP_LOOKUP_ELEM, Map, R0, R1, R2, R3, R4, R6, R7, R10, SKB_LOAD_BYTES,
};
use crate::tun;
use abi::machine::EVERY_MAC;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

/// Offset of `queue_mapping` in `struct __sk_buff`.
const SKB_QUEUE_MAPPING: i16 = 12;
/// Bytes of a MAC.
const MAC: i32 = 6;
/// A queue has one MAC; who leads another one to it first is not refused.
const MACS_PER_QUEUE: u32 = 2;
/// Where on the stack the key is built: a MAC and two zero bytes.
pub(super) const KEY: i16 = -8;
/// Between two attempts to wait for a grace period, if the kernel should refuse one.
const AGAIN: Duration = Duration::from_millis(1);
/// More bytes than a frame has: all of it passes the filter.
const WHOLE: i32 = 1 << 20;
const OTHERWISE: Label = Label(0);
const PASS: Label = Label(1);

/// The power to steer one TAP. It stays with the process that set the TAP up.
#[derive(Debug)]
pub struct Steering {
    map: Map,
    queues: u32,
    grace: Grace,
}

/// Why something was not steered.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// There is no such queue.
    #[error("there is no such queue")]
    Queue,
    /// The kernel refused.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl Steering {
    /// Makes a TAP with `queues` queues and one more, the last and shared one, steer MACs; none is
    /// steered yet. `tap` is any of its descriptors.
    ///
    /// # Errors
    /// bpf(2) or membarrier(2) is not permitted, or the kernel is too old for them.
    pub(super) fn install(tap: &OwnedFd, queues: u32) -> io::Result<Self> {
        let map = Map::new(queues.saturating_mul(MACS_PER_QUEUE))?;
        let grace = Grace::start()?;
        tun::steer(tap, &steering(&map, queues).load(Kind::SocketFilter)?)?;
        tun::filter(tap, &filter(&map, queues).load(Kind::SocketFilter)?)?;
        Ok(Self { map, queues, grace })
    }

    /// The steering of a TAP that another process has set up, by what that has kept of it
    /// ([`Steering::kept`]). Its points come after all of the other's.
    ///
    /// # Errors
    /// As where it was set up.
    pub fn adopt(map: OwnedFd, queues: u32) -> io::Result<Self> {
        let grace = Grace::start()?;
        // By the clock, so that they are behind all that a process before has counted up to. What
        // that has changed is effective after this one.
        grace
            .newest
            .fetch_max(shmem::time::monotonic_ns(), Ordering::AcqRel);
        grace.request();
        Ok(Self {
            map: Map::adopt(map, 8),
            queues,
            grace,
        })
    }

    /// What another process needs to take it up.
    #[must_use]
    pub fn kept(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// From now on frames to `mac` go to `queue`; none: to the shared one, and with [`EVERY_MAC`]
    /// all frames do. Answers with a point for [`Steering::effective`]. Never blocks.
    ///
    /// # Errors
    /// There is no such queue, or more MACs than so many queues have need of are led somewhere.
    pub fn steer(&self, mac: [u8; 6], queue: Option<u32>) -> Result<u64, SteerError> {
        let [a, b, c, d, e, f] = mac;
        let key = [a, b, c, d, e, f, 0, 0];
        match queue {
            Some(queue) if queue >= self.queues => return Err(SteerError::Queue),
            Some(queue) => self.map.set(&key, queue)?,
            None if mac == EVERY_MAC => self.map.clear()?,
            None => self.map.remove(&key)?,
        }
        Ok(self.grace.request())
    }

    /// The newest point at which, and before which, no frame is on its way any more that chose
    /// its queue before the change.
    #[must_use]
    pub fn effective(&self) -> u64 {
        self.grace.done.load(Ordering::Acquire)
    }
}

/// The MAC into the stack and through the map: r0 is a pointer to the queue. Jumps to `otherwise`
/// if there is none; r6 holds the frame.
pub(super) fn look_up<'a>(
    program: &'a mut Assembler,
    map: &Map,
    otherwise: Label,
) -> &'a mut Assembler {
    program
        .store_u64_imm(R10, KEY, 0)
        .mov(R1, R6)
        .mov_imm(R2, 0)
        .mov(R3, R10)
        .add_imm(R3, KEY.into())
        .mov_imm(R4, MAC)
        .call(SKB_LOAD_BYTES)
        .jump_ne_imm(R0, 0, otherwise)
        .load_map(R1, map)
        .mov(R2, R10)
        .add_imm(R2, KEY.into())
        .call(MAP_LOOKUP_ELEM)
        .jump_eq_imm(R0, 0, otherwise)
}

/// Answers with the number of a frame's queue.
fn steering(map: &Map, shared: u32) -> Assembler {
    let mut program = Assembler::default();
    program.mov(R6, R1);
    look_up(&mut program, map, OTHERWISE)
        .load_u32(R0, R0, 0)
        .exit()
        .label(OTHERWISE)
        .mov_imm(R0, shared as i32)
        .exit();
    program
}

/// Answers with how many bytes of a frame may pass: all, or none if it is in a queue that the map
/// does not lead to. The shared queue takes everything.
fn filter(map: &Map, shared: u32) -> Assembler {
    let mut program = Assembler::default();
    program
        .mov(R6, R1)
        .load_u32(R7, R6, SKB_QUEUE_MAPPING)
        .jump_eq_imm(R7, shared as i32, PASS);
    look_up(&mut program, map, OTHERWISE)
        .load_u32(R0, R0, 0)
        .jump_ne(R0, R7, OTHERWISE)
        .label(PASS)
        .mov_imm(R0, WHOLE)
        .exit()
        .label(OTHERWISE)
        .mov_imm(R0, 0)
        .exit();
    program
}

/// A thread that waits for RCU grace periods, so that nobody else has to.
#[derive(Debug)]
struct Grace {
    newest: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
    /// Holds one request to look at `newest`: further ones would find the same. Gone when the
    /// thread is to end.
    wake: SyncSender<()>,
}

impl Grace {
    fn start() -> io::Result<Self> {
        check_grace()?;
        Self::start_with(wait_grace)
    }

    /// The same where `wait` waits for a grace period.
    fn start_with(wait: impl Fn() + Send + 'static) -> io::Result<Self> {
        let (wake, requests) = sync_channel(1);
        let (newest, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (asked, finished) = (Arc::clone(&newest), Arc::clone(&done));
        thread::Builder::new()
            .name("grace".to_owned())
            .spawn(move || {
                while requests.recv().is_ok() {
                    // One grace period serves everybody who asked before it began.
                    let newest = asked.load(Ordering::Acquire);
                    wait();
                    finished.fetch_max(newest, Ordering::AcqRel);
                }
            })?;
        Ok(Self { newest, done, wake })
    }

    /// Asks for a grace period that begins after this call; its number.
    fn request(&self) -> u64 {
        let number = self.newest.fetch_add(1, Ordering::AcqRel) + 1;
        // Full: the thread has not looked yet. The thread ends after the sender.
        let _ = self.wake.try_send(());
        number
    }
}

/// Whether this kernel lets one wait for grace periods.
pub(super) fn check_grace() -> io::Result<()> {
    match membarrier(libc::MEMBARRIER_CMD_QUERY)? & libc::MEMBARRIER_CMD_GLOBAL {
        0 => Err(io::ErrorKind::Unsupported.into()),
        _ => Ok(()),
    }
}

/// Waits for a grace period, where [`check_grace`] has said that one can. Does not return without
/// one: memory is given back by it.
pub(super) fn wait_grace() {
    insist(|| membarrier(libc::MEMBARRIER_CMD_GLOBAL));
}

/// Tries until it succeeds.
fn insist<T>(mut what: impl FnMut() -> io::Result<T>) {
    while what().is_err() {
        thread::sleep(AGAIN);
    }
}

/// membarrier(2). Its global command waits for an RCU grace period, and so for every transmit
/// function of a network device that had begun.
fn membarrier(command: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: takes three numbers by value.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as libc::c_int)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    /// VMQ-5: what the kernel refused was no grace period.
    #[test]
    fn who_waits_for_a_grace_period_has_one() {
        let mut answers = [false, false, true, false].into_iter();
        insist(|| match answers.next() {
            Some(true) => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::Interrupted)),
        });
        assert_eq!(answers.len(), 1);
    }

    /// However many ask meanwhile: one grace period for the first, one for all others.
    #[test]
    fn requests_do_not_pile_up() {
        let (begun, begins) = channel();
        let (end, ends) = channel();
        let wait = move || {
            begun.send(()).unwrap();
            ends.recv().unwrap();
        };
        let grace = Grace::start_with(wait).unwrap();
        assert_eq!(grace.request(), 1);
        begins.recv().unwrap();
        for number in 2..=100_000 {
            assert_eq!(grace.request(), number);
        }
        assert_eq!(grace.done.load(Ordering::Acquire), 0);
        end.send(()).unwrap();
        begins.recv().unwrap();
        assert_eq!(grace.done.load(Ordering::Acquire), 1);
        end.send(()).unwrap();
        while grace.done.load(Ordering::Acquire) != 100_000 {
            thread::yield_now();
        }
        assert!(begins.try_recv().is_err());
    }
}
