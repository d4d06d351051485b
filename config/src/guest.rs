//! A guest domain and its interfaces.

use crate::address::MacAddress;
use crate::capture::CaptureFiles;
use crate::domain::Offloads;
use crate::driver::DriverSection;
use crate::findings::Findings;
use crate::kernel_port::{self, KernelPort};
use crate::pdev::Pdev;
use crate::port_security::{self, PortGuard, PortSecurity};
use crate::problem::ConfigPart;
use crate::route::StationAddresses;
use crate::rule::{self, FirewallPlace, FirewallRule, Inbound};
use crate::soft::FRAME_BYTES_MIN;
use crate::station::{self, StackConfig};
use crate::table::TomlTable;
use crate::vhost::{self, VirtualMachine};
use serde::{Deserialize, Serialize};

/// The maximum number of a guest's interfaces that derived MACs can distinguish.
const VIFS_PER_GUEST: usize = 16;
/// Maximum number of flows of a source. Their port numbers begin at 10 000.
const FLOWS_MAX: u32 = 50_000;

/// One guest domain.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GuestSection {
    /// Its name.
    pub name: String,
    /// CPUs that it may run on; empty: all.
    pub cpus: Vec<usize>,
    /// Microseconds of polling before it sleeps; `None`: as for the driver domain, see
    /// [`DriverSection::spin_us`].
    pub spin_us: Option<u32>,
    /// Whether the manager restarts it after it exits, with the same pauses as for the driver
    /// domain.
    #[serde(default = "is_restarted")]
    pub restart: bool,
    /// Its interfaces.
    #[serde(skip)]
    pub vifs: Vec<Vif>,
}

const fn is_restarted() -> bool {
    true
}

/// Default burst size of a limit, bytes: two packets of 64 KB.
pub const BURST_BYTES: u32 = 128 << 10;

/// A limit on frames, as a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrameLimit {
    /// Rate, megabits of frames per second.
    pub rate_mbps: f64,
    /// Bytes of frames that may pass in one burst after a pause.
    pub burst_bytes: u32,
}

/// The settings of an interface's port on the bridge that a file and the driver domain's
/// configuration have in the same form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PortSettings {
    /// Limit of the traffic that the guest sends, megabits of frames per second; `None`: unlimited.
    pub rate_mbps: Option<f64>,
    /// Bytes of frames that it may send in one burst after a pause.
    #[serde(skip_serializing_if = "is_default_burst")]
    pub burst_bytes: u32,
    /// Its share relative to other vifs when the driver is busy, 1 … 1000.
    pub weight: u32,
    /// Whether the guest forwards packets that it receives on this interface.
    pub forwards: bool,
    /// Firewall rules: the first match decides; unmatched frames pass.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<FirewallRule>,
    /// Effect of the rules on its queues of NICs.
    #[serde(skip_serializing_if = "FirewallPlace::is_default")]
    pub firewall: FirewallPlace,
}

fn is_default_burst(bytes: &u32) -> bool {
    *bytes == BURST_BYTES
}

impl Default for PortSettings {
    fn default() -> Self {
        Self {
            rate_mbps: None,
            burst_bytes: BURST_BYTES,
            weight: 1,
            forwards: false,
            rules: Vec::new(),
            firewall: FirewallPlace::default(),
        }
    }
}

impl PortSettings {
    /// Returns the settings for one worker of the driver domain, which has a share of the rate.
    pub(crate) fn of_worker(&self, driver: &DriverSection) -> Self {
        Self {
            rate_mbps: self.rate_mbps.map(|mbps| driver.share_of(mbps)),
            ..self.clone()
        }
    }

    /// Adopts the settings that may change while the interface is in use: rules and limits.
    pub(crate) fn apply_changes(&mut self, becomes: &Self) {
        self.rules.clone_from(&becomes.rules);
        self.rate_mbps = becomes.rate_mbps;
        self.burst_bytes = becomes.burst_bytes;
    }
}

