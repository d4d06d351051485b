//! A guest goes: its process ends, the drivers give up what they have of it, and when nobody has a
//! page of it any more the core forgets it. Each step can be done again by another manager.

use super::Server;
use super::attach::live_config;
use super::changes::{AskedBy, Detach, GONE_NS};
use super::tell::Telling;
use crate::build;
use crate::shape::ShapeChange;
use abi::core::{Ask, Stage, Text};
use abi::journal::Level;
use abi::machine::{BEING_DETACHED, Detached};
use abi::mailbox::Request;
use shmem::time::monotonic_ns;

/// While somebody has a page of it the core is asked this often.
const LOOK_NS: u64 = 1_000_000;

impl Server<'_> {
    /// Begins to take a guest away, for somebody who is answered when nothing is left of it.
    pub(super) fn detach_for(&mut self, asker: AskedBy, name: &str) -> Result<(), String> {
        if self.is_detached_for_another(name) {
            return Err(format!("guest {name} {BEING_DETACHED}"));
        }
        // It may have been about to come back.
        let returns = self.world.shape().returning(name).is_some();
        self.returns_no_more(name);
        if returns && self.world.place(name).is_none() {
            let (now, domain) = (monotonic_ns(), name.to_owned());
            self.note(now);
            let warning = self.returns_warning(name);
            let detached = Detached {
                domain,
                took_ns: 0,
                warning,
            };
            self.changed(asker, &detached, now);
            return Ok(());
        }
        live_config(&mut self.config, self.world.shape())?.may_leave(name)?;
        if let Some(attach) = self.take_coming(name) {
            self.fail(&attach, "it was detached before it was up".into());
        }
        self.begin_detach(name, "detached");
        self.tell_when_gone(name, asker, None);
        self.wait_for_change(asker);
        Ok(())
    }

    /// Whether a request to detach this guest is under way, and its client still waits.
    fn is_detached_for_another(&self, name: &str) -> bool {
        let detach = self.detaches.iter().find(|detach| detach.name == name);
        let waits = |asker: &AskedBy| match asker {
            AskedBy::Client(id) => self.clients.contains_key(id),
            AskedBy::Reload => true,
            AskedBy::Before => false,
        };
        let asks = |(asker, what): &(AskedBy, Option<String>)| what.is_none() && waits(asker);
        detach.is_some_and(|detach| detach.askers.iter().any(asks))
    }

    /// Returns a warning if the state file still has a guest that is detached.
    fn returns_warning(&self, name: &str) -> Option<String> {
        self.state.warning(&format!("guest {name} comes back"))
    }

    /// Takes away what another manager has left half done.
    pub(super) fn take_back(&mut self) {
        let shape = self.world.shape();
        let names: Vec<String> = shape.changing().cloned().collect();
        for name in names {
            self.begin_detach(&name, "its manager has ended");
        }
    }

    /// Somebody waits until a guest has gone, and is told so, or something else.
    pub(super) fn tell_when_gone(&mut self, name: &str, asker: AskedBy, what: Option<String>) {
        let detach = self.detaches.iter_mut().find(|detach| detach.name == name);
        if let Some(detach) = detach {
            detach.askers.push((asker, what));
        }
    }

    /// Begins to take a guest away.
    pub(super) fn begin_detach(&mut self, name: &str, why: &str) {
        let Some(place) = self.world.place(name) else {
            return;
        };
        if self.detaches.iter().any(|detach| detach.name == name) {
            return;
        }
        let now = monotonic_ns();
        if let Some(attach) = self.take_coming(name) {
            return self.fail(&attach, why.to_owned());
        }
        self.world.change(ShapeChange::Leaves {
            name: name.to_owned(),
        });
        self.restarts.retain(|restart| restart.place() != place);
        self.kept.look_again();
        self.note(now);
        if let Some(domain) = self.world.id(place) {
            let why = Text::cut(why);
            // One that is not there any more is what was wanted.
            let _ = match self.world.stage(domain) {
                Some(Stage::Starting | Stage::Running) => {
                    self.core.ask(Ask::Kill { domain, why }, &[]).map(drop)
                }
                Some(Stage::Ending | Stage::Gone) => Ok(()),
                // Whether it was started nobody may have told yet: one of both does nothing.
                Some(Stage::Built) | None => {
                    let again = why.clone();
                    let _ = self.core.ask(Ask::Kill { domain, why }, &[]);
                    let why = again;
                    self.core.ask(Ask::GiveUp { domain, why }, &[]).map(drop)
                }
            };
        }
        let shape = self.world.shape();
        let served = shape.workers().into_iter().flat_map(|worker| {
            let conns = shape.served(worker, name).into_iter();
            conns.filter_map(move |conn| {
                let telling = Telling::new(worker, &Request::Detach { conn });
                Some((conn, telling.ok()?))
            })
        });
        let detach = Detach {
            place,
            name: name.to_owned(),
            began_ns: now,
            askers: Vec::new(),
            tellings: served.collect(),
            forget_ns: None,
        };
        self.detaches.push(detach);
    }

    /// Goes on with all guests that go.
    pub(super) fn detach_all(&mut self, now: u64) {
        for mut detach in std::mem::take(&mut self.detaches) {
            match self.has_gone(&mut detach, now) {
                true => self.gone(detach, now),
                false => self.detaches.push(detach),
            }
        }
    }

    /// Whether nothing is left of a guest.
    fn has_gone(&mut self, detach: &mut Detach, now: u64) -> bool {
        let left = detach.tellings.iter_mut();
        for (conn, telling) in left.filter(|(_, telling)| !telling.is_done()) {
            // Who is dead for good has nothing of anybody.
            let restarts = self.restarts.iter().any(|r| r.place() == telling.worker);
            let worker = self.world.id(telling.worker);
            let stage = worker.and_then(|id| self.world.stage(id));
            if !restarts && stage.is_none_or(Stage::is_over) {
                telling.give_up();
            } else if telling.turn(self.core, &self.world, now).is_err() {
                telling.put_off(now);
            }
            if telling.is_done() {
                // When it is started again it does not hear of it.
                self.world.change(ShapeChange::Unserves {
                    worker: telling.worker,
                    conn: *conn,
                });
            }
        }
        if now >= detach.began_ns.saturating_add(GONE_NS) {
            for (asker, _) in std::mem::take(&mut detach.askers) {
                let why = format!(
                    "{}: something of it is still in use after 20 s",
                    detach.name
                );
                self.refuse(asker, why, now);
            }
        }
        let id = self.world.id(detach.place);
        let stage = id.map(|id| (id, self.world.stage(id)));
        let told = detach.tellings.iter().all(|(_, telling)| telling.is_done());
        let domain = match stage {
            None => return told,
            Some((id, Some(Stage::Gone))) if told => id,
            _ => {
                detach.forget_ns = None;
                return false;
            }
        };
        if detach.forget_ns.is_some_and(|at| now < at) {
            return false;
        }
        match self.core.ask(Ask::Forget { domain }, &[]) {
            Err(refusal) if refusal.is_busy => {
                detach.forget_ns = Some(now.saturating_add(LOOK_NS));
                false
            }
            // Another manager may have had it forgotten.
            _ => true,
        }
    }

    /// Nothing is left of a guest: its name, its place and its slots are free.
    fn gone(&mut self, detach: Detach, now: u64) {
        // Only now, when netd alone has its interfaces: it is netd that the kernel keeps waiting
        // until they are taken down. With the answers all is here that was told of them.
        for unit in build::lasting_units(&self.world, detach.place) {
            let _ = self.core.ask(Ask::Close { unit }, &[]);
        }
        self.world.unset(detach.place);
        if let Some(mut console) = self.consoles.remove(detach.place) {
            console.drain(&mut self.log, now);
        }
        self.forget(&detach.name);
        self.note(now);
        let line = format!("{}: nothing is left of it", detach.name);
        self.log.line(Level::Info, "grantwayd", &line);
        for (asker, what) in detach.askers {
            match what {
                Some(why) if asker == AskedBy::Before => self.has_failed(&detach.name, &why, now),
                Some(why) => self.refuse(asker, why, now),
                None => {
                    let detached = Detached {
                        domain: detach.name.clone(),
                        took_ns: now.saturating_sub(detach.began_ns),
                        warning: self.returns_warning(&detach.name),
                    };
                    self.changed(asker, &detached, now);
                }
            }
        }
    }
}
