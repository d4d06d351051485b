//! Command-line options that change a plan.

use figures::Failure;

/// Options that select columns of a plan and set the length of a run.
#[derive(Clone, Debug, Default)]
pub struct Adjustment {
    /// True to use the plan's short rounds.
    pub quick: bool,
    /// Number of rounds, instead of the plan's.
    pub rounds: Option<usize>,
    /// Length of a window, seconds, instead of the plan's.
    pub seconds: Option<f64>,
    /// True to let idle cores halt even if the plan keeps them awake.
    pub halt: bool,
    /// Comma-separated substrings. Only columns whose names contain one of them are measured.
    pub only: Option<String>,
}

impl Adjustment {
    /// Returns whether the options select a column with this name.
    #[must_use]
    pub fn selects(&self, name: &str) -> bool {
        let named = |parts: &String| parts.split(',').any(|part| name.contains(part));
        self.only.as_ref().is_none_or(named)
    }

    /// Removes the columns that the options do not select.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] if no column remains.
    pub fn retain<C>(
        &self,
        columns: &mut Vec<C>,
        name: impl Fn(&C) -> &str,
    ) -> Result<(), Failure> {
        columns.retain(|column| self.selects(name(column)));
        match &self.only {
            Some(parts) if columns.is_empty() => {
                let why = format!("no column contains `{parts}`");
                Err(Failure::Usage(why))
            }
            _ => Ok(()),
        }
    }
}
