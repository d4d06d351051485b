//! What a monitor may have beside counted grants: mechanisms that only comparisons use. They are
//! another program's (`lab/baselines`). The monitor that is shipped has none.

use super::accounts::Grants;
use crate::space::{AddressSpace, SpaceError};
use abi::hypercall::{Bind, Kind};
use abi::{ConnId, DomId, GrantStatus, Handle};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

/// Makes the mechanisms of a monitor with these accounts.
pub type Make = fn(&Arc<Grants>) -> Box<dyn Mechanism>;

/// Mechanisms beside counted grants, of all domains.
pub trait Mechanism: Debug + Send + Sync {
    /// Whether it has made this handle, and not forgotten it.
    fn knows(&self, handle: Handle) -> bool;

    /// Whether anything that it has made names a domain.
    fn names(&self, id: DomId) -> bool;

    /// Whether a domain has made something for this connection of its own.
    fn is_for(&self, granter: DomId, conn: ConnId) -> bool;

    /// Does a call; none: there is no such call, and nothing was done.
    ///
    /// # Errors
    /// The caller must be killed and then torn down.
    fn call(
        &self,
        caller: &mut dyn AddressSpace,
        call: &OtherCall<'_>,
    ) -> Result<Option<Done>, SpaceError>;

    /// Binds something that it has made to the caller's window: the status of the call; none: it
    /// has not made it.
    fn bind(&self, user: DomId, op: &Bind) -> Option<Result<(), GrantStatus>>;

    /// The same of the end of the caller's half of something.
    fn end(&self, caller: DomId, handle: Handle) -> Option<Result<(), GrantStatus>>;

    /// A domain is dead, and its process and its agent are gone: its part in everything ends.
    fn tear_down(&self, id: DomId);

    /// Adds every domain's part; how much in the books of these mechanisms has no counterpart.
    fn audit(&self, parts: &mut BTreeMap<DomId, GrantAudit>) -> u64;
}

/// A domain's end of a connection, and who is at the other.
pub type Ends = ((DomId, ConnId), DomId);

/// A call that is none of the monitor's own.
pub struct OtherCall<'a> {
    /// Who makes it.
    pub caller: DomId,
    /// Its kind.
    pub kind: Kind,
    /// The words of its operations, read once.
    pub ops: &'a [[u64; 3]],
    /// The caller's end of a connection, by its number.
    pub ends: &'a dyn Fn(ConnId) -> Result<Ends, GrantStatus>,
}

/// What a call has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Done {
    /// A batch: each operation has its status.
    Batch(Vec<GrantStatus>),
    /// The one operation has made this, or why it has not.
    Made(Result<Handle, GrantStatus>),
}

/// What the books of all mechanisms say about one domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantAudit {
    /// Pages that it owns: frames, and those of exchanges that are its own now.
    pub owned: u32,
    /// Frames of its own that it grants to somebody, in use or not.
    pub granted: BTreeSet<u32>,
    /// Frames of others in its window.
    pub mapped: BTreeSet<(DomId, u32)>,
    /// Frames of its collateral that are used: grants that were revoked by force while in use.
    pub collateral_used: u32,
    /// Every grant of its own that is in use by a call.
    pub in_use: Vec<InUse>,
}

/// One grant in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InUse {
    /// Which entry.
    pub index: u32,
    /// The granting domain's frame.
    pub frame: u32,
    /// Who uses it.
    pub by: DomId,
    /// Mappings of it.
    pub mappings: u32,
    /// Whether any use may write.
    pub writable: bool,
}
