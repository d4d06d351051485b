//! `cargo xtask compare COMMIT`: checks whether the tree is as fast as that commit.
//!
//! Builds both, and runs selected plans of `grantway exp` interleaved: a short run of each side
//! makes a pair. Ratios are computed within a pair, so that disturbances of the machine affect both
//! sides. A pair's ratios give a median with a 95 % interval.
//!
//! | module | purpose |
//! |---|---|
//! | `sides` | builds the commit and the tree |
//! | `plans` | plans and judged ratios: `compare.toml` |
//! | `aliases` | older names: `aliases.txt` |
//! | `exp` | one run of `grantway exp` |
//! | `halt` | idle cores halt on both sides |
//! | `measure` | pairs |
//! | `stored_pairs` | pairs on disk |
//! | `cells` | ratios and verdicts |
//! | `instructions` | instruction counts of the benches, if intervals stay wide |
//! | `callgrind` | the counter |
//! | `show` | table and JSON |

mod aliases;
mod callgrind;
mod cells;
mod exp;
mod halt;
mod instructions;
mod measure;
mod plans;
mod show;
mod sides;
mod stored_pairs;

use anyhow::{Result, ensure};
use cells::{Cell, Counts, Outcome};
use clap::Parser;
use instructions::Count;
use measure::Measure;
use plans::{Bench, Part, Plan, Plans};
use sides::Sides;
use std::collections::BTreeMap;
use stored_pairs::StoredPairs;

/// Compare the tree's performance with a commit's.
///
/// Builds both below target/compare/ and runs plans of `grantway exp` interleaved: old, new, new,
/// old, … Prints ratios with 95 % intervals; more than 1 is always better. Fails
/// - if an interval lies below 0.97,
/// - if an interval stays wider than ±3 % and benches take 1 % more instructions (needs valgrind;
///   without it these cells are unresolved),
/// - if the commit has a figure that the tree lacks: add renames to xtask/aliases.txt.
///
/// A plan is complete when its intervals are narrower than ±3 %, after 40 pairs, or when its time
/// is used up. A 95 % interval needs at least 6 pairs.
///
/// Pairs are stored: the same command resumes an interrupted run, and adds pairs to those of
/// earlier runs. A changed tree starts anew. Do not use the machine for other work during the run.
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask compare",
    verbatim_doc_comment,
    after_help = "Examples:\n  cargo xtask compare HEAD~3\n  \
                  cargo xtask compare 78ba097 --plans base,isolation,peers,tcp,lro\n  \
                  cargo xtask compare main --plans isolation --pairs 10 --json\n\n\
                  xtask/compare.toml defines the plans and the judged figures."
)]
struct Options {
    /// The commit to compare with
    commit: String,
    /// Plans of xtask/compare.toml
    #[arg(long, value_delimiter = ',', default_value = "base,isolation")]
    plans: Vec<String>,
    /// The maximum number of pairs of each plan
    #[arg(long, value_name = "N", default_value_t = 40)]
    pairs: usize,
    /// Print JSON lines, one per cell
    #[arg(long)]
    json: bool,
    /// Discard the results of earlier runs
    #[arg(long)]
    fresh: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &[String]) -> Result<()> {
    let name = "cargo xtask compare".to_owned();
    let options = Options::parse_from(std::iter::once(&name).chain(arguments));
    let (all, aliases) = (plans::read()?, aliases::read()?);
    let plans = all.named(&options.plans)?;
    let sides = Sides::prepare(&options.commit, &all, &aliases)?;
    figures::interrupt::watch();
    let mut measure = Measure {
        sides: &sides,
        aliases: &aliases,
        kept: StoredPairs::open(&sides.folder, &sides.tree, options.fresh)?,
        pairs: options.pairs,
    };
    measure.all(&plans)?;
    let found: Vec<Vec<Cell>> = plans
        .iter()
        .map(|plan| cells::of(plan, measure.kept.of(&plan.name)))
        .collect();
    for (plan, cells) in plans.iter().zip(&found) {
        check_columns(plan, cells)?;
    }
    let (counts, most) = counted(&all, &plans, &found, |benches| {
        instructions::count(benches, &sides, &aliases)
    })?;
    let judge = |cell: Cell| {
        let verdict = cell.verdict(most.get(&cell.plan));
        (cell, verdict)
    };
    let cells: Vec<(Cell, Outcome)> = found.into_iter().flatten().map(judge).collect();
    let print = if options.json {
        show::lines
    } else {
        show::tables
    };
    print!("{}", print(&sides, &cells, &counts));
    let failed = cells.iter().filter(|(_, verdict)| verdict.fails()).count();
    ensure!(failed == 0, "{failed} of {} cells fail", cells.len());
    Ok(())
}

