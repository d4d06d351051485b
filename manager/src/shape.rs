//! The machine as it has become: what it began with, and the guests that came and went since.
//!
//! What changes it is a [`ShapeChange`], which says as much as changes, however large the machine
//! is: the next manager hears of the changes, and makes them again.

use crate::windows::{self, Windows};
use abi::machine::{Device, Domain, Live, NetnsPlace, Program, Setting};
use config::domain::{DriverConfig, VifConfig};
use config::live::state::{Origin, Returning};
use config::live::{LiveConfig, NicsStep, Refitted};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// What the next manager has to know of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "WrittenShape", into = "WrittenShape")]
pub(crate) struct Shape {
    /// By place, which a domain keeps as long as it is there.
    domains: BTreeMap<usize, Domain>,
    /// None: no guest comes or goes.
    live: Option<Live>,
    /// Guests that are not up yet. Who finds them without having begun with them takes them away.
    coming: BTreeSet<String>,
    /// Guests that are being taken away.
    leaving: BTreeSet<String>,
    /// Devices that come and go with NICs, until the workers are there with them.
    refitting: Option<Refitting>,
    /// What the workers of the driver domain are told at their start, by their places: in place of
    /// their domains' texts, which are empty.
    drivers: BTreeMap<usize, DriverConfig>,
    /// Where guests that were attached have come from.
    origins: BTreeMap<String, Origin>,
    /// Guests of the machine before that are not there again.
    returning: Vec<Returning>,
}

/// The same as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenShape {
    domains: BTreeMap<usize, Domain>,
    live: Option<Live>,
    coming: BTreeSet<String>,
    leaving: BTreeSet<String>,
    #[serde(default)]
    refitting: Option<Refitting>,
    #[serde(default)]
    origins: BTreeMap<String, Origin>,
    #[serde(default)]
    returning: Vec<Returning>,
}

/// Devices of workers, each by its worker's place and its number there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Refitting {
    /// To be opened before the workers are started again.
    pub(crate) opens: Vec<(usize, usize)>,
    /// To be closed when they are.
    pub(crate) closes: Vec<(usize, usize)>,
    /// What the workers had before; none: there is no way back any more.
    #[serde(default)]
    pub(crate) back: Option<Refits>,
}

/// The NICs of a machine, and what each worker, by its place, has of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Refits {
    nics: Option<Vec<Setting>>,
    workers: Vec<(usize, Refitted)>,
}

impl From<WrittenShape> for Shape {
    fn from(written: WrittenShape) -> Self {
        Self {
            coming: written.coming,
            leaving: written.leaving,
            refitting: written.refitting,
            origins: written.origins,
            returning: written.returning,
            ..Self::new(written.domains, written.live)
        }
    }
}

impl From<Shape> for WrittenShape {
    fn from(mut shape: Shape) -> Self {
        for (place, driver) in &shape.drivers {
            if let Some(domain) = shape.domains.get_mut(place) {
                domain.config = text_of(driver);
            }
        }
        Self {
            domains: shape.domains,
            live: shape.live,
            coming: shape.coming,
            leaving: shape.leaving,
            refitting: shape.refitting,
            origins: shape.origins,
            returning: shape.returning,
        }
    }
}

/// What becomes of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ShapeChange {
    /// A guest comes, and is described so.
    Comes {
        place: usize,
        domain: Box<Domain>,
        guest: Setting,
    },
    /// A worker serves these interfaces, too, also when it is started again.
    Serves { worker: usize, vifs: Vec<VifConfig> },
    /// A guest is there.
    Up { name: String },
    /// A guest is being taken away.
    Leaves { name: String },
    /// A worker does not serve the interface of a connection any more.
    Unserves { worker: usize, conn: u32 },
    /// Nothing is left of a guest.
    Gone { name: String },
    /// Interfaces that are served have the rules and the limits of these from now on.
    Changes { vifs: Vec<VifConfig> },
    /// A guest is described so from now on.
    Described { name: String, guest: Setting },
    /// Files that were read after the start name these guests: they are these files' from now on,
    /// however they came.
    Adopted { names: Vec<String> },
    /// The machine has these NICs; what comes is not open yet.
    Refits(Refits),
    /// The workers are there with them; or, `back`, have those again that there were before.
    Refitted { back: bool },
    /// What has gone by that is closed.
    HasRefitted,
    /// Guests of the machine before are to come back.
    Return { guests: Vec<Returning> },
    /// One of them is there again, or does not come back.
    Returned { name: String },
    /// A guest that comes was asked for by a user; none: by files.
    Asked { name: String, user: Option<u32> },
    /// What a guest's name of a network namespace stands for.
    Found {
        guest: String,
        netns: String,
        place: NetnsPlace,
    },
}