/// One interface of a guest.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct Vif {
    /// Its MAC; `None`: derived.
    pub mac: Option<MacAddress>,
    /// The endpoint behind it.
    #[serde(skip)]
    pub endpoint: Endpoint,
    /// Maximum transmission unit, bytes of IP.
    pub mtu: u32,
    /// The offloads that it requests from the driver.
    pub offloads: Offloads,
    /// The settings of its port.
    #[serde(skip)]
    pub settings: PortSettings,
    /// Limit of the traffic to it, megabits of frames per second; `None`: unlimited.
    pub rate_to_guest_mbps: Option<f64>,
    /// Bytes of frames that may be delivered in one burst after a pause; `None`: see
    /// [`Vif::limit_to_guest`].
    pub burst_to_guest_bytes: Option<u32>,
    /// The identities that it may claim.
    #[serde(skip)]
    pub security: PortSecurity,
    /// Its dedicated queue of an AF_XDP NIC.
    pub pdev: Option<Pdev>,
    /// Whether its firewall keeps state by default.
    #[serde(skip)]
    pub stateful: bool,
    /// Verdict of a stateful firewall on flows that other stations begin; `None`: the default.
    pub inbound: Option<Inbound>,
}

impl Default for Vif {
    fn default() -> Self {
        Self::new(Endpoint::Echo {})
    }
}

impl Vif {
    /// Returns a vif with default values.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            mac: None,
            endpoint,
            mtu: 1500,
            offloads: Offloads::default(),
            settings: PortSettings::default(),
            rate_to_guest_mbps: None,
            burst_to_guest_bytes: None,
            security: PortSecurity::default(),
            pdev: None,
            stateful: false,
            inbound: None,
        }
    }

    /// Adopts the settings that may change while the interface is in use, like
    /// [`VifConfig::apply_changes`](crate::domain::VifConfig::apply_changes).
    pub(crate) fn apply_changes(&mut self, becomes: &Self) {
        self.settings.apply_changes(&becomes.settings);
        (self.stateful, self.inbound) = (becomes.stateful, becomes.inbound);
        self.rate_to_guest_mbps = becomes.rate_to_guest_mbps;
        self.burst_to_guest_bytes = becomes.burst_to_guest_bytes;
    }

    /// Returns the rules that the driver domain applies: the configured ones, then the rule that a
    /// stateful firewall adds.
    #[must_use]
    pub fn all_rules(&self) -> Vec<FirewallRule> {
        let last = self
            .stateful
            .then(|| self.inbound.unwrap_or_default().rule());
        self.settings.rules.iter().cloned().chain(last).collect()
    }

    /// Returns the limit of the traffic to it, if any.
    ///
    /// Frames above the limit wait, and are dropped if they wait too long. The default bucket holds
    /// a tenth of a second: with a small bucket, TCP would lose many packets in a row, resume only
    /// after 200 ms or more, and stay far below the limit.
    #[must_use]
    pub fn limit_to_guest(&self) -> Option<FrameLimit> {
        let rate_mbps = self.rate_to_guest_mbps?;
        // The cast saturates.
        let tenth = (rate_mbps * 1e6 / 8.0 / 10.0) as u32;
        Some(FrameLimit {
            rate_mbps,
            burst_bytes: self.burst_to_guest_bytes.unwrap_or(tenth.max(BURST_BYTES)),
        })
    }

    /// Returns the identities that it may claim.
    pub(crate) fn guard(&self) -> PortGuard {
        self.security.guard(self.stations(), self.settings.forwards)
    }

    /// Returns the name of the kernel interface behind interface number `v`, if it has one.
    pub(crate) fn ifname(&self, v: usize) -> Option<String> {
        let Endpoint::Tap(port) = &self.endpoint else {
            return None;
        };
        Some(port.ifname.clone().unwrap_or_else(|| format!("eth{v}")))
    }

    /// Returns the addresses of its endpoint.
    pub(crate) fn stations(&self) -> StationAddresses<'_> {
        match &self.endpoint {
            Endpoint::Tap(port) => port.stations(),
            Endpoint::Stack { station } => station.stations(),
            _ => StationAddresses::default(),
        }
    }
}

