//! The link to a device in another domain.

use super::queue::DmaError;
use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::rc::Rc;

/// Wakes a device that sleeps.
pub trait Bell: Debug {
    /// Wakes the device.
    fn ring(&self);
}

/// The link to the device, which all queues of the NIC have in common.
#[derive(Debug, Default)]
pub struct RemoteLink {
    /// Set while the link is up.
    pub(super) bell: RefCell<Option<Rc<dyn Bell>>>,
    /// Number of times that the link was set down.
    pub(super) connection: Cell<u32>,
    /// Why the NIC is closed.
    pub(super) closed: Cell<Option<DmaError>>,
}

impl RemoteLink {
    /// Returns whether the link is up.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.bell.borrow().is_some()
    }

    /// Returns whether the link is up and the NIC is not closed.
    #[must_use]
    pub fn works(&self) -> bool {
        self.is_up() && self.closed.get().is_none()
    }

    /// Returns a number that changes when the link is set down.
    #[must_use]
    pub fn connection(&self) -> u32 {
        self.connection.get()
    }

    /// Wakes the device.
    pub fn ring(&self) {
        if let Some(bell) = &*self.bell.borrow() {
            bell.ring();
        }
    }

    /// Closes the NIC because of an error.
    pub fn close(&self, error: DmaError) {
        self.closed.set(self.closed.get().or(Some(error)));
    }
}
