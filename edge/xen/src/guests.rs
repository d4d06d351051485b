//! Reports to the driver which guests the toolstack creates and removes.

use crate::guest_memory::XenGuestAccess;
use crate::interfaces::{InterfaceChange, XenInterface};
use crate::platform::Xen;
use abi::ConnId;
use config::domain::{PortGuard, PortSettings, VifConfig};
use driver::guests::{GuestChange, Guests};
use driver::vifs::memory::GuestAccess;
use shmem::Span;
use shmem::time::monotonic_ns;
use std::rc::Rc;

/// The guests of a driver domain.
#[derive(Debug)]
pub struct XenGuests(pub Rc<Xen>);

impl Guests for XenGuests {
    fn changes(&mut self) -> Vec<GuestChange> {
        let looked = self.0.interfaces.borrow_mut().read_changes(monotonic_ns());
        if let Err(error) = looked {
            eprintln!("{error}");
        }
        self.0.apply_groups();
        self.0.control_rings.serve();
        let mut interfaces = self.0.interfaces.borrow_mut();
        let mut changes = Vec::new();
        while let Some(news) = interfaces.next_change() {
            match news {
                InterfaceChange::Removed(conn) => changes.push(GuestChange::Removed(conn)),
                InterfaceChange::Added(conn) => {
                    let Some(served) = interfaces.get(conn) else {
                        continue;
                    };
                    changes.push(GuestChange::Added {
                        vif: Box::new(vif_config(conn, served)),
                        access: Box::new(XenGuestAccess {
                            xen: Rc::clone(&self.0),
                            conn,
                        }),
                    });
                }
            }
        }
        changes
    }

    fn refused(&mut self, conn: ConnId, why: &str) {
        if let Err(error) = self.0.interfaces.borrow_mut().refuse(conn, why) {
            eprintln!("{error}");
        }
    }

    fn access(&self, _: &VifConfig, _: Span) -> Result<Box<dyn GuestAccess>, String> {
        Err("on Xen the toolstack attaches guests".into())
    }
}

/// Returns an interface in the form of the driver's configuration.
fn vif_config(conn: ConnId, served: &XenInterface) -> VifConfig {
    let name = format!("{}.{}", served.key.domain, served.key.device);
    let is_guarded = !served.settings.addresses.is_empty();
    VifConfig {
        guard: PortGuard {
            addresses: served.settings.addresses.clone(),
            confined: is_guarded,
            sources: is_guarded.then(Vec::new),
            ..PortGuard::default()
        },
        settings: PortSettings {
            rate_mbps: served.settings.rate_mbps,
            ..PortSettings::default()
        },
        ..VifConfig::new(conn.0, name, served.settings.mac)
    }
}
