//! Descriptors outstanding at a device across turns.

use crate::grants::GrantAccess;
use crate::netif::RxRequest;
use abi::GrantRef;
use nic::BufferId;
use shmem::Span;

/// A guest's buffer that is lent to a device.
#[derive(Clone, Copy, Debug)]
pub struct DeviceBuffer {
    /// Id of the buffer while the device holds it.
    pub id: BufferId,
    /// The guest's page frame that holds it, from the grant mechanism.
    pub frame: u32,
    /// The entry of the guest's table by which the page is granted.
    pub entry: u32,
    /// First byte within the page.
    pub offset: u16,
    /// The buffer as mapped into this domain.
    pub span: Span,
}

/// Reason why a buffer returns without a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// The device received nothing into it.
    Unused,
    /// The buffer holds a frame that is not for the guest, or the device cannot write to it. The
    /// request gets an error response.
    Failed,
}

/// One outstanding request.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutstandingRequest {
    pub(super) request: RxRequest,
    pub(super) span: Span,
}

/// Outstanding requests, by id.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    out: Vec<Option<OutstandingRequest>>,
    free: Vec<u32>,
    pub(super) count: usize,
    // Scratch list of `lend`, empty between calls.
    pub(super) requests: Vec<RxRequest>,
    pub(super) accesses: Vec<GrantAccess>,
    pub(super) frames: Vec<u32>,
}

impl Outstanding {
    pub(super) fn put(&mut self, out: OutstandingRequest) -> BufferId {
        self.count += 1;
        if let Some(id) = self.free.pop()
            && let Some(place) = self.out.get_mut(id as usize)
        {
            *place = Some(out);
            return BufferId(id);
        }
        self.out.push(Some(out));
        BufferId(self.out.len() as u32 - 1)
    }

    pub(super) fn take(&mut self, id: BufferId) -> Option<OutstandingRequest> {
        let out = self.out.get_mut(id.0 as usize)?.take()?;
        self.free.push(id.0);
        self.count -= 1;
        Some(out)
    }

    /// Removes all requests, which the device has released, and returns their grants.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = GrantRef> {
        self.count = 0;
        self.free.clear();
        let out = std::mem::take(&mut self.out).into_iter().flatten();
        out.map(|out| GrantRef(out.request.gref))
    }
}
