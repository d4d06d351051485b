//! `grantway`: the command line.
//!
//! | module | purpose |
//! |---|---|
//! | `args` | command-line arguments |
//! | `up` | starts and stops machines |
//! | `run` | runs a command behind a driver domain |
//! | `files` | reads a configuration file and its fragments |
//! | `host` | checks a configuration's requirements on this system; creates namespaces |
//! | `lab` | executes `grantway-lab` for `demo`, `exp` and `prof` |
//! | `live` | attaches guests to a running machine, and detaches them |
//! | `restore` | restores the host's network settings after a crash |
//! | `reload` | applies an edited configuration file |
//! | `service` | reports to systemd |
//! | `show` | queries a running machine: status, stat, grants, set |
//! | `capture` | writes frames of a guest or a NIC to a file |
//! | `trace` | traces a packet through the machine |
//! | `top` | shows traffic, drops and CPU time |
//! | `tables` | text output |
//! | `volume` | counts of frames and bytes |
//! | `output` | standard output, progress, exit status |
//!
//! The crate `client` implements the protocol of the control socket.

mod args;
mod capture;
mod files;
mod flows;
mod host;
mod instance_arg;
mod lab;
mod live;
mod output;
mod parent;
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

use anyhow::Context;
use args::{Cli, Command};
use clap::{CommandFactory, Parser};
use std::path::Path;
use std::process::ExitCode;
use tool::Failure;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return print_usage(&error),
    };
    match execute(cli) {
        Ok(code) => code,
        Err(error) => output::failed(&error),
    }
}

/// Prints help, the version, or an error in the arguments.
fn print_usage(error: &clap::Error) -> ExitCode {
    // An error is ignored, because no other output is available.
    let _ = error.print();
    let is_run = || {
        let words = std::env::args_os().skip(1);
        words
            .into_iter()
            .find(|word| word != "--json")
            .is_some_and(|word| word == "run")
    };
    match u8::try_from(error.exit_code()) {
        // This status differs from those of the command that `run` executes.
        Ok(code) if code != 0 && is_run() => ExitCode::from(run::exit::OWN_FAILURE),
        Ok(code) => ExitCode::from(code),
        Err(_) => ExitCode::FAILURE,
    }
}

fn execute(cli: Cli) -> anyhow::Result<ExitCode> {
    let json = cli.json;
    match cli.command {
        Command::Up(options) => up::up(&options, json),
        Command::Run(args) => return Ok(run::run(&args, json)),
        Command::RunPid1 { spec, command } => return Ok(run::pid1::main(&spec, &command)),
        Command::Down { instance } => up::down(&instance.name, json),
        Command::Xen { config } => up::xen(&config),
        Command::Status { instance } => show::status(&instance.name, json),
        Command::Stat {
            domain,
            nonzero,
            table,
            instance,
        } => {
            let form = show::OutputForm::of(json, table);
            show::stat(&instance.name, domain.as_deref(), form, nonzero)
        }
        Command::Grants { all, instance } => show::grants(&instance.name, all, json),
        Command::Top(options) => top::top(&options, json),
        Command::Metrics {
            openmetrics,
            instance,
        } => show::metrics(&instance.name, openmetrics, json),
        Command::Trace {
            domain,
            wait,
            instance,
        } => trace::trace(&instance.name, domain.as_deref(), wait, json),
        Command::Flows { of, instance } => flows::flows(&instance.name, &of, json),
        Command::Capture(options) => capture::capture(&options, json),
        Command::Set {
            domain,
            key,
            value,
            instance,
        } => show::set(&instance.name, &domain, &key, &value, json),
        Command::Restart { domains, instance } => show::restart(&instance.name, &domains, json),
        Command::Upgrade { machines } => upgrade::upgrade(&machines, json),
        Command::Attach { guest, instance } => live::attach(&instance.name, &guest, json),
        Command::Detach { guests, instance } => live::detach(&instance.name, &guests, json),
        Command::Rules {
            guest,
            file,
            instance,
        } => live::rules(&instance.name, &guest, &file, json),
        Command::Reload(args) => reload::reload(&args, json),
        Command::Lab(command) => lab::exec_lab(command.name()),
        Command::Completions { shell } => completions(shell),
        Command::Manual { folder } => manual(&folder),
        Command::Internal { args } => internal(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "grantway", &mut text);
    output::print_unescaped(&String::from_utf8_lossy(&text))
}

fn manual(folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder)
        .and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        .with_context(|| format!("write pages to {}", folder.display()))
}

fn internal(args: &[String]) -> anyhow::Result<()> {
    match args.split_first() {
        Some((helper, spec)) if helper == run::pasta::HELPER => {
            run::pasta::main(spec.first().map_or("", String::as_str))
        }
        _ => Err(Failure::Usage("internal: no such helper".to_owned()).into()),
    }
}
