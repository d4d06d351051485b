//! Ports that are connected to nothing.

use crate::linear::Linear;
use crate::nics::NicPort;
use crate::vifs::VifPort;
use crate::vifs::memory::{Shared, Window};
use abi::{ConnId, PAGE, Slot};
use config::domain::{GrantMode, Lro, Offloads, RingFormat};
use config::lro::{Backend, Meta};
use nic::Pool;
use nic::moderation::Policy;
use nic::sim::Cable;
use runtime::call::Calls;
use runtime::ledger::Ledger;
use runtime::lro::{Merger, Side};
use runtime::processes::Processes;
use shmem::{Area, Span};
use std::cell::RefCell;
use std::rc::Rc;

/// A guest that has not come.
pub(crate) fn vif_port(name: &str) -> VifPort {
    let area = Area::anonymous(4 * PAGE).unwrap();
    let calls = Rc::new(RefCell::new(Calls::over(area.page(0).unwrap())));
    let shared = Shared {
        platform: Rc::new(Processes::new(Rc::clone(&calls), area)),
        calls,
        ledger: Rc::new(Ledger::new(false)),
        frames: area,
        grants: GrantMode::Counted,
        offloads: Offloads::Tso,
        ring_order: 0,
        ring_format: RingFormat::Native,
        meta: Meta::Request,
    };
    let window = Window {
        first: Slot(0),
        slots: 0,
        tables: Slot(0),
        flips: 0,
    };
    VifPort::new(
        name.to_owned(),
        ConnId(0),
        [2; 6],
        shared,
        window,
        Span::EMPTY,
    )
}

/// The near end of a cable.
pub(crate) fn nic_port(name: &str) -> NicPort {
    let (near, _) = Cable::default().ends();
    let area = Area::anonymous(PAGE).unwrap();
    NicPort::new(
        name.to_owned(),
        Box::new(near),
        Pool::new(area, 2048),
        Policy::Spin,
        Merger::new(Side::Physical, &Lro::default(), 1),
        Linear::new(area, PAGE, Backend::Scatter),
    )
}
