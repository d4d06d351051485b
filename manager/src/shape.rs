//! The machine as it has become: what it began with, and the guests that came and went since.
//!
//! What changes it is a [`ShapeChange`], which says as much as changes, however large the machine
//! is: the next manager hears of the changes, and makes them again.

mod apply;
mod change;

pub(crate) use change::{Refitting, ShapeChange};

use crate::windows::{self, Windows};
use abi::machine::{Device, Domain, Live, NetnsPlace, Program, Setting};
use change::Refits;
use config::domain::{DriverConfig, VifConfig};
use config::live::state::{Origin, Returning};
use config::live::{LiveConfig, NicsStep};
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
    /// Devices whose interfaces were removed, by their domains' places and their numbers there.
    lost: BTreeSet<(usize, usize)>,
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
    #[serde(default)]
    lost: BTreeSet<(usize, usize)>,
}

impl From<WrittenShape> for Shape {
    fn from(written: WrittenShape) -> Self {
        Self {
            coming: written.coming,
            leaving: written.leaving,
            refitting: written.refitting,
            origins: written.origins,
            returning: written.returning,
            lost: written.lost,
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
            lost: shape.lost,
        }
    }
}

/// A guest on its way in.
#[derive(Clone, Debug)]
pub(crate) struct Admitted {
    pub(crate) place: usize,
    pub(crate) name: String,
    /// The MAC of each of its interfaces.
    pub(crate) macs: Vec<String>,
    /// What may not be meant in its description.
    pub(crate) warnings: Vec<String>,
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

    /// Whether the interface of a device was removed, by its domain's place and its number there.
    pub(crate) fn is_lost(&self, device: (usize, usize)) -> bool {
        self.lost.contains(&device)
    }

    /// Those of the domain at a place.
    pub(crate) fn lost_devices(&self, place: usize) -> Vec<(usize, usize)> {
        let lost = self.lost.range((place, 0)..=(place, usize::MAX));
        lost.copied().collect()
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
            warnings: came.warnings,
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
    pub(crate) fn refits(&self, config: &LiveConfig, step: &NicsStep) -> Result<Refits, String> {
        let drivers = (0..).zip(&self.drivers);
        let workers = drivers.filter_map(|(worker, (&place, told))| {
            let domain = self.domains.get(&place)?;
            let refitted = config.refit(worker, domain, told, &step.come);
            Some(refitted.map(|refitted| (place, refitted)))
        });
        let workers = workers.collect::<Result<_, _>>()?;
        let nics = Some(step.nics.clone());
        Ok(Refits { nics, workers })
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
}

#[cfg(test)]
mod tests;
