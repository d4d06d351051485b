//! The command `exp`: runs a plan.

use crate::plan::Plan;
use crate::{base, overhead, receive_buffer, restart, tables};
use figures::provenance::Provenance;
use figures::report::{self, Figure};
use figures::{interrupt, plot};
use std::path::PathBuf;

/// What the user asked for.
#[derive(Clone, Debug, Default)]
pub struct Args {
    /// The plan.
    pub plan: String,
    /// Print JSON lines instead of tables.
    pub json: bool,
    /// A short run.
    pub quick: bool,
    /// Another number of rounds than the plan's.
    pub rounds: Option<usize>,
    /// Another length of a window than the plan's, seconds.
    pub seconds: Option<f64>,
    /// Only columns whose names contain this, or one of several parts with commas between.
    pub only: Option<String>,
    /// A folder to keep the data and its pictures in.
    pub out: Option<PathBuf>,
}

impl Args {
    /// Whether the user wants a column of this name.
    #[must_use]
    pub fn wants(&self, name: &str) -> bool {
        let named = |parts: &String| parts.split(',').any(|part| name.contains(part));
        self.only.as_ref().is_none_or(named)
    }

    /// Leaves the columns that the user wants.
    ///
    /// # Errors
    /// [`figures::Failure::Usage`] if there is none.
    pub fn keep<C>(
        &self,
        columns: &mut Vec<C>,
        name: impl Fn(&C) -> &str,
    ) -> Result<(), figures::Failure> {
        columns.retain(|column| self.wants(name(column)));
        match &self.only {
            Some(parts) if columns.is_empty() => {
                let why = format!("no column contains `{parts}`");
                Err(figures::Failure::Usage(why))
            }
            _ => Ok(()),
        }
    }
}

/// Runs a plan and prints its figures.
///
/// # Errors
/// [`figures::Failure`]s carry their exit status; see [`figures::exit_code`].
pub fn run(args: &Args) -> anyhow::Result<()> {
    interrupt::watch();
    match args.plan.as_str() {
        overhead::NAME => {
            let plan = overhead::Plan::adjusted(args)?;
            let ran = overhead::run(&plan, args.quick)?;
            done(args, &plan.about, &ran, |figures| {
                overhead::tables(&plan, figures)
            })
        }
        receive_buffer::NAME => {
            let plan = receive_buffer::Plan::adjusted(args)?;
            let ran = receive_buffer::run(&plan, args.quick)?;
            done(args, &plan.about, &ran, |figures| {
                receive_buffer::tables(&plan, figures)
            })
        }
        restart::NAME => {
            let plan = restart::Plan::adjusted(args)?;
            let ran = restart::run(&plan, args.quick)?;
            done(args, &plan.about, &ran, |figures| {
                restart::tables(&plan, figures)
            })
        }
        name => {
            let plan = Plan::find(name)?.adjusted(args)?;
            let ran = base::run(&plan, args.quick)?;
            done(args, &plan.about, &ran, |figures| {
                tables::tables(&plan, figures)
            })
        }
    }
}

/// Keeps and prints what a plan has found.
fn done(
    args: &Args,
    about: &str,
    (provenance, figures): &(Provenance, Vec<Figure>),
    tables: impl FnOnce(&[Figure]) -> String,
) -> anyhow::Result<()> {
    if let Some(folder) = &args.out {
        report::save(folder, &args.plan, provenance, figures)?;
        plot::save(folder, &args.plan, figures)?;
    }
    if args.json {
        return report::print_json(provenance, figures);
    }
    println!("{}: {about}\n", args.plan);
    println!("{}\n", provenance.text());
    print!("{}", tables(figures));
    Ok(())
}
