//! Guests that come and go while the driver runs.

use crate::firewall;
use crate::vifs::memory::Reach;
use abi::ConnId;
use config::domain::VifConfig;
use net::bridge;
use net::packet::Mac;
use std::fmt::Debug;

/// Tells which guests there are now.
pub trait Guests: Debug {
    /// What has changed since the last call, in order.
    fn changes(&mut self) -> Vec<Change>;

    /// A guest that came cannot be served; why, for people. It is not spoken of any more.
    fn refused(&mut self, conn: ConnId, why: &str);
}

/// What has changed.
#[derive(Debug)]
pub enum Change {
    /// A guest has come.
    Came {
        /// Its interface; of its memory nothing lies in this domain's window.
        vif: Box<VifConfig>,
        /// How its memory is reached.
        reach: Box<dyn Reach>,
    },
    /// The guest of a connection is no more.
    Gone(ConnId),
}

/// A driver domain whose guests are all known at its start.
#[derive(Debug)]
pub struct Fixed;

impl Guests for Fixed {
    fn changes(&mut self) -> Vec<Change> {
        Vec::new()
    }

    fn refused(&mut self, _: ConnId, _: &str) {}
}

/// A guest's port of the bridge. Rate limits are kept where they are back-pressure, not drops: see
/// `fairness`.
pub(crate) fn guest_port(vif: &VifConfig) -> bridge::Port {
    bridge::Port {
        addresses: vif.addresses.clone(),
        rules: firewall::rules(&vif.rules),
        ..bridge::Port::guest(Mac(vif.mac))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::build;
    use crate::testing::System;
    use crate::vifs::memory::Opened;
    use abi::{DomId, PAGE};
    use runtime::call::Calls;
    use runtime::ledger::Ledger;
    use runtime::platform::{Bell, Peer, Pending, Waiting};
    use runtime::start::Started;
    use shmem::Area;
    use shmem::home::Home;
    use std::cell::RefCell;
    use std::io;
    use std::rc::Rc;
    use vif::netif::{BackRecord, Features, FrontRecord};

    /// Waits for nothing, and reaches no guest: none gets beyond its first state.
    #[derive(Debug)]
    struct Nothing;

    impl Waiting for Nothing {
        fn pending(&self) -> Pending {
            Pending::NONE
        }

        fn has_pending(&self) -> bool {
            false
        }

        fn heartbeat(&self) {}

        fn arm(&self) {}

        fn disarm(&self) {}

        fn sleep(&self, _: Bell, _: Option<u64>) -> io::Result<()> {
            Ok(())
        }
    }

    impl Reach for Nothing {
        fn record(&self, _: bool) -> BackRecord {
            BackRecord {
                features: Features::ALL,
                max_order: 0,
                max_slots: 18,
            }
        }

        fn open(&mut self, _: &Peer, _: &FrontRecord, _: &Rc<Ledger>) -> Result<Opened, String> {
            Err("never asked".into())
        }
    }

    /// Changes, as they are to be told one call at a time; and what was refused.
    #[derive(Debug, Default)]
    struct Told {
        changes: RefCell<Vec<Vec<Change>>>,
        refused: RefCell<Vec<ConnId>>,
    }

    #[derive(Debug)]
    struct Script(Rc<Told>);

    impl Guests for Script {
        fn changes(&mut self) -> Vec<Change> {
            self.0.changes.borrow_mut().pop().unwrap_or_default()
        }

        fn refused(&mut self, conn: ConnId, _: &str) {
            self.0.refused.borrow_mut().push(conn);
        }
    }

    fn came(conn: u32, mac: u8) -> Change {
        Change::Came {
            vif: Box::new(VifConfig::new(conn, conn.to_string(), [2, 0, 0, 0, 0, mac])),
            reach: Box::new(Nothing),
        }
    }

    fn started() -> Started<config::domain::DriverConfig, Nothing> {
        let text = "[[nic]]\nname = \"wire\"\nkind = \"local\"\n";
        let machine = config::parse("", text).unwrap().machine().unwrap();
        let mut config: config::domain::DriverConfig =
            serde_json::from_str(&machine.domains[0].config).unwrap();
        // Nobody here opens devices.
        config.nics.clear();
        let area = |pages: usize| Area::anonymous(pages * PAGE).unwrap();
        Started {
            home: Home {
                info: area(256),
                frames: area(machine.domains[0].frames as usize),
                window: area(1),
                domain: DomId(0),
                grant_entries: 0,
                config_bytes: 0,
                devices: 0,
                cpus: 0,
            },
            platform: System::new(),
            calls: Rc::new(RefCell::new(Calls::refused())),
            waiter: Nothing,
            config,
        }
    }

    #[test]
    fn guests_come_and_go_and_leave_room_for_others() {
        let told = Rc::new(Told::default());
        let (mut driver, _) = build(started(), Box::new(Script(Rc::clone(&told)))).unwrap();
        let mut step = |changes: Vec<Change>| {
            told.changes.borrow_mut().push(changes);
            driver.serve_changes();
            let conns = driver.vifs_mut().map(|vif| vif.conn().0);
            (conns.collect::<Vec<_>>(), told.refused.take())
        };
        assert_eq!(step(vec![came(7, 1), came(3, 2)]), (vec![7, 3], vec![]));
        // A MAC that another guest has.
        assert_eq!(step(vec![came(4, 2)]), (vec![7, 3], vec![ConnId(4)]));
        assert_eq!(step(vec![Change::Gone(ConnId(7))]), (vec![3], vec![]));
        // A guest that has gone leaves its port and its MAC; one that never came leaves nothing.
        let next = vec![Change::Gone(ConnId(9)), came(8, 1)];
        assert_eq!(step(next), (vec![8, 3], vec![]));
    }
}
