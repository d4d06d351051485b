//! Requests to the core and netd for one domain: build, connect, devices, start, end.

use crate::core::{CoreAnswer, CoreError, CoreLink};
use crate::machine_state::MachineState;
use crate::spec::outlives_domain;
use abi::DomId;
use abi::core::{CPU_WORDS, CoreRequest, NewDomain, NewSocket, Stage, Text};
use abi::layout::fd::DEVICES_MAX;
use abi::machine::{self, Connection, Device, DomainSpec, NetnsId, OpenedNotes};
use shmem::time::monotonic_ns;
use std::os::fd::OwnedFd;

/// Bytes of netd's notes on a device.
const NOTES_MAX: usize = 64 << 10;

/// A device: the place of its domain in the machine, and its number within the domain.
pub(crate) type DeviceId = (usize, usize);

/// A device that netd is opening.
#[derive(Debug)]
pub(crate) struct PendingOpen {
    pub(crate) device: DeviceId,
    /// The domain's name.
    name: String,
    /// The network namespace in the device's description.
    netns: Option<String>,
    /// The token of the answer.
    pub(crate) token: u32,
}

#[cfg(test)]
impl PendingOpen {
    /// Returns the pending opening of a device that the answer to a token completes.
    pub(crate) fn of_token(device: DeviceId, token: u32) -> Self {
        Self {
            device,
            name: String::new(),
            netns: None,
            token,
        }
    }
}

/// A device that netd is opening for one process.
#[derive(Debug)]
pub(crate) struct PendingGive {
    /// The token of the answer.
    pub(crate) token: u32,
    /// The number of the opened file, which the manager then gives to the domain. `None`: a socket,
    /// which the core gives to the domain directly.
    file: Option<u32>,
    /// Whether a restarted domain can start without the device.
    pub(crate) is_dispensable: bool,
}

impl PendingGive {
    /// Returns a socket that the domain receives with the core's answer to a token.
    pub(crate) fn of_token(token: u32) -> Self {
        Self {
            token,
            file: None,
            is_dispensable: false,
        }
    }
}

/// Returns the number of a domain's device, which is the same for every manager.
fn dev_number(place: usize, device: usize) -> u32 {
    place as u32 * DEVICES_MAX + device as u32
}

/// Makes a connection. Returns the number by which the backend knows it.
pub(crate) fn connect(
    core: &mut CoreLink,
    state: &MachineState,
    connection: &Connection,
) -> Result<u32, CoreError> {
    let end = |name: &str| state.find(name).ok_or(format!("{name} was not built"));
    let connect = CoreRequest::Connect {
        backend: end(&connection.backend)?,
        frontend: end(&connection.frontend)?,
        handle: connection.handle,
    };
    let done = core.request(connect, &[])?;
    Ok((done.value >> 32) as u32)
}

/// Takes the answers about these devices that have arrived from netd. Returns the devices that netd
/// refused to open.
pub(crate) fn take_opened(
    core: &mut CoreLink,
    state: &mut MachineState,
    opening: &mut Vec<PendingOpen>,
) -> Vec<(DeviceId, CoreError)> {
    let mut refused = Vec::new();
    opening.retain(|pending| {
        let Some(done) = core.answer(pending.token) else {
            return true;
        };
        match done.and_then(|done| notes(&done)) {
            Ok(notes) => {
                state.mark_lost(pending.device, false);
                state.add_missing(notes.missing_features);
                if let (Some(netns), Some(place)) = (&pending.netns, notes.namespace) {
                    state.edit_guest(&pending.name, |guest| {
                        let origin = guest.origin.as_mut();
                        origin.map(|origin| origin.places.insert(netns.clone(), place));
                    });
                }
            }
            Err(refusal) => {
                let what = format!("domain {}", pending.name);
                refused.push((pending.device, refusal.of(&what)));
            }
        }
        false
    });
    refused
}

fn notes(done: &CoreAnswer) -> Result<OpenedNotes, CoreError> {
    let notes = serde_json::from_slice(&done.bytes(NOTES_MAX)?);
    Ok(notes.map_err(|error| format!("netd's notes on it are invalid: {error}"))?)
}

/// Returns the devices that outlive the domain at a place.
pub(crate) fn lasting_devices(state: &MachineState, place: usize) -> Vec<(usize, usize)> {
    let devices = state.domain(place).into_iter();
    let devices = devices.flat_map(|domain| domain.devices.iter().enumerate());
    let lasting = devices.filter(|(_, device)| outlives_domain(device));
    lasting.map(|(number, _)| (place, number)).collect()
}

