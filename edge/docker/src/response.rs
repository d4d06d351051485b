//! Executes calls: decodes the argument, encodes the answer.

use crate::driver::RemoteDriver;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::sync::Arc;

/// Returns the answer of a call, or `None` if the driver has no call of this name.
pub(crate) fn handle_call(driver: &Arc<RemoteDriver>, name: &str, body: &[u8]) -> Option<Value> {
    let nothing = |()| json!({});
    let done = match name {
        "Plugin.Activate" => Ok(json!({ "Implements": ["NetworkDriver"] })),
        "NetworkDriver.GetCapabilities" => {
            Ok(json!({ "Scope": "local", "ConnectivityScope": "local" }))
        }
        "NetworkDriver.CreateNetwork" => {
            let call = argument(body);
            call.and_then(|call| driver.create_network(&call))
                .map(nothing)
        }
        "NetworkDriver.DeleteNetwork" => {
            let call = argument(body);
            call.and_then(|call| driver.delete_network(&call))
                .map(nothing)
        }
        "NetworkDriver.CreateEndpoint" => {
            argument(body).and_then(|call| driver.create_endpoint(call))
        }
        "NetworkDriver.DeleteEndpoint" => {
            let call = argument(body);
            call.and_then(|call| driver.delete_endpoint(&call))
                .map(nothing)
        }
        "NetworkDriver.Join" => argument(body).and_then(|call| driver.join(call)),
        "NetworkDriver.Leave" => argument(body).map(|call| driver.leave(&call)).map(nothing),
        "NetworkDriver.ProgramExternalConnectivity" => {
            let call = argument(body);
            call.and_then(|call| driver.publish_ports(&call))
                .map(nothing)
        }
        "NetworkDriver.RevokeExternalConnectivity" => argument(body)
            .map(|call| driver.unpublish_ports(&call))
            .map(nothing),
        "NetworkDriver.EndpointOperInfo" => Ok(json!({ "Value": {} })),
        // These calls announce other nodes, which a driver with local scope ignores.
        "NetworkDriver.DiscoverNew" | "NetworkDriver.DiscoverDelete" => Ok(json!({})),
        _ => return None,
    };
    Some(done.unwrap_or_else(|error| {
        eprintln!("grantway-docker: {name} fails: {error}");
        json!({ "Err": error })
    }))
}

fn argument<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    let wrong = |error| format!("cannot parse the argument: {error}");
    serde_json::from_slice(body).map_err(wrong)
}
