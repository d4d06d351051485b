//! Guests as they come and go: what the toolstack makes and takes away, told to the driver.

use crate::interfaces::{Interface, News};
use crate::platform::Xen;
use crate::reach::XenReach;
use abi::ConnId;
use config::domain::VifConfig;
use driver::guests::{Change, Guests};
use driver::vifs::memory::Reach;
use std::rc::Rc;

/// The guests of a driver domain.
#[derive(Debug)]
pub struct XenGuests(pub Rc<Xen>);

impl Guests for XenGuests {
    fn changes(&mut self) -> Vec<Change> {
        let looked = self.0.interfaces.borrow_mut().look();
        if let Err(error) = looked {
            eprintln!("{error}");
        }
        self.0.apply_groups();
        self.0.control_rings.serve();
        let mut interfaces = self.0.interfaces.borrow_mut();
        let mut changes = Vec::new();
        while let Some(news) = interfaces.news() {
            match news {
                News::Gone(conn) => changes.push(Change::Gone(conn)),
                News::Came(conn) => {
                    let Some(served) = interfaces.get(conn) else {
                        continue;
                    };
                    changes.push(Change::Came {
                        vif: Box::new(vif_config(conn, served)),
                        reach: Box::new(XenReach {
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

    fn reach(&self, _: &VifConfig) -> Result<Box<dyn Reach>, String> {
        Err("guests come by the xenstore".into())
    }
}

/// An interface as the driver has it in its configuration.
fn vif_config(conn: ConnId, served: &Interface) -> VifConfig {
    let name = format!("{}.{}", served.key.domain, served.key.device);
    let is_guarded = !served.settings.addresses.is_empty();
    VifConfig {
        addresses: served.settings.addresses.clone(),
        confined: is_guarded,
        sources: is_guarded.then(Vec::new),
        rate_mbps: served.settings.rate_mbps,
        ..VifConfig::new(conn.0, name, served.settings.mac)
    }
}
