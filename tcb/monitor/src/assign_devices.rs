//! Assignment of devices to a domain before its start.

use crate::device::{self, DomainDevice, WindowFull};
use crate::grant::WindowSlot;
use crate::hypervisor::Hypervisor;
use abi::DomId;
use abi::layout::fd;
use std::sync::Arc;

impl Hypervisor {
    /// Gives a domain that has not started the next device of its specification, or skips one that
    /// no longer exists (`None`). Device numbers are never reused.
    ///
    /// # Errors
    /// Returns an error if the domain has too many devices, or the device's pages would lie outside
    /// the window or overlap another device's pages. The device is then not given.
    pub fn give_device(
        &mut self,
        id: DomId,
        device: Option<DomainDevice>,
    ) -> Result<(), WindowFull> {
        let shared = Arc::clone(&self.shared);
        let domain = self.domain_mut(id);
        let Some(parts) = domain.and_then(|domain| domain.resources.as_mut()) else {
            return Ok(());
        };
        let number = parts.devices;
        if number >= u64::from(fd::DEVICES_MAX) {
            return Err(WindowFull(number));
        }
        if let Some(device) = device {
            let contents = WindowSlot::Device(number);
            let slots = device::slots(&device.pages).ok_or(WindowFull(number))?;
            if !shared.grants.lock().reserve(id, contents, &slots) {
                return Err(WindowFull(number));
            }
            if let Some(pin) = device.pin {
                shared.counted.pins.insert(id, number, pin);
            }
            shared.devices.insert(id, number, device, &parts.epoll);
        }
        parts.devices += 1;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{DeviceControl, DeviceMap};
    use abi::Slot;
    use abi::core::{CPU_WORDS, NewDomain, Stage, Text};
    use abi::status::Program;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::Errno;
    use rustix::pipe::{PipeFlags, pipe_with};
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::ThreadId;

    #[derive(Debug)]
    struct InertControl;

    impl DeviceControl for InertControl {
        fn control(&self, _: [u64; 2]) -> Result<u64, Errno> {
            Ok(0)
        }
    }

    fn spec() -> NewDomain {
        NewDomain {
            replaces: None,
            name: Text::truncated("d"),
            program: Program::Driver,
            frames: 1,
            weight: 1,
            grant_entries: 0,
            window_slots: 8,
            collateral: 0,
            cpus: [0; CPU_WORDS],
            tsc_hz: 0,
            foreign_pages: 0,
            devices: 0,
        }
    }

    fn machine() -> (Hypervisor, DomId) {
        let mut machine = Hypervisor::new(None).unwrap();
        let id = machine.create_domain(spec(), &[], None).unwrap();
        (machine, id)
    }

    /// Returns a device with one page in the window.
    fn page(slot: u32) -> DomainDevice {
        let page = DeviceMap {
            slot: Slot(slot),
            page: 0,
            pages: 1,
        };
        DomainDevice {
            control: Some(Arc::new(InertControl)),
            pages: vec![page],
            ..DomainDevice::from(eventfd(0, EventfdFlags::CLOEXEC).unwrap())
        }
    }

    /// Executes the steps of a worker whose domain ends a device.
    fn end(machine: &Hypervisor, id: DomId, number: u64) {
        let shared = Arc::clone(&machine.shared);
        let ended = shared.devices.begin_end(id, number, || false).unwrap();
        let slots = device::slots(&ended.pages).unwrap();
        shared.grants.lock().unreserve(id, &slots);
        shared.devices.remove(id, number);
    }

    ///
    #[test]
    fn device_numbers_are_never_reused() {
        let (mut machine, id) = machine();
        for first in [Some(page(0)), None, Some(page(1))] {
            machine.give_device(id, first).unwrap();
        }
        end(&machine, id, 0);
        // The slot of device 0 is free again, but its number is not reused.
        machine.give_device(id, Some(page(0))).unwrap();
        let control = |number| machine.shared.devices.control(id, number, [0; 2]).is_ok();
        assert_eq!([0, 1, 2, 3].map(control), [false, false, true, true]);
        // Slots 0 and 1 belong to devices, and slot 8 does not exist.
        for slot in [0, 1, 8] {
            let given = machine.give_device(id, Some(page(slot)));
            assert_eq!(given, Err(WindowFull(4)), "{slot}");
        }
        for _ in 4..fd::DEVICES_MAX {
            machine.give_device(id, None).unwrap();
        }
        for more in [Some(page(5)), None] {
            let given = machine.give_device(id, more);
            assert_eq!(given, Err(WindowFull(fd::DEVICES_MAX.into())));
        }
        machine.abandon(id, "over");
        wait_until_torn_down(&mut machine, id);
        machine.forget(id).unwrap();
        assert!(!machine.shared.devices.refers_to(id));
    }

    /// Waits for up to 30 s until the domain is torn down.
    fn wait_until_torn_down(machine: &mut Hypervisor, id: DomId) {
        testing::wait_for("the domain has not ended", || {
            machine.handle_events(0);
            (machine.domain(id)?.liveness.stage == Stage::TornDown).then_some(())
        });
    }

    /// A device whose end waits for a message.
    #[derive(Debug)]
    struct Slow(Mutex<Receiver<()>>);

    impl DeviceControl for Slow {
        fn control(&self, _: [u64; 2]) -> Result<u64, Errno> {
            Ok(0)
        }

        fn end(&self) {
            let end = self.0.lock().unwrap();
            let _ = end.recv();
        }
    }

    /// A device that reports the thread that ends it.
    #[derive(Debug)]
    struct ThreadReporter(Sender<ThreadId>);

    impl DeviceControl for ThreadReporter {
        fn control(&self, _: [u64; 2]) -> Result<u64, Errno> {
            Ok(0)
        }

        fn end(&self) {
            self.0.send(std::thread::current().id()).unwrap();
        }
    }

    /// If abandoning a domain needed a new thread, a lack of threads would block the main thread.
    #[test]
    fn giving_up_a_domain_starts_no_thread() {
        let (mut machine, id) = machine();
        let (sender, receiver) = channel();
        let ended_by = [id, machine.create_domain(spec(), &[], None).unwrap()].map(|id| {
            let control: Arc<dyn DeviceControl> = Arc::new(ThreadReporter(sender.clone()));
            let device = DomainDevice {
                control: Some(control),
                ..page(0)
            };
            machine.give_device(id, Some(device)).unwrap();
            machine.abandon(id, "over");
            wait_until_torn_down(&mut machine, id);
            receiver.try_recv().unwrap()
        });
        assert_eq!(ended_by[0], ended_by[1]);
        assert_ne!(ended_by[0], std::thread::current().id());
    }

    #[test]
    fn giving_up_a_domain_does_not_block() {
        let (mut machine, id) = machine();
        let (ends, end) = channel();
        let slow = DomainDevice {
            control: Some(Arc::new(Slow(Mutex::new(end)))),
            ..page(0)
        };
        machine.give_device(id, Some(slow)).unwrap();
        machine.abandon(id, "over");
        let stage = machine.domain(id).map(|domain| domain.liveness.stage);
        assert_eq!(stage, Some(Stage::Ending), "the device ended too early");
        machine.abandon(id, "again");
        machine.forget(id).unwrap_err();
        ends.send(()).unwrap();
        wait_until_torn_down(&mut machine, id);
        assert_eq!(machine.domain(id).unwrap().liveness.text(), "over");
        machine.forget(id).unwrap();
    }

    /// XDP-10.
    #[test]
    fn retained_frames_are_reused_if_counts_match() {
        let mut machine = Hypervisor::new(None).unwrap();
        let spec = |replaces, frames| NewDomain {
            replaces,
            frames,
            ..spec()
        };
        let frames = |machine: &Hypervisor, id| Arc::clone(&machine.memory(id).unwrap().frames);
        let mut id = machine.create_domain(spec(None, 2), &[], None).unwrap();
        for (next, is_heir) in [(2, true), (2, true), (3, false)] {
            let before = frames(&machine, id);
            before.span().put(&[7; 16]).unwrap();
            machine.abandon(id, "over");
            wait_until_torn_down(&mut machine, id);
            let left = Some(Arc::clone(&before));
            let spec = spec(Some(id), next);
            id = machine.create_domain(spec, &[], left).unwrap();
            let now = frames(&machine, id);
            assert_eq!(Arc::ptr_eq(&now, &before), is_heir);
            let mut bytes = [0; 16];
            now.span().take(16).get(&mut bytes).unwrap();
            assert_eq!(bytes, [if is_heir { 7 } else { 0 }; 16]);
        }
    }

    /// Descriptors must be closed even if the teardown of an abandoned domain never ends.
    #[test]
    fn a_given_up_domain_delays_no_other_close() {
        let (mut machine, id) = machine();
        let (ends, end) = channel();
        let slow = DomainDevice {
            control: Some(Arc::new(Slow(Mutex::new(end)))),
            ..page(0)
        };
        machine.give_device(id, Some(slow)).unwrap();
        machine.abandon(id, "over");
        let (reader, writer) = pipe_with(PipeFlags::NONBLOCK).unwrap();
        machine.close(vec![writer]);
        testing::wait_until("it is open", || {
            rustix::io::read(&reader, &mut [0]) == Ok(0)
        });
        ends.send(()).unwrap();
        wait_until_torn_down(&mut machine, id);
    }
}
