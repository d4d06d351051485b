//! The bridge's ports: a slab of NICs and guests that allocates port numbers. A port keeps its
//! number until it is removed. Numbers have no other meaning.

use crate::nics::NicPort;
use crate::port_common::PortCommon;
use crate::vifs::VifPort;
use config::domain::VifConfig;
use nic::{Caps, Frame};
use runtime::ledger::{Hop, Ledger};
use runtime::trace::DropSnapshot;
use std::net::IpAddr;

/// A port of the bridge.
#[derive(Debug)]
pub enum BridgePort {
    /// One of the driver domain's devices.
    Nic(Box<NicPort>),
    /// A guest.
    Vif(Box<VifPort>),
}

impl BridgePort {
    /// Returns the port's name, for display.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Nic(nic) => &nic.name,
            Self::Vif(vif) => &vif.name,
        }
    }

    /// Returns the state that every port has.
    #[must_use]
    pub fn common(&self) -> &PortCommon {
        match self {
            Self::Nic(nic) => &nic.common,
            Self::Vif(vif) => &vif.common,
        }
    }

    /// Returns the state that every port has, and the known routers of the stations behind the
    /// port. For a NIC no routers are known, because the senders behind it may be routers.
    pub fn common_and_gateways(&mut self) -> (&mut PortCommon, &[IpAddr]) {
        match self {
            Self::Nic(nic) => (&mut nic.common, &[]),
            Self::Vif(vif) => (&mut vif.common, &vif.gateways),
        }
    }

    /// Returns the port's capabilities, or `None` if it cannot send now.
    #[must_use]
    pub fn caps(&self) -> Option<Caps> {
        match self {
            Self::Nic(nic) => Some(nic.caps()),
            Self::Vif(vif) => vif.caps(),
        }
    }

    /// Returns the hop to which the port's work is charged.
    #[must_use]
    pub fn hop(&self) -> Hop {
        match self {
            Self::Nic(_) => Hop::Nic,
            Self::Vif(_) => Hop::Netback,
        }
    }

    /// Returns a snapshot of the port's drop counters.
    #[must_use]
    pub fn drop_snapshot(&self) -> DropSnapshot {
        match self {
            Self::Nic(nic) => DropSnapshot::of_device(&nic.sent),
            Self::Vif(vif) => {
                let drop_snapshot = DropSnapshot::of_guest(&vif.counters(), vif.not_connected);
                drop_snapshot.with_counts(vif.egress.drops.iter())
            }
        }
    }

    /// Returns the number of frames made by splitting larger frames that exceeded the guest's
    /// receive credit.
    #[must_use]
    pub fn resegmented_frames(&self) -> u64 {
        match self {
            Self::Nic(_) => 0,
            Self::Vif(vif) => vif.resegmented_frames(),
        }
    }

    /// Takes at most `budget` frames from the device or guest, and appends the frames to forward to
    /// `out`. Large receive offload may hold frames back or flush held ones. Returns the number of
    /// frames handled. The port owns the frames until [`BridgePort::release_taken`].
    pub fn take(
        &mut self,
        now_ns: u64,
        budget: usize,
        out: &mut Vec<Frame>,
        ledger: &Ledger,
    ) -> usize {
        match self {
            Self::Nic(nic) => nic.take(now_ns, budget, out, ledger),
            Self::Vif(vif) => vif.take(budget, out, ledger),
        }
    }

    /// Returns the frames of the last [`BridgePort::take`] to the device or guest.
    pub fn release_taken(&mut self, frames: &mut Vec<Frame>, ledger: &Ledger) {
        match self {
            Self::Nic(nic) => nic.release_taken(frames, ledger),
            Self::Vif(vif) => {
                vif.release_taken(ledger);
                frames.clear();
            }
        }
    }

    /// Sends the frames of `frames` whose indices are in `pick`.
    pub fn send(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32], ledger: &Ledger) {
        match self {
            Self::Nic(nic) => nic.send(now_ns, frames, pick, ledger),
            Self::Vif(vif) => vif.send(frames, pick, ledger),
        }
    }
}

