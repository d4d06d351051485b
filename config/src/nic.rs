//! A network interface of the driver domain.

use crate::address::MacAddress;
use crate::cable::Cable;
use crate::capture::CaptureFiles;
use crate::domain::{BUFFER_BYTES, Offloads};
use crate::driver::DriverSection;
use crate::findings::Findings;
use crate::kernel_port::{self, KernelPort, ifname, netns};
use crate::problem::ConfigPart;
use crate::route::StationAddresses;
use crate::rule::{self, FirewallRule};
use crate::soft::{DevicePlace, Rings, SoftWire};
use crate::station;
use crate::table::TomlTable;
use crate::uplink;
use abi::machine::Uplink;
use serde::{Deserialize, Serialize};

/// Bytes in addition to the MTU in a buffer that receives a whole frame: an Ethernet header, a VLAN
/// tag, and one byte that shows whether the frame was truncated.
pub const FRAME_EXTRA_BYTES: u32 = 19;

/// Largest MTU of an AF_XDP socket that receives into buffers of [`BUFFER_BYTES`]. The kernel
/// reserves the first 256 bytes; the Ethernet header and a VLAN tag take 18.
pub(crate) const XDP_MTU_MAX: u32 = BUFFER_BYTES - 256 - 18;

/// Largest MTU of a PCI device that receives into buffers of [`BUFFER_BYTES`]. The device's header
/// takes 12 bytes; the Ethernet header and a VLAN tag take 18.
pub(crate) const PCI_MTU_MAX: u32 = BUFFER_BYTES - PCI_HEADER_BYTES - 18;
/// Bytes of the header that a PCI device writes before a frame.
pub(crate) const PCI_HEADER_BYTES: u32 = 12;

/// One network interface of the driver domain.
#[derive(Clone, Debug, PartialEq)]
pub struct NicSection {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: NicKind,
    /// Its settings that do not depend on its kind.
    pub settings: NicSettings,
    /// The MAC of its kernel end or station; `None`: derived, or it has none.
    pub mac: Option<MacAddress>,
    /// The uplink that joins the kernel's end to the network of its namespace, if any.
    pub uplink: Option<Uplink>,
}

/// The settings of a NIC that a file and the driver domain's configuration have in the same form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NicSettings {
    /// Maximum transmission unit, bytes of IP.
    pub mtu: u32,
    /// Rate of the token bucket in each direction, megabits of frames per second; `None`:
    /// unlimited.
    pub rate_mbps: Option<f64>,
    /// Capacity of the bucket, bytes of frames.
    pub burst_bytes: u32,
    /// Schedule by which the driver polls for received frames.
    pub moderation: ModerationConfig,
    /// Buffers of its receive pool, [`BUFFER_BYTES`] each.
    pub buffers: u32,
    /// Dedicated queues, each for one guest, if any. A driver's configuration has only those that
    /// are assigned by load.
    pub vmq: Option<VmqConfig>,
    /// Firewall rules: the first match decides; unmatched frames pass.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<FirewallRule>,
}

/// Dedicated queues of a NIC, assigned to guest interfaces by load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmqConfig {
    /// Their number.
    pub queues: u32,
    /// Milliseconds between reassignments to the busiest guests; 0: a guest keeps its queue.
    pub rebalance_ms: u32,
}

/// Schedule by which the driver polls a NIC for received frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModerationConfig {
    /// Always: the driver never sleeps.
    Spin,
    /// Every n microseconds.
    Tick(u32),
    /// When the NIC signals an event.
    Event,
}

impl Default for NicSettings {
    fn default() -> Self {
        Self {
            mtu: 1500,
            rate_mbps: None,
            burst_bytes: 65_536,
            moderation: ModerationConfig::Event,
            buffers: 1024,
            vmq: None,
            rules: Vec::new(),
        }
    }
}

impl NicSettings {
    /// Returns the settings for one worker of the driver domain, which has a share of the rate.
    pub(crate) fn of_worker(&self, driver: &DriverSection) -> Self {
        Self {
            rate_mbps: self.rate_mbps.map(|mbps| driver.share_of(mbps)),
            ..self.clone()
        }
    }

