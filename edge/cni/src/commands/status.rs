//! STATUS: could a container be added now?

use crate::failure::{Code, Failure};
use crate::request::Request;

pub(crate) fn status(request: &Request) -> Result<(), Failure> {
    let machine = request.machine()?;
    let there = machine.guests();
    there.map_err(|error| machine.away(Code::NotReady, error))?;
    let ipam = request.ipam().map_err(|failure| Failure {
        code: Code::NotReady as u32,
        ..failure
    })?;
    ipam.map_or(Ok(()), |ipam| ipam.newer("STATUS"))
}
