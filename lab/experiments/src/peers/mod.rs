//! Switches that are not of this project, in the shape that ours is measured in: one process on the
//! first core sends and receives frames, the switch on the second sends each back. Only programs of
//! the system's packages; nothing of them is left when a run ends.
//!
//! | module | what it is |
//! |---|---|
//! | [`huge`] | the huge pages that they need, lent and given back |
//! | [`process`] | a program of theirs, which ends with what started it |
//! | [`testpmd`] | DPDK's forwarder, asked by its command line: guest, and switch |
//! | [`touch`] | a guest that writes and reads every byte |
//! | [`ovs`] | Open vSwitch with DPDK |

pub mod huge;
pub mod ovs;
pub mod process;
pub mod testpmd;
pub mod touch;

use crate::kernel;
use crate::lane::cores::Cores;
use crate::lane::frame_run::FrameWindow;
use crate::lane::window::per_packet;
use crate::plan::{PeerKind, Times};
use figures::measure::{CpuTimes, Machine, Part};
use figures::{Failure, interrupt};
use huge::HugePages;
use ovs::Ovs;
use std::collections::BTreeMap;
use testpmd::{Forwarded, Site, Testpmd};
use touch::{TouchProgram, TouchingGuest};

/// Frames that go round: testpmd's bursts of 32.
const BURSTS: u32 = 24;
const UNDER_WAY: u32 = BURSTS * testpmd::BURST;
/// Huge pages for a guest and a switch.
const HUGE_PAGES: u64 = 448;

/// Whether peers can be run here.
///
/// # Errors
/// [`Failure::CannotRun`] with what is missing.
pub fn need(kinds: &[PeerKind]) -> Result<(), Failure> {
    let mut absent = Vec::new();
    if kernel::need(&["dpdk-testpmd"]).is_err() {
        absent.push("dpdk-dev");
    }
    if kinds.contains(&PeerKind::OvsDpdk) && !ovs::is_installed() {
        absent.push("openvswitch-switch-dpdk");
    }
    if !absent.is_empty() {
        return Err(Failure::CannotRun(format!(
            "DPDK and Open vSwitch are not installed: packages {}",
            absent.join(" and ")
        )));
    }
    kernel::need(&["stdbuf", "setpriv"])?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::CannotRun(
            "DPDK and Open vSwitch need huge pages, which root alone can set aside".to_owned(),
        ));
    }
    Ok(())
}

/// A run of a peer.
#[derive(Clone, Copy, Debug)]
pub struct PeerRun<'a> {
    /// Which.
    pub kind: PeerKind,
    /// Bytes of a frame.
    pub size: u32,
    /// The guest that writes and reads every byte; none: testpmd, which touches no payload.
    pub touch: Option<&'a TouchProgram>,
    /// The guest has the wire's core, the switch has the guest's.
    pub cores: Cores,
}

/// A guest and a switch that are connected.
enum Switch {
    Testpmd(Testpmd),
    Ovs(Ovs),
}

impl Switch {
    fn pid(&self) -> i32 {
        match self {
            Self::Testpmd(switch) => switch.pid(),
            Self::Ovs(switch) => switch.pid(),
        }
    }

    /// Cycles that it works on a packet, and packets that it could not pass on.
    fn work(&mut self) -> anyhow::Result<(f64, f64)> {
        match self {
            Self::Testpmd(switch) => {
                let forwarded = switch.forwarded()?;
                Ok((forwarded.cycles, forwarded.dropped))
            }
            Self::Ovs(switch) => Ok((switch.cycles()?, 0.0)),
        }
    }
}

/// The guest: it sends frames and takes them back.
enum PeerGuest {
    Testpmd(Testpmd),
    Touching(TouchingGuest),
}

impl PeerGuest {
    fn pid(&self) -> i32 {
        match self {
            Self::Testpmd(guest) => guest.pid(),
            Self::Touching(guest) => guest.pid(),
        }
    }

    fn wait_for_link(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Testpmd(guest) => guest.wait_for_link(),
            Self::Touching(guest) => guest.wait_for_link(),
        }
    }

    fn go(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Testpmd(guest) => guest.forward(Some(BURSTS)),
            Self::Touching(guest) => guest.go(),
        }
    }

    fn rate(&mut self) -> anyhow::Result<f64> {
        match self {
            Self::Testpmd(guest) => guest.rate(),
            Self::Touching(guest) => guest.rate(),
        }
    }

    fn forwarded(&mut self) -> anyhow::Result<Forwarded> {
        match self {
            Self::Testpmd(guest) => guest.forwarded(),
            Self::Touching(guest) => guest.forwarded(),
        }
    }
}

