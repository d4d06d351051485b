//! The machine as it has become: what it began with, and the guests that came and went since.

use crate::windows::{self, Windows};
use abi::machine::{Domain, Live, Program, Setting};
use config::domain::{DriverConfig, VifConfig};
use config::live::LiveConfig;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What the next manager has to know of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shape {
    /// By place, which a domain keeps as long as it is there.
    pub(crate) domains: BTreeMap<usize, Domain>,
    /// None: no guest comes or goes.
    pub(crate) live: Option<Live>,
    /// Guests that are not up yet. Who finds them without having begun with them takes them away.
    pub(crate) coming: BTreeSet<String>,
    /// Guests that are being taken away.
    pub(crate) leaving: BTreeSet<String>,
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

impl Shape {
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
        &mut self,
        config: &mut LiveConfig,
        guest: &Setting,
    ) -> Result<Admitted, String> {
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
        self.domains.insert(place, came.domain);
        self.coming.insert(name.clone());
        if let Some(live) = &mut self.live {
            live.attached.insert(name.clone(), came.guest);
        }
        Ok(Admitted {
            place,
            name,
            macs: came.macs.iter().map(ToString::to_string).collect(),
            vifs,
        })
    }

    /// Places of the workers of the driver domain.
    pub(crate) fn workers(&self) -> Vec<usize> {
        let drivers = self.domains.iter();
        let drivers = drivers.filter(|(_, domain)| domain.program == Program::Driver);
        drivers.map(|(place, _)| *place).collect()
    }

    /// The windows of all workers, and who has what of them.
    pub(crate) fn windows(&self) -> Result<Windows, String> {
        let first = self.live.as_ref().map_or(0, |live| live.first_slot);
        let mut of = BTreeMap::new();
        for worker in self.workers() {
            let domain = self.domains.get(&worker);
            let end = domain.map_or(0, |domain| domain.window_slots);
            of.insert(worker, (self.driver(worker)?, end));
        }
        Ok(Windows::new(first, of))
    }

    /// What a worker is told at its start.
    fn driver(&self, worker: usize) -> Result<DriverConfig, String> {
        let domain = self
            .domains
            .get(&worker)
            .ok_or("there is no driver domain")?;
        let wrong = |error| format!("domain {}: its configuration: {error}", domain.name);
        serde_json::from_str(&domain.config).map_err(wrong)
    }

    fn edit(&mut self, worker: usize, edit: impl FnOnce(&mut DriverConfig)) -> Result<(), String> {
        let mut driver = self.driver(worker)?;
        edit(&mut driver);
        let text = serde_json::to_string(&driver).map_err(|error| error.to_string())?;
        if let Some(domain) = self.domains.get_mut(&worker) {
            domain.config = text;
        }
        Ok(())
    }

    /// A worker serves these interfaces, too, also when it is started again.
    pub(crate) fn serve(&mut self, worker: usize, vifs: &[VifConfig]) -> Result<(), String> {
        self.edit(worker, |driver| driver.vifs.extend_from_slice(vifs))
    }

    /// Interfaces that are served have the rules and the limits of these from now on. What is
    /// to be told, and the worker that it is told.
    pub(crate) fn change(&mut self, vifs: &[VifConfig]) -> Result<Vec<(usize, VifConfig)>, String> {
        let mut told = Vec::new();
        for worker in self.workers() {
            self.edit(worker, |driver| {
                for vif in &mut driver.vifs {
                    if let Some(now) = vifs.iter().find(|now| now.name == vif.name) {
                        vif.change_to(now);
                        told.push((worker, vif.clone()));
                    }
                }
            })?;
        }
        Ok(told)
    }

    /// A guest is described so from now on.
    pub(crate) fn describe(&mut self, name: String, guest: Setting) {
        if let Some(live) = &mut self.live {
            let of = match live.attached.contains_key(&name) {
                true => &mut live.attached,
                false => &mut live.changed,
            };
            of.insert(name, guest);
        }
    }

    /// The worker's connections of a guest's interfaces.
    pub(crate) fn served(&self, worker: usize, name: &str) -> Vec<u32> {
        let Ok(driver) = self.driver(worker) else {
            return Vec::new();
        };
        let vifs = driver.vifs.iter().filter(|vif| windows::is_of(vif, name));
        vifs.map(|vif| vif.conn).collect()
    }

    /// A worker does not serve the interface of a connection any more.
    pub(crate) fn unserve(&mut self, worker: usize, conn: u32) -> Result<(), String> {
        self.edit(worker, |driver| driver.vifs.retain(|vif| vif.conn != conn))
    }

    /// Nothing is left of a guest.
    pub(crate) fn release(&mut self, name: &str) {
        if let Some(place) = self.place(name) {
            self.domains.remove(&place);
        }
        self.coming.remove(name);
        self.leaving.remove(name);
        if let Some(live) = &mut self.live {
            live.of_files.remove(name);
            live.changed.remove(name);
            if live.attached.remove(name).is_none() {
                live.detached.insert(name.to_owned());
            }
        }
    }

    /// Files that were read after the start name these guests: they are these files' from now on,
    /// however they came.
    pub(crate) fn adopt(&mut self, guests: impl IntoIterator<Item = String>) {
        if let Some(live) = &mut self.live {
            live.of_files.extend(guests);
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
        let shape = Shape {
            domains: machine.domains.into_iter().enumerate().collect(),
            live: machine.live,
            ..Shape::default()
        };
        let config = shape.config().unwrap();
        (shape, config)
    }

    fn guest(name: &str) -> Setting {
        let json = format!(r#"{{"name":"{name}","vif":[{{"endpoint":"echo"}}]}}"#);
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn who_came_and_went_leaves_the_machine_as_it_was() {
        let (mut shape, mut config) = shape();
        let before = shape.clone();
        assert_eq!(shape.workers(), [0, 1]);
        for name in ["a", "b"] {
            let came = shape.admit(&mut config, &guest(name)).unwrap();
            assert!(shape.is_changing(name));
            for (worker, mut vifs) in came.vifs {
                vifs[0].conn = came.place as u32;
                shape.serve(worker, &vifs).unwrap();
            }
        }
        assert_eq!((shape.place("a"), shape.place("b")), (Some(3), Some(4)));
        // Another manager reads the same, and goes on alike.
        let text = serde_json::to_vec(&shape).unwrap();
        assert_eq!(serde_json::from_slice::<Shape>(&text).unwrap(), shape);
        assert_eq!(shape.config().unwrap(), config);
        // `a-1-0` is no interface of `a`'s.
        assert_eq!(shape.served(0, "a"), [3]);
        for name in ["a", "b"] {
            for worker in shape.workers() {
                let [conn] = shape.served(worker, name)[..] else {
                    panic!("one interface");
                };
                shape.unserve(worker, conn).unwrap();
                assert!(shape.served(worker, name).is_empty());
            }
            shape.release(name);
            config.remove(name);
        }
        assert_eq!(shape, before);
        // A place that is free is taken again.
        let came = shape.admit(&mut config, &guest("c")).unwrap();
        assert_eq!(came.place, 3);
    }

    #[test]
    fn a_full_machine_says_so_and_stays_as_it_is() {
        let (mut shape, mut config) = shape();
        let driver = shape.domains.get_mut(&1).unwrap();
        let one = shape.live.as_ref().unwrap().first_slot;
        driver.window_slots = one + 10;
        let (before, as_read) = (shape.clone(), config.clone());
        let full = shape.admit(&mut config, &guest("c")).unwrap_err();
        assert!(full.contains("the machine is full"), "{full}");
        assert_eq!((shape, config), (before, as_read));
    }

    #[test]
    fn a_machine_without_a_file_stays_as_it_is() {
        let why = Shape::default().config().unwrap_err();
        assert_eq!(why, "its guests are those that it was started with");
    }
}