/// Returns the place of the domain that a device belongs to, and the device's number there.
pub(crate) fn place_of_dev(dev: u32) -> (usize, usize) {
    ((dev / DEVICES_MAX) as usize, (dev % DEVICES_MAX) as usize)
}

/// Closes a device without waiting for the answer, which is delayed while netd is still opening the
/// device. The core carries out later requests for the device after this one.
pub(crate) fn close(core: &mut CoreLink, (place, number): DeviceId) {
    let dev = dev_number(place, number);
    core.post(CoreRequest::Close { dev }, &[]);
}

/// Closes the devices that outlive the domain at a place.
pub(crate) fn close_all(core: &mut CoreLink, state: &MachineState, place: usize) {
    for device in lasting_devices(state, place) {
        close(core, device);
    }
}

/// Asks netd to open devices and does not wait for the answers.
pub(crate) fn open(
    core: &mut CoreLink,
    state: &MachineState,
    devices: impl IntoIterator<Item = (usize, usize)>,
) -> Result<Vec<PendingOpen>, CoreError> {
    let mut opened = Vec::new();
    for (place, number) in devices {
        let domain = domain(state, place)?;
        let Some(device) = domain.devices.get(number) else {
            continue;
        };
        let dev = dev_number(place, number);
        let mut device = device.clone();
        if let Device::Tap(tap) = &mut device
            && let Some(owner) = &mut tap.persistent
        {
            // A guest's section does not contain the machine's name.
            owner.clone_from(&state.name);
        }
        let netns = match &device {
            Device::Tap(tap) => tap.netns.clone(),
            _ => None,
        };
        let name = domain.name.clone();
        let expected = netns.as_ref();
        let expected = expected.and_then(|netns| state.spec().expected(&name, netns));
        let description = describe(&device, 0, expected)?;
        let token = core.post_with(CoreRequest::Open { dev }, &description)?;
        opened.push(PendingOpen {
            device: (place, number),
            name,
            netns,
            token,
        });
    }
    Ok(opened)
}

fn describe(device: &Device, life: u64, expected: Option<NetnsId>) -> Result<Vec<u8>, CoreError> {
    let opening = machine::OpenRequest {
        device: device.clone(),
        life,
        switched_on: Vec::new(),
        namespace: None,
        expected,
    };
    Ok(serde_json::to_vec(&opening).map_err(|e| e.to_string())?)
}

/// Builds a domain. With `replaces`, the new domain replaces that dead domain and inherits its
/// connections.
pub(crate) fn create(
    core: &mut CoreLink,
    state: &mut MachineState,
    place: usize,
    replaces: Option<DomId>,
) -> Result<DomId, CoreError> {
    let domain = domain(state, place)?.clone();
    let new = NewDomain {
        replaces,
        name: Text::truncated(&domain.name),
        program: domain.program,
        frames: domain.frames,
        grant_entries: domain.grant_entries,
        window_slots: domain.window_slots,
        collateral: domain.collateral,
        weight: domain.weight,
        devices: domain.devices.len() as u32,
        foreign_pages: domain.foreign_pages,
        cpus: cpus(&domain)?,
        tsc_hz: shmem::time::tsc_hz(),
    };
    let done = core.request_with(
        CoreRequest::Create { domain: new },
        state.spec().config_text(place).as_bytes(),
    )?;
    let id = DomId(u16::try_from(done.value).map_err(|e| e.to_string())?);
    state.set_id(place, id);
    Ok(id)
}

fn domain(state: &MachineState, place: usize) -> Result<&DomainSpec, CoreError> {
    let found = state.domain(place);
    found.ok_or_else(|| format!("the machine has no domain {place}").into())
}

fn cpus(domain: &DomainSpec) -> Result<[u64; CPU_WORDS], CoreError> {
    let mut words = [0; CPU_WORDS];
    for cpu in &domain.cpus {
        let word = words.get_mut(cpu / 64);
        let word =
            word.ok_or_else(|| format!("domain {}: CPU {cpu} does not exist", domain.name))?;
        *word |= 1 << (cpu % 64);
    }
    Ok(words)
}