/// A guest on its way in.
#[derive(Clone, Debug)]
pub(crate) struct Admitted {
    pub(crate) place: usize,
    pub(crate) name: String,
    /// The MAC of each of its interfaces.
    pub(crate) macs: Vec<String>,
    /// By the worker's place, what it is to be told of each interface; connections are not known
    /// yet.
    pub(crate) vifs: BTreeMap<usize, Vec<VifConfig>>,
}

/// Whether a device outlives its domain.
pub(crate) fn lasts(device: &Device) -> bool {
    matches!(device, Device::Tap(_) | Device::Xdp(_))
}

fn text_of(driver: &DriverConfig) -> String {
    serde_json::to_string(driver).unwrap_or_default()
}

impl Shape {
    /// Of a machine with these domains.
    pub(crate) fn new(mut domains: BTreeMap<usize, Domain>, live: Option<Live>) -> Self {
        let mut drivers = BTreeMap::new();
        let all = domains.iter_mut();
        for (place, domain) in all.filter(|(_, domain)| domain.program == Program::Driver) {
            // A text that cannot be read stays: who is told it says so.
            if let Ok(driver) = serde_json::from_str(&domain.config) {
                drivers.insert(*place, driver);
                domain.config.clear();
            }
        }
        Self {
            domains,
            live,
            drivers,
            ..Self::default()
        }
    }

    /// By place, every domain; of what it is told [`Shape::told`] knows.
    pub(crate) fn domains(&self) -> &BTreeMap<usize, Domain> {
        &self.domains
    }

