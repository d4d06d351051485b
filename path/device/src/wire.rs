//! The wire behind the device.

use crate::source::SourceWire;
use crate::tap::TapWire;
use abi::PAGE;
use config::domain::{BUFFER_BYTES, DeviceConfig, WireConfig, bytes_per_s};
use nic::Pool;
use nic::dma::Wire;
use nic::sim::SimNic;
use runtime::device::{attach_if_present, removal_handler};
use runtime::platform::Platform;
use runtime::start::StartError;
use shmem::Area;
use stack::cable::{self, FarEnd};
use std::rc::Rc;

/// A wire of any kind.
#[derive(Debug)]
pub enum DeviceWire {
    /// A cable in memory, with a station at the far end.
    Cable(Box<(SimNic, FarEnd)>),
    /// A TAP.
    Tap(TapWire),
    /// A generator of frames.
    Source(SourceWire),
}

impl DeviceWire {
    /// Opens the wire of the device. Frames have at most `longest` bytes. `memory` has the buffers
    /// of a station.
    ///
    /// # Errors
    /// Returns an error if the monitor rejects the TAP, or `memory` is too small.
    pub fn new(
        config: &DeviceConfig,
        longest: usize,
        memory: &Area,
        platform: &Rc<dyn Platform>,
    ) -> Result<Self, StartError> {
        match &config.wire {
            WireConfig::Cable(of) => {
                let bytes = config.buffers as usize * BUFFER_BYTES as usize;
                let buffers = memory.part(0, bytes.next_multiple_of(PAGE));
                let buffers =
                    buffers.ok_or(StartError::BadStartInfo("the device has too few frames"))?;
                let pool = Pool::new(buffers, BUFFER_BYTES as usize);
                let (near, far, station) = cable::ends(of, config.rate_mbps, config.mtu as usize);
                let far = FarEnd::new(far, station, pool);
                Ok(Self::Cable(Box::new((near, far))))
            }
            WireConfig::Tap { device } => {
                let fd = attach_if_present(&**platform, *device)?;
                let on_removed = removal_handler(platform, vec![*device]);
                let rate = config.rate_mbps.map(bytes_per_s);
                Ok(Self::Tap(TapWire::new(fd, longest, rate, on_removed)))
            }
            WireConfig::Source(source) => {
                let rate = config.rate_mbps.map(bytes_per_s);
                Ok(Self::Source(SourceWire::new(*source, rate)))
            }
        }
    }

    /// Begins a turn at `now_ns`. Runs the station at the far end, if the wire has one.
    pub fn poll(&mut self, now_ns: u64) {
        match self {
            Self::Cable(cable) => _ = cable.1.poll(now_ns),
            Self::Tap(tap) => tap.advance(now_ns),
            Self::Source(_) => {}
        }
    }

    /// Returns the time at which to call [`DeviceWire::poll`] next.
    #[must_use]
    pub fn next_due(&self, now_ns: u64) -> Option<u64> {
        match self {
            Self::Cable(cable) => cable.1.next_due(now_ns),
            Self::Tap(_) | Self::Source(_) => None,
        }
    }

    /// Returns the counters of the station at the far end, or `None` if the wire has no station.
    #[must_use]
    pub fn station(&self) -> Option<Vec<(&'static str, u64)>> {
        match self {
            Self::Cable(cable) => Some(cable.1.counters()),
            Self::Tap(_) | Self::Source(_) => None,
        }
    }

    fn as_wire(&self) -> &dyn Wire {
        match self {
            Self::Cable(cable) => &cable.0,
            Self::Tap(tap) => tap,
            Self::Source(source) => source,
        }
    }

    fn as_wire_mut(&mut self) -> &mut dyn Wire {
        match self {
            Self::Cable(cable) => &mut cable.0,
            Self::Tap(tap) => tap,
            Self::Source(source) => source,
        }
    }
}

impl Wire for DeviceWire {
    fn has_room(&self, len: usize) -> bool {
        self.as_wire().has_room(len)
    }

    fn send(&mut self, now_ns: u64, bytes: Vec<u8>) {
        self.as_wire_mut().send(now_ns, bytes);
    }

    fn receive(&mut self, now_ns: u64) -> Option<Vec<u8>> {
        self.as_wire_mut().receive(now_ns)
    }

    fn due_ns(&self, n: usize) -> Option<u64> {
        self.as_wire().due_ns(n)
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.as_wire().counters()
    }
}
