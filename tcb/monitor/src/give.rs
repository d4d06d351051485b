//! Devices enter a domain before its start.

use crate::device::{Device, NoRoom};
use crate::domain::Parts;
use crate::hypercall::Shared;
use crate::hypervisor::Hypervisor;
use abi::DomId;
use abi::layout::fd;
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
            if parts.devices >= u64::from(fd::DEVICES_MAX) {
                return Err(NoRoom(parts.devices));
            }
            if let Some(device) = device {
                take_over(&shared, id, parts, device)?;
            }
            parts.devices += 1;
        }
        Ok(())
    }
}

/// Notes a device under the next number, and what is its own: slots and pins.
fn take_over(shared: &Shared, id: DomId, parts: &Parts, device: Device) -> Result<(), NoRoom> {
    let number = parts.devices;
    if !shared
        .grants
        .lock()
        .reserve_device(id, number, &device.pages)
    {
        return Err(NoRoom(number));
    }
    if let Some(pin) = device.pin {
        shared.counted.pins.insert(id, number, pin);
    }
    shared.devices.insert(id, number, device, &parts.epoll);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceControl, DeviceMap};
    use abi::Slot;
    use abi::core::{CPU_WORDS, NewDomain, Text};
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
        let mut machine = Hypervisor::new(None).unwrap();
        let spec = NewDomain {
            replaces: None,
            name: Text::cut("d"),
            program: Program::Driver,
            frames: 1,
            weight: 1,
            grant_entries: 0,
            window_slots: 8,
            collateral: 0,
            cpus: [0; CPU_WORDS],
            devices: 0,
        };
        let id = machine.create_domain(spec, &[]).unwrap();
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
    fn end(machine: &Hypervisor, id: DomId, number: u64) {
        let shared = Arc::clone(&machine.shared);
        let ended = shared.devices.begin_end(id, number, || false).unwrap();
        shared.grants.lock().unreserve_device(id, &ended.pages);
        shared.devices.remove(id, number);
    }

    ///
    #[test]
    fn numbers_of_devices_are_given_out_once() {
        let (mut machine, id) = machine();
        let first = vec![Some(device(0)), None, Some(device(1))];
        machine.give_devices(id, first).unwrap();
        end(&machine, id, 0);
        // Its slot is free again, its number is not.
        machine.give_devices(id, vec![Some(device(0))]).unwrap();
        let tell = |number| machine.shared.devices.tell(id, number, [0; 2]).is_ok();
        assert_eq!([0, 1, 2, 3].map(tell), [false, false, true, true]);
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
        assert!(!machine.shared.devices.names(id));
    }
}