    /// Checks the settings of NIC number `n`.
    fn check(&self, found: &mut Findings, n: usize) {
        let part = ConfigPart::Nic(n);
        found.range(part, "mtu", self.mtu, 576..=9000);
        found.rate(part, "rate_mbps", self.rate_mbps);
        let burst = self.mtu.saturating_add(18)..=64 << 20;
        found.range(part, "burst_bytes", self.burst_bytes, burst);
        found.range(part, "buffers", self.buffers, 64..=65_536);
        if let ModerationConfig::Tick(tick) = self.moderation {
            found.range(part, "tick_us", tick, 1..=100_000);
        }
        if let Some(of_nic) = self.vmq {
            found.range(part, "vmq_queues", of_nic.queues, 1..=64);
            found.range(part, "vmq_rebalance_ms", of_nic.rebalance_ms, 0..=60_000);
        }
        rule::check(found, part, &self.rules, |r| ConfigPart::NicRule(n, r));
    }
}

impl Default for NicSection {
    fn default() -> Self {
        Self::new("", NicKind::Pcap(CaptureFiles::default()))
    }
}

impl NicSection {
    /// Returns a NIC with default values.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: NicKind) -> Self {
        let settings = NicSettings {
            buffers: kind.buffers(),
            ..NicSettings::default()
        };
        Self {
            name: name.into(),
            kind,
            settings,
            mac: None,
            uplink: None,
        }
    }

    /// Checks NIC number `n`, except its name.
    pub(crate) fn check(&self, found: &mut Findings, n: usize) {
        let part = ConfigPart::Nic(n);
        self.settings.check(found, n);
        check_kind(found, n, self);
        if let Some(uplink) = &self.uplink {
            let port = match &self.kind {
                NicKind::Tap { port, .. } => Some(port),
                _ => None,
            };
            uplink::check(found, part, uplink, port);
        }
    }

    /// Returns its configured MAC, unless it has no kernel end and no station.
    pub(crate) fn mac_mut(&mut self) -> Option<&mut Option<MacAddress>> {
        self.kind.has_mac().then_some(&mut self.mac)
    }

    /// Returns the name of its kernel interface, if it has one.
    pub(crate) fn ifname(&self) -> Option<String> {
        let port = self.kind.port()?;
        Some(port.ifname.as_ref().unwrap_or(&self.name).clone())
    }

    /// Returns whether its device runs in a separate domain.
    #[must_use]
    pub fn has_device_domain(&self) -> bool {
        matches!(
            self.kind,
            NicKind::Soft {
                place: DevicePlace::Domain,
                ..
            }
        )
    }

    /// Returns whether each of its dedicated queues belongs to the interface whose `pdev` names it.
    #[must_use]
    pub fn assigns_by_pdev(&self) -> bool {
        self.has_device_domain() || matches!(self.kind, NicKind::Xdp { .. })
    }

    /// Returns the number of its dedicated queues.
    #[must_use]
    pub fn dedicated_queues(&self) -> u32 {
        self.settings.vmq.map_or(0, |vmq| vmq.queues)
    }

    /// Returns the addresses of the stations behind it.
    pub(crate) fn stations(&self) -> StationAddresses<'_> {
        let of_port = self.kind.port().map(KernelPort::stations);
        let of_cable = self.kind.cable().map(|cable| cable.station.stations());
        of_port.or(of_cable).unwrap_or_default()
    }
}

/// Kinds of network interface.
#[derive(Clone, Debug, PartialEq)]
pub enum NicKind {
    /// A TAP with "the wire" behind it, in the kernel.
    Tap {
        /// The kernel's end.
        port: KernelPort,
        /// Offloads that each end may leave to the other.
        offloads: Offloads,
        /// Whether the kernel receives frames on threads, which merge TCP segments.
        napi_threads: bool,
    },
    /// One end of a cable in memory.
    Sim(Cable),
    /// A device in software with descriptor rings.
    Soft {
        /// Its wire.
        wire: SoftWire,
        /// The rings.
        rings: Rings,
        /// Domain in which the device runs.
        place: DevicePlace,
        /// CPUs on which the device's domain may run; empty: all.
        cpus: Vec<usize>,
        /// Whether the device merges received TCP segments.
        lro: bool,
        /// Whether the device stores headers of received frames in separate buffers.
        header_split: bool,
    },
    /// A PCI device behind an IOMMU.
    Vfio {
        /// Its address.
        device: String,
        /// Entries of each queue, a power of two.
        descriptors: u32,
    },
    /// Capture files.
    Pcap(CaptureFiles),
    /// An AF_XDP socket.
    Xdp {
        /// The interface below it.
        wire: XdpWire,
    },
    /// The driver domain's port in the kernel.
    Local {
        /// The kernel's end.
        port: KernelPort,
    },
}

