//! A simulated cable with a station at its far end. It is the wire of simulated NICs and of device
//! domains.

use crate::StackEndpoint;
use config::domain::{CableConfig, bytes_per_s};
use nic::sim::{SimCable, SimNic};
use nic::{Caps, Frame, Nic, Pool};

/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;
/// Maximum number of frames that the station receives per turn.
const BATCH: usize = 64;

/// Returns both ends of a cable, and the station for its far end. Packets have up to `mtu` bytes
/// and no offloads.
#[must_use]
pub fn ends(
    cable: &CableConfig,
    rate_mbps: Option<f64>,
    mtu: usize,
) -> (SimNic, SimNic, StackEndpoint) {
    let CableConfig { mac, cable } = cable;
    let station = StackEndpoint::new(*mac, mtu, &cable.station);
    let cable = SimCable {
        bytes_per_s: rate_mbps.map(bytes_per_s),
        delay_ns: u64::from(cable.delay_us) * 1000,
        loss: cable.loss,
        seed: cable.seed,
        caps: Caps {
            checksum: false,
            tso: false,
            max_frame: mtu + ETHERNET,
        },
        ..SimCable::default()
    };
    let (near, far) = cable.ends();
    (near, far, station)
}

/// The station at the far end of a cable. It has no thread and works only in [`FarEnd::poll`].
#[derive(Debug)]
pub struct FarEnd {
    nic: SimNic,
    station: StackEndpoint,
    pool: Pool,
    frames: Vec<Frame>,
    pick: Vec<u32>,
}

impl FarEnd {
    /// Connects `station` to `nic`. The station uses buffers of `pool`.
    #[must_use]
    pub fn new(nic: SimNic, station: StackEndpoint, pool: Pool) -> Self {
        Self {
            nic,
            station,
            pool,
            frames: Vec::new(),
            pick: Vec::new(),
        }
    }

    /// Runs the station, which receives and sends frames. Returns whether it has received or sent a
    /// frame.
    pub fn poll(&mut self, now_ns: u64) -> bool {
        let Self {
            nic,
            station,
            pool,
            frames,
            pick,
        } = self;
        let received = forward_batch(nic, station, now_ns, pool, frames, pick);
        let sent = forward_batch(station, nic, now_ns, pool, frames, pick);
        received + sent > 0
    }

    /// Returns the time at which to call [`FarEnd::poll`] next.
    #[must_use]
    pub fn next_due(&self, now_ns: u64) -> Option<u64> {
        let due = [self.nic.next_due(now_ns), self.station.next_due(now_ns)];
        due.into_iter().flatten().min()
    }

    /// Returns the station's counters.
    #[must_use]
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.station.counters()
    }

    /// Returns the station.
    #[must_use]
    pub fn station(&self) -> &StackEndpoint {
        &self.station
    }
}

/// Forwards a batch from one device to another, and returns the number of frames.
pub fn forward_batch(
    from: &mut impl Nic,
    to: &mut impl Nic,
    now_ns: u64,
    pool: &mut Pool,
    frames: &mut Vec<Frame>,
    pick: &mut Vec<u32>,
) -> usize {
    let taken = from.rx(now_ns, BATCH, pool, frames);
    pick.clear();
    pick.extend(0..frames.len() as u32);
    to.tx(now_ns, frames, pick);
    for frame in &mut *frames {
        frame.recycle(pool);
    }
    frames.clear();
    taken
}
