//! The bridge's ports: a slab that hands out their numbers, and knows which are NICs and which are
//! guests. A port keeps its number as long as it is here. Nothing else follows from a number.

use crate::nics::NicPort;
use crate::vifs::VifPort;
use nic::{Caps, Frame};
use runtime::ledger::{Hop, Ledger};
use runtime::trace::Fate;

/// A port of the bridge.
#[derive(Debug)]
pub enum Port {
    /// A device of the driver domain's own.
    Nic(Box<NicPort>),
    /// A guest.
    Vif(Box<VifPort>),
}

impl Port {
    /// Its name, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Nic(nic) => &nic.name,
            Self::Vif(vif) => &vif.name,
        }
    }

    /// What it can do by itself; none: frames cannot go out by it now.
    #[must_use]
    pub fn caps(&self) -> Option<Caps> {
        match self {
            Self::Nic(nic) => Some(nic.caps()),
            Self::Vif(vif) => vif.caps(),
        }
    }

    /// Where the driver's time goes that is spent on it.
    #[must_use]
    pub fn hop(&self) -> Hop {
        match self {
            Self::Nic(_) => Hop::Nic,
            Self::Vif(_) => Hop::Netback,
        }
    }

    /// What became of the frames sent by it so far.
    #[must_use]
    pub fn fate(&self) -> Fate {
        match self {
            Self::Nic(nic) => Fate::of_device(&nic.sent),
            Self::Vif(vif) => {
                let fate = Fate::of_guest(&vif.counters(), vif.not_connected);
                fate.with(vif.egress.drops.reasons())
            }
        }
    }

    /// Frames for it that were made of larger ones because a guest had too little room.
    #[must_use]
    pub fn split(&self) -> u64 {
        match self {
            Self::Nic(_) => 0,
            Self::Vif(vif) => vif.split(),
        }
    }

    /// Takes up to `budget` frames that came in, and appends those that go on now; how many it
    /// had to do with. They belong to the port until [`Port::done`].
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

    /// The frames of the last [`Port::take`] are finished with.
    pub fn done(&mut self, frames: &mut Vec<Frame>, ledger: &Ledger) {
        match self {
            Self::Nic(nic) => nic.done(frames, ledger),
            Self::Vif(vif) => {
                vif.done(ledger);
                frames.clear();
            }
        }
    }

    /// Sends those of `frames` whose indices are in `pick`.
    pub fn send(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32], ledger: &Ledger) {
        match self {
            Self::Nic(nic) => nic.send(now_ns, frames, pick, ledger),
            Self::Vif(vif) => vif.send(frames, pick, ledger),
        }
    }
}

/// All ports, by their numbers.
#[derive(Debug, Default)]
pub struct Ports {
    slots: Vec<Option<Port>>,
}

impl Ports {
    /// Adds a port; its number is the lowest that is free.
    pub fn insert(&mut self, port: Port) -> usize {
        let free = self.slots.iter().position(Option::is_none);
        let number = free.unwrap_or(self.slots.len());
        match self.slots.get_mut(number) {
            Some(slot) => *slot = Some(port),
            None => self.slots.push(Some(port)),
        }
        number
    }

    /// Takes a port out. Its number is free, all others are what they were.
    pub fn remove(&mut self, number: usize) -> Option<Port> {
        self.slots.get_mut(number)?.take()
    }

    /// A port.
    #[inline]
    #[must_use]
    pub fn get(&self, number: usize) -> Option<&Port> {
        self.slots.get(number)?.as_ref()
    }

    /// A port.
    #[inline]
    #[must_use]
    pub fn get_mut(&mut self, number: usize) -> Option<&mut Port> {
        self.slots.get_mut(number)?.as_mut()
    }

    /// The name of a port, if there is one.
    #[must_use]
    pub fn name(&self, number: usize) -> Option<&str> {
        self.get(number).map(Port::name)
    }

    /// A port that is a NIC.
    #[inline]
    #[must_use]
    pub fn nic(&self, number: usize) -> Option<&NicPort> {
        match self.get(number)? {
            Port::Nic(nic) => Some(nic),
            Port::Vif(_) => None,
        }
    }

