//! `grantway`: the command line.
//!
//! | module | what it does |
//! |---|---|
//! | `args` | what can be typed |
//! | `up` | start and end machines |
//! | `run` | a command behind a machine of its own |
//! | `files` | a configuration's file and its fragments |
//! | `host` | what a configuration expects of this system; namespaces of one's own |
//! | `live` | attach guests to a running machine, and detach them |
//! | `restore` | what machines change of the host's network, taken back after a crash |
//! | `reload` | make a running machine what a file says now |
//! | `service` | what systemd is told |
//! | `show` | ask a running machine: status, stat, grants, set |
//! | `capture` | write what a guest or a NIC sees to a file |
//! | `trace` | follow a packet through it |
//! | `top` | watch it |
//! | `tables` | what people read |
//! | `volume` | frames and their bytes |
//! | `prof` | the profiler |
//! | `output` | standard output, progress, exit status |
//!
//! `demo` and `exp` live in the crate `experiments`, everything that speaks to a monitor in
//! `client`.

mod args;
mod capture;
mod files;
mod host;
mod live;
mod output;
mod parent;
mod prof;
mod reload;
mod restore;
mod run;
mod service;
mod show;
mod tables;
mod top;
mod trace;
mod up;
mod upgrade;
mod volume;
mod which;

use anyhow::Context;
use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use experiments::demo::{self, DemoArgs};
use experiments::plan::Adjustment;
use figures::Failure;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return not_understood(&error),
    };
    match carry_out(cli) {
        Ok(code) => code,
        Err(error) => output::failed(&error),
    }
}

/// Help, the version, or what is wrong with what was typed.
fn not_understood(error: &clap::Error) -> ExitCode {
    // Nobody is left to tell if this fails.
    let _ = error.print();
    let is_run = || {
        let words = std::env::args_os().skip(1);
        words
            .into_iter()
            .find(|word| word != "--json")
            .is_some_and(|word| word == "run")
    };
    match u8::try_from(error.exit_code()) {
        // Nobody takes it for the command's.
        Ok(code) if code != 0 && is_run() => ExitCode::from(run::exit::OWN_FAILURE),
        Ok(code) => ExitCode::from(code),
        Err(_) => ExitCode::FAILURE,
    }
}

fn carry_out(cli: Cli) -> anyhow::Result<ExitCode> {
    let json = cli.json;
    match cli.command {
        Command::Prof { command } => return prof::run(&command, json),
        Command::Up(options) => up::up(&options, json),
        Command::Run(args) => return Ok(run::run(&args, json)),
        Command::RunFirst { spec, command } => return Ok(run::first::main(&spec, &command)),
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
        Command::Top(options) => top::top(&options, json),
        Command::Metrics { openmetrics, which } => show::metrics(&which.name, openmetrics, json),
        Command::Trace {
            domain,
            wait,
            which,
        } => trace::trace(&which.name, domain.as_deref(), wait, json),
        Command::Capture(options) => capture::capture(&options, json),
        Command::Set {
            domain,
            key,
            value,
            which,
        } => show::set(&which.name, &domain, &key, &value, json),
        Command::Restart { domains, which } => show::restart(&which.name, &domains, json),
        Command::Upgrade { machines } => upgrade::upgrade(&machines, json),
        Command::Attach { newcomer, which } => live::attach(&which.name, &newcomer, json),
        Command::Detach { guests, which } => live::detach(&which.name, &guests, json),
        Command::Reload(args) => reload::reload(&args, json),
        Command::Demo { quick, sim } => {
            client::check_smallest()?;
            demo::run(&DemoArgs { json, quick, sim })
        }
        Command::Exp { list: true, .. } => output::list_plans(json),
        Command::Exp {
            plan,
            quick,
            rounds,
            seconds,
            halt,
            only,
            out,
            ..
        } => {
            let adjustment = Adjustment {
                quick,
                rounds,
                seconds,
                halt,
                only,
            };
            exp(plan, adjustment, out, json)
        }
        Command::Completions { shell } => completions(shell),
        Command::Manual { folder } => manual(&folder),
        Command::Internal { args } => internal(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "grantway", &mut text);
    output::print_as_it_is(&String::from_utf8_lossy(&text))
}

fn manual(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        .with_context(|| format!("write pages to {}", folder.display()))
}

fn internal(args: &[String]) -> anyhow::Result<()> {
    match args.split_first() {
        Some((helper, spec)) if helper == figures::sampler::HELPER => {
            xenoprof::record::bare::main(spec)
        }
        Some((helper, spec)) if helper == run::pasta::HELPER => {
            run::pasta::main(spec.first().map_or("", String::as_str))
        }
        _ => experiments::internal::main(args),
    }
}

fn exp(
    plan: Option<String>,
    adjustment: Adjustment,
    out: Option<PathBuf>,
    json: bool,
) -> anyhow::Result<()> {
    let plan = plan.ok_or_else(|| Failure::Usage("which plan?".to_owned()))?;
    experiments::exp::run(&experiments::exp::Args {
        plan,
        json,
        adjustment,
        out,
    })
}
