//! Steering of a NIC's frames to queues. Only the monitor has access to the NIC's MAC table.

use abi::hypercall::TapControl;
use nic::vmq::{QueueId, Steering, VmqError};
use runtime::platform::Platform;
use std::io;
use std::rc::Rc;

/// Steering of one device.
#[derive(Debug)]
pub struct MonitorSteering {
    platform: Rc<dyn Platform>,
    device: u32,
}

impl MonitorSteering {
    /// Creates the steering of device number `device`.
    #[must_use]
    pub fn new(platform: Rc<dyn Platform>, device: u32) -> Self {
        Self { platform, device }
    }

    /// Returns whether the device supports steering on this system.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        !matches!(
            self.device_control(TapControl::Settled),
            Err(VmqError::Refused(_))
        )
    }

    fn device_control(&self, what: TapControl) -> Result<u64, VmqError> {
        let answer = self.platform.device_control(self.device, what.encode());
        answer.map_err(|why| match why.kind() {
            // The monitor has no answer from netd, or this domain exceeds its rate limit for
            // requests.
            io::ErrorKind::WouldBlock => VmqError::Unanswered,
            _ => VmqError::Refused(why.raw_os_error().unwrap_or(0)),
        })
    }
}

impl Steering for MonitorSteering {
    fn steer(&mut self, mac: [u8; 6], queue: Option<QueueId>) -> Result<u64, VmqError> {
        let queue = queue.map(|queue| queue.0);
        self.device_control(TapControl::Steer { mac, queue })
    }

    fn effective(&mut self) -> u64 {
        self.device_control(TapControl::Settled).unwrap_or(0)
    }
}
