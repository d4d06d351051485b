//! DEL: nothing is left of an attachment. It succeeds as well when there was nothing.

use crate::failure::Failure;
use crate::namespace::look;
use crate::request::Request;
use std::thread;
use std::time::{Duration, Instant};

/// A detached guest's interface is gone long before this is over; it takes milliseconds.
const LINK: Duration = Duration::from_secs(20);

pub(crate) fn del(request: &Request) -> Result<(), Failure> {
    let machine = request.machine()?;
    let pending = request.pending();
    let guest = request.key().guest();
    match machine.detach(&guest) {
        Ok(was_there) => {
            pending.make_good(&machine);
            if was_there {
                await_the_link_s_end(request);
            }
        }
        Err(error) => {
            pending.note(&machine, &guest)?;
            eprintln!("grantway-cni: {guest} is detached when its machine answers: {error}");
        }
    }
    // Its addresses last: nobody else gets them while it is there.
    request.ipam()?.map_or(Ok(()), |ipam| ipam.del())
}

/// A runtime may make an interface of this name at once. No namespace, as runtimes say it that have
/// forgotten it, has no interface.
fn await_the_link_s_end(request: &Request) {
    let end = Instant::now() + LINK;
    let is_there =
        || look(&request.call.netns, &request.call.ifname).is_ok_and(|seen| seen.is_some());
    while is_there() && Instant::now() < end {
        thread::sleep(Duration::from_millis(2));
    }
}
