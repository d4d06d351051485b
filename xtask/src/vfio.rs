//! `cargo xtask vfio`: tests machines with NICs of `kind = "vfio"` in an emulated system with an
//! IOMMU.
//!
//! The script `xtask/vfio/init` runs inside. The emulated system runs the newest kernel that this
//! system has.

use crate::xen::archive::Archive;
use crate::xen::machine::EmulatorConsole;
use crate::xen::packages::{find, numbers};
use crate::{build, workspace};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const USAGE: &str = "\
usage: cargo xtask vfio

Boots this system's newest kernel in QEMU's software emulation, with an IOMMU, and runs machines of
this tree whose NIC is a virtio-net device; a cable joins it and a device that the kernel drives:

  refused   a device in use is refused, by `up` and by `up --check`
  ping tcp  ping over IPv4 and IPv6; TCP both ways, 10 MB each, with checksums, while the guest
            revokes pages
  idle      the driver domain uses no CPU time without traffic: at most 1 % of a CPU,
            times GRANTWAY_VFIO_SLOW
  kill      the driver domain is killed ten times during a stream; no outage exceeds 1 s, times
            GRANTWAY_VFIO_SLOW
  helpers   manager and netd are killed
  faults    the IOMMU has reported no fault
  unmapped  the device of a dead driver domain runs on: the IOMMU faults
  reset     the driver domain starts without a device that cannot be reset
  down      the device is released
  core      the core is killed, and the next machine takes the device
  attack    a hostile driver domain has the device access other memory: the IOMMU faults, guests
            reach each other without a loss, and an ordinary driver domain uses the device again

Then machines whose NIC is an Intel 82574 (e1000e) pass ping, tcp, idle, kill (three times), faults,
unmapped, down and attack.

Needs qemu-system-x86_64, busybox-static, a kernel of Debian with its modules, and 1 GB of memory;
neither root nor KVM. Takes about two minutes. GRANTWAY_VFIO_SLOW multiplies all deadlines
(default: 3).

example: cargo xtask vfio";

/// The tests, in the order in which they run.
const TESTS: [&str; 21] = [
    "boot",
    "refused",
    "ping",
    "tcp",
    "idle",
    "kill",
    "helpers",
    "faults",
    "unmapped",
    "reset",
    "down",
    "core",
    "attack",
    "82574-ping",
    "82574-tcp",
    "82574-idle",
    "82574-kill",
    "82574-faults",
    "82574-unmapped",
    "82574-down",
    "82574-attack",
];
/// Deadline of the run on a system without other load, seconds.
const DEADLINE_S: u64 = 240;
/// Programs that run in the emulated system.
const PROGRAMS: [&str; 7] = [
    "grantway",
    "grantwayd",
    "grantway-netd",
    "grantway-manager",
    "driver",
    "guest",
    "hostile-pci",
];
/// Kernel modules, in the order in which they are loaded.
const MODULES: [&str; 15] = [
    "virt/lib/irqbypass",
    "drivers/vfio/vfio",
    "drivers/vfio/vfio_iommu_type1",
    "drivers/vfio/vfio_virqfd",
    "drivers/vfio/pci/vfio-pci-core",
    "drivers/vfio/pci/vfio-pci",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci",
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
    "drivers/net/tun",
];
/// The emulator's arguments. The system has an IOMMU. A cable connects each device that machines
/// drive (01:00.0 and 02:00.0) with a device that the kernel drives.
const SYSTEM: [&str; 42] = [
    "-machine",
    "q35",
    "-accel",
    "tcg",
    "-cpu",
    "max",
    "-smp",
    "1",
    "-m",
    "1024",
    "-display",
    "none",
    "-serial",
    "stdio",
    "-monitor",
    "none",
    "-no-reboot",
    "-device",
    "intel-iommu,intremap=on,caching-mode=on",
    "-netdev",
    "hubport,hubid=1,id=near",
    "-netdev",
    "hubport,hubid=1,id=far",
    "-netdev",
    "hubport,hubid=2,id=near2",
    "-netdev",
    "hubport,hubid=2,id=far2",
    "-nic",
    "none",
    // Only a device below a port can be reset.
    "-device",
    "pcie-root-port,id=port0,slot=1,addr=02.0",
    "-device",
    "virtio-net-pci,netdev=near,bus=port0,iommu_platform=on,disable-legacy=on,romfile=",
    "-device",
    "virtio-net-pci,netdev=far,addr=04.0,romfile=",
    "-device",
    "pcie-root-port,id=port1,slot=2,addr=03.0",
    "-device",
    "e1000e,netdev=near2,bus=port1,romfile=",
    "-device",
    "virtio-net-pci,netdev=far2,addr=05.0,romfile=",
    "-kernel",
];

