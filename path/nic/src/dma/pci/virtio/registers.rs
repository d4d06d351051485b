//! Registers of a virtio device: the common configuration and the notification addresses.

use crate::dma::pci::registers::{RegisterWindow, Registers};
use shmem::Fault;

/// A register of the common configuration. Each access uses the register's full width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// Selects which 32 feature bits `DeviceFeature` contains.
    DeviceFeatureSelect,
    /// The selected 32 feature bits offered by the device.
    DeviceFeature,
    /// Selects which 32 feature bits `DriverFeature` contains.
    DriverFeatureSelect,
    /// The selected 32 feature bits accepted by the driver.
    DriverFeature,
    /// Interrupt vector of configuration changes.
    ConfigVector,
    /// Status of the device.
    Status,
    /// Number of the queue to which the registers below belong.
    QueueSelect,
    /// Number of entries of the queue.
    QueueSize,
    /// Interrupt vector of the queue.
    QueueVector,
    /// Whether the queue is enabled.
    QueueEnable,
    /// Number of the queue's notification address.
    QueueNotifyOffset,
    /// Lower half of the address of the queue's descriptors.
    QueueDescriptors,
    /// Upper half of the address of the queue's descriptors.
    QueueDescriptorsHigh,
    /// Lower half of the address of the queue's available ring.
    QueueAvailable,
    /// Upper half of the address of the queue's available ring.
    QueueAvailableHigh,
    /// Lower half of the address of the queue's used ring.
    QueueUsed,
    /// Upper half of the address of the queue's used ring.
    QueueUsedHigh,
}

impl Register {
    /// Returns the register's offset and width in bytes.
    #[must_use]
    pub const fn place(self) -> (usize, usize) {
        match self {
            Self::DeviceFeatureSelect => (0x00, 4),
            Self::DeviceFeature => (0x04, 4),
            Self::DriverFeatureSelect => (0x08, 4),
            Self::DriverFeature => (0x0c, 4),
            Self::ConfigVector => (0x10, 2),
            Self::Status => (0x14, 1),
            Self::QueueSelect => (0x16, 2),
            Self::QueueSize => (0x18, 2),
            Self::QueueVector => (0x1a, 2),
            Self::QueueEnable => (0x1c, 2),
            Self::QueueNotifyOffset => (0x1e, 2),
            Self::QueueDescriptors => (0x20, 4),
            Self::QueueDescriptorsHigh => (0x24, 4),
            Self::QueueAvailable => (0x28, 4),
            Self::QueueAvailableHigh => (0x2c, 4),
            Self::QueueUsed => (0x30, 4),
            Self::QueueUsedHigh => (0x34, 4),
        }
    }
}

/// Access to a device's notification addresses.
pub trait Notify: std::fmt::Debug {
    /// Returns whether the notification address with number `offset` is accessible.
    fn can_notify(&self, offset: u16) -> bool;

    /// Notifies the device of new descriptors in `queue`, whose notification address has number
    /// `offset`.
    ///
    /// # Errors
    /// Returns an error if the address is not accessible.
    fn notify(&self, queue: u16, offset: u16) -> Result<(), Fault>;
}

impl RegisterWindow {
    /// Returns the offset in bytes of a notification address, or `None` if it is not accessible.
    fn notify_at(&self, offset: u16) -> Option<usize> {
        let at = u64::from(offset) * u64::from(self.multiplier);
        let at = usize::try_from(at).ok()?;
        self.notify.sub(at, 2).filter(|_| at % 2 == 0).map(|_| at)
    }
}

impl Registers<Register> for RegisterWindow {
    fn get(&self, register: Register) -> Result<u32, Fault> {
        match register.place() {
            (at, 1) => self.common.load_u8(at).map(u32::from),
            (at, 2) => self.common.load_u16(at).map(u32::from),
            (at, _) => self.common.load_u32(at),
        }
    }

    fn set(&self, register: Register, value: u32) -> Result<(), Fault> {
        match register.place() {
            (at, 1) => self.common.store_u8(at, value as u8),
            (at, 2) => self.common.store_u16(at, value as u16),
            (at, _) => self.common.store_u32(at, value),
        }
    }
}

impl Notify for RegisterWindow {
    fn can_notify(&self, offset: u16) -> bool {
        self.notify_at(offset).is_some()
    }

    fn notify(&self, queue: u16, offset: u16) -> Result<(), Fault> {
        let at = self.notify_at(offset).ok_or(Fault)?;
        self.notify.store_u16(at, queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmem::Area;

    #[test]
    fn registers_are_accessed_in_their_width() {
        let area = Area::anonymous(abi::PAGE).unwrap();
        let window = RegisterWindow {
            common: area.span().take(0x38),
            notify: area.span().skip(0x100).take(8),
            multiplier: 4,
        };
        area.span().fill(0xff).unwrap();
        for (register, expected) in [
            (Register::Status, 0x01),
            (Register::QueueSize, 0x0201),
            (Register::QueueUsedHigh, 0x0403_0201),
        ] {
            window.set(register, 0x0403_0201).unwrap();
            assert_eq!(window.get(register), Ok(expected), "{register:?}");
        }
        let mut bytes = [0; 4];
        area.span().skip(0x14).read(&mut bytes).unwrap();
        assert_eq!(bytes, [1, 0xff, 0xff, 0xff]);
        window.notify(7, 1).unwrap();
        assert_eq!(area.span().load_u16(0x104), Ok(7));
        assert!(window.can_notify(1) && !window.can_notify(2));
        window.notify(7, 2).unwrap_err();
        window.notify(7, u16::MAX).unwrap_err();
    }
}