/// All ports, by their numbers.
#[derive(Debug, Default)]
pub struct BridgePorts {
    slots: Vec<Option<BridgePort>>,
}

impl BridgePorts {
    /// Adds a port with the lowest free number.
    pub fn insert(&mut self, port: BridgePort) -> usize {
        let free = self.slots.iter().position(Option::is_none);
        let number = free.unwrap_or(self.slots.len());
        match self.slots.get_mut(number) {
            Some(slot) => *slot = Some(port),
            None => self.slots.push(Some(port)),
        }
        number
    }

    /// Removes a port and frees its number; other numbers are unchanged.
    pub fn remove(&mut self, number: usize) -> Option<BridgePort> {
        self.slots.get_mut(number)?.take()
    }

    /// Returns a port.
    #[inline]
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&BridgePort> {
        self.slots.get(number)?.as_ref()
    }

    /// Returns a port.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, number: usize) -> Option<&mut BridgePort> {
        self.slots.get_mut(number)?.as_mut()
    }

    /// Returns the name of a port, if it exists.
    #[must_use]
    pub fn name(&self, number: usize) -> Option<&str> {
        self.get(number).map(BridgePort::name)
    }

    /// Returns a port that is a NIC.
    #[inline]
    #[must_use]
    pub fn nic(&self, number: usize) -> Option<&NicPort> {
        match self.get(number)? {
            BridgePort::Nic(nic) => Some(nic),
            BridgePort::Vif(_) => None,
        }
    }

    /// Returns a port that is a NIC.
    #[inline]
    #[must_use]
    pub fn nic_mut(&mut self, number: usize) -> Option<&mut NicPort> {
        match self.get_mut(number)? {
            BridgePort::Nic(nic) => Some(nic),
            BridgePort::Vif(_) => None,
        }
    }

    /// Returns a port that is a guest.
    #[inline]
    #[must_use]
    pub fn vif(&self, number: usize) -> Option<&VifPort> {
        match self.get(number)? {
            BridgePort::Vif(vif) => Some(vif),
            BridgePort::Nic(_) => None,
        }
    }

    /// Returns a port that is a guest.
    #[inline]
    #[must_use]
    pub fn vif_mut(&mut self, number: usize) -> Option<&mut VifPort> {
        match self.get_mut(number)? {
            BridgePort::Vif(vif) => Some(vif),
            BridgePort::Nic(_) => None,
        }
    }

    /// Returns a NIC and a guest.
    #[must_use]
    pub fn nic_and_vif(&mut self, nic: usize, vif: usize) -> Option<(&mut NicPort, &mut VifPort)> {
        match self.slots.get_disjoint_mut([nic, vif]) {
            Ok([Some(BridgePort::Nic(nic)), Some(BridgePort::Vif(vif))]) => Some((nic, vif)),
            _ => None,
        }
    }

    /// Returns a NIC, and optionally a guest's interface.
    pub fn nic_and_maybe_vif(
        &mut self,
        nic: usize,
        vif: Option<usize>,
    ) -> Option<(&mut NicPort, Option<&mut VifPort>)> {
        match vif {
            Some(vif) => {
                let (nic, vif) = self.nic_and_vif(nic, vif)?;
                Some((nic, Some(vif)))
            }
            None => Some((self.nic_mut(nic)?, None)),
        }
    }

    /// Iterates over all ports, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &BridgePort)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(number, slot)| Some((number, slot.as_ref()?)))
    }

    /// Iterates over all NICs, with their numbers.
    pub fn nics(&self) -> impl Iterator<Item = (usize, &NicPort)> {
        self.iter().filter_map(|(number, port)| match port {
            BridgePort::Nic(nic) => Some((number, &**nic)),
            BridgePort::Vif(_) => None,
        })
    }

    /// Iterates over all NICs.
    pub fn nics_mut(&mut self) -> impl Iterator<Item = &mut NicPort> {
        self.slots.iter_mut().filter_map(|slot| match slot {
            Some(BridgePort::Nic(nic)) => Some(&mut **nic),
            _ => None,
        })
    }

    /// Iterates over all guests, with their numbers.
    pub fn vifs(&self) -> impl Iterator<Item = (usize, &VifPort)> {
        self.iter().filter_map(|(number, port)| match port {
            BridgePort::Vif(vif) => Some((number, &**vif)),
            BridgePort::Nic(_) => None,
        })
    }

    /// Returns the name of an interface whose guest forwards packets, if any does.
    #[must_use]
    pub fn forwarding(&self) -> Option<&str> {
        let (_, vif) = self.vifs().find(|(_, vif)| vif.forwards)?;
        vif.name.strip_prefix("vif.")
    }

    /// Iterates over all guests.
    pub fn vifs_mut(&mut self) -> impl Iterator<Item = &mut VifPort> {
        self.slots.iter_mut().filter_map(|slot| match slot {
            Some(BridgePort::Vif(vif)) => Some(&mut **vif),
            _ => None,
        })
    }
}