    /// What the domain at a place is told at its start.
    pub(crate) fn told(&self, place: usize) -> Cow<'_, str> {
        match (self.drivers.get(&place), self.domains.get(&place)) {
            (Some(driver), _) => text_of(driver).into(),
            (None, Some(domain)) => domain.config.as_str().into(),
            (None, None) => "".into(),
        }
    }

    /// What it takes for guests to come and go.
    pub(crate) fn live(&self) -> Option<&Live> {
        self.live.as_ref()
    }

    /// The place of a name.
    pub(crate) fn place(&self, name: &str) -> Option<usize> {
        let mut domains = self.domains.iter();
        let found = domains.find(|(_, domain)| domain.name == name);
        found.map(|(place, _)| *place)
    }

    /// Whether a domain of this name comes or goes just now.
    pub(crate) fn is_changing(&self, name: &str) -> bool {
        self.coming.contains(name) || self.leaving.contains(name)
    }

    /// The guests that come or go just now.
    pub(crate) fn changing(&self) -> impl Iterator<Item = &String> {
        self.coming.union(&self.leaving)
    }

    /// The configuration as it has become.
    pub(crate) fn config(&self) -> Result<LiveConfig, String> {
        let live = self
            .live
            .as_ref()
            .ok_or("its guests are those that it was started with")?;
        LiveConfig::of(live).map_err(|wrong| wrong.to_string())
    }

    /// Finds a place for a guest that is to come, and room in the windows of all workers.
    pub(crate) fn admit(
        &self,
        config: &mut LiveConfig,
        guest: &Setting,
    ) -> Result<(Admitted, ShapeChange), String> {
        let came = config.add(guest)?;
        let name = came.domain.name.clone();
        let room = self.windows().and_then(|windows| windows.place(&came.vifs));
        let vifs = match room {
            Ok(vifs) => vifs,
            Err(full) => {
                config.remove(&name);
                return Err(full);
            }
        };
        let place = (0..).find(|place| !self.domains.contains_key(place));
        let place = place.unwrap_or(usize::MAX);
        let comes = ShapeChange::Comes {
            place,
            domain: Box::new(came.domain),
            guest: came.guest,
        };
        let admitted = Admitted {
            place,
            name,
            macs: came.macs.iter().map(ToString::to_string).collect(),
            vifs,
        };
        Ok((admitted, comes))
    }

    /// Places of the workers of the driver domain.
    pub(crate) fn workers(&self) -> Vec<usize> {
        self.drivers.keys().copied().collect()
    }

    /// The windows of all workers, and who has what of them.
    pub(crate) fn windows(&self) -> Result<Windows<'_>, String> {
        let first = self.live.as_ref().map_or(0, |live| live.first_slot);
        let mut of = BTreeMap::new();
        for (worker, domain) in &self.domains {
            if domain.program == Program::Driver {
                let driver = self.drivers.get(worker).ok_or_else(|| {
                    format!("domain {}: its configuration makes no sense", domain.name)
                })?;
                of.insert(*worker, (Cow::Borrowed(driver), domain.window_slots));
            }
        }
        Ok(Windows::new(first, of))
    }

    /// What becomes of it with the NICs of a step. `config` has them already.
    ///
    /// # Errors
    /// What a worker has not room for.
    pub(crate) fn refits(
        &self,
        config: &LiveConfig,
        step: &NicsStep,
    ) -> Result<ShapeChange, String> {
        let drivers = (0..).zip(&self.drivers);
        let workers = drivers.filter_map(|(worker, (&place, told))| {
            let domain = self.domains.get(&place)?;
            let refitted = config.refit(worker, domain, told, &step.come);
            Some(refitted.map(|refitted| (place, refitted)))
        });
        let workers = workers.collect::<Result<_, _>>()?;
        let nics = Some(step.nics.clone());
        Ok(ShapeChange::Refits(Refits { nics, workers }))
    }

    /// Devices that come and go with NICs just now.
    pub(crate) fn refitting(&self) -> Option<&Refitting> {
        self.refitting.as_ref()
    }

    /// What the workers are to be told of these interfaces, which they serve.
    pub(crate) fn told_of(&self, vifs: &[VifConfig]) -> Vec<(usize, VifConfig)> {
        let drivers = self.drivers.iter();
        let served = drivers.flat_map(|(worker, driver)| {
            let served = driver.vifs.iter();
            served.map(|vif| (*worker, vif))
        });
        let among = |vif: &VifConfig| vifs.iter().any(|one| one.name == vif.name);
        let told = served.filter(|(_, vif)| among(vif));
        told.map(|(worker, vif)| (worker, vif.clone())).collect()
    }

    /// The worker's connections of a guest's interfaces.
    pub(crate) fn served(&self, worker: usize, name: &str) -> Vec<u32> {
        let driver = self.drivers.get(&worker).into_iter();
        let vifs = driver.flat_map(|driver| &driver.vifs);
        let vifs = vifs.filter(|vif| windows::is_of(vif, name));
        vifs.map(|vif| vif.conn).collect()
    }

    /// Guests of the machine before that are not there again.
    pub(crate) fn all_returning(&self) -> &[Returning] {
        &self.returning
    }

    /// One of them.
    pub(crate) fn returning(&self, name: &str) -> Option<&Returning> {
        let mut all = self.returning.iter();
        all.find(|returning| returning.name() == Some(name))
    }

    /// Where a guest that was attached has come from.
    pub(crate) fn origin(&self, name: &str) -> Option<&Origin> {
        self.origins.get(name)
    }

    /// The only network namespace that a guest's interface may be made in which names this one.
    pub(crate) fn expected(&self, guest: &str, netns: &str) -> Option<NetnsPlace> {
        self.returning(guest)?.origin.places.get(netns).copied()
    }

    /// It becomes so.
    pub(crate) fn apply(&mut self, change: ShapeChange) {
        match change {
            ShapeChange::Comes {
                place,
                domain,
                guest,
            } => {
                let name = domain.name.clone();
                self.domains.insert(place, *domain);
                self.coming.insert(name.clone());
                if let Some(live) = &mut self.live {
                    live.attached.insert(name, guest);
                }
            }
            ShapeChange::Serves { worker, mut vifs } => {
                if let Some(driver) = self.drivers.get_mut(&worker) {
                    driver.vifs.append(&mut vifs);
                }
            }
            ShapeChange::Up { name } => {
                self.coming.remove(&name);
            }
            ShapeChange::Leaves { name } => {
                self.leaving.insert(name);
            }
            ShapeChange::Unserves { worker, conn } => {
                if let Some(driver) = self.drivers.get_mut(&worker) {
                    driver.vifs.retain(|vif| vif.conn != conn);
                }
            }
            ShapeChange::Gone { name } => self.release(&name),
            ShapeChange::Changes { vifs } => {
                for vif in self
                    .drivers
                    .values_mut()
                    .flat_map(|driver| &mut driver.vifs)
                {
                    if let Some(now) = vifs.iter().find(|now| now.name == vif.name) {
                        vif.change_to(now);
                    }
                }
            }
            ShapeChange::Described { name, guest } => {
                if let Some(live) = &mut self.live {
                    let of = match live.attached.contains_key(&name) {
                        true => &mut live.attached,
                        false => &mut live.changed,
                    };
                    of.insert(name, guest);
                }
            }
            ShapeChange::Adopted { names } => {
                if let Some(live) = &mut self.live {
                    live.of_files.extend(names);
                }
            }
            ShapeChange::Refits(refits) => self.refitting = Some(self.refit(refits)),
            ShapeChange::Refitted { back } => self.refitted(back),
            ShapeChange::HasRefitted => self.refitting = None,
            ShapeChange::Return { guests } => {
                self.returning = guests;
                if let Some(live) = &mut self.live {
                    live.left.clear();
                }
            }
            ShapeChange::Returned { name } => {
                self.returning.retain(|one| one.name() != Some(&name));
            }
            ShapeChange::Asked { name, user } => {
                self.origins.entry(name).or_default().user = user;
            }
            ShapeChange::Found {
                guest,
                netns,
                place,
            } => {
                let origin = self.origins.entry(guest).or_default();
                origin.places.insert(netns, place);
            }
        }
    }

    /// It has these NICs: what comes and goes by that.
    fn refit(&mut self, refits: Refits) -> Refitting {
        let mut refitting = Refitting::default();
        let mut had = Vec::new();
        for (place, refitted) in refits.workers {
            let all = (self.domains.get_mut(&place), self.drivers.get_mut(&place));
            let (Some(domain), Some(driver)) = all else {
                continue;
            };
            let (before, after) = (&domain.devices, &refitted.domain.devices);
            for number in 0..before.len().max(after.len()) {
                let lasts = |devices: &[Device]| devices.get(number).is_some_and(lasts);
                match (lasts(before), lasts(after)) {
                    (false, true) => refitting.opens.push((place, number)),
                    (true, false) => refitting.closes.push((place, number)),
                    _ => {}
                }
            }
            let Refitted { domain: now, nics } = refitted;
            let domain = std::mem::replace(domain, now);
            let nics = std::mem::replace(&mut driver.nics, nics);
            had.push((place, Refitted { domain, nics }));
        }
        let live = self.live.as_mut();
        let nics = live.and_then(|live| std::mem::replace(&mut live.nics, refits.nics));
        refitting.back = Some(Refits { nics, workers: had });
        refitting
    }

    /// The NICs are known: all that is left to do is to close what goes.
    fn refitted(&mut self, back: bool) {
        let mut refitting = self.refitting.take().unwrap_or_default();
        let opened = std::mem::take(&mut refitting.opens);
        if let Some(had) = refitting.back.take().filter(|_| back) {
            self.refit(had);
            refitting.closes = opened;
        }
        self.refitting = Some(refitting);
    }

    fn release(&mut self, name: &str) {
        if let Some(place) = self.place(name) {
            self.domains.remove(&place);
        }
        self.coming.remove(name);
        self.leaving.remove(name);
        self.origins.remove(name);
        if let Some(live) = &mut self.live {
            live.of_files.remove(name);
            live.changed.remove(name);
            if live.attached.remove(name).is_none() {
                live.detached.insert(name.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use config::live;

    const FILE: &str = "[driver]\nworkers = 2\n[[guest]]\nname = \"a-1\"\n[[guest.vif]]\n\
                        endpoint = \"echo\"\n";

    fn shape() -> (Shape, LiveConfig) {
        let file = config::File {
            name: "f".into(),
            text: FILE.into(),
        };
        let config = config::parse("f", FILE).unwrap();
        let machine = live::machine(&config, &[file]).unwrap();
        let domains = machine.domains.into_iter().enumerate().collect();
        let shape = Shape::new(domains, machine.live);
        let config = shape.config().unwrap();
        (shape, config)
    }

    fn guest(name: &str) -> Setting {
        let json = format!(r#"{{"name":"{name}","vif":[{{"endpoint":"echo"}}]}}"#);
        serde_json::from_str(&json).unwrap()
    }

    fn written(shape: &Shape) -> String {
        serde_json::to_string(shape).unwrap()
    }

    /// Makes a change, and the same as the next manager would, who reads of it.
    fn become_so(both: &mut [Shape; 2], change: ShapeChange) {
        let text = serde_json::to_string(&change).unwrap();
        let [shape, next] = both;
        shape.apply(change);
        next.apply(serde_json::from_str(&text).unwrap());
        assert_eq!(shape, next);
    }

    #[test]
    fn the_next_manager_knows_who_is_to_come_back_and_from_where() {
        let (shape, mut config) = shape();
        let mut both = [shape.clone(), shape];
        let returning = |name| Returning {
            guest: guest(name),
            origin: Origin {
                user: Some(7),
                places: [("/n".to_owned(), [1, 2, 3])].into(),
            },
        };
        let guests = ["a", "a", "b"].map(returning).into();
        become_so(&mut both, ShapeChange::Return { guests });
        assert_eq!(both[0].expected("b", "/n"), Some([1, 2, 3]));
        assert_eq!(both[0].expected("b", "/m"), None);
        let (_, comes) = both[0].admit(&mut config, &guest("a")).unwrap();
        become_so(&mut both, comes);
        let (name, user) = ("a".to_owned(), Some(9));
        become_so(&mut both, ShapeChange::Asked { name, user });
        let found = ShapeChange::Found {
            guest: "a".into(),
            netns: "/n".into(),
            place: [4, 5, 6],
        };
        become_so(&mut both, found);
        let name = "a".to_owned();
        become_so(&mut both, ShapeChange::Returned { name });
        assert_eq!(both[0].all_returning(), [returning("b")], "both of them");
        // A file that is begun anew says the same.
        let again: Shape = serde_json::from_str(&written(&both[0])).unwrap();
        assert_eq!(again, both[0]);
        let origin = again.origin("a").unwrap();
        assert_eq!((origin.user, origin.places["/n"]), (Some(9), [4, 5, 6]));
        become_so(&mut both, ShapeChange::Gone { name: "a".into() });
        assert_eq!(both[0].origin("a"), None);
    }

    #[test]
    fn who_comes_back_is_left_to_the_next_core_once_at_every_moment() {
        let (mut shape, mut config) = shape();
        let returning = Returning {
            guest: guest("a"),
            origin: Origin::default(),
        };
        let guests = vec![returning];
        shape.apply(ShapeChange::Return { guests });
        let (_, comes) = shape.admit(&mut config, &guest("a")).unwrap();
        let name = || "a".to_owned();
        let (up, returned) = (
            ShapeChange::Up { name: name() },
            ShapeChange::Returned { name: name() },
        );
        for change in [comes, up, returned] {
            assert_eq!(crate::state::left(&shape).len(), 1);
            shape.apply(change);
        }
        assert_eq!(crate::state::left(&shape).len(), 1);
    }

    #[test]
    fn who_came_and_went_leaves_the_machine_as_it_was() {
        let (before, mut config) = shape();
        assert_eq!(before.workers(), [0, 1]);
        let mut both = [before.clone(), before.clone()];
        for name in ["a", "b"] {
            let (came, comes) = both[0].admit(&mut config, &guest(name)).unwrap();
            become_so(&mut both, comes);
            assert!(both[0].is_changing(name));
            for (worker, mut vifs) in came.vifs {
                vifs[0].conn = came.place as u32;
                become_so(&mut both, ShapeChange::Serves { worker, vifs });
            }
            let name = name.to_owned();
            become_so(&mut both, ShapeChange::Up { name });
        }
        let there = &both[0];
        assert_eq!((there.place("a"), there.place("b")), (Some(3), Some(4)));
        assert!(!there.is_changing("a"));
        // Another manager reads the same, and goes on alike.
        assert_eq!(
            &serde_json::from_str::<Shape>(&written(there)).unwrap(),
            there
        );
        assert_eq!(there.config().unwrap(), config);
        let told: DriverConfig = serde_json::from_str(&there.told(1)).unwrap();
        assert_eq!(told.vifs.len(), 3);
        // `a-1-0` is no interface of `a`'s.
        assert_eq!(there.served(0, "a"), [3]);
        for name in ["a", "b"] {
            let leaves = name.to_owned();
            become_so(&mut both, ShapeChange::Leaves { name: leaves });
            assert!(both[0].is_changing(name));
            for worker in both[0].workers() {
                let [conn] = both[0].served(worker, name)[..] else {
                    panic!("one interface");
                };
                become_so(&mut both, ShapeChange::Unserves { worker, conn });
                assert!(both[0].served(worker, name).is_empty());
            }
            let gone = name.to_owned();
            become_so(&mut both, ShapeChange::Gone { name: gone });
            config.remove(name);
        }
        assert_eq!(both[0], before);
        // A place that is free is taken again.
        let (came, _) = both[0].admit(&mut config, &guest("c")).unwrap();
        assert_eq!(came.place, 3);
    }

    /// The step to these NICs, beside those that are there.
    fn nics(shape: &Shape, nics: &str) -> (LiveConfig, NicsStep) {
        let file = config::File {
            name: "f".into(),
            text: format!("{nics}{FILE}"),
        };
        let mut config = shape.config().unwrap();
        let there = shape.live().unwrap();
        let difference = live::reload::difference(there, &config, &[file]);
        let step = difference.unwrap().nics.remove(0);
        config.set_nics(&step.nics).unwrap();
        (config, step)
    }

    #[test]
    fn nics_that_came_half_go_again_also_with_the_next_manager() {
        let (before, _) = shape();
        let mut both = [before.clone(), before.clone()];
        let wire = "[[nic]]\nname = \"w\"\nkind = \"tap\"\n";
        let (config, step) = nics(&before, wire);
        // Only the first worker opens the interface.
        let opened = [(0, 0)];
        let settled = |closes: &[(usize, usize)]| {
            Some(Refitting {
                closes: closes.to_vec(),
                ..Refitting::default()
            })
        };
        become_so(&mut both, before.refits(&config, &step).unwrap());
        assert_eq!(both[0].refitting().unwrap().opens, opened);
        // A file that is begun anew has the way back, too.
        both[1] = serde_json::from_str(&written(&both[0])).unwrap();
        let there = both.clone();
        become_so(&mut both, ShapeChange::Refitted { back: true });
        assert_eq!(both[0].refitting, settled(&opened));
        // What was taken back already is not taken back once more, and the same is closed.
        become_so(&mut both, ShapeChange::Refitted { back: true });
        assert_eq!(both[0].refitting, settled(&opened));
        become_so(&mut both, ShapeChange::HasRefitted);
        assert_eq!(both[0], before);

        let mut both = there;
        become_so(&mut both, ShapeChange::Refitted { back: false });
        assert_eq!(both[0].refitting, settled(&[]));
        become_so(&mut both, ShapeChange::HasRefitted);
        let there = both[0].clone();
        assert_eq!(there.config().unwrap(), config);
        // Nothing is closed of what was to go and stays.
        let (config, step) = nics(&there, "");
        become_so(&mut both, there.refits(&config, &step).unwrap());
        assert_eq!(both[0].refitting().unwrap().closes, opened);
        become_so(&mut both, ShapeChange::Refitted { back: true });
        assert_eq!(both[0].refitting, settled(&[]));
        become_so(&mut both, ShapeChange::HasRefitted);
        assert_eq!(both[0], there);
    }

    #[test]
    fn a_full_machine_says_so_and_stays_as_it_is() {
        let (mut shape, mut config) = shape();
        let one = shape.live.as_ref().unwrap().first_slot;
        shape.domains.get_mut(&1).unwrap().window_slots = one + 10;
        let as_read = config.clone();
        let full = shape.admit(&mut config, &guest("c")).unwrap_err();
        assert!(full.contains("the machine is full"), "{full}");
        assert_eq!(config, as_read);
    }

    #[test]
    fn a_machine_without_a_file_stays_as_it_is() {
        let why = Shape::default().config().unwrap_err();
        assert_eq!(why, "its guests are those that it was started with");
    }

    #[test]
    fn a_driver_that_cannot_be_read_is_told_what_it_was_to_be_told() {
        let (shape, mut config) = shape();
        let mut written: serde_json::Value = serde_json::to_value(&shape).unwrap();
        written["domains"]["1"]["config"] = "{}".into();
        let shape: Shape = serde_json::from_value(written).unwrap();
        assert_eq!(shape.told(1), "{}");
        assert_eq!(shape.workers(), [0]);
        let why = shape.admit(&mut config, &guest("c")).unwrap_err();
        assert_eq!(why, "domain driver-1: its configuration makes no sense");
    }
}