/// Gives the domain at a place its devices, starting at number `given`. Stops at the first device
/// that netd has to open, and returns it. `life` is the number of earlier processes that had the
/// devices. After a refusal as busy, the caller repeats the call.
pub(crate) fn give(
    core: &mut CoreLink,
    state: &MachineState,
    place: usize,
    life: u64,
    given: &mut usize,
) -> Result<Option<PendingGive>, CoreError> {
    let domain = domain(state, place)?;
    let id = state
        .id(place)
        .ok_or("the domain was not built".to_owned())?;
    let what = format!("domain {}", domain.name);
    while let Some(device) = domain.devices.get(*given) {
        let gift = DeviceAssignment {
            core,
            state,
            id,
            place,
            life,
        };
        let pending = gift.give(*given, device);
        let pending = pending.map_err(|refusal| refusal.of(&what))?;
        if pending.is_some() {
            return Ok(pending);
        }
        *given += 1;
    }
    Ok(None)
}

/// Takes the answer about a device of the domain at a place. Returns `None` if it has not arrived.
pub(crate) fn take_given(
    core: &mut CoreLink,
    state: &MachineState,
    place: usize,
    pending: &PendingGive,
) -> Option<Result<(), CoreError>> {
    let mut given = core.answer(pending.token)?;
    if let (Ok(_), Some(dev), Some(domain)) = (&given, pending.file, state.id(place)) {
        let give = CoreRequest::GiveDevice {
            domain,
            dev,
            place: 0,
            controls: false,
        };
        given = core.request(give, &[]);
        // The next process needs a separate descriptor.
        close(core, place_of_dev(dev));
    }
    let what = format!("domain {}", state.name_of(place));
    Some(given.map(drop).map_err(|refusal| refusal.of(&what)))
}

/// Notifies the core that the domain at a place runs without a device that netd refused.
pub(crate) fn give_nothing(
    core: &mut CoreLink,
    state: &MachineState,
    place: usize,
) -> Result<(), CoreError> {
    let domain = state.id(place);
    let domain = domain.ok_or("the domain was not built".to_owned())?;
    core.request(CoreRequest::SkipDevice { domain }, &[])
        .map(drop)
}

/// A device that netd has to open first, or `None` if the domain already has the device.
type AssignResult = Result<Option<PendingGive>, CoreError>;

/// Assignment of devices to one domain.
struct DeviceAssignment<'a> {
    core: &'a mut CoreLink,
    state: &'a MachineState,
    id: DomId,
    place: usize,
    life: u64,
}

