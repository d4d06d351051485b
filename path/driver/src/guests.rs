//! Guests that come and go while the driver runs.

use crate::firewall;
use crate::vifs::memory::{GuestMemory, Reach, Shared};
use abi::ConnId;
use config::domain::{Cidr, VifConfig};
use net::bridge;
use net::packet::Mac;
use shmem::Span;
use std::fmt::Debug;

/// Tells which guests there are now. Where none comes by itself, that is as it is here.
pub trait Guests: Debug {
    /// What has changed since the last call, in order.
    fn changes(&mut self) -> Vec<Change> {
        Vec::new()
    }

    /// A guest that came cannot be served; why, for people. It is not spoken of any more.
    fn refused(&mut self, _conn: ConnId, _why: &str) {}

    /// How the memory of a guest is reached that the monitor has told this domain of.
    ///
    /// # Errors
    /// It is not the monitor that guests come by, or this one cannot be served; why, for people.
    fn reach(&self, vif: &VifConfig) -> Result<Box<dyn Reach>, String>;
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
    fn reach(&self, _: &VifConfig) -> Result<Box<dyn Reach>, String> {
        Err("this driver domain has all of its guests from its start on".into())
    }
}

/// A driver domain to which the monitor attaches guests.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) shared: Shared,
}

impl Guests for Attached {
    fn reach(&self, vif: &VifConfig) -> Result<Box<dyn Reach>, String> {
        if vif.staging_pages > 0 {
            return Err("the pages that copies are staged in are given out at the start".into());
        }
        if vif.queue.is_some() {
            return Err("queues of a wire are given out at the start".into());
        }
        Ok(Box::new(GuestMemory::new(vif, &self.shared, Span::EMPTY)))
    }
}

