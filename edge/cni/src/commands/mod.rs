//! The commands of CNI, one per file.

pub(crate) mod add;
mod bandwidth;
pub(crate) mod check;
pub(crate) mod del;
pub(crate) mod gc;
mod interface_request;
pub(crate) mod status;

/// Parses everything that ADD parses, without attaching anything.
#[cfg(feature = "testing")]
pub(crate) fn parse_add(
    request: &crate::request::PluginRequest,
) -> Result<(), crate::error::CniError> {
    let requested = interface_request::InterfaceRequest::of(request)?;
    let given = requested.before.clone().unwrap_or_default();
    requested.check_assigned(&given)?;
    let joined = given.merged_with(requested.addresses()?);
    joined.machine_routes()?;
    crate::routed::route_by_gateway(joined)?
        .machine_routes()
        .map(drop)
}