/// The endpoint behind a guest's interface. `T` is the form of a TAP, `F` identifies a capture
/// file, and `M` is the form of a virtual machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Endpoint<T = KernelPort, F = String, M = VirtualMachine> {
    /// A TAP in a network namespace, for unmodified programs.
    Tap(T),
    /// A TCP/IP stack inside the guest domain.
    Stack {
        /// Its addresses and programs.
        #[serde(rename = "stack")]
        station: StackConfig,
    },
    /// Discards every frame and counts it.
    Sink {
        /// Whether it reads every byte.
        touch: bool,
    },
    /// Sends frames of one size.
    Source(Source),
    /// Returns every frame to its sender.
    Echo {},
    /// Reads frames from a capture file, and writes frames to one.
    Pcap(CaptureFiles<F>),
    /// A virtual machine.
    #[serde(rename = "vhost-user")]
    VhostUser(M),
}

/// A source of frames of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Source {
    /// Destination.
    pub to: MacAddress,
    /// Bytes of a frame without a VLAN tag, 60 … 1514.
    pub size: u32,
    /// Frames per second; `None`: unlimited.
    pub rate_pps: Option<f64>,
    /// Maximum number of frames in flight; 0: limited only by the ring and the pool.
    pub window: u32,
    /// Total number of frames; `None`: unlimited.
    pub count: Option<u64>,
    /// Whether it writes every byte of every frame.
    pub touch: bool,
    /// Number of UDP flows among which the frames rotate; 0: the frames are not IP.
    pub flows: u16,
}

impl Default for Source {
    fn default() -> Self {
        Self {
            to: MacAddress::default(),
            size: FRAME_BYTES_MIN,
            rate_pps: None,
            window: 0,
            count: None,
            touch: false,
            flows: 0,
        }
    }
}

/// Reads a section `[[guest]]`.
pub(crate) fn read(g: usize, t: TomlTable<'_, '_>) -> GuestSection {
    t.needs("name", "give it a name, like \"web\"");
    let part = |v| ConfigPart::Vif(g, v);
    let guest = GuestSection {
        vifs: t.tables("vif", "guest.vif", part, |v, t| vif(g, v, t)),
        ..t.fields()
    };
    t.finish();
    guest
}

/// Values of `firewall`: the effect on queues, and whether the firewall keeps state.
const FIREWALLS: [(&str, (FirewallPlace, bool)); 3] = [
    ("split", (FirewallPlace::Split, false)),
    ("shared", (FirewallPlace::Shared, false)),
    ("stateful", (FirewallPlace::Split, true)),
];

/// Reads the keys of the endpoint of vif number `v` of guest number `g`.
type ReadEndpoint = fn((usize, usize), &TomlTable<'_, '_>) -> Endpoint;

/// Values of `endpoint`.
const ENDPOINTS: [(&str, ReadEndpoint); 7] = [
    ("tap", |_, t| {
        Endpoint::Tap(KernelPort {
            persistent: t.value("persistent").unwrap_or(false),
            ipv6: t.fields(),
            ..KernelPort::read(t)
        })
    }),
    ("stack", |(g, v), t| Endpoint::Stack {
        station: station::read(t, "guest.vif.app", |app| ConfigPart::VifApp(g, v, app)),
    }),
    ("sink", |_, t| Endpoint::Sink {
        touch: t.value("touch").unwrap_or(false),
    }),
    ("source", |_, t| {
        t.needs("to", station::SEND_TO);
        Endpoint::Source(t.fields())
    }),
    ("echo", |_, _| Endpoint::Echo {}),
    ("pcap", |_, t| Endpoint::Pcap(t.fields())),
    ("vhost-user", |_, t| Endpoint::VhostUser(vhost::read(t))),
];

fn vif(g: usize, v: usize, t: TomlTable<'_, '_>) -> Vif {
    t.needs("endpoint", "write its endpoint, like endpoint = \"tap\"");
    let endpoint = t.choice("endpoint", &ENDPOINTS);
    let endpoint = endpoint.map(|read| read((g, v), &t));
    let is_known = endpoint.is_some();
    let rule_part = |r| ConfigPart::VifRule(g, v, r);
    let (firewall, stateful) = t.choice("firewall", &FIREWALLS).unwrap_or_default();
    let settings = PortSettings {
        rules: t.tables("rule", "guest.vif.rule", rule_part, |r, t| {
            rule::read(r, t, &rule::OF_VIF)
        }),
        firewall,
        ..t.fields_except(&["rules", "firewall"])
    };
    let vif = Vif {
        endpoint: endpoint.unwrap_or(Endpoint::Echo {}),
        settings,
        security: t.fields(),
        stateful,
        ..t.fields()
    };
    match is_known {
        true => t.finish(),
        false => t.finish_unknown("endpoint"),
    }
    vif
}