/// The interface below an AF_XDP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdpWire {
    /// The other end of a veth pair that is created.
    Veth(KernelPort),
    /// An existing interface.
    Netdev {
        /// Its name.
        name: String,
        /// Network namespace, like [`KernelPort::netns`].
        netns: Option<String>,
    },
}

impl NicKind {
    /// Returns the default number of receive buffers. A segment of 64 KB takes 33 buffers, and
    /// segments that wait for guests must leave enough buffers to the NIC.
    #[must_use]
    pub const fn buffers(&self) -> u32 {
        match self {
            Self::Local { .. }
            | Self::Tap {
                offloads: Offloads::Tso,
                ..
            } => 4096,
            _ => 1024,
        }
    }

    /// Returns whether it has a kernel end or a station, which has a MAC.
    pub(crate) fn has_mac(&self) -> bool {
        self.cable().is_some() || self.port().is_some()
    }

    /// Returns its cable in memory, if it has one.
    #[must_use]
    pub fn cable(&self) -> Option<&Cable> {
        match self {
            Self::Sim(cable)
            | Self::Soft {
                wire: SoftWire::Cable(cable),
                ..
            } => Some(cable),
            _ => None,
        }
    }

    /// Returns the kernel's end that is created for it, if any.
    #[must_use]
    pub fn port(&self) -> Option<&KernelPort> {
        match self {
            Self::Tap { port, .. }
            | Self::Local { port }
            | Self::Xdp {
                wire: XdpWire::Veth(port),
            }
            | Self::Soft {
                wire: SoftWire::Tap(port),
                ..
            } => Some(port),
            _ => None,
        }
    }
}

/// Reads the keys of NIC number `n` that depend on its kind.
type ReadKind = fn(n: usize, &TomlTable<'_, '_>) -> NicSection;

/// Values of `kind`.
const KINDS: [(&str, ReadKind); 7] = [
    ("tap", tap),
    ("xdp", xdp),
    ("sim", |n, t| of_kind(NicKind::Sim(Cable::read(n, t)))),
    ("soft", |n, t| of_kind(soft(n, t))),
    ("vfio", |_, t| of_kind(vfio(t))),
    ("pcap", |_, t| of_kind(NicKind::Pcap(t.fields()))),
    ("local", |_, t| {
        of_kind(NicKind::Local {
            port: KernelPort::read(t),
        })
    }),
];

fn of_kind(kind: NicKind) -> NicSection {
    NicSection::new("", kind)
}

/// Reads a section `[[nic]]`.
pub(crate) fn read(n: usize, t: TomlTable<'_, '_>) -> NicSection {
    let name = t.required("name", "give it a name, like \"wire\"");
    t.needs(
        "kind",
        "write kind = \"tap\", \"xdp\", \"vfio\", \"sim\", \"soft\", \"pcap\" or \"local\"",
    );
    let of_kind = t.choice("kind", &KINDS).map(|read| read(n, &t));
    let is_known = of_kind.is_some();
    let mut nic = of_kind.unwrap_or_default();
    nic.name = name.unwrap_or_default();
    let rule_part = |r| ConfigPart::NicRule(n, r);
    let usual_buffers = nic.settings.buffers;
    nic.settings = NicSettings {
        moderation: moderation(&t),
        vmq: vmq(&t, nic.assigns_by_pdev()),
        rules: t.tables("rule", "nic.rule", rule_part, |r, t| {
            rule::read(r, t, &rule::OF_NIC)
        }),
        ..t.fields_except(&["moderation", "vmq", "rules"])
    };
    if nic.kind.has_mac() {
        nic.mac = t.value("mac");
    }
    if t.get("buffers").is_none() {
        nic.settings.buffers = usual_buffers;
    }
    match is_known {
        true => t.finish(),
        false => t.finish_unknown("kind"),
    }
    nic
}

