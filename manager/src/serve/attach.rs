//! A guest comes: it is there as a whole, or not at all.
//!
//! | step | kept for the next manager | what fails here |
//! |---|---|---|
//! | it is checked, has a place, and slots in windows | that it comes | nothing was done |
//! | netd opens its devices; the core builds and connects it | | taken away again |
//! | the drivers' descriptions have it | its connections | taken away again |
//! | its process is started, the drivers are told | | taken away again |
//! | it runs, and all its connections are up | that it is there | |
//!
//! A manager that finds one that comes, and has not begun with it, takes it away.

use super::Server;
use super::changes::{AskedBy, Attach, GONE_NS, UP_NS};
use super::requests::refusal;
use super::tell::Telling;
use crate::build;
use crate::client::{Client, Waits};
use crate::console::Console;
use crate::core::Refusal;
use crate::restart::Restart;
use crate::shape::{Admitted, Shape, ShapeChange};
use abi::core::{Ask, Stage};
use abi::journal::Level;
use abi::machine::{Attached, Restarts, Setting};
use abi::mailbox::Request;
use config::domain::VifConfig;
use config::live::{LiveConfig, state};
use serde::Serialize;

impl Server<'_> {
    /// Whether a domain is a guest that was attached.
    pub(super) fn is_attached(&self, name: &str) -> bool {
        let live = self.world.shape().live();
        live.is_some_and(|live| live.attached.contains_key(name))
    }

    /// Begins to attach a guest for a client. A guest of the same name that is being detached
    /// leaves first: its namespace may have been deleted and made again.
    pub(super) fn attach_for(&mut self, id: u64, guest: Setting, now: u64) -> Result<(), String> {
        let name = state::name_of(&guest).unwrap_or_default().to_owned();
        if self.detaches.iter().any(|detach| detach.name == name) {
            self.wait_for(id, Waits::Free(guest, now.saturating_add(GONE_NS)));
            return Ok(());
        }
        if self.attaches.iter().any(|attach| attach.name == name) {
            return Err(format!("guest {name} is being attached by another request"));
        }
        if self.is_attached(&name) && self.world.shape().returning(&name).is_none() {
            return Err(format!(
                "guest {name} is attached already: detach it first (`grantway detach {name}`)"
            ));
        }
        self.begin_attach(AskedBy::Client(id), &guest, now)
    }

    /// Goes on with clients that waited until a guest of the same name has left.
    fn attach_freed(&mut self, now: u64) {
        let leaves = |guest: &Setting| {
            let name = state::name_of(guest);
            let mut leaving = self.detaches.iter();
            leaving.any(|detach| Some(detach.name.as_str()) == name)
        };
        let is_due = |(&id, client): (&u64, &Client)| match &client.waits {
            Waits::Free(guest, until) if now >= *until || !leaves(guest) => {
                Some((id, guest.clone(), now >= *until))
            }
            _ => None,
        };
        let due: Vec<_> = self.clients.iter().filter_map(is_due).collect();
        for (id, guest, is_late) in due {
            let begun = match is_late {
                true => Err("a guest of this name is being detached for more than 20 s".into()),
                false => self.attach_for(id, guest, now),
            };
            if let Err(why) = begun {
                self.answer(id, &refusal(why), now);
            }
        }
    }

    /// Begins to attach a guest, for somebody who is answered when it is up.
    pub(super) fn begin_attach(
        &mut self,
        asker: AskedBy,
        guest: &Setting,
        now: u64,
    ) -> Result<(), String> {
        let config = live_config(&mut self.config, self.world.shape())?;
        let admitted = self.world.admit(config, guest)?;
        let name = admitted.name.clone();
        let user = self.user_of(asker, &name);
        if user.is_none() {
            let names = vec![name.clone()];
            self.world.change(ShapeChange::Adopted { names });
        }
        if asker != AskedBy::Before {
            // It is this one from now on.
            self.returns_no_more(&name);
        }
        self.world.change(ShapeChange::Asked { name, user });
        if let Err(Refusal { why, .. }) = self.keep() {
            self.forget(&admitted.name);
            return Err(format!("the core cannot keep what there is: {why}"));
        }
        self.wait_for_change(asker);
        let built = self.build_guest(&admitted);
        let (tellings, trouble) = match built {
            Ok(tellings) => (tellings, None),
            Err(Refusal { why, is_busy }) => {
                if is_busy {
                    self.is_busy(&admitted.name, now);
                }
                (Vec::new(), Some(why))
            }
        };
        let attach = Attach {
            place: admitted.place,
            name: admitted.name,
            macs: admitted.macs,
            warnings: admitted.warnings,
            asker,
            began_ns: now,
            tellings,
        };
        match trouble {
            None => self.attaches.push(attach),
            Some(why) => self.fail(&attach, why),
        }
        Ok(())
    }

    /// The user who has asked for a guest; none: files.
    fn user_of(&self, asker: AskedBy, name: &str) -> Option<u32> {
        match asker {
            AskedBy::Client(id) => self.clients.get(&id)?.user,
            AskedBy::Reload => None,
            AskedBy::Before => self.world.shape().returning(name)?.origin.user,
        }
    }

    /// Nothing is left of a guest.
    pub(super) fn forget(&mut self, name: &str) {
        self.world.change(ShapeChange::Gone {
            name: name.to_owned(),
        });
        if let Some(config) = &mut self.config {
            config.remove(name);
        }
    }

    /// Builds and starts a guest; what the workers of the driver domain are to be told.
    fn build_guest(&mut self, admitted: &Admitted) -> Result<Vec<Telling>, Refusal> {
        let place = admitted.place;
        let opened = build::open(self.core, &self.world, place)?;
        let connected = self.connect_guest(admitted);
        // Nothing is under way any more when this fails.
        build::await_opened(self.core, &mut self.world, opened)?;
        let tellings = connected?;
        // From here on the next manager knows what to take away of the drivers.
        self.keep()?;
        build::give(self.core, &self.world, place, 0, &mut 0)?;
        let console = build::start(self.core, &self.world, place)?;
        self.watch_console(place, console);
        Ok(tellings)
    }

    /// The memory of a guest, and its connections.
    fn connect_guest(&mut self, admitted: &Admitted) -> Result<Vec<Telling>, Refusal> {
        let frontend = build::create(self.core, &mut self.world, admitted.place, None)?;
        let mut vifs = admitted.vifs.clone();
        // The guest counts its connections so: each interface's, worker by worker.
        for handle in 0..admitted.macs.len() {
            for (&worker, vifs) in &mut vifs {
                let backend = self.world.id(worker);
                let connect = Ask::Connect {
                    backend: backend.ok_or("there is no driver domain".to_owned())?,
                    frontend,
                    handle: handle as u16,
                };
                let done = self.core.ask(connect, &[])?;
                if let Some(vif) = vifs.get_mut(handle) {
                    vif.conn = (done.value >> 32) as u32;
                    // Others ask for it while it is away.
                    vif.announces |= self.world.shape().returning(&admitted.name).is_some();
                }
            }
        }
        let mut tellings = Vec::new();
        for (worker, vifs) in vifs {
            for vif in &vifs {
                tellings.push(telling(worker, vif)?);
            }
            self.world.change(ShapeChange::Serves { worker, vifs });
        }
        Ok(tellings)
    }

    /// Goes on with all guests that come and go.
    pub(super) fn change(&mut self, now: u64) {
        if !self.restarts_now() {
            return;
        }
        self.come_back(now);
        // First: a step ends in the turn before, and what was told until then has been heard.
        self.reload_turn(now);
        for mut attach in std::mem::take(&mut self.attaches) {
            match self.attach_turn(&mut attach, now) {
                Ok(false) => self.attaches.push(attach),
                Ok(true) => self.is_up(&attach, now),
                Err(why) => self.fail(&attach, why),
            }
        }
        self.detach_all(now);
        self.attach_freed(now);
        self.note(now);
    }

    /// Whether a guest is up.
    fn attach_turn(&mut self, attach: &mut Attach, now: u64) -> Result<bool, String> {
        for telling in &mut attach.tellings {
            telling.turn(self.core, &self.world, now)?;
        }
        let id = self.world.id(attach.place);
        let id = id.ok_or("it was not built")?;
        if self.world.stage(id).is_some_and(Stage::is_over) {
            let console = self.consoles.get(attach.place);
            let said = match console.map_or("", Console::last_line) {
                "" => String::new(),
                line => format!("; it said: {line}"),
            };
            let how = self.world.text(id);
            return Err(format!("it did not start: {how}{said}"));
        }
        let runs = self.world.stage(id) == Some(Stage::Running);
        let up =
            runs && self.world.is_connected(id) && attach.tellings.iter().all(Telling::is_done);
        if !up && now >= attach.began_ns.saturating_add(UP_NS) {
            return Err("it was not up within 20 s".into());
        }
        Ok(up)
    }

    /// A guest is there from now on, also for the next manager.
    fn is_up(&mut self, attach: &Attach, now: u64) {
        self.world.change(ShapeChange::Up {
            name: attach.name.clone(),
        });
        let domain = self.world.domain(attach.place);
        if let Some(pause) = domain.and_then(|domain| domain.restart_pause_ms) {
            let known = Restarts::default();
            self.restarts.push(Restart::new(attach.place, pause, known));
            self.kept.look_again();
        }
        if let Err(Refusal { why, .. }) = self.keep() {
            return self.fail(attach, format!("the core cannot keep what there is: {why}"));
        }
        if attach.asker == AskedBy::Before {
            self.returns_no_more(&attach.name);
        }
        let line = format!("{}: attached", attach.name);
        self.log.line(Level::Info, "grantwayd", &line);
        for warning in &attach.warnings {
            let line = format!("{}: {warning}", attach.name);
            self.log.line(Level::Warning, "grantwayd", &line);
        }
        let returns = format!("guest {} does not come back", attach.name);
        let warnings = attach.warnings.iter().cloned();
        let warnings = warnings.chain(self.state.warning(&returns)).collect();
        let attached = Attached {
            domain: attach.name.clone(),
            id: self.world.id(attach.place).map_or(0, |id| id.0),
            macs: attach.macs.clone(),
            took_ns: now.saturating_sub(attach.began_ns),
            warnings,
        };
        self.changed(attach.asker, &attached, now);
    }

    /// A guest does not come after all.
    pub(super) fn fail(&mut self, attach: &Attach, why: String) {
        self.begin_detach(&attach.name, &why);
        self.tell_when_gone(&attach.name, attach.asker, Some(why));
    }

    /// Takes a guest that is still coming out of those that do, if there is such a one.
    pub(super) fn take_coming(&mut self, name: &str) -> Option<Attach> {
        let at = self
            .attaches
            .iter()
            .position(|attach| attach.name == name)?;
        Some(self.attaches.remove(at))
    }

    /// Who has asked for a change waits for it.
    pub(super) fn wait_for_change(&mut self, asker: AskedBy) {
        if let AskedBy::Client(client) = asker {
            self.wait_for(client, Waits::Change);
        }
    }

    /// Tells who has asked for a change that it is done.
    pub(super) fn changed(&mut self, asker: AskedBy, answer: &impl Serialize, now: u64) {
        match asker {
            AskedBy::Client(client) => self.answer(client, answer, now),
            AskedBy::Reload => self.reload_step_over(Ok(())),
            AskedBy::Before => {}
        }
    }

    /// Tells who has asked for a change that nothing comes of it.
    pub(super) fn refuse(&mut self, asker: AskedBy, why: String, now: u64) {
        match asker {
            AskedBy::Client(client) => self.answer(client, &refusal(why), now),
            AskedBy::Reload => self.reload_step_over(Err(why)),
            AskedBy::Before => {}
        }
    }
}

/// The configuration as it has become, which is read when it is first asked for.
pub(super) fn live_config<'a>(
    known: &'a mut Option<LiveConfig>,
    shape: &Shape,
) -> Result<&'a mut LiveConfig, String> {
    let config = match known.take() {
        Some(config) => config,
        None => shape.config()?,
    };
    Ok(known.insert(config))
}

/// What a worker is told of an interface.
fn telling(worker: usize, vif: &VifConfig) -> Result<Telling, Refusal> {
    let vif = serde_json::to_string(vif).map_err(|error| error.to_string())?;
    Ok(Telling::new(worker, &Request::Attach { vif })?)
}
