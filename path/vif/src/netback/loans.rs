//! The requests that a device has from turn to turn.

use crate::grants::Access;
use crate::netif::RxRequest;
use abi::GrantRef;
use nic::BufferId;
use shmem::Span;

/// A buffer of the guest's for a device.
#[derive(Clone, Copy, Debug)]
pub struct Loan {
    /// Names it from now on.
    pub id: BufferId,
    /// Which of the guest's page frames it lies in, as the grant mechanism says.
    pub frame: u32,
    /// Its first byte within that.
    pub offset: u16,
    /// Its bytes, as far as this domain can touch them.
    pub span: Span,
}

/// How a buffer comes back without a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// Nothing has come for it.
    Unused,
    /// What it holds is not for the guest, or the device cannot write to it: it is answered with an
    /// error.
    Failed,
}

/// One request that the device has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lent {
    pub(super) request: RxRequest,
    pub(super) span: Span,
}

/// The requests that a device has, by number.
#[derive(Debug, Default)]
pub(super) struct Loans {
    out: Vec<Option<Lent>>,
    free: Vec<u32>,
    pub(super) count: usize,
    // Room for the work of `lend`; empty between calls.
    pub(super) requests: Vec<RxRequest>,
    pub(super) accesses: Vec<Access>,
    pub(super) frames: Vec<u32>,
}

impl Loans {
    pub(super) fn put(&mut self, out: Lent) -> BufferId {
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

    pub(super) fn take(&mut self, id: BufferId) -> Option<Lent> {
        let out = self.out.get_mut(id.0 as usize)?.take()?;
        self.free.push(id.0);
        self.count -= 1;
        Some(out)
    }

    /// All of them: none is with the device any more.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = GrantRef> {
        self.count = 0;
        self.free.clear();
        let out = std::mem::take(&mut self.out).into_iter().flatten();
        out.map(|out| GrantRef(out.request.gref))
    }
}
