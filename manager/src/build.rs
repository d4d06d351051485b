//! From a description to running domains: the core builds them, netd opens their devices.

use crate::core::{Core, Done, Refusal};
use crate::shape::lasts;
use crate::world::World;
use abi::DomId;
use abi::core::{Ask, CPU_WORDS, NewDomain, NewSocket, Text};
use abi::layout::fd::DEVICES_MAX;
use abi::machine::{Device, Domain, NetnsPlace, OpenedNotes, Opening};
use shmem::time::monotonic_ns;
use std::os::fd::OwnedFd;

/// Bytes of what netd says of a device.
const NOTES_MAX: usize = 64 << 10;

/// A device that netd was asked to open.
#[derive(Debug)]
pub(crate) struct UnderWay {
    /// The domain that it is for.
    name: String,
    /// The network namespace that it names.
    netns: Option<String>,
    /// Of the answer.
    token: u32,
}

/// The number of a domain's device, which is the same for every manager.
fn unit(place: usize, device: usize) -> u32 {
    place as u32 * DEVICES_MAX + device as u32
}

/// Builds and starts everything; the consoles, by place in the machine.
pub(crate) fn build(core: &mut Core, world: &mut World) -> Result<Vec<OwnedFd>, Refusal> {
    let opened = open_all(core, world)?;
    // A device may be over another domain's memory: all memory first.
    let places: Vec<usize> = world.shape().domains().keys().copied().collect();
    for place in &places {
        create(core, world, *place, None)?;
    }
    for connection in world.connections.clone() {
        let end = |name: &str| {
            let found = world.find(name);
            found.ok_or_else(|| format!("a connection names no domain: {name}"))
        };
        let connect = Ask::Connect {
            backend: end(&connection.backend)?,
            frontend: end(&connection.frontend)?,
            handle: connection.handle,
        };
        core.ask(connect, &[])?;
    }
    await_opened(core, world, opened)?;
    let mut consoles = Vec::new();
    for place in &places {
        give(core, world, *place, 0, &mut 0)?;
    }
    for place in &places {
        consoles.push(start(core, world, *place)?);
    }
    Ok(consoles)
}

/// Waits until all of these devices are open, or are known not to be.
pub(crate) fn await_opened(
    core: &mut Core,
    world: &mut World,
    opened: Vec<UnderWay>,
) -> Result<(), Refusal> {
    let mut refused = Ok(());
    for UnderWay { name, netns, token } in opened {
        let done = core.await_answer(token);
        match done.and_then(|done| notes(&done)) {
            Ok(notes) => {
                world.missing.extend(notes.lacks);
                if let (Some(netns), Some(place)) = (netns, notes.place) {
                    world.note_place(&name, netns, place);
                }
            }
            // The first one says why; none of the others is left under way.
            Err(refusal) => refused = refused.and(Err(refusal.of(&format!("domain {name}")))),
        }
    }
    refused
}

fn notes(done: &Done) -> Result<OpenedNotes, Refusal> {
    let notes = serde_json::from_slice(&done.bytes(NOTES_MAX)?);
    Ok(notes.map_err(|error| format!("what netd says of it makes no sense: {error}"))?)
}

/// The devices of the domain at a place of the machine that outlive it.
pub(crate) fn lasting_units(world: &World, place: usize) -> Vec<u32> {
    let lasting = world.domain(place).into_iter().flat_map(lasting);
    lasting.map(|(number, _)| unit(place, number)).collect()
}

/// The place of the domain that a device was opened for first, and its number there.
pub(crate) fn place_of(unit: u32) -> (usize, usize) {
    ((unit / DEVICES_MAX) as usize, (unit % DEVICES_MAX) as usize)
}

/// A domain's devices that outlive it, with their numbers.
fn lasting(domain: &Domain) -> impl Iterator<Item = (usize, &Device)> {
    let numbered = domain.devices.iter().enumerate();
    numbered.filter(|(_, device)| lasts(device))
}

/// Asks netd to open every device that outlives its domains, and does not wait.
fn open_all(core: &mut Core, world: &World) -> Result<Vec<UnderWay>, Refusal> {
    let mut opened = Vec::new();
    for place in world.shape().domains().keys() {
        opened.extend(open(core, world, *place)?);
    }
    Ok(opened)
}

/// The same for the domain at a place.
pub(crate) fn open(core: &mut Core, world: &World, place: usize) -> Result<Vec<UnderWay>, Refusal> {
    let numbers = lasting(domain(world, place)?).map(|(number, _)| (place, number));
    open_some(core, world, numbers)
}

/// Closes a device, by its domain's place and its number there.
pub(crate) fn close(core: &mut Core, (place, number): (usize, usize)) {
    let unit = unit(place, number);
    let _ = core.ask(Ask::Close { unit }, &[]);
}

