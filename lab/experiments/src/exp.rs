//! The command `exp`: runs a plan.

use crate::plan::Plan;
use crate::provenance::Provenance;
use crate::report::{self, Figure};
use crate::{base, interrupt, plot, tables};
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

/// Runs a plan and prints its figures.
///
/// # Errors
/// [`crate::Failure`]s carry their exit status; see [`crate::exit_code`].
pub fn run(args: &Args) -> anyhow::Result<()> {
    interrupt::watch();
    let plan = Plan::find(&args.plan)?.adjusted(args)?;
    let (provenance, figures) = base::run(&plan, args.quick)?;
    if let Some(folder) = &args.out {
        report::save(folder, &plan.name, &provenance, &figures)?;
        plot::save(folder, &plan.name, &figures)?;
    }
    print(args, &plan, &provenance, &figures)
}

fn print(
    args: &Args,
    plan: &Plan,
    provenance: &Provenance,
    figures: &[Figure],
) -> anyhow::Result<()> {
    if args.json {
        return report::print_json(provenance, figures);
    }
    println!("{}: {}\n", plan.name, plan.about);
    println!("{}\n", provenance.text());
    print!("{}", tables::tables(plan, figures));
    Ok(())
}
