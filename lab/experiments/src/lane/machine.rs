//! Lanes through the machine (monitor, driver domain and guest domain, with a TAP at each end) and
//! to the driver domain itself. Also measures the start-up time of machines.

use super::build::{OnWire, add_wires, apply, apply_mechanisms, config};
use super::cores::Cores;
use super::ends::{DEVICE_BESIDE, IFNAME, LaneEnds, WIRE_INSIDE};
use super::kernel_path::{napi_threads, pin_new_threads, set_up_wires};
use super::running::Running;
use super::{Lane, Loads};
use crate::plan::{Gro, Place, Topology, WireNic, WireSpeed};
use config::{Config, Endpoint, GuestSection, KernelPort, NicKind, NicSection, Vif};

/// Sets up the lane.
///
/// # Errors
/// Returns an error if namespaces cannot be created or the machine does not start.
pub fn lane(
    place: Place,
    wire: OnWire<'_>,
    topology: Topology,
    cores: Cores,
    loads: &Loads,
) -> anyhow::Result<Lane> {
    let ends = LaneEnds::of(topology.wires, topology.guests + topology.rivals)?;
    let (near, far) = (ends.wire.path(), ends.guest.path());
    let mut config = config(near, far, wire, place, cores);
    add_wires(&ends, &mut config);
    apply(topology, &ends, place, cores, &mut config);
    let started = Started::of(&config, wire)?;
    let loads = Loads {
        flows: topology.flows,
        own_wires: topology.own_wires,
        rivals: topology.rivals,
        mixed: topology.mixed,
        ..loads.clone()
    };
    lane_of(ends, started, wire, cores, &loads)
}

/// A running machine.
struct Started {
    running: Running,
    /// If the wire's end has NAPI threads, those of other machines' wires.
    earlier_threads: Option<Vec<i32>>,
}

impl Started {
    fn of(config: &Config, wire: OnWire<'_>) -> anyhow::Result<Self> {
        let has_threads = (wire.apart, wire.nic) == (Some(Gro::Napi), WireNic::Tap);
        Ok(Self {
            earlier_threads: has_threads.then(|| napi_threads(IFNAME)),
            running: Running::start(config)?,
        })
    }
}

/// Returns the lane of a running machine.
fn lane_of(
    mut ends: LaneEnds,
    started: Started,
    wire: OnWire<'_>,
    cores: Cores,
    loads: &Loads,
) -> anyhow::Result<Lane> {
    let mut threads = Vec::new();
    let remark = match (wire.apart, wire.nic) {
        (_, WireNic::Soft) => {
            // If steering fails, the device's domain runs the wire's TCP stack on the same core.
            let _ = ends.steer_wire(cores);
            Some(DEVICE_BESIDE.to_owned())
        }
        (None, _) => Some(WIRE_INSIDE.to_owned()),
        (Some(_), WireNic::Tap) => match started.earlier_threads {
            Some(earlier) => {
                threads = pin_new_threads(IFNAME, &earlier, cores.wire)?;
                None
            }
            None => ends.steer_wire(cores).err(),
        },
        (Some(gro), WireNic::Xdp) => match set_up_wires(&mut ends, cores, gro) {
            Ok(all) => {
                threads = all;
                None
            }
            Err(error) => Some(format!("the wire's end has other settings ({error:#})")),
        },
    };
    let lane = Lane::new(ends, Box::new(started.running), cores, loads)?;
    Ok(lane.with_wire_threads(threads).with_remark(remark))
}

/// Sets up the lane to the driver domain itself over the wires of `topology`. The receiver is a
/// socket behind a TAP on the driver's bridge, without a ring or grants.
///
/// # Errors
/// See [`lane`].
pub fn local_lane(
    place: Place,
    wire: OnWire<'_>,
    topology: Topology,
    cores: Cores,
    loads: &Loads,
) -> anyhow::Result<Lane> {
    let ends = LaneEnds::of(topology.wires, 1)?;
    let (near, far) = (ends.wire.path(), ends.guest.path());
    let mut config = config(near, far, wire, place, cores);
    add_wires(&ends, &mut config);
    apply_mechanisms(topology, place, cores, &mut config);
    for guest in std::mem::take(&mut config.guests) {
        for vif in guest.vifs {
            if let Endpoint::Tap(port) = vif.endpoint {
                config
                    .nics
                    .push(NicSection::new("local", NicKind::Local { port }));
            }
        }
    }
    let started = Started::of(&config, wire)?;
    lane_of(ends, started, wire, cores, loads)
}

/// Returns the milliseconds until a machine with `guests` guests is ready. The machine has one
/// wire. All guests have TAPs in one namespace, which is not the wire's.
///
/// # Errors
/// Returns an error if the machine does not start, or does not stop cleanly.
pub fn up_ms(guests: u32) -> anyhow::Result<f64> {
    let ends = LaneEnds::new()?;
    let cores = Cores::choose();
    let (near, far) = (ends.wire.path(), ends.guest.path());
    let speed = WireSpeed::unbounded();
    let mut config = config(near, far, OnWire::tap(&speed), Place::Split, cores);
    let netns = ends.guest.path().display().to_string();
    config.guests = (0..guests)
        .map(|number| GuestSection {
            name: format!("guest{number}"),
            vifs: vec![Vif::new(Endpoint::Tap(KernelPort {
                ifname: Some(format!("{IFNAME}-{number}")),
                netns: Some(netns.clone()),
                ..KernelPort::default()
            }))],
            ..GuestSection::default()
        })
        .collect();
    config.driver.cpus.clear();
    let running = Running::start(&config)?;
    let ms = running.up_ms();
    running.down()?;
    Ok(ms)
}
