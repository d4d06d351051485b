//! A NIC whose device is a PCI device behind an IOMMU. The monitor has mapped the device's
//! registers and memory; the device's interrupt is an eventfd.
//!
//! If the device fails, only this NIC closes; the driver restarts it later.

use crate::xdp::device_control;
use abi::pci::{IO_BASE, PciControl, PciKind, Structure, StructureLayout};
use abi::{PAGE, pci};
use nic::dma::IoAddr;
use nic::dma::pci::{
    AnyPciNic, Intel82574, PciDevice as Kind, PciNic, PciSetup, RegisterWindow, StartupError,
    VirtioNet,
};
use nic::{Buffers, Caps, Frame, Nic, TxReport};
use runtime::device::attach_if_present;
use runtime::platform::Platform;
use runtime::start::{StartError, print_line, rejected_error};
use shmem::{Area, Span};
use std::fs::File;
use std::io::{self, Read};

/// Minimum interval between reads of the device's status, which follow interrupts. A read is
/// expensive.
const STATUS_CHECK_INTERVAL_NS: u64 = 100_000_000;
/// Delay of the first restart of a closed NIC, and maximum delay. Each delay is twice the previous
/// one.
const RESTART_DELAYS_NS: [u64; 2] = [1_000_000_000, 64_000_000_000];
/// Interval of polling a reset.
const RESET_POLL_NS: u64 = 100_000;

/// The NIC, which may be closed.
#[derive(Debug)]
pub struct PciPort {
    name: String,
    setup: PciSetup,
    /// Areas of the pool and of the queues, in the order of their I/O addresses.
    memory: [Area; 2],
    /// `None` if the monitor has no device for this NIC.
    device: Option<PciDevice>,
    /// `None` until the device has started for the first time.
    nic: Option<Box<dyn AnyPciNic>>,
    restarts: NicRestarts,
}

/// Restart schedule of a NIC.
#[derive(Debug)]
struct NicRestarts {
    /// Time of the next restart, if the NIC is closed.
    due_ns: Option<u64>,
    /// Delay of the next restart.
    delay_ns: u64,
    /// Time at which the device last started.
    started_ns: u64,
}

/// A device that the monitor has provided.
#[derive(Debug)]
struct PciDevice {
    reset: DeviceReset,
    window: RegisterWindow,
    interrupt: File,
    /// Time at which the driver last read the status.
    checked_ns: u64,
    /// Time of the next read, if one is due.
    next_check_ns: Option<u64>,
}

/// Progress of a device's reset, by kind of device.
#[derive(Debug)]
enum DeviceReset {
    VirtioNet(<VirtioNet<RegisterWindow> as Kind>::Reset),
    Intel82574(<Intel82574<RegisterWindow> as Kind>::Reset),
}

/// Returns the set-up of a NIC with queues of `descriptors` entries.
pub fn setup(descriptors: u32, mtu: usize) -> PciSetup {
    PciSetup {
        entries: u16::try_from(descriptors).unwrap_or(u16::MAX),
        mtu,
        base: IoAddr::from_bits(IO_BASE),
    }
}

impl PciPort {
    /// Starts a device. `place` is the device's number and the first slot of its registers;
    /// `memory` has the areas of the pool and of the queues, in the order of their I/O addresses.
    ///
    /// If an earlier driver domain has used the device, and the device is now missing or fails, the
    /// NIC is closed and no error is returned.
    ///
    /// # Errors
    /// Returns an error if the monitor has mapped no registers, or the device cannot be used.
    pub fn start(
        name: String,
        place: (u32, u32),
        setup: PciSetup,
        memory: [Area; 2],
        platform: &dyn Platform,
    ) -> Result<Self, StartError> {
        let mut port = Self {
            name,
            setup,
            memory,
            device: None,
            nic: None,
            restarts: NicRestarts::new(),
        };
        let Some(interrupt) = attach_if_present(platform, place.0)? else {
            port.log(format_args!("the NIC has no device, and is closed"));
            return Ok(port);
        };
        port.device = Some(PciDevice {
            reset: DeviceReset::of(kind(place.0, platform)?),
            window: window(place, platform)?,
            interrupt: File::from(interrupt),
            checked_ns: 0,
            next_check_ns: None,
        });
        if let Err(why) = port.first_start() {
            let has_served = PciControl::HasServed.encode();
            if device_control(REGISTERS_NAME, place.0, has_served, platform)? == 0 {
                let what = format!("nic.{}", port.name);
                return Err(rejected_error(&what, io::Error::other(why)));
            }
            port.close(why, shmem::time::monotonic_ns());
        }
        Ok(port)
    }