    /// A port that is a NIC.
    #[inline]
    #[must_use]
    pub fn nic_mut(&mut self, number: usize) -> Option<&mut NicPort> {
        match self.get_mut(number)? {
            Port::Nic(nic) => Some(nic),
            Port::Vif(_) => None,
        }
    }

    /// A port that is a guest.
    #[inline]
    #[must_use]
    pub fn vif(&self, number: usize) -> Option<&VifPort> {
        match self.get(number)? {
            Port::Vif(vif) => Some(vif),
            Port::Nic(_) => None,
        }
    }

    /// A port that is a guest.
    #[inline]
    #[must_use]
    pub fn vif_mut(&mut self, number: usize) -> Option<&mut VifPort> {
        match self.get_mut(number)? {
            Port::Vif(vif) => Some(vif),
            Port::Nic(_) => None,
        }
    }

    /// A NIC and a guest.
    #[must_use]
    pub fn nic_and_vif(&mut self, nic: usize, vif: usize) -> Option<(&mut NicPort, &mut VifPort)> {
        match self.slots.get_disjoint_mut([nic, vif]) {
            Ok([Some(Port::Nic(nic)), Some(Port::Vif(vif))]) => Some((nic, vif)),
            _ => None,
        }
    }

    /// A NIC, and a guest's interface if one is asked for.
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

    /// All ports, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &Port)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(number, slot)| Some((number, slot.as_ref()?)))
    }

    /// All NICs, with their numbers.
    pub fn nics(&self) -> impl Iterator<Item = (usize, &NicPort)> {
        self.iter().filter_map(|(number, port)| match port {
            Port::Nic(nic) => Some((number, &**nic)),
            Port::Vif(_) => None,
        })
    }

    /// All NICs.
    pub fn nics_mut(&mut self) -> impl Iterator<Item = &mut NicPort> {
        self.slots.iter_mut().filter_map(|slot| match slot {
            Some(Port::Nic(nic)) => Some(&mut **nic),
            _ => None,
        })
    }

    /// All guests, with their numbers.
    pub fn vifs(&self) -> impl Iterator<Item = (usize, &VifPort)> {
        self.iter().filter_map(|(number, port)| match port {
            Port::Vif(vif) => Some((number, &**vif)),
            Port::Nic(_) => None,
        })
    }

    /// All guests.
    pub fn vifs_mut(&mut self) -> impl Iterator<Item = &mut VifPort> {
        self.slots.iter_mut().filter_map(|slot| match slot {
            Some(Port::Vif(vif)) => Some(&mut **vif),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{nic_port, vif_port};

    fn names(ports: &Ports) -> Vec<(usize, &str)> {
        let all = ports.iter();
        all.map(|(number, port)| (number, port.name())).collect()
    }

    #[test]
    fn a_port_keeps_its_number_when_others_go_and_come() {
        let mut ports = Ports::default();
        for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
            let port = Port::Vif(Box::new(vif_port(name)));
            assert_eq!(ports.insert(port), number);
        }
        assert_eq!(
            ports.remove(1).map(|port| port.name().to_owned()),
            Some("b".to_owned())
        );
        assert!(ports.remove(1).is_none() && ports.remove(9).is_none());
        assert_eq!(names(&ports), [(0, "a"), (2, "c")]);
        assert_eq!((ports.name(1), ports.name(2)), (None, Some("c")));
        let nic = Port::Nic(Box::new(nic_port("d")));
        assert_eq!(ports.insert(nic), 1, "the number that was free");
        assert_eq!(names(&ports), [(0, "a"), (1, "d"), (2, "c")]);
    }

    #[test]
    fn nics_may_stand_among_guests() {
        let mut ports = Ports::default();
        ports.insert(Port::Vif(Box::new(vif_port("a"))));
        ports.insert(Port::Nic(Box::new(nic_port("b"))));
        ports.insert(Port::Vif(Box::new(vif_port("c"))));
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