impl DeviceAssignment<'_> {
    /// Asks netd to open a PCI device, or an AF_XDP socket on the device `on`. The frames of a
    /// dedicated queue belong to the domain `of`.
    fn socket(self, device: &Device, on: u32, of: Option<DomId>) -> AssignResult {
        let (first_frame, frames, entries, rings_slot, chunk_bytes) = match device {
            Device::Xdp(d) => (
                d.first_frame,
                d.frames,
                d.entries,
                d.rings_slot,
                d.chunk_bytes,
            ),
            Device::XdpQueue(d) => (
                d.first_frame,
                d.frames,
                d.entries,
                d.rings_slot,
                d.chunk_bytes,
            ),
            Device::Pci(d) => (d.first_frame, d.frames, d.entries, d.registers_slot, 0),
            _ => return Err("this device has no rings".to_owned().into()),
        };
        let socket = NewSocket {
            domain: self.id,
            on,
            frames_owner: of,
            first_frame,
            frames,
            chunk_bytes,
            entries,
            rings_slot,
            is_pci: matches!(device, Device::Pci(_)),
        };
        let give = CoreRequest::GiveSocket { socket };
        let token = match of {
            Some(_) => self
                .core
                .post_with(give, &describe(device, self.life, None)?)?,
            None => self.core.post(give, &[]),
        };
        Ok(Some(PendingGive {
            is_dispensable: socket.is_pci,
            ..PendingGive::of_token(token)
        }))
    }

    fn give(self, number: usize, device: &Device) -> AssignResult {
        let own = dev_number(self.place, number);
        match device {
            Device::Tap(tap) => self.descriptor(own, 0, tap.queues > 0),
            Device::VhostUser(_) => self.descriptor(own, 0, false),
            Device::TapQueue => {
                let (tap, queue) =
                    self.before(number, |device| matches!(device, Device::Tap(_)))?;
                self.descriptor(tap, queue, false)
            }
            Device::TapShare { .. } => {
                let (tap, share) = self.share(number, device)?;
                self.descriptor(tap, share, false)
            }
            Device::Xdp(_) if self.state.spec().is_lost(place_of_dev(own)) => self.nothing(),
            Device::Xdp(_) | Device::Pci(_) => self.socket(device, own, None),
            Device::XdpQueue(spec) => {
                let is_xdp = |device: &Device| matches!(device, Device::Xdp(_));
                let (wire, _) = self.before(number, is_xdp)?;
                let guest = self.state.place(&spec.guest);
                let has_ended = |place| self.state.stage(place) == Some(Stage::TornDown);
                // Without the guest, no memory exists for the socket's frames.
                let guest = guest.filter(|place| {
                    !has_ended(*place) && !self.state.spec().is_lost(place_of_dev(wire))
                });
                match guest.and_then(|place| self.state.id(place)) {
                    Some(id) => self.socket(device, wire, Some(id)),
                    None => self.nothing(),
                }
            }
            Device::Read(_) | Device::Write(_) => self.file(own, device),
            Device::Nothing => self.nothing(),
        }
    }

    /// Returns the number of the last device before the queue `number` for which `is` returns true,
    /// and the queue's number on that device.
    fn before(&self, number: usize, is: impl Fn(&Device) -> bool) -> Result<(u32, u32), CoreError> {
        let devices = &domain(self.state, self.place)?.devices;
        let before = devices.get(..number).unwrap_or_default();
        let found = before.iter().rposition(is);
        let found =
            found.ok_or("a queue's interface is not configured before the queue".to_owned())?;
        let between = before.iter().skip(found);
        let queues = between.filter(|device| matches!(device, Device::TapQueue));
        Ok((dev_number(self.place, found), 1 + queues.count() as u32))
    }

    /// Returns the number of the TAP to which a shared queue belongs, and the queue's number on
    /// that TAP.
    fn share(&self, number: usize, wanted: &Device) -> Result<(u32, u32), CoreError> {
        let Device::TapShare { ifname, netns } = wanted else {
            return Err("this device is not a shared queue".to_owned().into());
        };
        let domains = self.state.spec().domains().iter();
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
                    found = Some((dev_number(place, at), 1 + tap.queues));
                }
                other if other == wanted => {
                    if let Some((_, share)) = &mut found {
                        *share += 1;
                    }
                }
                _ => {}
            }
        }
        found.ok_or_else(|| format!("the TAP {ifname} has no free queue").into())
    }

    fn nothing(self) -> AssignResult {
        give_nothing(self.core, self.state, self.place).map(|()| None)
    }

    fn descriptor(self, dev: u32, place: u32, controls: bool) -> AssignResult {
        if self.state.spec().is_lost(place_of_dev(dev)) {
            return self.nothing();
        }
        let give = CoreRequest::GiveDevice {
            domain: self.id,
            dev,
            place,
            controls,
        };
        self.core.request(give, &[]).map(|_| None)
    }

    /// Asks netd to open a file: each process needs a separate descriptor.
    fn file(self, dev: u32, device: &Device) -> AssignResult {
        let description = describe(device, self.life, None)?;
        // An earlier manager may have requested the file, and exited before it requested its close.
        close(self.core, place_of_dev(dev));
        let open = CoreRequest::Open { dev };
        let token = self.core.post_with(open, &description)?;
        let file = Some(dev);
        Ok(Some(PendingGive {
            file,
            ..PendingGive::of_token(token)
        }))
    }
}

/// Kills the process at a place, or releases the resources that were built for a process. Ignores
/// refusals, which mean that neither a process nor resources exist.
pub(crate) fn end(core: &mut CoreLink, state: &MachineState, place: usize, why: &str) {
    let Some(domain) = state.id(place) else {
        return;
    };
    let why = match why {
        "" => Text::truncated("its manager has exited"),
        why => Text::truncated(why),
    };
    let stage = state.stage(place);
    if matches!(stage, Some(Stage::Starting | Stage::Running) | None) {
        let why = why.clone();
        let _ = core.request(CoreRequest::Kill { domain, why }, &[]);
    }
    if matches!(stage, Some(Stage::Built) | None) {
        let _ = core.request(CoreRequest::Abandon { domain, why }, &[]);
    }
}

/// Starts the domain at a place. Returns its console.
pub(crate) fn start(
    core: &mut CoreLink,
    state: &mut MachineState,
    place: usize,
) -> Result<OwnedFd, CoreError> {
    let domain = state
        .id(place)
        .ok_or("the domain was not built".to_owned())?;
    let done = core.request(CoreRequest::Start { domain }, &[])?;
    let fds = <[OwnedFd; 2]>::try_from(done.fds);
    let [console, mailbox] = fds.map_err(|_| "a domain without console and mailbox".to_owned())?;
    core.add_mailbox(domain, mailbox, monotonic_ns());
    state.set_stage(place, Stage::Starting, "starting");
    Ok(console)
}
