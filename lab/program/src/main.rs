//! `grantway-lab`: runs measurements. `grantway demo`, `grantway exp` and `grantway prof` execute
//! it and pass their arguments on.

mod prof;

use clap::{Parser, Subcommand};
use experiments::demo::{self, DemoArgs, MemoryNic};
use experiments::exp;
use experiments::plan::Adjustment;
use lab_args::{DemoNic, LabCommand};
use std::process::ExitCode;
use tool::{Failure, clean, output};

/// Demonstrates, compares and profiles: `grantway demo`, `grantway exp` and `grantway prof`.
#[derive(Debug, Parser)]
#[command(name = "grantway-lab", version)]
struct Cli {
    /// Print only JSON lines on standard output
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Words,
}

#[derive(Debug, Subcommand)]
enum Words {
    #[command(flatten)]
    Lab(LabCommand),
    /// Profiles one domain, for `grantway top`
    #[command(hide = true)]
    Look(lab_args::prof::RowProfileArgs),
    /// Helper processes of experiments
    #[command(hide = true)]
    Internal {
        /// Helper name and arguments
        #[arg(allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    carry_out(cli).unwrap_or_else(|error| failed(&error))
}

fn carry_out(cli: Cli) -> anyhow::Result<ExitCode> {
    let json = cli.json;
    match cli.command {
        Words::Lab(LabCommand::Prof { command }) => return prof::run(&command, json),
        Words::Lab(LabCommand::Demo { quick, nic, sim }) => {
            client::check_smallest()?;
            let nic = nic.or(sim.then_some(DemoNic::Sim)).map(|nic| match nic {
                DemoNic::Sim => MemoryNic::Sim,
                DemoNic::Soft => MemoryNic::Soft,
            });
            demo::run(&DemoArgs { json, quick, nic })
        }
        Words::Lab(LabCommand::Exp { list: true, .. }) => list_plans(json),
        Words::Lab(LabCommand::Exp {
            plan,
            quick,
            rounds,
            seconds,
            halt,
            only,
            out,
            ..
        }) => exp::run(&exp::ExpArgs {
            plan: plan
                .ok_or_else(|| Failure::Usage("name a plan; `--list` shows all".to_owned()))?,
            json,
            adjustment: Adjustment {
                quick,
                rounds,
                seconds,
                halt,
                only,
            },
            out,
        }),
        Words::Look(look) => prof::profile_domain(&look),
        Words::Internal { args } => internal(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn internal(args: &[String]) -> anyhow::Result<()> {
    match args.split_first() {
        Some((helper, spec)) if helper == figures::sampler::HELPER => {
            xenoprof::record::sampler_alone::main(spec)
        }
        _ => experiments::internal::main(args),
    }
}

/// Prints the names of the plans.
fn list_plans(as_json: bool) -> anyhow::Result<()> {
    for plan in exp::names() {
        if as_json {
            output::json(&serde_json::json!({ "plan": plan }))?;
        } else {
            output::print(&format!("{plan}\n"))?;
        }
    }
    Ok(())
}

/// Prints the error to standard error and returns its exit status.
fn failed(error: &anyhow::Error) -> ExitCode {
    // A user who presses Ctrl-C needs no message.
    let interrupted = matches!(error.downcast_ref(), Some(Failure::Interrupted));
    if !interrupted {
        for line in clean::lines(&format!("{error:#}")).lines() {
            eprintln!("grantway: {line}");
        }
    }
    ExitCode::from(exit_code(error))
}

fn exit_code(error: &anyhow::Error) -> u8 {
    let of_client = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<client::Error>());
    of_client.map_or_else(|| tool::exit_code(error), client::Error::exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_clap_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn exit_statuses_distinguish_causes() {
        assert_eq!(exit_code(&client::Error::BadName("/".into()).into()), 2);
        assert_eq!(exit_code(&client::Error::NoDaemon("/x".into()).into()), 3);
        assert_eq!(exit_code(&client::Error::Running("x".into()).into()), 1);
        assert_eq!(exit_code(&Failure::CannotRun("x".into()).into()), 3);
        assert_eq!(exit_code(&anyhow::anyhow!("x")), 1);
    }
}
