//! The driver domain's NICs: their configurations, devices, frames and slots of the grant window.

use super::dedicated::{self, DedicatedQueues, DeviceQueues};
use super::devices::{DeviceList, tap};
use crate::domain::{self, NicConfig, NicKindConfig, NicSettings, Offloads, VmqConfig};
use crate::kernel_port::KernelPort;
use crate::model::Config;
use crate::nic::{NicKind, NicSection, XdpWire};
use crate::sizes::{BUFFERS_PER_PAGE, guests_slot, nic_pages, rings_slots};
use crate::soft::{DevicePlace, SoftWire};
use abi::machine::{Device, Netdev, Pci, Tap, Xdp};
use abi::pci::{Structure, WINDOW_SLOTS};

/// The NICs that one worker has at its start. The driver places their buffers one after another,
/// starting at its first frame. Rings of AF_XDP sockets are at the start of its grant window, or,
/// for NICs that are added later, at its end.
#[derive(Default)]
pub(super) struct Nics {
    pub(super) nics: Vec<NicConfig>,
    pub(super) devices: DeviceList,
    /// Frames of their buffers.
    pub(super) frames: u32,
    /// Slots of the grant window for their rings.
    pub(super) window_slots: u32,
    pub(super) dedicated: DedicatedQueues,
    pub(super) device_queues: DeviceQueues,
    /// Number of devices in separate domains. The driver's first connections are those to these
    /// domains.
    pub(super) device_domains: u32,
}

impl Nics {
    /// Returns the NICs of `worker`.
    pub(super) fn build(config: &Config, worker: u32) -> Self {
        let mut all = Self::default();
        for (n, nic) in config.nics.iter().enumerate() {
            let kind = all.kind(config, n, nic, worker);
            let model = nic;
            let stations = model.stations();
            let nic = NicConfig {
                name: model.name.clone(),
                kind,
                settings: NicSettings {
                    vmq: vmq(model),
                    ..model.settings.of_worker(&config.driver)
                },
                addresses: stations.ips().collect(),
                gateways: stations.routers(),
            };
            if let NicKindConfig::Vfio { device, .. } = nic.kind
                && let Some(Device::Pci(pci)) = all.devices.0.get_mut(device as usize)
            {
                // The rings of a PCI device follow its buffers.
                pci.frames = pci.frames.saturating_add(nic.ring_pages());
            }
            if let NicKindConfig::Device { conn, .. } = nic.kind {
                let first_slot = guests_slot(&nic);
                let device = (n as u32, conn, first_slot);
                dedicated::add_to_device(config, model, device, &mut all.device_queues);
            }
            all.frames = all.frames.saturating_add(nic_pages(&nic));
            all.nics.push(nic);
        }
        all
    }

    /// Returns the driver's configuration of a NIC's kind, and adds its devices.
    fn kind(&mut self, config: &Config, n: usize, nic: &NicSection, worker: u32) -> NicKindConfig {
        let workers = config.driver.workers.max(1);
        let mac = config.nic_mac(n).map_or([0; 6], |mac| mac.0);
        let (ifname, mtu) = (config.nic_ifname(n), nic.settings.mtu);
        let tap = |port: &KernelPort, offloads| tap(port, ifname.clone(), mac, mtu, offloads);
        match &nic.kind {
            NicKind::Tap {
                port,
                offloads,
                napi_threads,
            } => {
                let queues = vmq(nic).map_or(0, |vmq| vmq.queues);
                let tap = Tap {
                    uplink: nic.uplink.clone(),
                    napi_threads: *napi_threads,
                    queues,
                    ..tap(port, *offloads)
                };
                let device = self.devices.share(tap, worker, workers);
                let queue = |_| self.devices.add(Device::TapQueue);
                NicKindConfig::Tap {
                    device,
                    vnet_header: *offloads > Offloads::None,
                    checksum: *offloads >= Offloads::Checksum,
                    tso: *offloads >= Offloads::Tso,
                    queues: (0..queues).map(queue).collect(),
                }
            }
            NicKind::Xdp { wire } => {
                let netdev = match wire {
                    XdpWire::Veth(port) => Netdev::Veth(tap(port, Offloads::None)),
                    XdpWire::Netdev { name, netns } => Netdev::Existing {
                        ifname: name.clone(),
                        netns: netns.clone(),
                    },
                };
                self.xdp(config, (n, nic), netdev)
            }
            NicKind::Local { port } => {
                let tap = tap(port, Offloads::Tso);
                let device = self.devices.share(tap, worker, workers);
                NicKindConfig::Local { device, mac }
            }
            NicKind::Sim(cable) => NicKindConfig::Sim(cable.with_mac(mac)),
            NicKind::Soft {
                wire: SoftWire::Cable(cable),
                rings,
                place: DevicePlace::Driver,
                ..
            } => NicKindConfig::Soft {
                cable: cable.with_mac(mac),
                rings: *rings,
            },
            NicKind::Soft {
                rings,
                lro,
                header_split,
                ..
            } => {
                let conn = self.device_domains;
                self.device_domains += 1;
                NicKindConfig::Device {
                    conn,
                    descriptors: rings.descriptors,
                    queues: nic.dedicated_queues(),
                    merges: *lro,
                    splits: *header_split,
                }
            }
            NicKind::Vfio {
                device,
                descriptors,
            } => self.pci(nic, device, *descriptors),
            NicKind::Pcap(files) => NicKindConfig::Pcap(self.devices.files(files)),
        }
    }

    /// Returns a PCI device. [`Nics::build`] adds the frames for its rings.
    fn pci(&mut self, nic: &NicSection, address: &str, descriptors: u32) -> NicKindConfig {
        let registers_slot = self.window_slots;
        self.window_slots += Structure::ALL.len() as u32 * WINDOW_SLOTS;
        let device = self.devices.add(Device::Pci(Pci {
            address: address.to_owned(),
            first_frame: self.frames,
            frames: nic.settings.buffers.div_ceil(BUFFERS_PER_PAGE),
            entries: descriptors,
            registers_slot,
        }));
        NicKindConfig::Vfio {
            device,
            registers_slot,
            descriptors,
        }
    }

    /// Returns an AF_XDP socket over the NIC's buffers, and adds its dedicated queues.
    fn xdp(
        &mut self,
        config: &Config,
        (n, nic): (usize, &NicSection),
        netdev: Netdev,
    ) -> NicKindConfig {
        let entries = nic.settings.buffers.next_power_of_two();
        let rings_slot = self.window_slots;
        self.window_slots += rings_slots(entries);
        let device = self.devices.add(Device::Xdp(Xdp {
            netdev,
            first_frame: self.frames,
            frames: nic.settings.buffers / BUFFERS_PER_PAGE,
            chunk_bytes: domain::BUFFER_BYTES,
            entries,
            rings_slot,
            queues: nic.dedicated_queues(),
        }));
        dedicated::add(
            config,
            (n, nic),
            &mut self.devices,
            &mut self.window_slots,
            &mut self.dedicated,
        );
        NicKindConfig::Xdp {
            device,
            rings_slot,
            entries,
        }
    }
}

/// Returns a NIC's dedicated queues that are assigned by load. Those of an AF_XDP NIC and of a
/// device domain are assigned by `pdev`.
fn vmq(nic: &NicSection) -> Option<VmqConfig> {
    nic.settings.vmq.filter(|_| !nic.assigns_by_pdev())
}
