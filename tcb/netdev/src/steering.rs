//! Selects the queue of a TAP for each frame by its destination MAC, in the kernel. The selection
//! can change while traffic runs.
//!
//! Two small programs use one map from MACs to queues. The *steering* program runs when the kernel
//! selects a frame's queue. It returns the map's queue if the map contains the frame's MAC, and
//! otherwise the last queue, which is the bridge's. The frame may then wait, for example in a
//! queueing discipline. So the *filter* program looks the MAC up again when the frame enters the
//! queue, under the same RCU read lock. The kernel drops a frame that is in the wrong queue by
//! then, and counts it as a drop of the interface. After a change of the map and one RCU grace
//! period, a frame can enter only the queue that the map assigns to it. [`TapSteering::effective`]
//! reports this.

use crate::bpf::{
    Assembler, Label, MAP_LOOKUP_ELEM, Map, ProgramType, R0, R1, R2, R3, R4, R6, R7, R10,
    SKB_LOAD_BYTES,
};
use crate::tun;
use abi::machine::ALL_MACS;
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
/// A queue has one MAC. A change may add the new MAC before it removes the old one.
const MACS_PER_QUEUE: u32 = 2;
/// Stack offset of the key: a MAC and two zero bytes.
pub(super) const KEY: i16 = -8;
/// Pause before the next attempt to wait for a grace period after the kernel has rejected one.
const RETRY_PAUSE: Duration = Duration::from_millis(1);
/// A limit above the length of any frame, so that the whole frame passes the filter.
const PASS_ALL_BYTES: i32 = 1 << 20;
const OTHERWISE: Label = Label(0);
const PASS: Label = Label(1);

/// Handle for the steering of one TAP, in the process that set the TAP up or adopted it.
#[derive(Debug)]
pub struct TapSteering {
    map: Map,
    queues: u32,
    grace: Grace,
}

/// Reason why a MAC was not steered.
#[derive(Debug, thiserror::Error)]
pub enum SteerError {
    /// The queue does not exist.
    #[error("the queue does not exist")]
    Queue,
    /// The kernel refused the change.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl TapSteering {
    /// Makes a TAP steer MACs to `queues` dedicated queues. One more queue, the last, is shared. No
    /// MAC is steered yet. `tap` is any descriptor of the TAP.
    ///
    /// # Errors
    /// Returns an error if bpf(2) or membarrier(2) is not permitted, or the kernel is too old for
    /// them.
    pub(super) fn install(tap: &OwnedFd, queues: u32) -> io::Result<Self> {
        let map = Map::new(queues.saturating_mul(MACS_PER_QUEUE))?;
        let grace = Grace::start()?;
        tun::steer(
            tap,
            &steering(&map, queues).load(ProgramType::SocketFilter)?,
        )?;
        tun::filter(tap, &filter(&map, queues).load(ProgramType::SocketFilter)?)?;
        Ok(Self { map, queues, grace })
    }

    /// Adopts the steering of a TAP that another process has set up, from that process's
    /// [kept](TapSteering::adoption_fd) descriptor. The points that its [`TapSteering::steer`]
    /// returns are later than all points of the other process.
    ///
    /// # Errors
    /// Returns the errors of the original set-up.
    pub fn adopt(map: OwnedFd, queues: u32) -> io::Result<Self> {
        let grace = Grace::start()?;
        // The first point is the clock, which exceeds all points that an earlier process can have
        // counted. A change by that process is effective after the next grace period.
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

    /// Returns the descriptor that another process needs to adopt the steering.
    #[must_use]
    pub fn adoption_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    /// Steers frames for `mac` to `queue`, or to the shared queue if `None`; with [`ALL_MACS`] and
    /// `None`, steers all frames to the shared queue. Returns a point for
    /// [`TapSteering::effective`]. Never blocks.
    ///
    /// # Errors
    /// Returns an error if the queue does not exist, or more MACs are steered than the queues need.
    pub fn steer(&self, mac: [u8; 6], queue: Option<u32>) -> Result<u64, SteerError> {
        let [a, b, c, d, e, f] = mac;
        let key = [a, b, c, d, e, f, 0, 0];
        match queue {
            Some(queue) if queue >= self.queues => return Err(SteerError::Queue),
            Some(queue) => self.map.set(&key, queue)?,
            None if mac == ALL_MACS => self.map.clear()?,
            None => self.map.remove(&key)?,
        }
        Ok(self.grace.request())
    }

    /// Returns the newest effective point: no frame that chose its queue before that change is
    /// still in flight.
    #[must_use]
    pub fn effective(&self) -> u64 {
        self.grace.done.load(Ordering::Acquire)
    }
}

/// Emits the lookup of the destination MAC of the frame in r6. Afterwards r0 points to the queue.
/// Jumps to `otherwise` if the map has no entry.
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

/// Returns the program that selects a frame's queue.
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

/// Returns the program that filters frames. It returns the number of bytes that may pass: all of
/// them, or 0 if the frame is not in the map's queue. The shared queue accepts all frames.
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
        .mov_imm(R0, PASS_ALL_BYTES)
        .exit()
        .label(OTHERWISE)
        .mov_imm(R0, 0)
        .exit();
    program
}