impl PeerRun<'_> {
    /// Starts guest and switch, lets frames go round, opens a window, ends both.
    ///
    /// # Errors
    /// If they do not start, or do not find each other.
    pub fn measure(&self, times: Times, tsc_hz: u64) -> anyhow::Result<FrameWindow> {
        let _pages = HugePages::reserve(HUGE_PAGES)?;
        let folder = tempfile::tempdir()?;
        let (mut guest, mut switch) = self.start(folder.path())?;
        guest.wait_for_link()?;
        match &mut switch {
            Switch::Testpmd(switch) => switch.wait_for_link()?,
            Switch::Ovs(switch) => switch.wait_for_port()?,
        }
        if let Switch::Testpmd(switch) = &mut switch {
            switch.forward(None)?;
        }
        guest.go()?;
        interrupt::sleep(times.warm_up)?;
        let parts = [("driver", vec![switch.pid()]), ("guest", vec![guest.pid()])];
        if let Switch::Ovs(switch) = &mut switch {
            switch.clear()?;
        }
        let cpus = Machine::read();
        let cpu = CpuTimes::read(&parts);
        guest.rate()?;
        interrupt::sleep(times.window)?;
        let pps = guest.rate()?;
        let used = CpuTimes::read(&parts).since(&cpu);
        let disturbed = Machine::read().disturbed_since(cpus);
        let (switch_cycles, lost_there) = switch.work()?;
        let own = guest.forwarded()?;

        let mut figures = BTreeMap::from([
            ("packets".to_owned(), pps / 1e6),
            (
                "in_flight".to_owned(),
                f64::from(UNDER_WAY) - lost_there - own.dropped,
            ),
        ]);
        let packets = pps * times.window.as_secs_f64();
        let cycles = |part: Part| {
            let ns = used.get(part).copied().unwrap_or(0);
            (part, ns as f64 * tsc_hz as f64 / 1e9)
        };
        let cycles = BTreeMap::from(["driver", "guest"].map(cycles));
        per_packet(&cycles, packets, &mut figures);
        for (part, busy) in [("driver", switch_cycles), ("guest", own.cycles)] {
            if let Some(cycles) = figures.get(&format!("cycles_per_packet.{part}")) {
                // They look for packets all the time.
                let idle = (cycles - busy).max(0.0);
                figures.insert(format!("cycles_per_packet.{part}.hop.idle"), idle);
            }
        }
        Ok(FrameWindow {
            figures,
            conditions: format!(
                "{UNDER_WAY} frames go round, in bursts of {}; copied twice, in and out of the \
                 switch; payload {}; pages of 2 MB",
                testpmd::BURST,
                match self.touch {
                    Some(_) => "touched",
                    None => "not touched",
                }
            ),
            disturbed,
        })
    }

    fn start(&self, folder: &std::path::Path) -> anyhow::Result<(PeerGuest, Switch)> {
        let socket = folder.join("port");
        let path = socket.display();
        let memif = |number, role, more| {
            format!(
                "net_memif{number},role={role},id=0,socket={path},socket-abstract=no,rsize=10{more}"
            )
        };
        let (near, far) = match self.kind {
            PeerKind::MemifZeroCopy => {
                (memif(0, "client", ",zero-copy=yes"), memif(0, "server", ""))
            }
            PeerKind::Vhost | PeerKind::OvsDpdk => (
                format!("net_virtio_user0,path={path},queues=1,queue_size=1024"),
                format!("net_vhost0,iface={path},queues=1"),
            ),
        };
        let at = |core, name| Site { core, folder, name };
        // The listening end comes first.
        let switch = if self.kind == PeerKind::OvsDpdk {
            Switch::Ovs(Ovs::start(
                folder,
                self.cores.wire,
                self.cores.guest,
                &socket,
            )?)
        } else {
            let place = at(self.cores.guest, "switch");
            Switch::Testpmd(Testpmd::start(place, &far, "macswap", self.size)?)
        };
        process::wait_for(&socket)?;
        let place = at(self.cores.wire, "guest");
        let guest = match self.touch {
            None => PeerGuest::Testpmd(Testpmd::start(place, &near, "io", self.size)?),
            Some(program) => {
                let guest = TouchingGuest::start(program, place, &near, self.size, UNDER_WAY)?;
                PeerGuest::Touching(guest)
            }
        };
        Ok((guest, switch))
    }
}