/// As [`open`], of devices by their domains' places and their numbers there.
pub(crate) fn open_some(
    core: &mut Core,
    world: &World,
    devices: impl IntoIterator<Item = (usize, usize)>,
) -> Result<Vec<UnderWay>, Refusal> {
    let mut opened = Vec::new();
    for (place, number) in devices {
        let domain = domain(world, place)?;
        let Some(device) = domain.devices.get(number) else {
            continue;
        };
        let unit = unit(place, number);
        let mut device = device.clone();
        if let Device::Tap(tap) = &mut device
            && let Some(owner) = &mut tap.persistent
        {
            // A file that a guest is described by does not know under which name the machine runs.
            owner.clone_from(&world.name);
        }
        let netns = match &device {
            Device::Tap(tap) => tap.netns.clone(),
            _ => None,
        };
        let name = domain.name.clone();
        let expected = netns.as_ref();
        let expected = expected.and_then(|netns| world.shape().expected(&name, netns));
        let description = describe(&device, 0, expected)?;
        let token = core.post_with(Ask::Open { unit }, &description)?;
        opened.push(UnderWay { name, netns, token });
    }
    Ok(opened)
}

/// Opens the devices of the domain at a place again whose interfaces were removed. The domain does
/// without those that cannot be opened; returns why, a line each.
///
/// # Errors
/// If `may_wait`: a device cannot be opened yet. The kernel may not have released all of the one
/// before, its address translation above all.
pub(crate) fn reopen(
    core: &mut Core,
    world: &mut World,
    place: usize,
    may_wait: bool,
) -> Result<Vec<String>, Refusal> {
    let mut lines = Vec::new();
    for device in world.shape().lost_devices(place) {
        close(core, device);
        let opened = open_some(core, world, [device]);
        match opened.and_then(|opened| await_opened(core, world, opened)) {
            Ok(()) => world.regain(device),
            Err(Refusal { why, .. }) if may_wait => return Err(Refusal { why, is_busy: true }),
            Err(Refusal { why, .. }) => lines.push(format!("goes without an interface: {why}")),
        }
    }
    Ok(lines)
}

fn describe(device: &Device, life: u64, expected: Option<NetnsPlace>) -> Result<Vec<u8>, Refusal> {
    let opening = Opening {
        device: device.clone(),
        life,
        switched_on: Vec::new(),
        namespace: None,
        expected,
    };
    Ok(serde_json::to_vec(&opening).map_err(|e| e.to_string())?)
}

/// Builds a domain, perhaps in the place of one of which nothing is left.
pub(crate) fn create(
    core: &mut Core,
    world: &mut World,
    place: usize,
    replaces: Option<DomId>,
) -> Result<DomId, Refusal> {
    let domain = domain(world, place)?.clone();
    let new = NewDomain {
        replaces,
        name: Text::cut(&domain.name),
        program: domain.program,
        frames: domain.frames,
        grant_entries: domain.grant_entries,
        window_slots: domain.window_slots,
        collateral: domain.collateral,
        weight: domain.weight,
        devices: domain.devices.len() as u32,
        cpus: cpus(&domain)?,
        tsc_hz: shmem::time::tsc_hz(),
    };
    let done = core.ask_with(
        Ask::Create { domain: new },
        world.shape().told(place).as_bytes(),
    )?;
    let id = DomId(u16::try_from(done.value).map_err(|e| e.to_string())?);
    world.set(place, id);
    Ok(id)
}

fn domain(world: &World, place: usize) -> Result<&Domain, Refusal> {
    let found = world.domain(place);
    found.ok_or_else(|| format!("the machine has no domain {place}").into())
}

fn cpus(domain: &Domain) -> Result<[u64; CPU_WORDS], Refusal> {
    let mut words = [0; CPU_WORDS];
    for cpu in &domain.cpus {
        let word = words.get_mut(cpu / 64);
        let word = word.ok_or_else(|| format!("domain {}: there is no CPU {cpu}", domain.name))?;
        *word |= 1 << (cpu % 64);
    }
    Ok(words)
}

/// Gives the domain at a place its devices, from number `given` on; `life` domains had them before.
/// A device that is busy can be asked for again.
pub(crate) fn give(
    core: &mut Core,
    world: &World,
    place: usize,
    life: u64,
    given: &mut usize,
) -> Result<(), Refusal> {
    let domain = domain(world, place)?;
    let id = world
        .id(place)
        .ok_or("the domain was not built".to_owned())?;
    let what = format!("domain {}", domain.name);
    while let Some(device) = domain.devices.get(*given) {
        let gift = Gift {
            core,
            world,
            id,
            place,
            life,
        };
        gift.give(*given, device)
            .map_err(|refusal| refusal.of(&what))?;
        *given += 1;
    }
    Ok(())
}

/// One device for one domain.
struct Gift<'a> {
    core: &'a mut Core,
    world: &'a World,
    id: DomId,
    place: usize,
    life: u64,
}