/// Fails if no figure of a column is judged, which means that a name in the data files is wrong.
fn check_columns(plan: &Plan, cells: &[Cell]) -> Result<()> {
    for column in &plan.columns {
        let is_judged = |cell: &Cell| cell.part == Part::Key && cell.column() == *column;
        ensure!(
            cells.iter().any(is_judged),
            "xtask/compare.toml: plan {}: no figure of column {column} is judged",
            plan.name
        );
    }
    Ok(())
}

/// Counts the benches of each plan with a cell that instructions must decide. Returns all counts,
/// and the result for each plan.
fn counted(
    all: &Plans,
    plans: &[Plan],
    cells: &[Vec<Cell>],
    count: impl FnOnce(&[Bench]) -> Result<Vec<Count>>,
) -> Result<(Vec<Count>, BTreeMap<String, Counts>)> {
    let wide = |(_, cells): &(&Plan, &Vec<Cell>)| cells.iter().any(Cell::needs_counts);
    let wide: Vec<&Plan> = plans
        .iter()
        .zip(cells)
        .filter(wide)
        .map(|(plan, _)| plan)
        .collect();
    if wide.is_empty() {
        return Ok(Default::default());
    }
    let counts = match callgrind::missing() {
        Some(why) => {
            eprintln!("wide cells are unresolved: {why}");
            Vec::new()
        }
        None => {
            let mut benches: BTreeMap<&str, &Bench> = BTreeMap::new();
            for bench in wide.iter().flat_map(|plan| all.benches(plan)) {
                benches.insert(&bench.name, bench);
            }
            let benches: Vec<Bench> = benches.into_values().cloned().collect();
            eprintln!("counting instructions of {} benches", benches.len());
            count(&benches)?
        }
    };
    let most = |plan: &&Plan| {
        (
            plan.name.clone(),
            instructions::largest(&counts, &plan.benches),
        )
    };
    let most = wide.iter().map(most).collect();
    Ok((counts, most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Options::command().debug_assert();
    }

    #[test]
    fn examples_parse() {
        let help = Options::command().get_after_help().unwrap().to_string();
        let examples: Vec<&str> = help.lines().filter(|l| l.contains("cargo xtask")).collect();
        assert_eq!(examples.len(), 3);
        for line in examples {
            let words = line
                .trim()
                .trim_start_matches("cargo xtask ")
                .split_whitespace();
            let options = Options::try_parse_from(words).unwrap();
            assert!(
                plans::read().unwrap().named(&options.plans).is_ok(),
                "{line}"
            );
        }
    }

    #[test]
    fn a_column_without_judged_figures_is_an_error() {
        let plans = plans::read().unwrap();
        let plan = &plans.named(&["base".to_owned()]).unwrap()[0];
        let error = check_columns(plan, &[]).unwrap_err().to_string();
        assert!(error.contains("no figure of column grantway"), "{error}");
    }

    #[test]
    fn benches_are_counted_only_where_a_cell_is_wide() {
        let all = plans::read().unwrap();
        let plans = all.named(&["base".to_owned()]).unwrap();
        let (counts, most) = counted(&all, &plans, &[Vec::new()], |_| unreachable!()).unwrap();
        assert!(counts.is_empty() && most.is_empty());
    }
}
