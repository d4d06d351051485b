//! Steering a NIC's frames to queues, as a driver domain does it: it asks the monitor, which alone
//! holds the NIC's table of MACs.

use abi::hypercall::TapControl;
use nic::vmq::{QueueId, Steering, VmqError};
use runtime::platform::Platform;
use std::io;
use std::rc::Rc;

/// The steering of one device.
#[derive(Debug)]
pub struct AskMonitor {
    platform: Rc<dyn Platform>,
    device: u32,
}

impl AskMonitor {
    /// The steering of device number `device`.
    #[must_use]
    pub fn new(platform: Rc<dyn Platform>, device: u32) -> Self {
        Self { platform, device }
    }

    /// Whether the device can be steered at all on this system.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        !matches!(self.tell(TapControl::Settled), Err(VmqError::Refused(_)))
    }

    fn tell(&self, what: TapControl) -> Result<u64, VmqError> {
        let told = self.platform.tell(self.device, what.encode());
        told.map_err(|why| match why.kind() {
            // By the monitor, for it has asked and knows no more; or this domain asks too often.
            io::ErrorKind::WouldBlock => VmqError::Unanswered,
            _ => VmqError::Refused(why.raw_os_error().unwrap_or(0)),
        })
    }
}

impl Steering for AskMonitor {
    fn steer(&mut self, mac: [u8; 6], queue: Option<QueueId>) -> Result<u64, VmqError> {
        let queue = queue.map(|queue| queue.0);
        self.tell(TapControl::Steer { mac, queue })
    }

    fn effective(&mut self) -> u64 {
        self.tell(TapControl::Settled).unwrap_or(0)
    }
}
