//! Source of guests that are added and removed while the driver runs, and the guards of their
//! ports.

use crate::firewall;
use crate::vifs::memory::{GuestAccess, GuestMemory, VifSettings};
use abi::ConnId;
use config::domain::{Cidr, VifConfig};
use net::bridge;
use net::packet::Mac;
use nic::Buffers;
use shmem::Span;
use std::fmt::Debug;
use std::iter;

/// Source of changes to the set of guests. The default implementation reports no changes.
pub trait Guests: Debug {
    /// Returns the changes since the last call, in order.
    fn changes(&mut self) -> Vec<GuestChange> {
        Vec::new()
    }

    /// Reports that the driver has rejected an added guest, and why. No further change concerns
    /// this guest.
    fn refused(&mut self, _conn: ConnId, _why: &str) {}

    /// Returns pages outside its pool for a NIC that can write to any memory of this domain. Their
    /// ids begin at [`crate::nics::buffers::FIRST_PAGE`]. The default implementation returns none.
    fn nic_pages(&mut self) -> Option<Box<dyn Buffers>> {
        None
    }

    /// Returns access to the memory of a guest that the monitor has attached. `staging` is this
    /// domain's memory for a guest of the start-up configuration ([`VifConfig::staging_pages`]);
    /// empty for other guests.
    ///
    /// # Errors
    /// Returns the reason as text if the monitor attaches no guests here, or if this guest is
    /// unsupported.
    fn access(&self, vif: &VifConfig, staging: Span) -> Result<Box<dyn GuestAccess>, String>;
}

/// A change to the set of guests.
#[derive(Debug)]
pub enum GuestChange {
    /// A guest was added.
    Added {
        /// Its interface. This domain's window does not contain any of its memory yet.
        vif: Box<VifConfig>,
        /// Access to its memory.
        access: Box<dyn GuestAccess>,
    },
    /// The guest of a connection was removed.
    Removed(ConnId),
}

/// Guests that the monitor attaches to this driver domain.
#[derive(Debug)]
pub(crate) struct MonitorGuests(VifSettings);

impl MonitorGuests {
    pub(crate) fn boxed(shared: VifSettings) -> Box<dyn Guests> {
        Box::new(Self(shared))
    }
}

impl Guests for MonitorGuests {
    fn access(&self, vif: &VifConfig, _: Span) -> Result<Box<dyn GuestAccess>, String> {
        Ok(Box::new(GuestMemory::new(vif, &self.0)))
    }
}

