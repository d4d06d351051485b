//! Parsing of plans, and application of command-line options to them.

use super::adjustment::Adjustment;
use super::check::check;
use super::file::Plan;
use super::threshold::names_column;
use super::workload::IdleState;
use figures::Failure;
use std::collections::BTreeSet;

impl Plan {
    /// Parses and validates a plan file.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] with a description of the error.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let plan: Self = toml::from_str(text).map_err(|e| Failure::Usage(e.to_string()))?;
        check(&plan).map_err(Failure::Usage)?;
        Ok(plan)
    }

    /// Applies command-line options: round length, idle cores and columns.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] if the result is not a valid plan.
    pub fn adjusted(mut self, by: &Adjustment) -> Result<Self, Failure> {
        self.full = self.full.changed(self.quick, by);
        if by.quick {
            self.shorten();
        }
        if by.halt {
            self.wake = vec![IdleState::Halt];
        }
        if by.only.is_some() {
            self.select_columns(by)?;
        }
        check(&self).map_err(Failure::Usage)?;
        Ok(self)
    }

    /// Reduces curves to the points of a short run.
    fn shorten(&mut self) {
        if let Some(web) = self.web.as_mut().filter(|web| !web.quick.is_empty()) {
            web.offered = std::mem::take(&mut web.quick);
        }
        if let Some(receive) = self.receive.as_mut().filter(|r| !r.quick.is_empty()) {
            receive.buffer = std::mem::take(&mut receive.quick);
        }
    }

    /// Removes the columns that the options do not select, and the ratios and thresholds that name
    /// them.
    fn select_columns(&mut self, by: &Adjustment) -> Result<(), Failure> {
        self.column.retain(|column| by.selects(&column.name));
        self.frames.retain(|frames| by.selects(&frames.name));
        self.file.retain(|file| by.selects(&file.name));
        self.peer.retain(|peer| by.selects(&peer.name));
        let columns = self.column.iter().map(|c| c.name.as_str());
        let left: BTreeSet<&str> = columns
            .chain(self.frames.iter().map(|frames| frames.name.as_str()))
            .chain(self.file.iter().map(|file| file.name.as_str()))
            .chain(self.peer.iter().map(|peer| peer.name.as_str()))
            .collect();
        self.up = self
            .up
            .take()
            .filter(|up| left.contains(up.column.as_str()));
        self.idle_vms = self
            .idle_vms
            .take()
            .filter(|idle_vms| by.selects(&idle_vms.column));
        let left: BTreeSet<&str> = left
            .into_iter()
            .chain(
                self.idle_vms
                    .iter()
                    .map(|idle_vms| idle_vms.column.as_str()),
            )
            .collect();
        self.ratio.retain(|ratio| {
            let names = |name: &str| left.iter().any(|column| names_column(name, column));
            names(&ratio.own) && names(&ratio.to)
        });
        self.threshold.retain(|threshold| {
            let ours = |column: &&str| names_column(&threshold.column, column);
            left.iter().any(ours)
        });
        if left.is_empty() {
            let parts = by.only.as_deref().unwrap_or_default();
            return Err(Failure::Usage(format!("no column contains `{parts}`")));
        }
        Ok(())
    }
}
