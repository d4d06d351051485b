//! Opens what domains attach. This is the one place where the monitor's program knows what a
//! device is.

use abi::machine::Device;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

/// Opens every device of a domain, in order.
pub(crate) fn open(domain: &str, devices: &[Device]) -> Result<Vec<OwnedFd>, String> {
    let open = |device| open_one(device).map_err(|error| format!("domain {domain}: {error}"));
    devices.iter().map(open).collect()
}

fn open_one(device: &Device) -> Result<OwnedFd, String> {
    match device {
        Device::Tap(tap) => nic_linux::setup::open_tap(tap).map_err(|error| error.to_string()),
        Device::Read(path) => OpenOptions::new()
            .read(true)
            .open(path)
            .map(OwnedFd::from)
            .map_err(|error| format!("the file {path} cannot be read: {error}")),
        Device::Write(path) => OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map(OwnedFd::from)
            .map_err(|error| format!("the file {path} cannot be made: {error}")),
    }
}
