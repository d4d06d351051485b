//! A virtual machine of libvirt, with the lines of `docs/vm.md`.

use super::qemu::{MAC, command_line, wait_for_boots, write_initrd};
use super::{VM, answers, exchanges_files, holders};
use crate::processes::{kill, pid};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use testing::{ChildGuard, Running, kernel, require, wait_until};

const PAGE: &str = include_str!("../../../../docs/vm.md");
/// The path and MAC of the page's lines.
const DOCUMENTED: [&str; 2] = ["/run/grantway/vhost/vm.sock", "02:00:00:00:05:01"];
/// The user who runs libvirt and QEMU. As root, libvirt would require the user of Debian's package.
const USER: u32 = 65_534;

/// Returns the page's lines for the domain's memory and for its interface.
fn documented_lines() -> [&'static str; 2] {
    let (_, xml) = PAGE.split_once("```xml\n").unwrap();
    let (xml, _) = xml.split_once("```").unwrap();
    let (memory, interface) = xml.split_once("…\n").unwrap();
    [memory, interface]
}

/// Returns the interface's lines, for a socket of which QEMU has the end `mode`.
fn interface(socket: &Path, mode: &str) -> String {
    let [_, interface] = documented_lines();
    let interface = interface
        .replace(DOCUMENTED[0], &socket.display().to_string())
        .replace(DOCUMENTED[1], MAC)
        .replace("mode=\"client\"", &format!("mode=\"{mode}\""));
    let keeps = |line: &&str| mode == "client" || !line.contains("<reconnect");
    interface.lines().filter(keeps).collect()
}

/// A virtual machine that libvirt's driver for QEMU has started, without libvirt's daemon. It is
/// killed when this value is dropped.
struct Libvirt {
    folder: PathBuf,
    /// The program that has started QEMU, which is not its child.
    program: Running,
    /// Kills QEMU if the tests are killed.
    guard: Option<ChildGuard>,
}

impl Libvirt {
    fn start(folder: PathBuf, socket: &Path, mode: &str) -> Self {
        let kernel = kernel().unwrap();
        write_initrd(&folder, &kernel);
        let here = folder.display();
        // With MSI-X, QEMU 7.2 crashes when the back end restarts.
        let domain = format!(
            "<domain type=\"qemu\" xmlns:qemu=\"http://libvirt.org/schemas/domain/qemu/1.0\">\n\
             <name>vm</name><memory unit=\"MiB\">256</memory><vcpu>1</vcpu>\n{memory}\
             <os><type arch=\"x86_64\" machine=\"pc\">hvm</type>\n\
             <kernel>{image}</kernel><initrd>{here}/initrd</initrd>\n\
             <cmdline>{line}</cmdline></os>\n<features><acpi/></features>\n\
             <devices><serial type=\"file\"><source path=\"{here}/log\"/></serial>\n{interface}\n\
             </devices>\n<qemu:commandline><qemu:arg value=\"-global\"/>\n\
             <qemu:arg value=\"virtio-net-pci.vectors=0\"/></qemu:commandline>\n</domain>\n",
            memory = documented_lines()[0],
            image = kernel.image.display(),
            line = command_line(&format!("{VM}/24")),
            interface = interface(socket, mode),
        );
        fs::write(folder.join("vm.xml"), domain).unwrap();
        let root = folder.join("libvirt");
        fs::create_dir_all(root.join("etc")).unwrap();
        // Otherwise another daemon, virtlogd, would have to run.
        fs::write(root.join("etc/qemu.conf"), "stdio_handler = \"file\"\n").unwrap();
        for own in [&folder, &root] {
            chown(own, Some(USER), Some(USER)).unwrap();
        }
        let mut command = Command::new("virt-qemu-run");
        command
            .arg("--root")
            .arg(root)
            .arg(folder.join("vm.xml"))
            .env("HOME", &folder)
            .current_dir(&folder)
            .uid(USER)
            .gid(USER)
            .stdin(Stdio::null());
        Self {
            program: Running::new(command.spawn().unwrap()),
            guard: None,
            folder,
        }
    }

    /// Waits until the virtual machine's network is up. Returns QEMU's process.
    fn wait_until_up(&mut self) -> u64 {
        wait_for_boots(&self.folder.join("log"), 1, &mut self.program);
        let qemu = self.qemu().unwrap().as_raw_nonzero().get() as u32;
        self.guard = Some(ChildGuard::new(qemu));
        qemu.into()
    }

    /// Returns QEMU's process, if it was started.
    fn qemu(&self) -> Option<Pid> {
        let pid = fs::read_to_string(self.folder.join("libvirt/run/qemu/vm.pid")).ok()?;
        Pid::from_raw(pid.trim().parse().ok()?)
    }
}

impl Drop for Libvirt {
    fn drop(&mut self) {
        if let Some(qemu) = self.qemu() {
            let _ = kill_process(qemu, Signal::KILL);
        }
    }
}

#[test]
fn libvirt_runs_the_documented_lines() {
    require!(
        tool("virt-qemu-run"),
        tool("qemu-system-x86_64"),
        tool("busybox"),
        kernel
    );
    for (mode, more) in [
        ("client", format!("owner = \"{USER}\"")),
        ("server", "socket_mode = \"client\"".into()),
    ] {
        let Some((machine, socket)) = super::start(1500, &format!("mac = \"{MAC}\"\n{more}"))
        else {
            return;
        };
        for folder in [socket.parent().unwrap(), machine.folder.path()] {
            fs::set_permissions(folder, Permissions::from_mode(0o777)).unwrap();
        }
        let folder = machine.folder.path().join("vm");
        let mut libvirt = Libvirt::start(folder, &socket, mode);
        let qemu = libvirt.wait_until_up();
        wait_until("no answer to a ping", || answers(&machine));
        exchanges_files(&machine);
        assert_eq!(holders(&machine, qemu), Vec::<String>::new());
        let shim = pid(&machine, "vm");
        assert!(kill(shim));
        wait_until("no answer after the shim's restart", || answers(&machine));
        assert_ne!(pid(&machine, "vm"), shim);
        drop(libvirt);
        machine.end();
    }
}
