//! The command `demo`: runs a whole machine on this computer for half a minute, with ordinary
//! sockets at both ends, and prints a report.

mod findings;
mod sim;
mod site;
mod taps;
mod text;

pub use sim::MemoryNic;

use crate::lane::cores::Cores;
use figures::provenance::Provenance;
use figures::{interrupt, report};

/// Options of the command.
#[derive(Clone, Debug, Default)]
pub struct DemoArgs {
    /// Print JSON lines instead of tables.
    pub json: bool,
    /// Take at most 15 seconds.
    pub quick: bool,
    /// The NIC in memory that replaces TAPs, with TCP/IP inside the domains; `None`: TAPs, if they
    /// are available.
    pub nic: Option<MemoryNic>,
}

/// Runs the demonstration and prints its report.
///
/// # Errors
/// A returned [`figures::Failure`] has an exit status; see [`figures::exit_code`].
pub fn run(args: &DemoArgs) -> anyhow::Result<()> {
    // This precedes the start of any thread, because only a single-threaded process can enter a
    // user namespace.
    let mut notes = Vec::new();
    match site::find(args.nic.is_some())? {
        site::NamespaceSite::Here => {}
        site::NamespaceSite::Elsewhere(status) if status.success() => return Ok(()),
        site::NamespaceSite::Elsewhere(status) => {
            std::process::exit(status.code().unwrap_or(1));
        }
        site::NamespaceSite::NoTap(why) => notes.push(format!(
            "without TAPs ({why}): a wire in memory, TCP/IP inside the domains"
        )),
    }
    interrupt::watch();
    let on_taps = notes.is_empty();
    let cores = Cores::choose();
    let placement = if on_taps {
        format!(
            "the wire's socket on core {}, driver, guest and the guest's socket on core {}",
            cores.wire, cores.guest
        )
    } else {
        format!(
            "driver on core {}, guest on core {}",
            cores.wire, cores.guest
        )
    };
    let provenance = Provenance::collect(placement, args.quick);
    for note in &notes {
        eprintln!("{note}");
    }
    let mut found = if on_taps {
        taps::find(args.quick, cores, provenance.tsc_hz)?
    } else {
        sim::find(
            args.nic.unwrap_or_default(),
            args.quick,
            cores,
            provenance.tsc_hz,
        )?
    };
    found.notes.splice(0..0, notes);
    if args.json {
        report::print_json(&provenance, &found.figures)
    } else {
        print!("{}", text::report(&provenance, &found));
        Ok(())
    }
}
