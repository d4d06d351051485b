//! `grantway prof`: profiles.

use figures::Failure;
use lab_args::prof::{
    Classes, Functions, Part, Participate, Prof, RecordArgs, RowProfileArgs, Sampling, ViewArgs,
    With,
};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tool::exit;
use tool::output;
use xenoprof::attribute::Classing;
use xenoprof::attribute::rules::Rules;
use xenoprof::model::{Mode, Session, file};
use xenoprof::record::Participants;
use xenoprof::select::Selection;
use xenoprof::session::participant;
use xenoprof::session::state::Expected;
use xenoprof::show;
use xenoprof::show::diff::Diff;
use xenoprof::show::report::{Form, Listing};

fn rules(file: Option<&PathBuf>) -> anyhow::Result<Rules> {
    match file {
        None => Ok(Rules::thesis()),
        Some(path) => Rules::read(path).map_err(|e| Failure::Usage(e.to_string()).into()),
    }
}

const fn classing(classes: &Classes) -> Classing {
    if classes.flat {
        Classing::Flat
    } else {
        Classing::Nearest
    }
}

fn participants(with: &With) -> anyhow::Result<Option<Participants>> {
    let Some(typed) = &with.participants else {
        return Ok(None);
    };
    let expected = Expected::parse(typed).map_err(|why| {
        let option = "--participants <N|NAMES>";
        Failure::Usage(format!("invalid value '{typed}' for '{option}': {why}"))
    })?;
    Ok(Some(Participants {
        expected,
        timeout: Duration::from_secs(with.timeout.into()),
        socket: socket(with.socket.as_ref())?,
    }))
}

fn socket(given: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    Ok(match given {
        Some(path) => path.clone(),
        None => xenoprof::session::default_socket()?,
    })
}

fn options(
    sampling: &Sampling,
    seconds: Option<f64>,
    command: &[String],
) -> xenoprof::record::RecordOptions {
    xenoprof::record::RecordOptions {
        events: sampling.event.clone(),
        hz: sampling.hz,
        limit: seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()),
        named: sampling.domain.clone(),
        machine: sampling.name.clone(),
        kallsyms: sampling.kallsyms.clone(),
        command: command.to_vec(),
        ..xenoprof::record::RecordOptions::default()
    }
}