/// A thread that waits for RCU grace periods, so that no other thread blocks.
#[derive(Debug)]
struct Grace {
    newest: Arc<AtomicU64>,
    done: Arc<AtomicU64>,
    /// Wakes the thread to check `newest`. One queued message is sufficient. The thread exits when
    /// this is dropped.
    wake: SyncSender<()>,
}

impl Grace {
    fn start() -> io::Result<Self> {
        check_grace()?;
        Self::start_with(wait_grace)
    }

    /// Starts the thread with `wait` as the function that waits for a grace period.
    fn start_with(wait: impl Fn() + Send + 'static) -> io::Result<Self> {
        let (wake, requests) = sync_channel(1);
        let (newest, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (newest_request, finished) = (Arc::clone(&newest), Arc::clone(&done));
        thread::Builder::new()
            .name("grace".to_owned())
            .spawn(move || {
                while requests.recv().is_ok() {
                    // One grace period serves all requests made before it began.
                    let newest = newest_request.load(Ordering::Acquire);
                    wait();
                    finished.fetch_max(newest, Ordering::AcqRel);
                }
            })?;
        Ok(Self { newest, done, wake })
    }

    /// Requests a grace period that begins after this call, and returns its number.
    fn request(&self) -> u64 {
        let number = self.newest.fetch_add(1, Ordering::AcqRel) + 1;
        // If the channel is full, the thread has not checked yet and will see this request. The
        // thread outlives the sender.
        let _ = self.wake.try_send(());
        number
    }
}

/// Checks that this kernel supports waiting for grace periods.
pub(super) fn check_grace() -> io::Result<()> {
    match membarrier(libc::MEMBARRIER_CMD_QUERY)? & libc::MEMBARRIER_CMD_GLOBAL {
        0 => Err(io::ErrorKind::Unsupported.into()),
        _ => Ok(()),
    }
}

/// Waits for a grace period. Requires that [`check_grace`] has succeeded. Retries until a grace
/// period has passed, because the caller frees memory afterwards.
pub(super) fn wait_grace() {
    retry(|| membarrier(libc::MEMBARRIER_CMD_GLOBAL));
}

/// Retries `what` until it succeeds.
fn retry<T>(mut what: impl FnMut() -> io::Result<T>) {
    while what().is_err() {
        thread::sleep(RETRY_PAUSE);
    }
}

/// Calls membarrier(2). Its global command waits for an RCU grace period, and so for every running
/// transmit function of a network device.
fn membarrier(command: libc::c_int) -> io::Result<libc::c_int> {
    // SAFETY: the call takes three numbers by value.
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

    /// VMQ-5: a failed wait does not count as a grace period.
    #[test]
    fn waiting_for_a_grace_period_retries() {
        let mut answers = [false, false, true, false].into_iter();
        retry(|| match answers.next() {
            Some(true) => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::Interrupted)),
        });
        assert_eq!(answers.len(), 1);
    }

    /// One grace period serves the first request, and a second one serves all requests that arrive
    /// in the meantime.
    #[test]
    fn waiting_requests_share_a_grace_period() {
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
