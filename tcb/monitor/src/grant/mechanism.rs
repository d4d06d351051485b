//! The interface to grant mechanisms other than counted grants. Only comparisons use them; they
//! belong to another program (`lab/baselines`), and the shipped monitor has none.

use super::accounts::GrantAccounts;
use crate::space::{AddressSpace, SpaceError};
use abi::hypercall::{BindOp, HypercallKind};
use abi::{ConnId, DomId, GrantStatus, Handle};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;

/// Creates the mechanisms of a monitor with these accounts.
pub type MechanismFactory = fn(&Arc<GrantAccounts>) -> Box<dyn Mechanism>;

/// Mechanisms other than counted grants, for all domains.
pub trait Mechanism: Debug + Send + Sync {
    /// Returns whether the mechanism created the object with this handle and the object still
    /// exists.
    fn has_object(&self, handle: Handle) -> bool;

    /// Returns whether any object of the mechanism refers to a domain.
    fn refers_to(&self, id: DomId) -> bool;

    /// Returns whether a domain has created an object for this connection.
    fn has_object_for(&self, granter: DomId, conn: ConnId) -> bool;

    /// Executes a call. Returns `None`, without any effect, if the call does not exist.
    ///
    /// # Errors
    /// On any error, the caller must be killed and torn down.
    fn call(
        &self,
        caller: &mut dyn AddressSpace,
        call: &OtherCall<'_>,
    ) -> Result<Option<GrantResult>, SpaceError>;

    /// Binds an object to the caller's window. Returns the status of the call, or `None` if the
    /// mechanism did not create the object.
    fn bind(&self, user: DomId, op: &BindOp) -> Option<Result<(), GrantStatus>>;

    /// Ends the caller's half of an object, with results as for [`Mechanism::bind`].
    fn end(&self, caller: DomId, handle: Handle) -> Option<Result<(), GrantStatus>>;

    /// Ends a dead domain's half of every object. Its process and its agent must have exited.
    fn tear_down(&self, id: DomId);

    /// Adds every domain's entries to the audit. Returns the number of these mechanisms' entries
    /// that have no counterpart.
    fn audit(&self, parts: &mut BTreeMap<DomId, GrantAudit>) -> u64;
}

/// A domain's end of a connection, and the domain at the other end.
pub type ConnectionEnds = ((DomId, ConnId), DomId);

/// A call of a mechanism other than counted grants.
pub struct OtherCall<'a> {
    /// The domain that makes it.
    pub caller: DomId,
    /// Its kind.
    pub kind: HypercallKind,
    /// The words of its operations, each read once.
    pub ops: &'a [[u64; 3]],
    /// Looks up the caller's end of a connection by its number.
    pub ends: &'a dyn Fn(ConnId) -> Result<ConnectionEnds, GrantStatus>,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantResult {
    /// A batch: the status of each operation.
    Batch(Vec<GrantStatus>),
    /// The handle of the new object, or the reason for which it was not created.
    Created(Result<Handle, GrantStatus>),
}

/// One domain's entries of all mechanisms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantAudit {
    /// Pages that it owns: frames, and its current pages of exchanges.
    pub owned: u32,
    /// Its frames that it grants, whether in use or not.
    pub granted: BTreeSet<u32>,
    /// Other domains' frames in its window.
    pub mapped: BTreeSet<(DomId, u32)>,
    /// Frames of its collateral that are used up by grants that were revoked by force while in use.
    pub collateral_used: u32,
    /// Its own grants that other domains use by calls.
    pub in_use: Vec<InUse>,
}

/// One grant in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InUse {
    /// The index of the entry.
    pub index: u32,
    /// The granting domain's frame.
    pub frame: u32,
    /// The domain that uses it.
    pub by: DomId,
    /// The number of its mappings.
    pub mappings: u32,
    /// Whether any use may write.
    pub writable: bool,
}