/// Runs one of the profiler's commands.
pub(crate) fn run(command: &Prof, json: bool) -> anyhow::Result<ExitCode> {
    match command {
        Prof::Record(record) => return self::record(record),
        Prof::Report {
            view,
            csv,
            functions,
        } => {
            report(view, form(json, *csv), functions)?;
        }
        Prof::Diff {
            a,
            b,
            domain,
            functions,
            flame,
            classing,
            part,
        } => {
            let domain = domain.as_deref();
            let both = [&read(a, part)?, &read(b, part)?];
            diff(both, domain, *functions, flame.as_deref(), classing, json)?;
        }
        Prof::Annotate {
            function,
            file,
            domain,
            class,
            part,
        } => {
            let only = (domain.as_deref(), class.as_deref());
            annotate(read(file, part)?, function, only, json)?;
        }
        Prof::Flame {
            file,
            domain,
            out,
            rules,
            part,
        } => {
            let session = read(file, part)?;
            let folder = out.as_deref().or(file.parent()).unwrap_or(Path::new("."));
            let stem = file.file_stem().unwrap_or_default().to_string_lossy();
            let rules = self::rules(rules.as_ref())?;
            let written = show::flame::files(&session, &rules, folder, &stem, domain.as_deref())?;
            print_files(&written, json)?;
        }
        Prof::Export {
            view,
            format,
            output,
        } => {
            let default = || view.file.with_extension(extension(format));
            let path = output.clone().unwrap_or_else(default);
            export(view, format, &path)?;
            print_files(&[path], json)?;
        }
        Prof::Top {
            sampling,
            classing,
            interval,
            count,
        } => {
            let view = show::top::TopView {
                interval: Duration::from_secs((*interval).into()),
                count: *count,
                classing: self::classing(classing),
                json,
            };
            show::top::top(
                &options(sampling, None, &[]),
                &rules(classing.rules.as_ref())?,
                view,
            )?;
        }
        Prof::Participate(participate) => self::participate(participate)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn record(asked: &RecordArgs) -> anyhow::Result<ExitCode> {
    let options = xenoprof::record::RecordOptions {
        participants: participants(&asked.with)?,
        ..options(&asked.sampling, asked.seconds, &asked.command)
    };
    let status = xenoprof::record::to_file(&options, &asked.output, asked.force)?;
    Ok(status.map_or(ExitCode::SUCCESS, |status| exit::status(status).into()))
}

fn participate(asked: &Participate) -> anyhow::Result<()> {
    let mode = match (asked.passive, asked.agent_only) {
        (true, _) => Mode::Passive,
        (_, true) => Mode::AgentOnly,
        _ => Mode::Active,
    };
    let took = participant::run(&participant::Participation {
        name: asked.name.clone(),
        mode,
        pids: asked.pid.clone(),
        symbols: asked.symbols.clone(),
        command: asked.command.clone(),
        socket: socket(asked.socket.as_ref())?,
        wait: Duration::from_secs(asked.wait.into()),
    })?;
    eprintln!(
        "{} samples of `{}` in the session; {} read from its ring, {} addresses named",
        took.samples, asked.name, took.read, took.names
    );
    Ok(())
}

/// Samples one machine and prints the functions of one of its domains. Writes no file.
pub(crate) fn profile_domain(look: &RowProfileArgs) -> anyhow::Result<()> {
    let options = xenoprof::record::RecordOptions {
        limit: Some(Duration::from_secs(look.seconds)),
        machine: Some(look.machine.clone()),
        ..xenoprof::record::RecordOptions::default()
    };
    let (session, _) = xenoprof::record::run(&options)?;
    output::print(&show::report::of_domain(
        &session,
        &look.domain,
        look.functions,
    )?)
}

/// Returns the format of a report.
fn form(json: bool, csv: bool) -> Form {
    match (json, csv) {
        (true, _) => Form::Json,
        (_, true) => Form::Csv,
        _ => Form::Text,
    }
}

fn report(view: &ViewArgs, form: Form, functions: &Functions) -> anyhow::Result<()> {
    let selection = selection(&view.part)?;
    let session = read_selected(&view.file, &selection)?;
    let (rules, classing) = (
        rules(view.classing.rules.as_ref())?,
        classing(&view.classing),
    );
    let session = of_class(session, &rules, classing, functions.class.as_deref())?;
    let mut text = Vec::new();
    let listing = Listing {
        selection: Some(&selection),
        only_samples: false,
        class: functions.class.as_deref(),
        domain: functions.domain.as_deref(),
        most: functions.functions,
        children: functions.children,
        callers: functions.callers,
        lines: functions.lines,
        by_total: match functions.sort.as_deref() {
            Some(sort) => sort == "total",
            None => functions.children,
        },
    };
    show::report(&session, &rules, classing, form, &listing, &mut text)?;
    output::print(&String::from_utf8_lossy(&text))
}

/// Reduces a session to a class, if the user names one.
fn of_class(
    session: Session,
    rules: &Rules,
    classing: Classing,
    class: Option<&str>,
) -> anyhow::Result<Session> {
    match class {
        Some(class) => xenoprof::select::of_class(session, rules, classing, class),
        None => Ok(session),
    }
}

/// Returns the extension of files in a format of another tool.
fn extension(format: &str) -> &str {
    match format {
        "firefox" => "json",
        "pprof" => "pb",
        other => other,
    }
}

/// Writes a session in a format of another tool to `path`.
fn export(view: &ViewArgs, format: &str, path: &Path) -> anyhow::Result<()> {
    let session = read(&view.file, &view.part)?;
    let rules = rules(view.classing.rules.as_ref())?;
    figures::file::replace(path, |mut out| match format {
        "folded" => show::script::folded(&session, &mut out),
        "perf" => show::script::perf(&session, &mut out),
        "pprof" => show::pprof::write(&session, &mut out),
        _ => show::export::firefox(&session, &rules, out),
    })
}

/// Annotates a function of a session.
fn annotate(
    session: Session,
    function: &str,
    (domain, class): (Option<&str>, Option<&str>),
    json: bool,
) -> anyhow::Result<()> {
    let session = of_class(session, &Rules::thesis(), Classing::Nearest, class)?;
    let found = xenoprof::annotate::annotate(&session, function, domain)?;
    match json {
        true => output::json(&serde_json::to_value(&found)?),
        false => output::print(&found.text()),
    }
}

fn diff(
    [a, b]: [&Session; 2],
    domain: Option<&str>,
    functions: usize,
    flame: Option<&Path>,
    classes: &Classes,
    json: bool,
) -> anyhow::Result<()> {
    let domain = domain
        .map(|name| show::flame::domain_name(a, name))
        .transpose()?;
    if let Some(name) = domain {
        show::flame::domain(b, name)?;
    }
    show::diff::comparable(a, b)?;
    if let Some(path) = flame {
        figures::file::replace(path, |out| show::flame::differences([a, b], domain, out))?;
    }
    let rules = rules(classes.rules.as_ref())?;
    let diff = Diff::new(a, b, &rules, classing(classes), domain);
    if json {
        let provenance = serde_json::json!({ "A": a.head.provenance, "B": b.head.provenance });
        let mut text = Vec::new();
        show::report::write_json(&mut text, &provenance, &diff.figures(functions))?;
        output::print(&String::from_utf8_lossy(&text))
    } else {
        output::print(&diff.text(functions))
    }
}

/// Prints the names of written files.
fn print_files(paths: &[PathBuf], json: bool) -> anyhow::Result<()> {
    for path in paths {
        if json {
            output::json(&serde_json::json!({ "file": path }))?;
        } else {
            output::print(&format!("{}\n", path.display()))?;
        }
    }
    Ok(())
}

/// Reads the part of a session that the options select.
fn read(path: &Path, part: &Part) -> anyhow::Result<Session> {
    read_selected(path, &selection(part)?)
}

fn read_selected(path: &Path, selection: &Selection) -> anyhow::Result<Session> {
    let session = file::read(path).map_err(|error| match error {
        // The file does not exist or is not a session.
        file::FileError::Io { .. } | file::FileError::Damaged { .. } => {
            anyhow::Error::from(Failure::Usage(error.to_string()))
        }
        file::FileError::Exists(_) => error.into(),
    })?;
    selection.apply(session)
}

fn selection(part: &Part) -> anyhow::Result<Selection> {
    let wrong = |text: &str, why: String| {
        Failure::Usage(format!(
            "invalid value '{text}' for '--time <START,STOP>': {why}"
        ))
    };
    let time = part.time.as_deref();
    let time = time.map(|text| text.parse().map_err(|why| wrong(text, why)));
    Ok(Selection {
        threads: part.thread.clone(),
        time: time.transpose()?,
        event: part.event.clone(),
    })
}