fn tap(n: usize, t: &TomlTable<'_, '_>) -> NicSection {
    let uplink = uplink::read(n, t);
    let usual = match uplink {
        Some(_) => Offloads::Tso,
        None => Offloads::None,
    };
    let offloads = t.value("offloads").unwrap_or(usual);
    let kind = NicKind::Tap {
        port: KernelPort::read(t),
        offloads,
        napi_threads: t.value("napi_threads").unwrap_or(false),
    };
    NicSection {
        uplink,
        ..of_kind(kind)
    }
}

fn xdp(n: usize, t: &TomlTable<'_, '_>) -> NicSection {
    let wire = match t.value("netdev") {
        Some(name) => XdpWire::Netdev {
            name,
            netns: t.value("netns"),
        },
        None => XdpWire::Veth(KernelPort::read(t)),
    };
    NicSection {
        uplink: uplink::read(n, t),
        ..of_kind(NicKind::Xdp { wire })
    }
}

fn soft(n: usize, t: &TomlTable<'_, '_>) -> NicKind {
    NicKind::Soft {
        wire: SoftWire::read(n, t),
        rings: t.fields(),
        place: t.value("device").unwrap_or_default(),
        cpus: t.value("cpus").unwrap_or_default(),
        lro: t.value("lro").unwrap_or(false),
        header_split: t.value("header_split").unwrap_or(false),
    }
}

fn vfio(t: &TomlTable<'_, '_>) -> NicKind {
    let device = t.required("device", "write device = \"0000:00:03.0\"");
    let usual = Rings::default().descriptors;
    NicKind::Vfio {
        device: device.unwrap_or_default(),
        descriptors: t.value("descriptors").unwrap_or(usual),
    }
}

fn moderation(t: &TomlTable<'_, '_>) -> ModerationConfig {
    /// The default interval: that of the interrupts of an ordinary NIC.
    const DEFAULT_TICK_US: u32 = 50;
    let words = [
        ("event", ModerationConfig::Event),
        ("spin", ModerationConfig::Spin),
        ("tick", ModerationConfig::Tick(DEFAULT_TICK_US)),
    ];
    t.depend(&["tick_us"], "moderation");
    match t.choice("moderation", &words) {
        Some(ModerationConfig::Tick(usual)) => {
            ModerationConfig::Tick(t.value("tick_us").unwrap_or(usual))
        }
        other => other.unwrap_or(ModerationConfig::Event),
    }
}

/// Reads dedicated queues. `given` says whether the configuration assigns them to guests.
fn vmq(t: &TomlTable<'_, '_>, given: bool) -> Option<VmqConfig> {
    t.depend(&["vmq_queues", "vmq_rebalance_ms"], "queues");
    let has_own = t.choice("queues", &[("shared", false), ("vmq", true)]);
    has_own.unwrap_or(false).then(|| VmqConfig {
        queues: t.value("vmq_queues").unwrap_or(8),
        rebalance_ms: t
            .value("vmq_rebalance_ms")
            .unwrap_or(if given { 0 } else { 100 }),
    })
}

