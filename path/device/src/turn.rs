//! The device's main loop.

use crate::link::{DriverLink, QueueLimits};
use crate::lro::LroMerger;
use crate::wire::DeviceWire;
use abi::PAGE;
use abi::mailbox::MailboxRequest;
use config::domain::{BUFFER_BYTES, DeviceConfig};
use nic::Pool;
use nic::dma::soft::{InterruptModeration, SoftDevice};
use nic::dma::{IoAddr, Wire as _};
use runtime::lro::LroStage;
use runtime::mailbox::DomainMailbox;
use runtime::platform::{PendingWork, Platform, Wait, WakeSource};
use runtime::start::{StartError, Started, print_line, rejected_error};
use serde_json::{Map, Value, json};
use shmem::Area;
use shmem::time::monotonic_ns;
use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;

/// Bytes of the longest frame header: Ethernet with a VLAN tag.
const HEADER_MAX: usize = 18;

/// The device domain.
#[derive(Debug)]
pub struct DeviceDomain<W> {
    device: SoftDevice<DeviceWire>,
    link: DriverLink,
    waiter: W,
    mailbox: DomainMailbox,
    /// The LRO engine, if the device merges received frames.
    lro: Option<Rc<RefCell<LroStage>>>,
    has_logged_fault: bool,
}

/// Runs the device domain. Returns only if the device cannot continue.
///
/// # Errors
/// Returns an error if a hypercall was rejected at the start, or sleeping failed.
pub fn run<W: Wait>(started: Started<DeviceConfig, W>) -> Result<Infallible, StartError> {
    let (mut device, platform) = assemble(started)?;
    platform
        .ready()
        .map_err(|why| rejected_error("ready", why))?;
    device.advance();
    loop {
        device.turn().map_err(|why| rejected_error("epoll", why))?;
    }
}

fn assemble<W>(
    started: Started<DeviceConfig, W>,
) -> Result<(DeviceDomain<W>, Rc<dyn Platform>), StartError> {
    let Started {
        domain_memory,
        platform,
        calls,
        waiter,
        config,
    } = started;
    let longest = config.mtu as usize + HEADER_MAX;
    let wire = DeviceWire::new(&config, longest, &domain_memory.frames, &platform)?;
    let rings = config.rings;
    let interrupts = InterruptModeration {
        delay_ns: u64::from(rings.interrupt_us) * 1000,
        frames: rings.interrupt_frames as usize,
    };
    // The device has no queues before a driver domain connects.
    let nowhere = IoAddr::of_page(0);
    let mut device = SoftDevice::new(wire, rings.descriptors, &[], nowhere, longest, interrupts);
    let mut lro = None;
    if let Some(pool) = merge_pool(&config, domain_memory.frames)? {
        let merger = LroMerger::new(rings, pool);
        lro = Some(merger.stage());
        device = device.merging(Box::new(merger));
    }
    let limits = QueueLimits {
        descriptors: rings.descriptors,
        pages: config.pages,
        guests: (config.guests_slot, config.guests_slots),
        queues: config.queues,
    };
    let device = DeviceDomain {
        device,
        link: DriverLink::new(Rc::clone(&platform), calls, limits),
        waiter,
        mailbox: DomainMailbox::new(domain_memory.mailbox.span()),
        lro,
        has_logged_fault: false,
    };
    Ok((device, platform))
}

/// Returns the memory for merging frames, which follows the buffers of a station. Returns `None` if
/// the device does not merge.
fn merge_pool(config: &DeviceConfig, frames: Area) -> Result<Option<Pool>, StartError> {
    if config.lro_buffers == 0 {
        return Ok(None);
    }
    let bytes = |buffers: u32| (buffers as usize * BUFFER_BYTES as usize).next_multiple_of(PAGE);
    let area = frames.part(bytes(config.buffers), bytes(config.lro_buffers));
    let area = area.ok_or(StartError::BadStartInfo("the device has too few frames"))?;
    Ok(Some(Pool::new(area, BUFFER_BYTES as usize)))
}

