//! The state that the shared queue and the dedicated queues of a software NIC share.

use super::device::SoftDevice;
use super::wire::Wire;
use crate::dma::queue::DmaError;
use crate::dma::receive::ReceiveQueue;
use crate::dma::table::IoTable;

/// The device, its I/O page table, and the driver's queues.
#[derive(Debug)]
pub(super) struct LocalDevice<W> {
    pub(super) table: IoTable,
    pub(super) device: SoftDevice<W>,
    pub(super) dedicated: Vec<ReceiveQueue>,
    /// Reason why the NIC is closed, or `None` if it works.
    pub(super) close_reason: Option<DmaError>,
}

impl<W: Wire> LocalDevice<W> {
    /// Stops the device because of an error.
    pub(super) fn close(&mut self, error: DmaError) {
        self.device.stop();
        self.close_reason.get_or_insert(error);
    }
}