fn check_kind(found: &mut Findings, n: usize, nic: &NicSection) {
    let part = ConfigPart::Nic(n);
    let settings = &nic.settings;
    if let Some(of_nic) = nic.kind.port() {
        kernel_port::check(found, part, of_nic, nic.ifname());
    }
    match &nic.kind {
        NicKind::Tap { .. } => {}
        NicKind::Xdp { wire } => {
            if settings.mtu > XDP_MTU_MAX {
                let what = format!("`kind` is \"xdp\" and `mtu` is {}", settings.mtu);
                let remedy = format!(
                    "a frame must fit one buffer, of which the kernel keeps 256 bytes: write an \
                     `mtu` of at most {XDP_MTU_MAX}"
                );
                found.add(part, "mtu", what, remedy);
            }
            if let XdpWire::Netdev { name, netns: of } = wire {
                ifname(found, part, "netdev", name);
                netns(found, part, of.as_deref());
            }
        }
        NicKind::Local { .. } => {}
        NicKind::Sim(of_nic) => of_nic.check(found, n),
        NicKind::Soft {
            wire,
            rings,
            place,
            cpus,
            lro,
            header_split,
        } => {
            match wire {
                SoftWire::Cable(of_nic) => of_nic.check(found, n),
                SoftWire::Tap(_) | SoftWire::Source(_) if *place == DevicePlace::Driver => {
                    let word = match wire {
                        SoftWire::Tap(_) => "tap",
                        _ => "source",
                    };
                    let what = format!("`wire` is \"{word}\" and `device` is \"driver\"");
                    let remedy = "leave `device` out: only a device domain has such a wire";
                    found.add(part, "wire", what, remedy);
                }
                SoftWire::Tap(_) => {}
                SoftWire::Source(source) => {
                    let size = 60..=settings.mtu.saturating_add(14);
                    found.range(part, "size", source.size, size);
                    station::destination(found, part, source.to);
                }
            }
            descriptors(found, part, settings, rings.descriptors);
            rings.check(found, part, settings.moderation == ModerationConfig::Event);
            found.cpus(part, cpus);
            if !cpus.is_empty() && *place == DevicePlace::Driver {
                let what = "`cpus` is set and `device` is \"driver\"";
                let remedy = "leave one of them out: the device runs on the driver domain's CPUs";
                found.add(part, "cpus", what, remedy);
            }
            if *lro && *place == DevicePlace::Driver {
                let what = "`lro` is true and `device` is \"driver\"";
                let remedy = "leave one of them out: [lro] merges frames in the driver domain";
                found.add(part, "lro", what, remedy);
            }
            if *header_split {
                header_split_of(found, part, settings, (*place, *lro));
            }
        }
        NicKind::Vfio {
            device,
            descriptors: of_nic,
        } => pci(found, part, settings, (device, *of_nic)),
        NicKind::Pcap(files) => files.check(found, part),
    }
}

/// Checks that a device can split headers, which requires that each frame fits one buffer.
fn header_split_of(
    found: &mut Findings,
    part: ConfigPart,
    nic: &NicSettings,
    (place, lro): (DevicePlace, bool),
) {
    let most = BUFFER_BYTES - FRAME_EXTRA_BYTES;
    let (what, remedy) = if place == DevicePlace::Driver {
        let remedy = "leave one of them out: only a device domain splits headers of all frames";
        ("`device` is \"driver\"".to_owned(), remedy.to_owned())
    } else if lro {
        let remedy = "leave one of them out: a merged frame has several buffers, without headers";
        ("`lro` is true".to_owned(), remedy.to_owned())
    } else if nic.mtu > most {
        let remedy = format!("a frame must fit one buffer: write an `mtu` of at most {most}");
        (format!("`mtu` is {}", nic.mtu), remedy)
    } else {
        return;
    };
    let what = format!("`header_split` is true and {what}");
    found.add(part, "header_split", what, remedy);
}

/// Checks a PCI device: its address, its queues, and that a frame fits one buffer.
fn pci(found: &mut Findings, part: ConfigPart, nic: &NicSettings, (device, entries): (&str, u32)) {
    if !abi::pci::is_address(device) {
        let remedy = "write it as `lspci -D` does, like device = \"0000:00:03.0\"";
        found.add(part, "device", format!("`device` is \"{device}\""), remedy);
    }
    descriptors(found, part, nic, entries);
    if nic.mtu > PCI_MTU_MAX {
        let what = format!("`kind` is \"vfio\" and `mtu` is {}", nic.mtu);
        let remedy =
            format!("a frame must fit one buffer: write an `mtu` of at most {PCI_MTU_MAX}");
        found.add(part, "mtu", what, remedy);
    }
}

/// Checks the entries of a device's queues.
fn descriptors(found: &mut Findings, part: ConfigPart, nic: &NicSettings, descriptors: u32) {
    let wrong = format!("`descriptors` is {descriptors}");
    if !(64..=4096).contains(&descriptors) || !descriptors.is_power_of_two() {
        let remedy = "write 64, 128, 256, 512, 1024, 2048 or 4096";
        found.add(part, "descriptors", wrong, remedy);
    } else if descriptors > nic.buffers / 2 {
        let what = format!("{wrong} and `buffers` is {}", nic.buffers);
        let remedy = format!(
            "write `buffers` of at least {}: frames that wait for guests need buffers, too",
            2 * descriptors
        );
        found.add(part, "descriptors", what, remedy);
    }
}