/// Checks guest number `g`, except its name.
pub(crate) fn check(found: &mut Findings, g: usize, guest: &GuestSection, driver: &DriverSection) {
    let part = ConfigPart::Guest(g);
    found.cpus(part, &guest.cpus);
    found.spin_us(part, guest.spin_us);
    if guest.vifs.is_empty() || guest.vifs.len() > VIFS_PER_GUEST {
        let what = format!("it has {} interfaces", guest.vifs.len());
        let remedy = format!("give it 1 to {VIFS_PER_GUEST} sections [[guest.vif]]");
        found.add(part, "", what, remedy);
    }
    for (v, vif) in guest.vifs.iter().enumerate() {
        check_vif(found, (g, v), vif, driver);
    }
}

/// Checks that the driver domain delivers the traffic to a guest itself. Otherwise it cannot limit
/// the rate.
fn limit_to_guest(found: &mut Findings, part: ConfigPart, vif: &Vif) {
    const KEY: &str = "rate_to_guest_mbps";
    found.rate(part, KEY, vif.rate_to_guest_mbps);
    let burst = vif.burst_to_guest_bytes;
    found.range(
        part,
        "burst_to_guest_bytes",
        burst.unwrap_or(1),
        1..=u32::MAX,
    );
    if burst.is_some() && vif.rate_to_guest_mbps.is_none() {
        let what = format!("`burst_to_guest_bytes` is set without `{KEY}`");
        let remedy = "write both, or leave it out";
        found.add(part, "burst_to_guest_bytes", what, remedy);
    }
    if let (Some(rate), Some(pdev)) = (vif.rate_to_guest_mbps, &vif.pdev) {
        let what = format!("`pdev` is \"{pdev}\" and `{KEY}` is {rate}");
        for key in [KEY, "pdev"] {
            let remedy = "leave one of them out: frames of a dedicated queue are in the \
                          guest's pages before the driver domain could delay them";
            found.add(part, key, &*what, remedy);
        }
    }
}

fn check_vif(found: &mut Findings, (g, v): (usize, usize), vif: &Vif, driver: &DriverSection) {
    let part = ConfigPart::Vif(g, v);
    found.range(part, "mtu", vif.mtu, 576..=9000);
    let settings = &vif.settings;
    found.rate(part, "rate_mbps", settings.rate_mbps);
    found.range(part, "burst_bytes", settings.burst_bytes, 1..=u32::MAX);
    limit_to_guest(found, part, vif);
    found.range(part, "weight", settings.weight, 1..=1000);
    let has_addresses = !vif.stations().addresses.is_empty();
    port_security::check(found, part, &vif.security, has_addresses);
    rule::check(found, part, &settings.rules, |r| {
        ConfigPart::VifRule(g, v, r)
    });
    match &vif.endpoint {
        Endpoint::Tap(port) => kernel_port::check(found, part, port, vif.ifname(v)),
        Endpoint::Stack { station } => {
            let workers = Some(driver.workers);
            station::check(found, part, station, workers, |app| {
                ConfigPart::VifApp(g, v, app)
            });
        }
        Endpoint::Source(source) => {
            let size = 60..=vif.mtu.saturating_add(14);
            found.range(part, "size", source.size, size);
            found.rate(part, "rate_pps", source.rate_pps);
            found.range(part, "window", source.window, 0..=4096);
            found.range(part, "flows", source.flows.into(), 0..=FLOWS_MAX);
            station::destination(found, part, source.to);
        }
        Endpoint::Pcap(files) => files.check(found, part),
        Endpoint::VhostUser(machine) => {
            vhost::check(found, part, machine, driver.grants);
        }
        Endpoint::Sink { .. } | Endpoint::Echo {} => {}
    }
}