/// Returns whether `port` is the name of port `of`, or of an interface of guest `of`.
pub(crate) fn belongs_to(port: &str, of: &str) -> bool {
    let (kind, name) = port.split_once('.').unwrap_or(("", port));
    name == of || kind == "vif" && VifConfig::guest_of(name) == Some(of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{nic_port, vif_port};

    fn names(ports: &BridgePorts) -> Vec<(usize, &str)> {
        let all = ports.iter();
        all.map(|(number, port)| (number, port.name())).collect()
    }

    #[test]
    fn port_numbers_survive_changes_of_other_ports() {
        let mut ports = BridgePorts::default();
        for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
            let port = BridgePort::Vif(Box::new(vif_port(name)));
            assert_eq!(ports.insert(port), number);
        }
        assert_eq!(
            ports.remove(1).map(|port| port.name().to_owned()),
            Some("b".to_owned())
        );
        assert!(ports.remove(1).is_none() && ports.remove(9).is_none());
        assert_eq!(names(&ports), [(0, "a"), (2, "c")]);
        assert_eq!((ports.name(1), ports.name(2)), (None, Some("c")));
        let nic = BridgePort::Nic(Box::new(nic_port("d")));
        assert_eq!(ports.insert(nic), 1, "the freed number is reused");
        assert_eq!(names(&ports), [(0, "a"), (1, "d"), (2, "c")]);
    }

    #[test]
    fn nics_and_guests_share_one_number_space() {
        let mut ports = BridgePorts::default();
        ports.insert(BridgePort::Vif(Box::new(vif_port("a"))));
        ports.insert(BridgePort::Nic(Box::new(nic_port("b"))));
        ports.insert(BridgePort::Vif(Box::new(vif_port("c"))));
        assert_eq!(
            ports.nics().map(|(number, _)| number).collect::<Vec<_>>(),
            [1]
        );
        assert_eq!(
            ports.vifs().map(|(number, _)| number).collect::<Vec<_>>(),
            [0, 2]
        );
        assert_eq!((ports.nics_mut().count(), ports.vifs_mut().count()), (1, 2));
        assert!(ports.nic(1).is_some() && ports.vif(1).is_none() && ports.vif_mut(2).is_some());
        let both = ports.nic_and_vif(1, 2);
        assert_eq!(
            both.map(|(nic, vif)| (nic.name.clone(), vif.name.clone())),
            Some(("b".into(), "c".into()))
        );
        for (nic, vif) in [(0, 2), (2, 1), (1, 1), (1, 7)] {
            assert!(ports.nic_and_vif(nic, vif).is_none(), "{nic} {vif}");
        }
    }
}