impl Gift<'_> {
    fn give(self, number: usize, device: &Device) -> Result<(), Refusal> {
        let own = unit(self.place, number);
        match device {
            Device::Tap(tap) => self.descriptor(own, 0, tap.queues > 0),
            Device::TapQueue => {
                let (tap, queue) =
                    self.before(number, |device| matches!(device, Device::Tap(_)))?;
                self.descriptor(tap, queue, false)
            }
            Device::TapShare { .. } => {
                let (tap, share) = self.share(number, device)?;
                self.descriptor(tap, share, false)
            }
            Device::Xdp(_) if self.world.shape().is_lost(place_of(own)) => self.nothing(),
            Device::Xdp(spec) => {
                let socket = NewSocket {
                    domain: self.id,
                    on: own,
                    of: None,
                    first_frame: spec.first_frame,
                    frames: spec.frames,
                    chunk_bytes: spec.chunk_bytes,
                    entries: spec.entries,
                    rings_slot: spec.rings_slot,
                };
                self.core.ask(Ask::GiveSocket { socket }, &[]).map(drop)
            }
            Device::XdpQueue(spec) => {
                let is_xdp = |device: &Device| matches!(device, Device::Xdp(_));
                let (wire, _) = self.before(number, is_xdp)?;
                let of = self.world.find(&spec.guest);
                let gone = |id: &DomId| self.world.stage(*id) == Some(abi::core::Stage::Gone);
                // The socket would lie over the memory of a guest that is gone: there is none.
                let of = of.filter(|id| !gone(id) && !self.world.shape().is_lost(place_of(wire)));
                let Some(of) = of else {
                    return self.nothing();
                };
                let socket = NewSocket {
                    domain: self.id,
                    on: wire,
                    of: Some(of),
                    first_frame: spec.first_frame,
                    frames: spec.frames,
                    chunk_bytes: spec.chunk_bytes,
                    entries: spec.entries,
                    rings_slot: spec.rings_slot,
                };
                let queue = describe(device, self.life, None)?;
                let give = Ask::GiveSocket { socket };
                self.core.ask_with(give, &queue).map(drop)
            }
            Device::Read(_) | Device::Write(_) => self.file(own, device),
            Device::Nothing => self.nothing(),
        }
    }

    /// The last device before another that is of a kind, and how many queues there are from there
    /// on, if that other one is a queue.
    fn before(&self, number: usize, is: impl Fn(&Device) -> bool) -> Result<(u32, u32), Refusal> {
        let devices = &domain(self.world, self.place)?.devices;
        let before = devices.get(..number).unwrap_or_default();
        let found = before.iter().rposition(is);
        let found = found.ok_or("a queue without its interface before it".to_owned())?;
        let between = before.iter().skip(found);
        let queues = between.filter(|device| matches!(device, Device::TapQueue));
        Ok((unit(self.place, found), 1 + queues.count() as u32))
    }

    /// The TAP that a shared queue is of, which is before it in the machine, and its place there.
    fn share(&self, number: usize, wanted: &Device) -> Result<(u32, u32), Refusal> {
        let Device::TapShare { ifname, netns } = wanted else {
            return Err("this is no shared queue".to_owned().into());
        };
        let domains = self.world.shape().domains().iter();
        let all = domains.flat_map(|(&place, domain)| {
            let devices = domain.devices.iter().enumerate();
            devices.map(move |(number, device)| (place, number, device))
        });
        let mut found = None;
        for (place, at, device) in all {
            if (place, at) >= (self.place, number) {
                break;
            }
            match device {
                Device::Tap(tap) if tap.ifname == *ifname && tap.netns == *netns => {
                    found = Some((unit(place, at), 1 + tap.queues));
                }
                other if other == wanted => {
                    if let Some((_, share)) = &mut found {
                        *share += 1;
                    }
                }
                _ => {}
            }
        }
        found.ok_or_else(|| format!("the TAP {ifname} has no queue left").into())
    }

    fn nothing(self) -> Result<(), Refusal> {
        let nothing = Ask::GiveNothing { domain: self.id };
        self.core.ask(nothing, &[]).map(drop)
    }

    fn descriptor(self, unit: u32, place: u32, told: bool) -> Result<(), Refusal> {
        if self.world.shape().is_lost(place_of(unit)) {
            return self.nothing();
        }
        let give = Ask::Give {
            domain: self.id,
            unit,
            place,
            told,
        };
        self.core.ask(give, &[]).map(drop)
    }

    /// A file is opened anew for each life, and only the domain keeps it.
    fn file(self, unit: u32, device: &Device) -> Result<(), Refusal> {
        let description = describe(device, self.life, None)?;
        self.core.ask_with(Ask::Open { unit }, &description)?;
        let give = Ask::Give {
            domain: self.id,
            unit,
            place: 0,
            told: false,
        };
        let given = self.core.ask(give, &[]).map(drop);
        self.core.ask(Ask::Close { unit }, &[])?;
        given
    }
}

/// Starts the domain at a place; its console.
pub(crate) fn start(core: &mut Core, world: &World, place: usize) -> Result<OwnedFd, Refusal> {
    let domain = world
        .id(place)
        .ok_or("the domain was not built".to_owned())?;
    let done = core.ask(Ask::Start { domain }, &[])?;
    let fds = <[OwnedFd; 2]>::try_from(done.fds);
    let [console, mailbox] = fds.map_err(|_| "a domain without console and mailbox".to_owned())?;
    core.meet(domain, mailbox, monotonic_ns());
    Ok(console)
}
