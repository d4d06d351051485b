//! Devices enter a domain before its start, and end when it has done with them.

use crate::device::{Device, NoRoom};
use crate::domain::Parts;
use crate::hypercall::Shared;
use crate::hypervisor::Hypervisor;
use crate::worker::Show;
use abi::DomId;
use abi::layout::fd;
use rustix::event::epoll;
use std::os::fd::OwnedFd;
use std::sync::Arc;

impl Hypervisor {
    /// Gives a domain that was not started yet what it may attach, in the order of its
    /// specification; none: not this one any more. No number is ever another device's.
    ///
    /// # Errors
    /// There are too many, or a device would be seen where there is no window, or another device.
    /// It and those behind it are not given.
    pub fn give_devices(&mut self, id: DomId, devices: Vec<Option<Device>>) -> Result<(), NoRoom> {
        let shared = Arc::clone(&self.shared);
        let domain = self.domain_mut(id);
        let Some(parts) = domain.and_then(|domain| domain.parts.as_mut()) else {
            return Ok(());
        };
        for device in devices {
            let number = parts.devices.len() as u64;
            if number >= u64::from(fd::DEVICES_MAX) {
                return Err(NoRoom(number));
            }
            let given = device.map(|device| take_over(&shared, (id, number), parts, device));
            parts.devices.push(given.transpose()?);
        }
        Ok(())
    }

    /// A domain has done with a device: its descriptor is closed.
    pub(crate) fn device_ended(&mut self, id: DomId, number: u64) {
        let domain = self.domain_mut(id);
        let Some(parts) = domain.and_then(|domain| domain.parts.as_mut()) else {
            return;
        };
        let place = usize::try_from(number).ok();
        let place = place.and_then(|number| parts.devices.get_mut(number));
        if let Some(device) = place.and_then(Option::take) {
            // As long as anybody has a descriptor of the same file the set would tell of it.
            let _ = epoll::delete(&parts.epoll, &device);
        }
    }
}

/// Notes what a device needs beside its descriptor: slots, control, pins, and what is to be shown
/// of it. Its descriptor.
fn take_over(
    shared: &Shared,
    (id, number): (DomId, u64),
    parts: &mut Parts,
    device: Device,
) -> Result<OwnedFd, NoRoom> {
    let full = NoRoom(number);
    let shown = device.fd.try_clone().map_err(|_| full)?;
    let mut grants = shared.grants.lock();
    if !grants.reserve_device(id, number, &device.pages) {
        return Err(full);
    }
    drop(grants);
    if let Some(control) = device.control {
        shared.controls.insert(id, number, control, &device.pages);
    }
    if let Some(pin) = device.pin {
        shared.counted.pins.insert(id, number, pin);
    }
    parts.shows.push(Show {
        fd: shown,
        pages: device.pages,
    });
    Ok(device.fd)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceControl, DeviceMap};
    use crate::spec::DomainSpec;
    use abi::Slot;
    use abi::status::Program;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::Errno;

    #[derive(Debug)]
    struct Mute;

    impl DeviceControl for Mute {
        fn control(&self, _: [u64; 2]) -> Result<u64, Errno> {
            Ok(0)
        }
    }

    fn machine() -> (Hypervisor, DomId) {
        let mut machine = Hypervisor::new(crate::grant::nothing).unwrap();
        let spec = DomainSpec {
            name: "d".into(),
            program: Program::Driver,
            frames: 1,
            weight: 1,
            grant_entries: 0,
            window_slots: 8,
            collateral: 0,
            cpus: Vec::new(),
            devices: 0,
            config: Vec::new(),
        };
        let id = machine.create_domain(spec).unwrap();
        (machine, id)
    }

    fn device(slot: u32) -> Device {
        let page = DeviceMap {
            slot: Slot(slot),
            page: 0,
            pages: 1,
        };
        Device {
            control: Some(Arc::new(Mute)),
            pages: vec![page],
            ..Device::from(eventfd(0, EventfdFlags::CLOEXEC).unwrap())
        }
    }

    /// What the worker does when the domain has done with a device.
    fn end(machine: &mut Hypervisor, id: DomId, number: u64) {
        let shared = Arc::clone(&machine.shared);
        let ended = shared.controls.begin_end(id, number, || false);
        let (_, pages) = ended.unwrap();
        shared.grants.lock().unreserve_device(id, &pages);
        shared.controls.remove(id, number);
        machine.device_ended(id, number);
    }

    ///
    #[test]
    fn numbers_of_devices_are_given_out_once() {
        let (mut machine, id) = machine();
        let first = vec![Some(device(0)), None, Some(device(1))];
        machine.give_devices(id, first).unwrap();
        end(&mut machine, id, 0);
        // Its slot is free again, its number is not.
        machine.give_devices(id, vec![Some(device(0))]).unwrap();
        let parts = machine.domain_mut(id).unwrap().parts.as_ref().unwrap();
        let there: Vec<_> = parts.devices.iter().map(Option::is_some).collect();
        assert_eq!(there, [false, false, true, true]);
        // A slot that shows another device, and one that is not there.
        for slot in [0, 1, 8] {
            let given = machine.give_devices(id, vec![Some(device(slot))]);
            assert_eq!(given, Err(NoRoom(4)), "{slot}");
        }
        let rest = fd::DEVICES_MAX - 4;
        machine
            .give_devices(id, (0..rest).map(|_| None).collect())
            .unwrap();
        for more in [Some(device(5)), None] {
            let given = machine.give_devices(id, vec![more]);
            assert_eq!(given, Err(NoRoom(fd::DEVICES_MAX.into())));
        }
        machine.give_up(id, "over");
        machine.forget(id).unwrap();
        assert!(!machine.shared.controls.names(id));
    }
}
