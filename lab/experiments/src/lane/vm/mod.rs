//! Paths to a virtual machine (User-Mode Linux): through Grantway, through a vhost-user back end in
//! one process without isolation, and through the kernel's bridge. The virtual machine runs on a
//! separate core. Everything else, including the wire's socket, shares the wire's core. The wires
//! carry whole segments. [`idle_vms`] measures many idle virtual machines.

pub mod idle_vms;
mod uml;

use super::cores::Cores;
use super::ends::{IFNAME, LaneEnds, PREFIX, WIRE};
use super::kernel_path::{self, VmBridge};
use super::path::Path;
use super::reading::Reading;
use super::running::Running;
use super::{Lane, Loads, NIC_KERNEL, WIRE_KERNEL};
use crate::peers::process::{ForeignProgram, killed_with_parent, output, wait_for};
use crate::plan::PathKind;
use figures::Failure;
use figures::measure::CpuPart;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;
use uml::{Device, Uml};

/// Part to which the virtual machine and the programs in it are charged.
const VM: CpuPart = "vm";
/// Source of the vhost-user back end in one process.
const BACK_END: &str = include_str!("../../../peers/vhost.c");
/// Name of the virtual machine's TAP on the bridge.
const TAP: &str = "vm0";

/// The components between the wire and the virtual machine.
enum VmBackend {
    Grantway(Box<Running>),
    OneProcess(ForeignProgram),
    Bridge(VmBridge),
}

struct VmPath {
    // This field is dropped first, so that the back ends outlive their virtual machine.
    vm: Uml,
    middle: VmBackend,
    _folder: TempDir,
}

impl Path for VmPath {
    fn parts(&self) -> Vec<(CpuPart, Vec<i32>)> {
        let mut parts = match &self.middle {
            VmBackend::Grantway(running) => running.parts(),
            VmBackend::OneProcess(program) => vec![("driver", vec![program.pid()])],
            VmBackend::Bridge(bridge) => vec![
                (WIRE_KERNEL, bridge.far.clone()),
                (NIC_KERNEL, bridge.near.clone()),
            ],
        };
        parts.push((VM, self.vm.processes()));
        parts
    }

    fn reading(&mut self) -> anyhow::Result<Reading> {
        match &mut self.middle {
            VmBackend::Grantway(running) => running.reading(),
            _ => Ok(Reading::default()),
        }
    }

    fn machine(&self) -> Option<&Running> {
        match &self.middle {
            VmBackend::Grantway(running) => Some(running),
            _ => None,
        }
    }
}

/// Sets up the lane.
///
/// # Errors
/// Returns [`Failure::CannotRun`] with the missing part, or another error if a part does not start.
pub fn lane(path: PathKind, cores: Cores, loads: &Loads) -> anyhow::Result<Lane> {
    uml::possible()?;
    let mut ends = LaneEnds::new()?;
    ends.guest_is_vm = true;
    let folder = tempfile::tempdir()?;
    let socket = folder.path().join("vm.sock");
    let middle = match path {
        PathKind::Vm => {
            let text = text(cores.wire, ends.wire.path(), &socket);
            VmBackend::Grantway(Box::new(Running::start_live("vm", text)?))
        }
        PathKind::VmOneProcess => {
            let program = one_process(&ends, cores, folder.path(), &socket)?;
            ends.wire.run(&["ip", "link", "set", IFNAME, "up"])?;
            VmBackend::OneProcess(program)
        }
        _ => VmBackend::Bridge(kernel_path::vm_bridge(&mut ends, cores)?),
    };
    if !matches!(middle, VmBackend::Grantway(_)) {
        let cidr = format!("{WIRE}/{PREFIX}");
        ends.wire
            .run(&["ip", "addr", "add", &cidr, "dev", IFNAME])?;
    }
    let vm = match &middle {
        VmBackend::Bridge(bridge) => {
            let netns = bridge.netns();
            let device = Device::Tap {
                netns: &netns,
                ifname: TAP,
            };
            Uml::boot(&device, cores.guest)?
        }
        _ => Uml::boot(&Device::VhostUser(&socket), cores.guest)?,
    };
    let middle = match middle {
        VmBackend::Bridge(bridge) => VmBackend::Bridge(bridge.with_port(TAP)?),
        other => other,
    };
    let path = VmPath {
        vm,
        middle,
        _folder: folder,
    };
    let remark = "`vm` includes the loads in the virtual machine; `sender` or `receiver` is the \
                  wire's";
    let lane = Lane::new(ends, Box::new(path), cores, loads)?;
    Ok(lane.with_remark(Some(remark.to_owned())))
}

/// Compiles and starts the back end in one process, whose TAP is the wire's end.
fn one_process(
    ends: &LaneEnds,
    cores: Cores,
    folder: &std::path::Path,
    socket: &std::path::Path,
) -> anyhow::Result<ForeignProgram> {
    let (source, program) = (folder.join("vhost.c"), folder.join("vhost"));
    std::fs::write(&source, BACK_END)?;
    let mut compiler = Command::new("cc");
    compiler
        .args(["-O3", "-march=native", "-o"])
        .arg(&program)
        .arg(&source);
    let cannot = |why| Failure::CannotRun(format!("peers/vhost.c: {why}"));
    output(&mut compiler).map_err(cannot)?;
    let mut command = killed_with_parent("nsenter");
    command
        .arg(format!("--net={}", ends.wire.path().display()))
        .args(["taskset", "-c", &cores.wire.to_string()])
        .arg(&program)
        .arg(socket)
        .arg(IFNAME);
    let running = ForeignProgram::start(&mut command)?;
    wait_for(socket)?;
    Ok(running)
}

/// Returns the machine's configuration file.
fn text(core: usize, wire: PathBuf, socket: &std::path::Path) -> String {
    format!(
        "[driver]\ncpus = [{core}]\nspin_us = 0\nrestart = false\n\
         [[nic]]\nname = \"wire\"\nkind = \"tap\"\nifname = \"{IFNAME}\"\noffloads = \"tso\"\n\
         netns = \"{}\"\naddresses = [\"{WIRE}/{PREFIX}\"]\n\
         [[guest]]\nname = \"vm\"\ncpus = [{core}]\nspin_us = 0\nrestart = false\n\
         [[guest.vif]]\nendpoint = \"vhost-user\"\nsocket = \"{}\"\n",
        wire.display(),
        socket.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_valid() {
        let text = text(1, "/proc/1/ns/net".into(), "/run/x/vm.sock".as_ref());
        let config = config::parse("vm", &text).unwrap();
        assert_eq!(config.machine().unwrap().domains.len(), 2);
    }
}
