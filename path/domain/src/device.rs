//! From a configuration to NICs and endpoints.

use crate::start::{StartError, refused};
use abi::hypercall::Attach;
use config::domain::{Endpoint, GuestVif, NicConfig, NicKind, Offloads};
use nic::Nic;
use nic_linux::TapNic;
use std::os::fd::OwnedFd;

/// The NIC that `config` describes, behind its own token bucket if it has one.
///
/// # Errors
/// Its device was refused.
pub fn nic(config: &NicConfig) -> Result<Box<dyn Nic>, StartError> {
    let mtu = config.mtu as usize;
    let nic: Box<dyn Nic> = match &config.kind {
        NicKind::Tap { device, vnet_header, checksum } => {
            Box::new(TapNic::new(attach(*device)?, *vnet_header, *checksum, false, mtu))
        }
        NicKind::Local { device, .. } => {
            Box::new(TapNic::new(attach(*device)?, true, true, true, mtu))
        }
        _ => return Err(StartError::Damaged("soon")),
    };
    Ok(nic)
}

/// The endpoint that `config` describes.
///
/// # Errors
/// Its device was refused.
pub fn endpoint(config: &GuestVif) -> Result<Box<dyn Nic>, StartError> {
    let mtu = config.mtu as usize;
    Ok(match &config.endpoint {
        Endpoint::Tap { device } => {
            let checksum = config.offloads >= Offloads::Checksum;
            let tso = config.offloads >= Offloads::Tso;
            Box::new(TapNic::new(attach(*device)?, true, checksum, tso, mtu))
        }
        _ => return Err(StartError::Damaged("soon")),
    })
}

fn attach(device: u32) -> Result<OwnedFd, StartError> {
    shmem::attach::call(Attach::Device(device))
        .map_err(|why| refused(&format!("device {device}"), why))
}