pub(crate) fn run(args: &[String]) -> Result<()> {
    match args {
        [] => {}
        [help] if matches!(help.as_str(), "--help" | "-h") => {
            println!("{USAGE}");
            return Ok(());
        }
        [other, ..] => bail!("no such argument: {other}\n\n{USAGE}"),
    }
    let Some(parts) = Parts::find() else {
        if std::env::var("GRANTWAY_REQUIRE").is_ok_and(|value| value == "all") {
            bail!("qemu-system-x86_64, busybox-static or a kernel with its modules is missing");
        }
        println!("skipped: qemu-system-x86_64, busybox-static or a kernel is missing");
        return Ok(());
    };
    let slow: u32 = match std::env::var("GRANTWAY_VFIO_SLOW") {
        Ok(text) => text.parse().context("GRANTWAY_VFIO_SLOW")?,
        Err(_) => 3,
    };
    ensure!((1..=100).contains(&slow), "GRANTWAY_VFIO_SLOW is 1 to 100");
    let home = workspace::target_directory()?.join("vfio");
    fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
    let image = parts.image(&home, &programs()?)?;
    let mut command = Command::new(&parts.emulator);
    // Strict: an unmapped page also leaves the IOMMU's cache immediately, whatever this kernel's
    // default is. The kernel's test of the timer fails at random in an emulated system.
    let iommu = "intel_iommu=on iommu.strict=1";
    let line = format!("console=ttyS0 panic=5 {iommu} no_timer_check SLOW={slow}");
    let messages = home.join("emulator.log");
    command
        .stderr(fs::File::create(&messages).with_context(|| messages.display().to_string())?)
        .args(SYSTEM)
        .arg(&parts.kernel)
        .arg("-initrd")
        .arg(image)
        .args(["-append", &line]);
    let console = EmulatorConsole {
        log: &home.join("console.log"),
        deadline: Duration::from_secs(DEADLINE_S * u64::from(slow)),
    };
    let start = Instant::now();
    let passed = console.run(command, &TESTS, &mut |_| Ok(()));
    println!("took {} s", start.elapsed().as_secs());
    passed.with_context(|| format!("the emulator's messages: {}", messages.display()))
}

/// The programs and files of this system that a run uses.
struct Parts {
    emulator: PathBuf,
    busybox: PathBuf,
    kernel: PathBuf,
    modules: PathBuf,
}

impl Parts {
    /// Finds all parts, or returns `None` if one is missing.
    fn find() -> Option<Self> {
        let emulator = find("qemu-system-x86_64")?;
        let busybox = find("busybox")?;
        let mut kernels: Vec<_> = fs::read_dir("/boot").ok()?.filter_map(Result::ok).collect();
        kernels.sort_by_cached_key(|entry| numbers(&entry.file_name().to_string_lossy()));
        kernels.into_iter().rev().find_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let release = name.strip_prefix("vmlinuz-")?;
            let modules = Path::new("/lib/modules").join(release).join("kernel");
            let all = MODULES.iter().all(|module| file(&modules, module).exists());
            all.then(|| Self {
                emulator: emulator.clone(),
                busybox: busybox.clone(),
                kernel: entry.path(),
                modules,
            })
        })
    }

    /// Creates the file system of the emulated system and returns its path.
    fn image(&self, home: &Path, programs: &Path) -> Result<PathBuf> {
        let mut image = Archive::default();
        for folder in ["bin", "dev", "proc", "sys", "tmp", "run"] {
            image.folder(folder);
        }
        image.copy("bin/busybox", &self.busybox)?;
        for program in PROGRAMS {
            let stripped = home.join(program);
            let from = programs.join(program);
            // Programs are stripped, because they consist mostly of debug information.
            workspace::output(Command::new("strip").arg("-o").arg(&stripped).arg(from))?;
            image.copy(&format!("bin/{program}"), &stripped)?;
        }
        let mut order = Vec::new();
        for module in MODULES {
            let name = module.rsplit('/').next().unwrap_or(module);
            image.copy(&format!("mod/{name}.ko"), &file(&self.modules, module))?;
            order.push(name);
        }
        image.file("mod/order", order.join("\n").as_bytes());
        image.file("etc/passwd", b"root:x:0:0::/:/bin/sh\n");
        image.file("etc/group", b"root:x:0:\n");
        for (name, at) in [("init", "init"), ("machine.toml", "etc/machine.toml")] {
            image.copy(at, &workspace::root().join("xtask/vfio").join(name))?;
        }
        let path = home.join("system.img");
        fs::write(&path, image.finish()).with_context(|| format!("{}", path.display()))?;
        Ok(path)
    }
}

fn file(modules: &Path, module: &str) -> PathBuf {
    modules.join(format!("{module}.ko"))
}

/// Builds the programs that run inside and returns their folder.
fn programs() -> Result<PathBuf> {
    let targets: Vec<&str> = PROGRAMS.iter().flat_map(|name| ["--bin", name]).collect();
    build::as_tested(&targets)
}
