//! How a command line changes a plan.

use figures::Failure;

/// What of a plan the user wants, and for how long.
#[derive(Clone, Debug, Default)]
pub struct Adjustment {
    /// A short run.
    pub quick: bool,
    /// Another number of rounds than the plan's.
    pub rounds: Option<usize>,
    /// Another length of a window than the plan's, seconds.
    pub seconds: Option<f64>,
    /// Idle cores halt, also where the plan would keep them awake.
    pub halt: bool,
    /// Only columns whose names contain this, or one of several parts with commas between.
    pub only: Option<String>,
}

impl Adjustment {
    /// Whether the user wants a column of this name.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        let named = |parts: &String| parts.split(',').any(|part| name.contains(part));
        self.only.as_ref().is_none_or(named)
    }

    /// Leaves the columns that the user wants.
    ///
    /// # Errors
    /// [`Failure::Usage`] if there is none.
    pub fn keep<C>(&self, columns: &mut Vec<C>, name: impl Fn(&C) -> &str) -> Result<(), Failure> {
        columns.retain(|column| self.wants(name(column)));
        match &self.only {
            Some(parts) if columns.is_empty() => {
                let why = format!("no column contains `{parts}`");
                Err(Failure::Usage(why))
            }
            _ => Ok(()),
        }
    }
}