/// A guest's port of the bridge: all that the bridge guards for a guest and against it, whether the
/// guest is in the driver's configuration or was attached later. Rate limits are kept where they
/// are back-pressure, not drops: see `fairness`.
pub(crate) fn guest_port(vif: &VifConfig) -> bridge::Port {
    let macs = [&[vif.mac], &vif.extra_macs[..]].concat();
    let prefix = |cidr: &Cidr| bridge::Prefix::new(cidr.address, cidr.prefix);
    let sources = vif.sources.as_ref();
    let claims = bridge::Claims {
        router: vif.forwards,
        dhcp_server: vif.dhcp_server,
        confined: vif.confined,
        sources: sources.map(|all| all.iter().map(prefix).collect()),
    };
    bridge::Port {
        kind: bridge::Kind::Guest {
            macs: macs.into_iter().map(Mac).collect(),
            claims,
        },
        addresses: vif.addresses.clone(),
        gateways: vif.gateways.clone(),
        rules: firewall::rules(&vif.rules),
        ..bridge::Port::nic()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::build;
    use crate::testing::System;
    use crate::vifs::memory::Opened;
    use abi::mailbox::Request;
    use abi::{DomId, PAGE, XenbusState};
    use config::rule::Rule;
    use runtime::call::Calls;
    use runtime::ledger::Ledger;
    use runtime::platform::{Bell, Peer, Pending, Platform, Waiting};
    use runtime::start::Started;
    use serde_json::json;
    use shmem::Area;
    use shmem::home::Home;
    use std::cell::RefCell;
    use std::io;
    use std::rc::Rc;
    use vif::netif::{BackRecord, Features, FrontRecord};

    /// Reaches no guest: none gets beyond its first state.
    #[derive(Debug)]
    struct Nothing;

    /// Waits for nothing. These connections have changed.
    #[derive(Debug, Default)]
    struct Changed(Rc<RefCell<Vec<ConnId>>>);

    impl Waiting for Changed {
        fn has_changed(&self, conn: ConnId) -> bool {
            self.0.borrow().contains(&conn)
        }

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

        fn reach(&self, vif: &VifConfig) -> Result<Box<dyn Reach>, String> {
            match vif.staging_pages {
                0 => Ok(Box::new(Nothing)),
                _ => Err("no room".into()),
            }
        }
    }

    fn vif(conn: u32, mac: u8) -> VifConfig {
        VifConfig::new(conn, conn.to_string(), [2, 0, 0, 0, 0, mac])
    }

    fn came(conn: u32, mac: u8) -> Change {
        Change::Came {
            vif: Box::new(vif(conn, mac)),
            reach: Box::new(Nothing),
        }
    }

    fn started() -> Started<config::domain::DriverConfig, Changed> {
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
                mailbox: Area::anonymous(abi::layout::mailbox::BYTES).unwrap(),
                domain: DomId(0),
                grant_entries: 0,
                config_bytes: 0,
                devices: 0,
                cpus: 0,
            },
            platform: System::new(),
            calls: Rc::new(RefCell::new(Calls::refused())),
            waiter: Changed::default(),
            config,
        }
    }

    /// What guards a guest follows from its description alone, however it comes.
    #[test]
    fn a_description_becomes_what_the_bridge_guards() {
        let address = |text: &str| text.parse().unwrap();
        let described = VifConfig {
            extra_macs: vec![[2, 0, 0, 0, 0, 9]],
            addresses: vec![address("10.0.0.2")],
            gateways: vec![address("10.0.0.1")],
            confined: true,
            sources: Some(vec!["10.8.0.0/16".parse().unwrap()]),
            dhcp_server: true,
            forwards: true,
            ..vif(1, 1)
        };
        let macs = [1, 9].map(|last| Mac([2, 0, 0, 0, 0, last]));
        let claims = bridge::Claims {
            router: true,
            dhcp_server: true,
            confined: true,
            sources: Some(vec![bridge::Prefix::new(address("10.8.0.0"), 16)]),
        };
        let guarded = bridge::Port {
            kind: bridge::Kind::Guest {
                macs: macs.to_vec(),
                claims,
            },
            addresses: vec![address("10.0.0.2")],
            gateways: vec![address("10.0.0.1")],
            ..bridge::Port::nic()
        };
        assert_eq!(guest_port(&described), guarded);
        // One that is attached, and one that is there from the start on.
        let described = serde_json::to_string(&described).unwrap();
        let told = Rc::new(Told::default());
        let reach = |_| Box::new(Script(Rc::clone(&told))) as Box<dyn Guests>;
        let (mut late, _) = build(started(), reach).unwrap();
        let attach = Request::Attach {
            vif: described.clone(),
        };
        late.answer(&attach).unwrap();
        let mut first = started();
        first.config.vifs = vec![serde_json::from_str(&described).unwrap()];
        let (mut early, _) = build(first, reach).unwrap();
        // Its gateway's address, which another guest cannot have from then on as its own MAC.
        let mut other = vif(2, 2);
        other.extra_macs = vec![[2, 0, 0, 0, 0, 9]];
        let other = serde_json::to_string(&other).unwrap();
        for driver in [&mut late, &mut early] {
            let refused = driver.answer(&Request::Attach { vif: other.clone() });
            assert!(refused.unwrap_err().contains("bound to a port already"));
        }
    }

    #[test]
    fn guests_come_and_go_and_leave_room_for_others() {
        let told = Rc::new(Told::default());
        let (mut driver, _) = build(started(), |_| Box::new(Script(Rc::clone(&told)))).unwrap();
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

    #[test]
    fn only_guests_whose_connection_has_changed_are_asked_after() {
        let (system, changed) = (System::new(), Rc::default());
        let started = Started {
            platform: Rc::clone(&system) as Rc<dyn Platform>,
            waiter: Changed(Rc::clone(&changed)),
            ..started()
        };
        let told = Rc::new(Told::default());
        let (mut driver, _) = build(started, |_| Box::new(Script(Rc::clone(&told)))).unwrap();
        let all = (1..=200).map(|n| came(n, n as u8)).collect();
        told.changes.borrow_mut().push(all);
        driver.serve_changes();
        driver.advance();
        assert_eq!(system.asked.take(), []);
        *changed.borrow_mut() = vec![ConnId(7), ConnId(150)];
        driver.advance();
        let mut asked = system.asked.take();
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked, [ConnId(7), ConnId(150)]);
        // One that could not go on is not forgotten.
        changed.borrow_mut().clear();
        let vif = driver.vifs_mut().find(|vif| vif.conn() == ConnId(9));
        vif.unwrap().trouble = "refused".to_owned();
        driver.advance();
        assert_eq!(system.asked.take(), [ConnId(9), ConnId(9)]);
    }

    #[test]
    fn the_monitor_attaches_and_detaches_guests_as_often_as_it_likes() {
        let told = Rc::new(Told::default());
        let (mut driver, _) = build(started(), |_| Box::new(Script(Rc::clone(&told)))).unwrap();
        let attach = |conn, mac, staging_pages| {
            let vif = VifConfig {
                staging_pages,
                ..vif(conn, mac)
            };
            Request::Attach {
                vif: serde_json::to_string(&vif).unwrap(),
            }
        };
        let detach = |conn| Request::Detach { conn };
        let done = |what: &str, conn: u32| Ok(json!({ what: conn }));
        assert_eq!(driver.answer(&attach(5, 1, 0)), done("attached", 5));
        let state = driver.vifs_mut().next().unwrap().state();
        assert_eq!(state, XenbusState::InitWait, "the guest can go on at once");
        // Again: a manager that is started anew does not know of the answer.
        assert_eq!(driver.answer(&attach(5, 1, 0)), done("attached", 5));
        // Other rules while it is served, and none again.
        let change = |conn, rules: Vec<Rule>| {
            let vif = VifConfig {
                rules,
                rate_mbps: Some(8.0),
                ..vif(conn, 1)
            };
            let vif = serde_json::to_string(&vif).unwrap();
            Request::Change { vif }
        };
        for rules in [vec![Rule::any("no mail", false)], vec![]] {
            let count = rules.len();
            assert_eq!(driver.answer(&change(5, rules)), done("changed", 5));
            let stat = driver.answer(&Request::Stat).unwrap().to_string();
            assert_eq!(stat.matches("no mail").count(), count, "{stat}");
        }
        for (wrong, why) in [
            (change(6, vec![]), "connection 6 is of no guest"),
            (attach(6, 1, 0), "bound to a port already"),
            (attach(6, 2, 1), "no room"),
            (Request::Attach { vif: "{}".into() }, "no interface"),
        ] {
            let refused = driver.answer(&wrong).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        for turn in 0..100 {
            let conn = 7 + turn % 3;
            assert_eq!(driver.answer(&attach(conn, 2, 0)), done("attached", conn));
            assert_eq!(driver.vifs_mut().count(), 2);
            assert_eq!(driver.answer(&detach(conn)), done("detached", conn));
            assert_eq!(driver.answer(&detach(conn)), done("detached", conn));
        }
        let left: Vec<_> = driver.vifs_mut().map(|vif| vif.conn()).collect();
        assert_eq!(left, [ConnId(5)]);
    }

    #[test]
    fn what_copies_are_staged_in_is_given_out_at_the_start() {
        let shared = Shared {
            platform: System::new(),
            calls: Rc::new(RefCell::new(Calls::refused())),
            frames: Area::anonymous(PAGE).unwrap(),
            grants: config::domain::GrantMode::Counted,
            offloads: config::domain::Offloads::Tso,
            ring_order: 1,
            ring_format: config::domain::RingFormat::Native,
            meta: config::lro::Meta::Request,
        };
        let guests = Attached { shared };
        guests.reach(&vif(1, 1)).unwrap();
        let staged = VifConfig {
            staging_pages: 1,
            ..vif(1, 1)
        };
        let refused = guests.reach(&staged).unwrap_err();
        assert!(refused.contains("given out at the start"), "{refused}");
    }
}
