//! The whole machine.

use crate::address::MacAddress;
use crate::domain::{BufferSize, Offloads};
use crate::driver::{DriverSection, SLOTS_PER_PAGE, VifBuffers, VifRings};
use crate::guest::{Endpoint, GuestSection, Vif};
use crate::lro::LroConfig;
use crate::nic::{NicKind, NicSection};
use serde::Deserialize;

/// A whole machine.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default)]
pub struct Config {
    /// The instance's name.
    pub name: String,
    /// The group whose members may query the machine, but not change it.
    pub look_group: Option<String>,
    /// The group whose members may also change and stop the machine.
    pub change_group: Option<String>,
    /// The port on the loopback address that serves metrics, if any.
    pub metrics_port: Option<u16>,
    /// The driver domain.
    #[serde(skip)]
    pub driver: DriverSection,
    /// The buffers of every guest.
    #[serde(skip)]
    pub buffers: VifBuffers,
    /// The rings of every vif.
    #[serde(skip)]
    pub ring: VifRings,
    /// Large receive offload of NICs and vifs.
    #[serde(skip)]
    pub lro: LroConfig,
    /// The driver domain's network interfaces: ports of one bridge.
    #[serde(skip)]
    pub nics: Vec<NicSection>,
    /// The guests.
    #[serde(skip)]
    pub guests: Vec<GuestSection>,
}

/// Default name of an instance.
pub const DEFAULT_NAME: &str = "grantway";

impl Default for Config {
    fn default() -> Self {
        Self {
            name: DEFAULT_NAME.to_owned(),
            look_group: None,
            change_group: None,
            metrics_port: None,
            driver: DriverSection::default(),
            buffers: VifBuffers::default(),
            ring: VifRings::default(),
            lro: LroConfig::default(),
            nics: Vec::new(),
            guests: Vec::new(),
        }
    }
}

impl Config {
    /// Returns the configured or derived MAC of the kernel end or station of NIC number `nic`.
    #[must_use]
    pub fn nic_mac(&self, nic: usize) -> Option<MacAddress> {
        let given = self.nics.get(nic).filter(|nic| nic.kind.has_mac())?.mac;
        Some(given.unwrap_or(MacAddress::derived(0, nic as u16, 0)))
    }

    /// Returns the configured or derived MAC of a guest's vif.
    #[must_use]
    pub fn vif_mac(&self, guest: usize, vif: usize) -> Option<MacAddress> {
        let given = self.vif(guest, vif)?.mac;
        Some(given.unwrap_or(MacAddress::derived(1, guest as u16, vif as u8)))
    }

    /// Returns the name of a NIC's kernel interface.
    #[must_use]
    pub fn nic_ifname(&self, nic: usize) -> Option<String> {
        self.nics.get(nic)?.ifname()
    }

    /// Returns the name of the kernel interface behind a guest's vif, if it has one.
    #[must_use]
    pub fn vif_ifname(&self, guest: usize, vif: usize) -> Option<String> {
        self.vif(guest, vif)?.ifname(vif)
    }

    /// Returns the NIC with a name.
    pub(crate) fn nic(&self, name: &str) -> Option<&NicSection> {
        self.nics.iter().find(|nic| nic.name == name)
    }

    /// Returns the guest with a name.
    pub(crate) fn guest(&self, name: &str) -> Option<&GuestSection> {
        self.guests.iter().find(|guest| guest.name == name)
    }

    /// Returns every guest interface with its guest, and the numbers of both.
    pub(crate) fn vifs(&self) -> impl Iterator<Item = ((usize, usize), &GuestSection, &Vif)> {
        let guests = self.guests.iter().enumerate();
        guests.flat_map(|(g, guest)| {
            let vifs = guest.vifs.iter().enumerate();
            vifs.map(move |(v, vif)| ((g, v), guest, vif))
        })
    }

    pub(crate) fn vif(&self, guest: usize, vif: usize) -> Option<&Vif> {
        self.guests.get(guest)?.vifs.get(vif)
    }

    /// Returns whether the driver domain has a CPU for each worker that no guest may use.
    #[must_use]
    pub fn has_separate_driver_cpus(&self) -> bool {
        !self.driver.cpus.is_empty()
            && self.driver.cpus.len() >= self.driver.workers as usize
            && self.guests.iter().all(|guest| {
                !guest.cpus.is_empty()
                    && guest.cpus.iter().all(|cpu| !self.driver.cpus.contains(cpu))
            })
    }

    /// Returns the default buffer size for this machine. Buffers are whole pages if all traffic is
    /// between kernels, of guests and of this system, which exchange segments of 64 KB. Frames of a
    /// wire, including merged ones, use half pages.
    pub(crate) fn default_buffer_size(&self) -> BufferSize {
        let leaves_segments =
            |vif: &Vif| vif.offloads == Offloads::Tso && matches!(vif.endpoint, Endpoint::Tap(_));
        let mut vifs = self.vifs().map(|(.., vif)| vif).peekable();
        let is_local = |nic: &NicSection| matches!(nic.kind, NicKind::Local { .. });
        let whole = self.driver.offloads == Offloads::Tso
            && self.nics.iter().all(is_local)
            && vifs.peek().is_some()
            && vifs.all(leaves_segments);
        match whole {
            true => BufferSize::Full,
            false => BufferSize::Half,
        }
    }

    /// Returns log2 of the pages of a ring.
    #[must_use]
    pub fn ring_order(&self) -> u8 {
        (self.ring.slots / SLOTS_PER_PAGE)
            .checked_ilog2()
            .unwrap_or(0) as u8
    }
}
