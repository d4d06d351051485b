//! The devices of a domain.

use crate::capture::{CaptureFiles, CaptureSpec};
use crate::domain::Offloads;
use crate::kernel_port::KernelPort;
use abi::machine::{Device, Tap};

/// The devices of a domain, numbered as they are added.
#[derive(Default)]
pub(super) struct DeviceList(pub(super) Vec<Device>);

impl DeviceList {
    pub(super) fn add(&mut self, device: Device) -> u32 {
        self.0.push(device);
        self.0.len() as u32 - 1
    }

    /// Adds a TAP with one shared queue per worker. This domain gets the queue of `worker`; the
    /// first worker's device creates the TAP.
    pub(super) fn share(&mut self, tap: Tap, worker: u32, workers: u32) -> u32 {
        self.add(match worker {
            0 => Device::Tap(Tap {
                shares: workers.saturating_sub(1),
                ..tap
            }),
            _ => Device::TapShare {
                ifname: tap.ifname,
                netns: tap.netns,
            },
        })
    }

    pub(super) fn files(&mut self, files: &CaptureFiles) -> CaptureSpec {
        let (read, write) = (files.read.clone(), files.write.clone());
        CaptureSpec {
            read: read.map(|file| self.add(Device::Read(file))),
            write: write.map(|file| self.add(Device::Write(file))),
            write_mib: files.write_mib,
        }
    }
}

/// Adds a TAP with the features of `offloads`.
pub(super) fn tap(
    port: &KernelPort,
    ifname: Option<String>,
    mac: [u8; 6],
    mtu: u32,
    offloads: Offloads,
) -> Tap {
    Tap {
        ifname: ifname.unwrap_or_default(),
        netns: port.netns.clone(),
        mac: Some(mac),
        addresses: port.addresses.iter().map(ToString::to_string).collect(),
        allow_overlap: port.allow_overlap,
        ipv6: None,
        gateway: port.gateway.map(|gateway| gateway.to_string()),
        routes: port.routes.iter().map(|&route| route.into()).collect(),
        mtu,
        vnet_header: offloads > Offloads::None,
        checksum: offloads >= Offloads::Checksum,
        tso: offloads >= Offloads::Tso,
        tx_queue: port.tx_queue,
        napi_threads: false,
        queues: 0,
        shares: 0,
        uplink: None,
        persistent: None,
    }
}
