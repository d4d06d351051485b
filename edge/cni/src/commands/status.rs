//! STATUS: checks that an ADD would succeed now.

use crate::error::{CniError, ErrorCode};
use crate::request::PluginRequest;

pub(crate) fn status(request: &PluginRequest) -> Result<(), CniError> {
    let machine = request.machine()?;
    let there = machine.guests();
    there.map_err(|error| machine.unavailable_error(ErrorCode::NotReady, error))?;
    let ipam = request.ipam().map_err(|failure| CniError {
        code: ErrorCode::NotReady as u32,
        ..failure
    })?;
    ipam.map_or(Ok(()), |ipam| ipam.call_if_supported("STATUS"))
}
