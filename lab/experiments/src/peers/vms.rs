//! Two virtual machines that exchange frames as fast as they can. One testpmd on the first core is
//! the driver of both, over virtio-user, so no emulation affects the figures. Everything between
//! them is on the second core: one testpmd that maps the memory of both, or a driver domain and two
//! shims.

use super::process;
use super::testpmd::{BURSTS, FRAMES_IN_FLIGHT, Forwarding, Site, Testpmd};
use super::window::PacketWindow;
use crate::lane::cores::Cores;
use crate::lane::frame_run::FrameWindow;
use crate::lane::running::Running;
use crate::plan::{PeerKind, Times};
use figures::interrupt;
use figures::measure::CpuPart;
use std::path::{Path, PathBuf};

/// A run with two virtual machines.
#[derive(Clone, Copy, Debug)]
pub(super) struct VmRun {
    /// The switch.
    pub(super) kind: PeerKind,
    /// Frame size, bytes.
    pub(super) size: u32,
    /// Cores: the virtual machines run on the wire's core, the switch on the guest's.
    pub(super) cores: Cores,
}

const MACS: [&str; 2] = ["02:00:00:00:07:01", "02:00:00:00:07:02"];

/// The switch between the virtual machines.
enum VmSwitch {
    Testpmd(Testpmd),
    Grantway(Box<Running>),
}

impl VmSwitch {
    fn start(run: VmRun, folder: &Path, sockets: &[PathBuf; 2]) -> anyhow::Result<Self> {
        let core = run.cores.guest;
        if run.kind == PeerKind::VmGrantway {
            let running = Running::start_live("vm", text(core, sockets))?;
            return Ok(Self::Grantway(Box::new(running)));
        }
        let ports = [0, 1].map(|n| {
            let socket = sockets[n].display();
            format!("net_vhost{n},iface={socket},queues=1")
        });
        let forwarding = Forwarding {
            ports: &ports,
            mode: "io",
            size: run.size,
            more: &[],
        };
        let name = "switch";
        let site = Site { core, folder, name };
        Ok(Self::Testpmd(Testpmd::start(site, &forwarding)?))
    }

    /// Starts forwarding. Both virtual machines must be connected.
    fn forward(&mut self) -> anyhow::Result<()> {
        match self {
            Self::Testpmd(testpmd) => {
                testpmd.wait_for_link()?;
                testpmd.forward(None)
            }
            Self::Grantway(_) => Ok(()),
        }
    }

    fn parts(&self) -> Vec<(CpuPart, Vec<i32>)> {
        match self {
            Self::Testpmd(testpmd) => vec![("driver", vec![testpmd.pid()])],
            Self::Grantway(running) => running.processes().to_vec(),
        }
    }

    const fn words(&self) -> &'static str {
        match self {
            Self::Testpmd(_) => "copied twice; the switch maps all memory of both",
            Self::Grantway(_) => {
                "copied three times; each shim maps its virtual machine's memory only"
            }
        }
    }
}

/// The machine's configuration file.
fn text(core: usize, sockets: &[PathBuf; 2]) -> String {
    let guests = [0, 1].map(|n| {
        format!(
            "[[guest]]\nname = \"vm{n}\"\ncpus = [{core}]\n[[guest.vif]]\nmac = \"{}\"\n\
             endpoint = \"vhost-user\"\nsocket = \"{}\"\n",
            MACS[n],
            sockets[n].display()
        )
    });
    format!("[driver]\ncpus = [{core}]\n{}", guests.concat())
}

/// Starts everything, measures a window and stops it.
pub(super) fn measure(
    run: VmRun,
    folder: &Path,
    times: Times,
    tsc_hz: u64,
) -> anyhow::Result<FrameWindow> {
    let sockets = ["vm0", "vm1"].map(|name| folder.join(name));
    let mut switch = VmSwitch::start(run, folder, &sockets)?;
    for socket in &sockets {
        process::wait_for(socket)?;
    }
    let mut vms = vms(run, folder, &sockets)?;
    vms.wait_for_link()?;
    switch.forward()?;
    vms.forward(Some(BURSTS))?;
    interrupt::sleep(times.warm_up)?;
    let parts = [switch.parts(), vec![("sender", vec![vms.pid()])]].concat();
    let window = PacketWindow::measure(&parts, times, tsc_hz, || vms.rate())?;
    let conditions = format!(
        "{FRAMES_IN_FLIGHT} frames of each virtual machine sent at first, in bursts; {}; payload \
         not touched",
        switch.words()
    );
    drop(vms);
    if let VmSwitch::Grantway(running) = switch {
        running.down()?;
    }
    Ok(FrameWindow {
        figures: window.figures,
        conditions,
        disturbed: window.disturbed,
    })
}

/// Starts the drivers of both virtual machines. Each sends the frames that the other receives, so
/// all frames circulate forever.
fn vms(run: VmRun, folder: &Path, sockets: &[PathBuf; 2]) -> anyhow::Result<Testpmd> {
    let ports = [0, 1].map(|n| {
        let (socket, mac) = (sockets[n].display(), MACS[n]);
        format!("net_virtio_user{n},path={socket},queues=1,queue_size=1024,mac={mac}")
    });
    let peers = [0, 1].map(|n| format!("--eth-peer={n},{}", MACS[1 - n]));
    let forwarding = Forwarding {
        ports: &ports,
        mode: "mac",
        size: run.size,
        more: &peers,
    };
    let site = Site {
        core: run.cores.wire,
        folder,
        name: "virtual machines",
    };
    Testpmd::start(site, &forwarding)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_valid() {
        let sockets = ["/run/x/a", "/run/x/b"].map(PathBuf::from);
        let config = config::parse("vm", &text(1, &sockets)).unwrap();
        assert_eq!(config.machine().unwrap().domains.len(), 3);
    }
}
