//! GC: removes every attachment of a network that is not in the runtime's list.

use crate::error::{CniError, ErrorCode};
use crate::ipam::Delegate;
use crate::key::{AttachmentKey, prefix};
use crate::machine::MachineClient;
use crate::network::decoded;
use crate::pod;
use crate::request::PluginRequest;
use crate::reserved;
use client::Error;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::io;

/// The runtime's list of valid attachments. If the list is missing, no attachment is removed. If it
/// is empty, all attachments are removed.
#[derive(Deserialize)]
struct ValidAttachments {
    #[serde(rename = "cni.dev/valid-attachments")]
    attachments: Option<Vec<ValidAttachment>>,
    /// The same list under another name.
    #[serde(rename = "cni.dev/attachments")]
    also: Option<Vec<ValidAttachment>>,
}

#[derive(Deserialize)]
struct ValidAttachment {
    #[serde(rename = "containerID")]
    container: String,
    ifname: String,
}

pub(crate) fn gc(request: &PluginRequest) -> Result<(), CniError> {
    let machine = request.machine()?;
    let valid: ValidAttachments = decoded(&request.conf)?;
    let Some(valid) = valid.attachments.or(valid.also) else {
        return Ok(());
    };
    let network = &request.network.name;
    let guest = |attachment: &ValidAttachment| {
        let ValidAttachment { container, ifname } = attachment;
        let key = AttachmentKey {
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
        Some(ipam) => ipam.call_if_supported("GC"),
        None => Ok(()),
    });
    swept.and(freed)
}

/// Releases the addresses that `host-local` keeps for attachments that are not valid.
fn release(request: &PluginRequest, valid: &[ValidAttachment]) -> Result<(), CniError> {
    let network = &request.network;
    for (container, ifname) in reserved::holders(network.ipam_data_dir(), &network.name) {
        let is_valid = |attachment: &ValidAttachment| {
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

/// Detaches as many invalid guests of a network as possible.
fn sweep(
    request: &PluginRequest,
    machine: &MachineClient,
    prefix: &str,
    valid: &BTreeSet<String>,
) -> Result<(), CniError> {
    let guests = match machine.guests() {
        Ok(guests) => guests,
        // A machine that is not running has no guests.
        Err(error) if is_absent(&error) => return Ok(()),
        Err(error) => return Err(machine.unavailable_error(ErrorCode::Later, error)),
    };
    request.pending().retry_all(machine);
    let stale = guests
        .iter()
        .filter(|name| name.starts_with(prefix) && !valid.contains(*name));
    let mut swept = Ok(());
    for guest in stale {
        if let Err(error) = machine.detach(guest) {
            let msg = format!("{guest} is still attached");
            swept = Err(CniError::new(ErrorCode::Refused, msg).with_details(error));
            continue;
        }
        if let Err(error) = pod::remove_record(request, guest) {
            swept = Err(error);
        }
    }
    swept
}

fn is_absent(error: &Error) -> bool {
    let absent = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
    matches!(error, Error::Io { error, .. } if absent.contains(&error.kind()))
}
