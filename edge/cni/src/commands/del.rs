//! DEL: removes an attachment completely. Succeeds if none exists.

use crate::error::CniError;
use crate::namespace::inspect;
use crate::pod;
use crate::request::PluginRequest;
use std::thread;
use std::time::{Duration, Instant};

/// Longest wait for the removal of a detached guest's interface, which usually takes milliseconds.
const LINK: Duration = Duration::from_secs(20);

pub(crate) fn del(request: &PluginRequest) -> Result<(), CniError> {
    let machine = request.machine()?;
    let pending = request.pending();
    let guest = request.key().guest();
    match machine.detach(&guest) {
        Ok(was_there) => {
            pending.retry_all(&machine);
            if was_there {
                wait_for_link_removal(request);
            }
        }
        Err(error) => {
            pending.record(&machine, &guest)?;
            eprintln!("grantway-cni: {guest} will be detached when its machine answers: {error}");
        }
    }
    pod::remove_record(request, &guest)?;
    // Release addresses last, so that no other container gets them while the interface exists.
    request.ipam()?.map_or(Ok(()), |ipam| ipam.del())
}

/// Waits until the interface has been removed, because a runtime may create one with this name
/// next. Some runtimes pass no namespace, or an empty one, for DEL; then no interface exists.
fn wait_for_link_removal(request: &PluginRequest) {
    let end = Instant::now() + LINK;
    let is_there =
        || inspect(&request.call.netns, &request.call.ifname).is_ok_and(|seen| seen.is_some());
    while is_there() && Instant::now() < end {
        thread::sleep(Duration::from_millis(2));
    }
}
