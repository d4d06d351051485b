//! GC: the runtime says what there still is in a network; everything else of it goes.

use crate::failure::{Code, Failure};
use crate::ipam::Delegate;
use crate::key::{Key, prefix};
use crate::machine::Machine;
use crate::network::decoded;
use crate::request::Request;
use crate::reserved;
use client::Error;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::io;

/// What is sent with GC. Without a list nothing is known to be gone; with an empty one everything.
#[derive(Deserialize)]
struct Valid {
    #[serde(rename = "cni.dev/valid-attachments")]
    attachments: Option<Vec<Attachment>>,
    /// The same under another name.
    #[serde(rename = "cni.dev/attachments")]
    also: Option<Vec<Attachment>>,
}

#[derive(Deserialize)]
struct Attachment {
    #[serde(rename = "containerID")]
    container: String,
    ifname: String,
}

pub(crate) fn gc(request: &Request) -> Result<(), Failure> {
    let machine = request.machine()?;
    let valid: Valid = decoded(&request.conf)?;
    let Some(valid) = valid.attachments.or(valid.also) else {
        return Ok(());
    };
    let network = &request.network.name;
    let guest = |attachment: &Attachment| {
        let Attachment { container, ifname } = attachment;
        let key = Key {
            network,
            container,
            ifname,
        };
        key.guest()
    };
    let guests = valid.iter().map(guest).collect();
    let swept = sweep(request, &machine, &prefix(network), &guests);
    if swept.is_ok() && request.network.ipam() == Some(reserved::PROGRAM) {
        release(request, &valid)?;
    }
    let freed = request.ipam().and_then(|ipam| match ipam {
        Some(ipam) => ipam.newer("GC"),
        None => Ok(()),
    });
    swept.and(freed)
}

/// Releases the addresses that `host-local` keeps for attachments that are not valid.
fn release(request: &Request, valid: &[Attachment]) -> Result<(), Failure> {
    let network = &request.network;
    for (container, ifname) in reserved::holders(network.ipam_data_dir(), &network.name) {
        let is_valid = |attachment: &Attachment| {
            (&attachment.container, &attachment.ifname) == (&container, &ifname)
        };
        if !valid.iter().any(is_valid) {
            let mut call = request.call.clone();
            for (key, value) in [("CNI_CONTAINERID", container), ("CNI_IFNAME", ifname)] {
                call.env.insert(key.to_owned(), value);
            }
            call.env.insert("CNI_NETNS".to_owned(), String::new());
            Delegate::of(reserved::PROGRAM, &call, &request.conf, request.version)?.del()?;
        }
    }
    Ok(())
}

/// Detaches all guests of a network that are not valid. As many as go.
fn sweep(
    request: &Request,
    machine: &Machine,
    prefix: &str,
    valid: &BTreeSet<String>,
) -> Result<(), Failure> {
    let guests = match machine.guests() {
        Ok(guests) => guests,
        // No machine has no guests.
        Err(error) if is_absent(&error) => return Ok(()),
        Err(error) => return Err(machine.away(Code::Later, error)),
    };
    request.pending().make_good(machine);
    let stale = guests
        .iter()
        .filter(|name| name.starts_with(prefix) && !valid.contains(*name));
    let mut swept = Ok(());
    for guest in stale {
        if let Err(error) = machine.detach(guest) {
            let msg = format!("{guest} is still attached");
            swept = Err(Failure::new(Code::Refused, msg).because(error));
        }
    }
    swept
}

fn is_absent(error: &Error) -> bool {
    let absent = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
    matches!(error, Error::Io { error, .. } if absent.contains(&error.kind()))
}
