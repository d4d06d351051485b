//! `grantway`: the command line.
//!
//! | module | what it does |
//! |---|---|
//! | `args` | what can be typed |
//! | `up` | start and end machines |
//! | `host` | what a configuration expects of this system |
//! | `show` | ask a running machine: status, stat, grants, set |
//! | `trace` | follow a packet through it |
//! | `tables` | what people read |
//! | `prof` | the profiler |
//! | `output` | standard output, progress, exit status |
//!
//! `demo` and `exp` live in the crate `experiments`, everything that speaks to a monitor in
//! `client`.

mod args;
mod host;
mod output;
mod prof;
mod show;
mod tables;
mod trace;
mod up;

use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use figures::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(error) => output::failed(&error),
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let json = cli.json;
    match cli.command {
        Command::Prof { command } => return prof::run(&command, json),
        Command::Up {
            config,
            detach,
            name,
            lab,
            log,
        } => up::up(&up::Options {
            config,
            detach,
            name,
            lab,
            log,
            json,
        }),
        Command::Down { which } => up::down(&which.name, json),
        Command::Xen { config } => up::xen(&config),
        Command::Status { which } => show::status(&which.name, json),
        Command::Stat {
            domain,
            nonzero,
            table,
            which,
        } => {
            let form = show::Form::of(json, table);
            show::stat(&which.name, domain.as_deref(), form, nonzero)
        }
        Command::Grants { all, which } => show::grants(&which.name, all, json),
        Command::Trace {
            domain,
            wait,
            which,
        } => trace::trace(&which.name, domain.as_deref(), wait, json),
        Command::Set {
            domain,
            key,
            value,
            which,
        } => show::set(&which.name, &domain, &key, &value, json),
        Command::Restart { domains, which } => show::restart(&which.name, &domains, json),
        Command::Demo { quick, sim } => {
            experiments::demo::run(&experiments::demo::DemoArgs { json, quick, sim })
        }
        Command::Exp { list: true, .. } => output::list_plans(json),
        Command::Exp {
            plan,
            quick,
            rounds,
            seconds,
            only,
            out,
            ..
        } => {
            let plan = plan.ok_or_else(|| Failure::Usage("which plan?".to_owned()))?;
            let args = experiments::exp::Args {
                plan,
                json,
                adjustment: experiments::plan::Adjustment {
                    quick,
                    rounds,
                    seconds,
                    only,
                },
                out,
            };
            experiments::exp::run(&args)
        }
        Command::Completions { shell } => completions(shell),
        Command::Internal { args } => match args.split_first() {
            Some((helper, spec)) if helper == figures::sampler::HELPER => {
                xenoprof::record::bare::main(spec)
            }
            _ => experiments::internal::main(&args),
        },
    }?;
    Ok(ExitCode::SUCCESS)
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "grantway", &mut text);
    output::print_as_it_is(&String::from_utf8_lossy(&text))
}
