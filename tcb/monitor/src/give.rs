//! Devices enter a domain, before its start or while it runs, and their numbers come back.

use crate::device::{Device, NoRoom};
use crate::domain::{DomainError, Parts};
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
    /// specification; none: not this one any more.
    ///
    /// # Errors
    /// A device would be seen where there is no window, or another device. It and those behind it
    /// are not given.
    pub fn give_devices(&mut self, id: DomId, devices: Vec<Option<Device>>) -> Result<(), NoRoom> {
        let shared = Arc::clone(&self.shared);
        let domain = self.domain_mut(id);
        let Some(parts) = domain.and_then(|domain| domain.parts.as_mut()) else {
            return Ok(());
        };
        for device in devices {
            let full = NoRoom(parts.devices.len() as u64);
            let number = parts.device_numbers.take(|_| false).ok_or(full)?;
            let fd = match device {
                Some(device) => {
                    let show = take_over(&shared, id, number, device)?;
                    let fd = show.fd.try_clone().map_err(|_| full)?;
                    parts.shows.push(show);
                    Some(fd)
                }
                None => None,
            };
            parts.devices.insert(number, fd);
        }
        Ok(())
    }

    /// Gives a domain one more device, also while it runs; its number, by which the domain gets the
    /// descriptor when it asks, but not before its pages are seen.
    ///
    /// # Errors
    /// There is no such domain, it has as many devices as a domain may have, or this one would be
    /// seen where there is no window, or another device.
    pub fn give_device(&mut self, id: DomId, device: Device) -> Result<u32, DomainError> {
        let name = self.name(id);
        let error = |what: String| DomainError::Spec { name, what };
        let shared = Arc::clone(&self.shared);
        let domain = self.domain_mut(id);
        let Some(parts) = domain.and_then(|domain| domain.parts.as_mut()) else {
            return Err(error("it is not there, and gets no device".into()));
        };
        let Some(number) = parts.device_numbers.take(|_| false) else {
            return Err(error(format!("devices: at most {}", fd::DEVICES_MAX)));
        };
        let show = match take_over(&shared, id, number, device) {
            Ok(show) => show,
            Err(no_room) => {
                parts.device_numbers.give_back(number);
                return Err(error(no_room.to_string()));
            }
        };
        let worker = parts.process.as_ref().map(|running| &running.worker);
        match worker {
            Some(worker) if !show.pages.is_empty() => {
                shared.controls.hold(id, number.into());
                worker.show(show);
            }
            _ => {
                parts.devices.insert(number, Some(show.fd));
            }
        }
        Ok(number)
    }

    /// What a device shows is in its domain's window: the domain may have its descriptor.
    pub(crate) fn device_shown(&mut self, id: DomId, number: u32, device: OwnedFd) {
        let domain = self.domain_mut(id);
        if let Some(parts) = domain.and_then(|domain| domain.parts.as_mut()) {
            parts.devices.insert(number, Some(device));
        }
        self.shared.controls.release(id, number.into());
    }

    /// A domain has done with a device: its descriptor is closed, and its number is another's.
    pub(crate) fn device_ended(&mut self, id: DomId, number: u64) {
        self.shared.controls.release(id, number);
        let domain = self.domain_mut(id);
        let Some(parts) = domain.and_then(|domain| domain.parts.as_mut()) else {
            return;
        };
        let number = u32::try_from(number).ok();
        let Some((number, Some(device))) = number.and_then(|n| parts.devices.remove_entry(&n))
        else {
            return;
        };
        let Parts {
            epoll, attached, ..
        } = &mut *parts;
        // As long as anybody has a descriptor of the same file the set would tell of it.
        let _ = epoll::delete(&*epoll, &device);
        if let Ok(number) = i32::try_from(number) {
            attached.remove(&(fd::DEVICE + number));
        }
        parts.device_numbers.give_back(number);
    }
}

/// Notes what a device needs beside its descriptor: slots, control, pins. What is to be shown of
/// it.
fn take_over(shared: &Shared, id: DomId, number: u32, device: Device) -> Result<Show, NoRoom> {
    let long = u64::from(number);
    let mut grants = shared.grants.lock();
    if !grants.reserve_device(id, long, &device.pages) {
        return Err(NoRoom(long));
    }
    drop(grants);
    if let Some(control) = device.control {
        shared.controls.insert(id, long, control, &device.pages);
    }
    if let Some(pin) = device.pin {
        shared.counted.pins.insert(id, long, pin);
    }
    Ok(Show {
        number,
        fd: device.fd,
        pages: device.pages,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceControl, DeviceMap};
    use crate::domain::DomainSpec;
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
        let id = machine.create_domain(&spec).unwrap();
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
    fn end(machine: &mut Hypervisor, id: DomId, number: u32) {
        let shared = Arc::clone(&machine.shared);
        let ended = shared.controls.begin_end(id, number.into(), || false);
        let (_, pages) = ended.unwrap();
        shared.grants.lock().unreserve_device(id, &pages);
        shared.controls.remove(id, number.into());
        machine.device_ended(id, number.into());
    }

    #[test]
    fn numbers_and_slots_of_devices_are_given_out_again() {
        let (mut machine, id) = machine();
        let first = vec![Some(device(0)), None, Some(device(1))];
        machine.give_devices(id, first).unwrap();
        let mut last = Vec::new();
        for turn in 0..2 * fd::DEVICES_MAX {
            let number = machine.give_device(id, device(2 + turn % 3)).unwrap();
            assert!(![0, 1, 2].contains(&number), "{number} has a device");
            end(&mut machine, id, number);
            last.push(number);
        }
        assert!(last.contains(&(fd::DEVICES_MAX - 1)));
        let again = last.split_off(fd::DEVICES_MAX as usize - 3);
        assert!(again.starts_with(&last), "the oldest first");
        // A slot that shows another device, and one that is not there.
        for slot in [0, 1, 8] {
            let error = machine.give_device(id, device(slot)).unwrap_err();
            assert!(error.to_string().ends_with("has no place in the window"));
        }
        machine.give_up(id, "over");
        machine.give_device(id, device(5)).unwrap_err();
        machine.forget(id).unwrap();
        assert!(!machine.shared.controls.names(id));
    }

    #[test]
    fn a_device_that_is_not_seen_yet_cannot_end() {
        let (machine, id) = machine();
        let controls = &machine.shared.controls;
        controls.insert(id, 3, Arc::new(Mute), &[]);
        controls.hold(id, 3);
        let end = || controls.begin_end(id, 3, || false).map(drop);
        assert_eq!(end(), Err(Errno::BUSY));
        controls.hand_out(id, 3).unwrap_err();
        assert_eq!(end(), Err(Errno::BUSY), "who was refused frees nothing");
        controls.release(id, 3);
        drop(controls.hand_out(id, 3).unwrap());
        assert_eq!(end(), Ok(()));
    }
}
