//! Third-party switches, measured in the same way as ours: a process on the first core sends and
//! receives frames, and the switch on the second core returns each frame. The programs are from
//! distribution packages, and a run removes everything that it creates.
//!
//! | module | contents |
//! |---|---|
//! | [`huge`] | huge pages, reserved for a run |
//! | [`process`] | a third-party process, which ends with its parent |
//! | [`testpmd`] | DPDK's forwarder as guest and as switch, controlled by its command line |
//! | [`touch`] | a guest that writes and reads every byte |
//! | [`vms`] | two virtual machines, and what is between them |
//! | [`ovs`] | Open vSwitch with DPDK |
//! | `window` | measures while frames circulate |

pub mod huge;
pub mod ovs;
pub mod process;
pub mod testpmd;
pub mod touch;
pub mod vms;
mod window;

use crate::kernel;
use crate::lane::cores::Cores;
use crate::lane::frame_run::FrameWindow;
use crate::plan::{PeerKind, Times};
use figures::{Failure, interrupt};
use huge::HugePages;
use ovs::Ovs;
use testpmd::{BURSTS, FRAMES_IN_FLIGHT, Forwarded, Forwarding, Site, Testpmd};
use touch::{TouchProgram, TouchingGuest};
use vms::VmRun;
use window::PacketWindow;

/// Number of huge pages for a guest and a switch.
const HUGE_PAGES: u64 = 448;

/// Checks that these switches can run here.
///
/// # Errors
/// Returns [`Failure::CannotRun`] with the missing part.
pub fn require_programs(kinds: &[PeerKind]) -> Result<(), Failure> {
    let mut absent = Vec::new();
    if kernel::require_programs(&["dpdk-testpmd"]).is_err() {
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
    kernel::require_programs(&["stdbuf", "setpriv"])?;
    if !rustix::process::geteuid().is_root() {
        return Err(Failure::CannotRun(
            "DPDK and Open vSwitch need huge pages, which only root can reserve".to_owned(),
        ));
    }
    Ok(())
}

/// A run of a third-party switch.
#[derive(Clone, Copy, Debug)]
pub struct PeerRun<'a> {
    /// The switch.
    pub kind: PeerKind,
    /// Frame size, bytes.
    pub size: u32,
    /// The guest that writes and reads every byte; `None`: testpmd, which accesses no payload.
    pub touch: Option<&'a TouchProgram>,
    /// Cores: the guest runs on the wire's core, the switch on the guest's.
    pub cores: Cores,
}

/// A guest connected to a switch.
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

    /// Returns the switch's cycles per packet, and its dropped packets.
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

/// The guest, which sends frames and receives them back.
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
    /// Starts guest and switch, sends frames, measures a window and stops both.
    ///
    /// # Errors
    /// Returns an error if they do not start, or do not connect.
    pub fn measure(&self, times: Times, tsc_hz: u64) -> anyhow::Result<FrameWindow> {
        let _pages = HugePages::reserve(HUGE_PAGES)?;
        let folder = tempfile::tempdir()?;
        if self.kind.has_vms() {
            let run = VmRun {
                kind: self.kind,
                size: self.size,
                cores: self.cores,
            };
            return vms::measure(run, folder.path(), times, tsc_hz);
        }
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
        let mut window = PacketWindow::measure(&parts, times, tsc_hz, || guest.rate())?;
        let (switch_cycles, lost_there) = switch.work()?;
        let own = guest.forwarded()?;

        let figures = &mut window.figures;
        let in_flight = f64::from(FRAMES_IN_FLIGHT) - lost_there - own.dropped;
        figures.insert("in_flight".to_owned(), in_flight);
        for (part, busy) in [("driver", switch_cycles), ("guest", own.cycles)] {
            if let Some(cycles) = figures.get(&format!("cycles_per_packet.{part}")) {
                // The switches poll continuously.
                let idle = (cycles - busy).max(0.0);
                figures.insert(format!("cycles_per_packet.{part}.hop.idle"), idle);
            }
        }
        Ok(FrameWindow {
            figures: window.figures,
            conditions: format!(
                "{FRAMES_IN_FLIGHT} frames in flight, in bursts of {}; copied twice, in and out of \
                 the switch; payload {}; pages of 2 MB",
                testpmd::BURST,
                match self.touch {
                    Some(_) => "touched",
                    None => "not touched",
                }
            ),
            disturbed: window.disturbed,
        })
    }

    /// Starts testpmd with one port.
    fn testpmd(&self, place: Site<'_>, port: String, mode: &str) -> anyhow::Result<Testpmd> {
        let forwarding = Forwarding {
            ports: &[port],
            mode,
            size: self.size,
            more: &[],
        };
        Testpmd::start(place, &forwarding)
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
            _ => (
                format!("net_virtio_user0,path={path},queues=1,queue_size=1024"),
                format!("net_vhost0,iface={path},queues=1"),
            ),
        };
        let at = |core, name| Site { core, folder, name };
        // The listening end starts first.
        let switch = if self.kind == PeerKind::OvsDpdk {
            Switch::Ovs(Ovs::start(
                folder,
                self.cores.wire,
                self.cores.guest,
                &socket,
            )?)
        } else {
            let place = at(self.cores.guest, "switch");
            Switch::Testpmd(self.testpmd(place, far, "macswap")?)
        };
        process::wait_for(&socket)?;
        let place = at(self.cores.wire, "guest");
        let guest = match self.touch {
            None => PeerGuest::Testpmd(self.testpmd(place, near, "io")?),
            Some(program) => {
                let guest =
                    TouchingGuest::start(program, place, &near, self.size, FRAMES_IN_FLIGHT)?;
                PeerGuest::Touching(guest)
            }
        };
        Ok((guest, switch))
    }
}
