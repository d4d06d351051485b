//! DEL: nothing is left of an attachment. It succeeds as well when there was nothing.

use crate::failure::Failure;
use crate::request::Request;

pub(crate) fn del(request: &Request) -> Result<(), Failure> {
    let machine = request.machine()?;
    let pending = request.pending();
    let guest = request.key().guest();
    match machine.detach(&guest) {
        Ok(()) => pending.make_good(&machine),
        Err(error) => {
            pending.note(&machine, &guest)?;
            eprintln!("grantway-cni: {guest} is detached when its machine answers: {error}");
        }
    }
    // Its addresses last: nobody else gets them while it is there.
    request.ipam()?.map_or(Ok(()), |ipam| ipam.del())
}