/// Returns the configuration of a guest's bridge port, with all guards. Guests in the driver's
/// configuration and guests attached later have the same guards. It excludes the rate limit of
/// frames from the guest, which causes backpressure instead of drops and is enforced by
/// [`crate::fairness`].
pub(crate) fn guest_port(vif: &VifConfig) -> bridge::PortConfig {
    let guard = &vif.guard;
    let extra_macs = guard.extra_macs.iter().map(|mac| Mac(mac.0));
    let prefix = |cidr: &Cidr| bridge::Prefix::new(cidr.address, cidr.prefix);
    let sources = guard.sources.as_ref();
    let permissions = bridge::PortPermissions {
        router: vif.settings.forwards,
        dhcp_server: guard.dhcp_server,
        confined: guard.confined,
        sources: sources.map(|all| all.iter().map(prefix).collect()),
    };
    bridge::PortConfig {
        kind: bridge::PortKind::Guest {
            macs: iter::once(Mac(vif.mac)).chain(extra_macs).collect(),
            permissions,
        },
        addresses: guard.addresses.clone(),
        gateways: guard.gateways.clone(),
        rules: firewall::bridge_rules(&vif.settings.rules),
        ..bridge::PortConfig::nic()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::build::build;
    use crate::testing::System;
    use crate::vifs::memory::OpenedMemory;
    use abi::mailbox::MailboxRequest;
    use abi::{DomId, PAGE, XenbusState};
    use config::MacAddress;
    use config::domain::PortGuard;
    use config::rule::FirewallRule;
    use runtime::call::Calls;
    use runtime::ledger::Ledger;
    use runtime::platform::{PeerEnd, PendingWork, Platform, Wait, WakeSource};
    use runtime::start::Started;
    use serde_json::{Value, json};
    use shmem::Area;
    use shmem::domain_memory::DomainMemory;
    use std::cell::RefCell;
    use std::io;
    use std::rc::Rc;
    use vif::netif::{BackRecord, Features, FrontRecord};

    /// Access that fails for every guest, so that no handshake passes its first state.
    #[derive(Debug)]
    struct NoAccess;

    /// A waiter that never sleeps, and reports these connections as changed.
    #[derive(Debug, Default)]
    struct FixedChanges(Rc<RefCell<Vec<ConnId>>>);

    impl Wait for FixedChanges {
        fn has_changed(&self, conn: ConnId) -> bool {
            self.0.borrow().contains(&conn)
        }

        fn pending(&self) -> PendingWork {
            PendingWork::NONE
        }

        fn has_pending(&self) -> bool {
            false
        }

        fn heartbeat(&self) {}

        fn arm(&self) {}

        fn disarm(&self) {}

        fn sleep(&self, _: WakeSource, _: Option<u64>) -> io::Result<()> {
            Ok(())
        }
    }

    impl GuestAccess for NoAccess {
        fn record(&self, _: bool) -> BackRecord {
            BackRecord {
                features: Features::ALL,
                max_order: 0,
                max_slots: 18,
            }
        }

        fn open(
            &mut self,
            _: &PeerEnd,
            _: &FrontRecord,
            _: &Rc<Ledger>,
        ) -> Result<OpenedMemory, String> {
            Err("no guest connects in these tests".into())
        }
    }

    /// Changes to return, one list per call, and the guests that the driver has rejected.
    #[derive(Debug, Default)]
    struct ScriptedChanges {
        changes: RefCell<Vec<Vec<GuestChange>>>,
        refused: RefCell<Vec<ConnId>>,
    }

    #[derive(Debug)]
    struct Script(Rc<ScriptedChanges>);

    impl Guests for Script {
        fn changes(&mut self) -> Vec<GuestChange> {
            self.0.changes.borrow_mut().pop().unwrap_or_default()
        }

        fn refused(&mut self, conn: ConnId, _: &str) {
            self.0.refused.borrow_mut().push(conn);
        }

        fn access(&self, vif: &VifConfig, _: Span) -> Result<Box<dyn GuestAccess>, String> {
            match vif.staging_pages {
                0 => Ok(Box::new(NoAccess)),
                _ => Err("no room".into()),
            }
        }
    }

    fn vif(conn: u32, mac: u8) -> VifConfig {
        VifConfig::new(conn, conn.to_string(), [2, 0, 0, 0, 0, mac])
    }

    fn added(conn: u32, mac: u8) -> GuestChange {
        GuestChange::Added {
            vif: Box::new(vif(conn, mac)),
            access: Box::new(NoAccess),
        }
    }

    fn started() -> Started<config::domain::DriverConfig, FixedChanges> {
        let text = "[[nic]]\nname = \"wire\"\nkind = \"local\"\n";
        let machine = config::parse("", text).unwrap().machine().unwrap();
        let mut config: config::domain::DriverConfig =
            serde_json::from_str(&machine.domains[0].config).unwrap();
        // This test opens no devices.
        config.nics.clear();
        let area = |pages: usize| Area::anonymous(pages * PAGE).unwrap();
        Started {
            domain_memory: DomainMemory {
                info: area(256),
                frames: area(machine.domains[0].frames as usize),
                window: area(1),
                foreign: area(0),
                mailbox: Area::anonymous(abi::layout::mailbox::BYTES).unwrap(),
                domain: DomId(0),
                grant_entries: 0,
                config_bytes: 0,
                devices: 0,
                cpus: 0,
            },
            platform: System::new(),
            calls: Rc::new(RefCell::new(Calls::unavailable())),
            waiter: FixedChanges::default(),
            config,
        }
    }

    /// A guest's guards depend only on its description, and not on the way in which it is added.
    #[test]
    fn description_sets_the_bridge_guards() {
        let address = |text: &str| text.parse().unwrap();
        let mut described = vif(1, 1);
        described.guard = PortGuard {
            extra_macs: vec![MacAddress([2, 0, 0, 0, 0, 9])],
            addresses: vec![address("10.0.0.2")],
            gateways: vec![address("10.0.0.1")],
            confined: true,
            sources: Some(vec!["10.8.0.0/16".parse().unwrap()]),
            dhcp_server: true,
        };
        described.settings.forwards = true;
        let macs = [1, 9].map(|last| Mac([2, 0, 0, 0, 0, last]));
        let permissions = bridge::PortPermissions {
            router: true,
            dhcp_server: true,
            confined: true,
            sources: Some(vec![bridge::Prefix::new(address("10.8.0.0"), 16)]),
        };
        let guarded = bridge::PortConfig {
            kind: bridge::PortKind::Guest {
                macs: macs.to_vec(),
                permissions,
            },
            addresses: vec![address("10.0.0.2")],
            gateways: vec![address("10.0.0.1")],
            ..bridge::PortConfig::nic()
        };
        assert_eq!(guest_port(&described), guarded);
        // One driver attaches the guest, the other has it in its configuration.
        let described = serde_json::to_string(&described).unwrap();
        let script = Rc::new(ScriptedChanges::default());
        let access = |_| Box::new(Script(Rc::clone(&script))) as Box<dyn Guests>;
        let (mut late, _) = build(started(), access).unwrap();
        let attach = MailboxRequest::Attach {
            vif: described.clone(),
        };
        late.answer(&attach).unwrap();
        let mut first = started();
        first.config.vifs = vec![serde_json::from_str(&described).unwrap()];
        let (mut early, _) = build(first, access).unwrap();
        // Another guest cannot claim one of its MACs.
        let mut other = vif(2, 2);
        other.guard.extra_macs = vec![MacAddress([2, 0, 0, 0, 0, 9])];
        let other = serde_json::to_string(&other).unwrap();
        for driver in [&mut late, &mut early] {
            let refused = driver.answer(&MailboxRequest::Attach { vif: other.clone() });
            assert!(refused.unwrap_err().contains("already bound to a port"));
        }
    }

    #[test]
    fn removed_guests_free_their_ports() {
        let script = Rc::new(ScriptedChanges::default());
        let (mut driver, _) = build(started(), |_| Box::new(Script(Rc::clone(&script)))).unwrap();
        let mut step = |changes: Vec<GuestChange>| {
            script.changes.borrow_mut().push(changes);
            driver.serve_changes();
            let conns = driver.vifs_mut().map(|vif| vif.conn().0);
            (conns.collect::<Vec<_>>(), script.refused.take())
        };
        assert_eq!(step(vec![added(7, 1), added(3, 2)]), (vec![7, 3], vec![]));
        // Another guest has the same MAC.
        assert_eq!(step(vec![added(4, 2)]), (vec![7, 3], vec![ConnId(4)]));
        assert_eq!(
            step(vec![GuestChange::Removed(ConnId(7))]),
            (vec![3], vec![])
        );
        // A removed guest frees its port and its MAC; a rejected guest occupies neither.
        let next = vec![GuestChange::Removed(ConnId(9)), added(8, 1)];
        assert_eq!(step(next), (vec![8, 3], vec![]));
    }

    #[test]
    fn only_changed_connections_are_polled() {
        let (system, changed) = (System::new(), Rc::default());
        let started = Started {
            platform: Rc::clone(&system) as Rc<dyn Platform>,
            waiter: FixedChanges(Rc::clone(&changed)),
            ..started()
        };
        let script = Rc::new(ScriptedChanges::default());
        let (mut driver, _) = build(started, |_| Box::new(Script(Rc::clone(&script)))).unwrap();
        let all = (1..=200).map(|n| added(n, n as u8)).collect();
        script.changes.borrow_mut().push(all);
        driver.serve_changes();
        driver.advance();
        assert_eq!(system.polled.take(), []);
        *changed.borrow_mut() = vec![ConnId(7), ConnId(150)];
        driver.advance();
        let mut polled = system.polled.take();
        polled.sort_unstable();
        polled.dedup();
        assert_eq!(polled, [ConnId(7), ConnId(150)]);
        // The driver retries a guest that could not advance.
        changed.borrow_mut().clear();
        let vif = driver.vifs_mut().find(|vif| vif.conn() == ConnId(9));
        vif.unwrap().last_error = "refused".to_owned();
        driver.advance();
        assert_eq!(system.polled.take(), [ConnId(9), ConnId(9)]);
    }

    /// Returns the request as a newer manager would send it, with a key unknown to the driver.
    fn from_newer_manager(request: &MailboxRequest) -> MailboxRequest {
        let with_key = |vif: &str| vif.replacen('{', r#"{"quarantine":true,"#, 1);
        match request {
            MailboxRequest::Attach { vif } => MailboxRequest::Attach { vif: with_key(vif) },
            MailboxRequest::Change { vif } => MailboxRequest::Change { vif: with_key(vif) },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn guests_can_be_attached_and_detached_repeatedly() {
        let script = Rc::new(ScriptedChanges::default());
        let (mut driver, _) = build(started(), |_| Box::new(Script(Rc::clone(&script)))).unwrap();
        let attach = |conn, mac, staging_pages| {
            let vif = VifConfig {
                staging_pages,
                ..vif(conn, mac)
            };
            MailboxRequest::Attach {
                vif: serde_json::to_string(&vif).unwrap(),
            }
        };
        let detach = |conn| MailboxRequest::Detach { conn };
        let done = |what: &str, conn: u32| Ok(json!({ what: conn }));
        assert_eq!(driver.answer(&attach(5, 1, 0)), done("attached", 5));
        let state = driver.vifs_mut().next().unwrap().state();
        assert_eq!(
            state,
            XenbusState::InitWait,
            "the guest can continue immediately"
        );
        // A restarted manager repeats the request, because it does not know the answer.
        assert_eq!(driver.answer(&attach(5, 1, 0)), done("attached", 5));
        // The manager adds a rule while the guest is attached, and then removes it.
        let change = |conn, rules: Vec<FirewallRule>| {
            let mut vif = vif(conn, 1);
            (vif.settings.rules, vif.settings.rate_mbps) = (rules, Some(8.0));
            let vif = serde_json::to_string(&vif).unwrap();
            MailboxRequest::Change { vif }
        };
        for rules in [vec![FirewallRule::any("no mail", false)], vec![]] {
            let count = rules.len();
            assert_eq!(driver.answer(&change(5, rules)), done("changed", 5));
            let stat = driver.answer(&MailboxRequest::Stat).unwrap().to_string();
            assert_eq!(stat.matches("no mail").count(), count, "{stat}");
        }
        for (wrong, why) in [
            (change(6, vec![]), "connection 6 belongs to no guest"),
            (attach(6, 1, 0), "already bound to a port"),
            (attach(6, 2, 1), "no room"),
            (
                MailboxRequest::Attach { vif: "{}".into() },
                "not a valid interface",
            ),
            // A newer manager's key may restrict the guest.
            (
                from_newer_manager(&attach(6, 2, 0)),
                "older than the manager (unknown field `quarantine`)",
            ),
            (from_newer_manager(&change(5, vec![])), "`grantway upgrade`"),
        ] {
            let refused = driver.answer(&wrong).unwrap_err();
            assert!(refused.contains(why), "{refused}");
            assert_eq!(driver.vifs_mut().count(), 1, "{refused}");
        }
        for turn in 0..100 {
            let conn = 7 + turn % 3;
            assert_eq!(driver.answer(&attach(conn, 2, 0)), done("attached", conn));
            assert_eq!(driver.vifs_mut().count(), 2);
            assert_eq!(driver.answer(&detach(conn)), done("detached", conn));
            assert_eq!(driver.answer(&detach(conn)), done("detached", conn));
        }
        let remaining: Vec<_> = driver.vifs_mut().map(|vif| vif.conn()).collect();
        assert_eq!(remaining, [ConnId(5)]);
    }

    /// A node of Kubernetes has 110 pods by default, and a pod up to 256 rules.
    #[test]
    fn counters_of_a_full_node_fit_the_mailbox() {
        const GUESTS: u32 = 110;
        const RULES: u32 = 256;
        let script = Rc::new(ScriptedChanges::default());
        let (mut driver, _) = build(started(), |_| Box::new(Script(Rc::clone(&script)))).unwrap();
        for conn in 0..GUESTS {
            let rule = |n| FirewallRule::any(format!("ingress-{n}"), true);
            let mut vif = vif(conn, conn as u8);
            vif.settings.rules = (0..RULES).map(rule).collect();
            let vif = serde_json::to_string(&vif).unwrap();
            driver.answer(&MailboxRequest::Attach { vif }).unwrap();
        }
        let mut ports = serde_json::Map::new();
        let mut request = MailboxRequest::Stat;
        let mut replies = 0;
        loop {
            let mut reply = driver.answer(&request).unwrap();
            let length = reply.to_string().len();
            assert!(length <= abi::layout::mailbox::OUT_MAX, "{length} bytes");
            replies += 1;
            ports.append(reply["ports"].as_object_mut().unwrap());
            let Some(first) = reply["next"].as_u64() else {
                break;
            };
            let first = first as u32;
            request = MailboxRequest::Ports { first };
        }
        assert!(replies > 1);
        assert_eq!(ports.len(), GUESTS as usize);
        let has_all = |port: &Value| port["rules"].as_object().unwrap().len() == RULES as usize;
        assert!(ports.values().all(has_all));
    }
}