impl<W: Wait> DeviceDomain<W> {
    fn turn(&mut self) -> std::io::Result<()> {
        self.waiter.heartbeat();
        self.serve_monitor();
        let now_ns = monotonic_ns();
        self.device.wire_mut().poll(now_ns);
        let Self { device, link, .. } = self;
        match link.granted() {
            Some(granted) => {
                device.apply_controls(&granted.memory);
                device.poll(now_ns, &granted.memory);
                if device.raise(now_ns, &granted.memory) {
                    link.interrupt();
                }
            }
            None => device.discard(now_ns),
        }
        self.log_fault();
        self.sleep()
    }

    fn log_fault(&mut self) {
        if let Some((queue, fault)) = self.device.last_fault()
            && !std::mem::replace(&mut self.has_logged_fault, true)
        {
            print_line(format_args!(
                "{queue}: {fault}; later faults are only counted"
            ));
        }
    }

    /// Sleeps until the driver domain rings the doorbell, the wire has a frame, or a timeout is
    /// due.
    fn sleep(&mut self) -> std::io::Result<()> {
        let Self {
            device,
            link,
            waiter,
            ..
        } = self;
        waiter.arm();
        let granted = link.granted();
        let has_posted = granted.is_some_and(|granted| device.arm(&granted.memory));
        waiter.fence();
        let now_ns = monotonic_ns();
        let due_ns = device.due_ns(now_ns).into_iter();
        let due_ns = due_ns.chain(device.wire().next_due(now_ns)).min();
        // The wire's descriptor remains readable while the next frame waits for the rate limit, so
        // the device waits only for the doorbell.
        let source = match device.wire().due_ns(0) {
            None => WakeSource::All,
            Some(_) => WakeSource::Doorbell,
        };
        let timeout = due_ns.map(|due_ns| due_ns.saturating_sub(now_ns));
        let slept = match has_posted || waiter.has_pending() || timeout == Some(0) {
            true => Ok(()),
            false => waiter.sleep(source, timeout),
        };
        waiter.disarm();
        slept
    }

    /// Handles a changed connection and requests from the mailbox.
    fn serve_monitor(&mut self) {
        let pending = self.waiter.pending();
        if pending == PendingWork::NONE {
            return;
        }
        if pending.connections {
            self.advance();
        }
        if pending.requests {
            let mailbox = self.mailbox.clone();
            mailbox.serve(|request| self.answer(&request));
        }
    }

    fn advance(&mut self) {
        let Self { device, link, .. } = self;
        let now_ns = monotonic_ns();
        link.advance(|queues| device.connect(&queues.receive_queues(), queues.transmit, now_ns));
    }

    fn answer(&self, request: &MailboxRequest) -> Result<Value, String> {
        match request {
            MailboxRequest::Stat => Ok(self.stat()),
            _ => Err("the device of a NIC answers only `stat`".to_owned()),
        }
    }

    fn stat(&self) -> Value {
        let of_device = self.device.counters();
        let wire = self.device.wire();
        let station = wire.station().map(counters);
        let wire = counters(wire.counters());
        let mut stat = json!({
            "device": {
                "link": u64::from(self.link.granted().is_some()),
                "interrupts": of_device.interrupts,
                "missed": of_device.missed,
                "too_long": of_device.too_long,
                "io_faults": of_device.faults,
                "empty_buffers": of_device.empty_buffers,
            },
            "wire": wire,
        });
        if let Some(station) = station {
            stat["station"] = station;
        }
        if let Some(lro) = &self.lro {
            stat["lro"] = lro.borrow().stat();
        }
        stat
    }
}

fn counters(all: Vec<(&'static str, u64)>) -> Value {
    let named = |(name, count): (&str, u64)| (name.to_owned(), count.into());
    all.into_iter().map(named).collect::<Map<_, _>>().into()
}
