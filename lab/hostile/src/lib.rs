//! Domains that behave normally, and attack from their main loop.

use abi::ConnId;
use runtime::platform::{PendingWork, Wait, WakeSource};
use runtime::start::Started;
use std::fmt::Debug;
use std::io;

/// An attack of a domain that otherwise behaves normally.
pub trait Attack: Debug {
    /// Called in each turn of the domain's main loop.
    fn on_turn(&self) {}

    /// Called before each sleep. Returns the timeout of the sleep in nanoseconds, given the
    /// domain's own one.
    fn on_sleep(&self, timeout_ns: Option<u64>) -> Option<u64> {
        timeout_ns
    }
}

/// Adds an attack to a domain.
pub fn with_attack<C, W, A>(
    started: Started<C, W>,
    attack: A,
) -> Started<C, AttackingWaiter<W, A>> {
    let Started {
        domain_memory,
        platform,
        calls,
        waiter,
        config,
    } = started;
    Started {
        domain_memory,
        platform,
        calls,
        waiter: AttackingWaiter { waiter, attack },
        config,
    }
}

/// The waiter of a domain, which also attacks.
#[derive(Debug)]
pub struct AttackingWaiter<W, A> {
    waiter: W,
    attack: A,
}

impl<W: Wait, A: Attack> Wait for AttackingWaiter<W, A> {
    fn pending(&self) -> PendingWork {
        self.waiter.pending()
    }

    fn has_changed(&self, conn: ConnId) -> bool {
        self.waiter.has_changed(conn)
    }

    fn has_pending(&self) -> bool {
        self.waiter.has_pending()
    }

    fn heartbeat(&self) {
        self.waiter.heartbeat();
        self.attack.on_turn();
    }

    fn arm(&self) {
        self.waiter.arm();
    }

    fn fence(&self) {
        self.waiter.fence();
    }

    fn disarm(&self) {
        self.waiter.disarm();
    }

    fn sleep(&self, bell: WakeSource, timeout_ns: Option<u64>) -> io::Result<()> {
        let timeout_ns = self.attack.on_sleep(timeout_ns);
        self.waiter.sleep(bell, timeout_ns)
    }
}
