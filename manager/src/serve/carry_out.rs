//! The start of every edit.

use super::ManagerServer;
use super::edits::EditOrigin;
use crate::edit::Edit;

impl ManagerServer<'_> {
    /// Begins an edit, whose requester receives the outcome.
    pub(super) fn carry_out(
        &mut self,
        origin: EditOrigin,
        edit: Edit,
        now: u64,
    ) -> Result<(), String> {
        match edit {
            Edit::Attach(guest, user) => self.begin_attach(origin, (&guest, user), now),
            Edit::Detach(name) => self.detach_for(origin, &name),
            Edit::Change(guest) => self.begin_change(Some(origin), &guest, now),
            Edit::Nics(step) => self.begin_nics(origin, &step, now),
            Edit::Restart(name, why) => self.restart_now(origin, (&name, why), now),
        }
    }
}