    /// Starts the device at start-up, before the driver domain serves any NIC.
    fn first_start(&mut self) -> Result<(), StartupError> {
        while !self.try_start(shmem::time::monotonic_ns())? {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn log(&self, what: std::fmt::Arguments<'_>) {
        print_line(format_args!("nic.{}: {what}", self.name));
    }

    /// Continues the reset of the device, and starts the device after the reset. Returns whether
    /// the device has started.
    fn try_start(&mut self, now_ns: u64) -> Result<bool, StartupError> {
        let Some(device) = &mut self.device else {
            return Ok(true);
        };
        if !device.reset.advance(&device.window, now_ns)? {
            return Ok(false);
        }
        match &mut self.nic {
            Some(nic) => nic.restart()?,
            none => *none = Some(device.start(self.setup, self.memory)?),
        }
        self.restarts.open(now_ns);
        Ok(true)
    }

    /// Records and logs that the NIC is closed.
    fn close(&mut self, why: impl std::fmt::Display, now_ns: u64) {
        let delay_s = self.restarts.close(now_ns) / 1_000_000_000;
        self.log(format_args!(
            "{why}; the NIC is closed, and restarts in {delay_s} s"
        ));
    }
}

impl NicRestarts {
    fn new() -> Self {
        Self {
            due_ns: None,
            delay_ns: RESTART_DELAYS_NS[0],
            started_ns: 0,
        }
    }

    /// Records that the device has started.
    fn open(&mut self, now_ns: u64) {
        (self.due_ns, self.started_ns) = (None, now_ns);
    }

    /// Records that the NIC is closed, or that a restart has failed. Returns the delay of the next
    /// restart. If the NIC was open for at least the maximum delay, the delays start from the
    /// minimum again.
    fn close(&mut self, now_ns: u64) -> u64 {
        let [first, most] = RESTART_DELAYS_NS;
        let was_open = self.due_ns.is_none();
        if was_open && now_ns.saturating_sub(self.started_ns) >= most {
            self.delay_ns = first;
        }
        let delay_ns = self.delay_ns;
        self.due_ns = Some(now_ns.saturating_add(delay_ns));
        self.delay_ns = delay_ns.saturating_mul(2).min(most);
        delay_ns
    }
}

const REGISTERS_NAME: &str = "the registers of a PCI device";

/// Returns the kind of a device.
fn kind(device: u32, platform: &dyn Platform) -> Result<PciKind, StartError> {
    let word = device_control(REGISTERS_NAME, device, PciControl::Kind.encode(), platform)?;
    PciKind::from_wire(word).ok_or(StartError::BadStartInfo("a PCI device of an unknown kind"))
}

/// Waits until the registers of a device are mapped, and returns them.
fn window(
    (device, slot): (u32, u32),
    platform: &dyn Platform,
) -> Result<RegisterWindow, StartError> {
    let control_word =
        |control: PciControl| device_control(REGISTERS_NAME, device, control.encode(), platform);
    let of = |structure: Structure| {
        let layout = StructureLayout::decode(control_word(PciControl::Layout(structure))?);
        let span = registers(structure.slot(slot), layout, platform);
        span.ok_or(StartError::BadStartInfo(
            "a PCI device's registers do not fit",
        ))
    };
    Ok(RegisterWindow {
        common: of(Structure::Common)?,
        notify: of(Structure::Notify)?,
        multiplier: control_word(PciControl::NotifyMultiplier)? as u32,
    })
}

/// Returns the range of a register structure in the window.
fn registers(slot: u32, layout: StructureLayout, platform: &dyn Platform) -> Option<Span> {
    let slots = platform.window();
    let slots = slots.at(slot as usize * PAGE, pci::WINDOW_SLOTS as usize * PAGE)?;
    slots.sub(layout.offset.into(), layout.bytes as usize)
}

impl DeviceReset {
    fn of(kind: PciKind) -> Self {
        match kind {
            PciKind::VirtioNet => Self::VirtioNet(Default::default()),
            PciKind::Intel82574 => Self::Intel82574(Default::default()),
        }
    }

    /// Continues the reset of the device. Returns whether the reset is complete.
    fn advance(&mut self, window: &RegisterWindow, now_ns: u64) -> Result<bool, StartupError> {
        match self {
            Self::VirtioNet(reset) => advance::<VirtioNet<_>>(reset, window, now_ns),
            Self::Intel82574(reset) => advance::<Intel82574<_>>(reset, window, now_ns),
        }
    }
}

/// Continues a reset. After an error, the next call begins a new reset.
fn advance<D: Kind>(
    reset: &mut D::Reset,
    registers: &D::Registers,
    now_ns: u64,
) -> Result<bool, StartupError> {
    let advanced = D::reset(registers, reset, now_ns);
    if advanced.is_err() {
        *reset = D::Reset::default();
    }
    advanced
}

impl PciDevice {
    /// Starts the device after its reset. The device accesses the pool and the queues.
    fn start(
        &self,
        setup: PciSetup,
        [pool, queues]: [Area; 2],
    ) -> Result<Box<dyn AnyPciNic>, StartupError> {
        let window = self.window;
        Ok(match self.reset {
            DeviceReset::VirtioNet(_) => {
                let nic = PciNic::<VirtioNet<_>>::start(setup, window, pool, queues)?;
                Box::new(nic)
            }
            DeviceReset::Intel82574(_) => {
                let nic = PciNic::<Intel82574<_>>::start(setup, window, pool, queues)?;
                Box::new(nic)
            }
        })
    }

    /// Returns whether to read the device's status now. An interrupt may report that the device has
    /// failed, so a read follows each interrupt, at most once per [`STATUS_CHECK_INTERVAL_NS`].
    fn is_check_due(&mut self, now_ns: u64) -> bool {
        // Reading the eventfd fails if no interrupt has occurred.
        let is_interrupted = self.interrupt.read(&mut [0; 8]).is_ok();
        if is_interrupted && self.next_check_ns.is_none() {
            self.next_check_ns = Some(self.checked_ns.saturating_add(STATUS_CHECK_INTERVAL_NS));
        }
        let is_due = self.next_check_ns.is_some_and(|due_ns| due_ns <= now_ns);
        if is_due {
            (self.checked_ns, self.next_check_ns) = (now_ns, None);
        }
        is_due
    }
}

impl Nic for PciPort {
    fn caps(&self) -> Caps {
        let none = || Caps {
            max_frame: self.setup.max_frame(),
            ..Caps::default()
        };
        self.nic.as_ref().map_or_else(none, |nic| nic.caps())
    }

    fn rx(
        &mut self,
        now_ns: u64,
        budget: usize,
        buffers: &mut dyn Buffers,
        out: &mut Vec<Frame>,
    ) -> usize {
        let Some(device) = &mut self.device else {
            return 0;
        };
        let is_check_due = device.is_check_due(now_ns);
        if let Some(restart_ns) = self.restarts.due_ns {
            if now_ns < restart_ns {
                return 0;
            }
            match self.try_start(now_ns) {
                Ok(true) => self.log(format_args!("the NIC works again")),
                Ok(false) => {
                    self.restarts.due_ns = Some(now_ns.saturating_add(RESET_POLL_NS));
                    return 0;
                }
                Err(why) => self.close(why, now_ns),
            }
        }
        let Some(nic) = &mut self.nic else {
            return 0;
        };
        if is_check_due {
            nic.check();
        }
        let taken = nic.rx(now_ns, budget, buffers, out);
        if let (Some(why), None) = (nic.close_reason(), self.restarts.due_ns) {
            self.close(why, now_ns);
        }
        taken
    }

    fn tx(&mut self, now_ns: u64, frames: &[Frame], pick: &[u32]) -> TxReport {
        match &mut self.nic {
            Some(nic) => nic.tx(now_ns, frames, pick),
            None => TxReport::all_refused(pick),
        }
    }

    fn next_due(&self, now_ns: u64) -> Option<u64> {
        if self.restarts.due_ns.is_some() {
            return self.restarts.due_ns;
        }
        let nic_due = self.nic.as_ref().and_then(|nic| nic.next_due(now_ns));
        let check_due = self.device.as_ref().and_then(|device| device.next_check_ns);
        nic_due.into_iter().chain(check_due).min()
    }

    fn release(&mut self, buffers: &mut dyn Buffers) {
        if let Some(nic) = &mut self.nic {
            nic.release(buffers);
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        match &self.nic {
            Some(nic) => nic.counters(),
            None => vec![("closed", 1)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Makes `count` restarts fail, each when it is due. Returns the delays in seconds.
    fn fail(restarts: &mut NicRestarts, count: usize) -> Vec<u64> {
        let delays = std::iter::repeat_with(|| {
            let now_ns = restarts.due_ns.unwrap();
            restarts.close(now_ns) / SECOND_NS
        });
        delays.take(count).collect()
    }

    /// D-28.
    #[test]
    fn restart_delays_double_while_restarts_fail() {
        let mut restarts = NicRestarts::new();
        restarts.open(5 * SECOND_NS);
        assert_eq!(restarts.close(100 * SECOND_NS), SECOND_NS);
        assert_eq!(restarts.due_ns, Some(101 * SECOND_NS));
        assert_eq!(fail(&mut restarts, 8), [2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn restart_delays_reset_after_a_long_open_time() {
        let mut restarts = NicRestarts::new();
        restarts.close(0);
        assert_eq!(fail(&mut restarts, 2), [2, 4]);
        for (open_s, delay_s) in [(63, 8), (64, 1), (63, 2)] {
            let now_ns = restarts.due_ns.unwrap();
            restarts.open(now_ns);
            assert_eq!(restarts.due_ns, None);
            let delay_ns = restarts.close(now_ns + open_s * SECOND_NS);
            assert_eq!(delay_ns, delay_s * SECOND_NS, "open for {open_s} s");
        }
    }
}
