//! QEMU without hardware virtualization, with an installed kernel.

use super::uml::{INIT, sh};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use testing::{Kernel, Running, TIMEOUT, kernel, wait_for};

/// The interface's MAC, which is also in the machine's configuration.
pub(super) const MAC: &str = "02:00:00:00:05:01";
/// Bytes of memory. QEMU 7.2 loses writes of its emulated processor during a migration if
/// the size is a multiple of 256 KiB.
const MEMORY: u64 = (256 << 20) + 8192;
const PROMPT: &[u8] = b"(qemu) ";

/// A running virtual machine, which is killed when this value is dropped.
pub(super) struct Qemu {
    program: Running,
    folder: PathBuf,
}

impl Qemu {
    /// Starts a virtual machine whose interface has this address and is connected to `socket`. No
    /// other program may use `folder`.
    pub(super) fn start(folder: PathBuf, socket: &Path, address: &str, more: &[&str]) -> Self {
        let kernel = kernel().unwrap();
        write_initrd(&folder, &kernel);
        let mut command = Command::new("qemu-system-x86_64");
        command
            .args(["-accel", "tcg,thread=single", "-cpu", "max", "-nodefaults"])
            .args(["-display", "none", "-machine", "pc,memory-backend=mem"])
            .args(["-m", &format!("size={}k,slots=1,maxmem=1G", MEMORY >> 10)])
            .args(["-object", &memory("mem", MEMORY)])
            .args(["-kernel", &kernel.image.display().to_string()])
            .args(["-initrd", "initrd", "-append"])
            .arg(command_line(address))
            .args(["-serial", "file:log"])
            .args(["-monitor", "unix:monitor,server=on,wait=off"])
            .arg("-chardev")
            .arg(format!("socket,id=c,path={},reconnect=1", socket.display()))
            .args(["-netdev", "vhost-user,id=n,chardev=c", "-device"])
            // With MSI-X, QEMU 7.2 crashes when the back end restarts.
            .arg(format!(
                "virtio-net-pci,netdev=n,mac={MAC},vectors=0,romfile="
            ))
            .args(more)
            .current_dir(&folder)
            .stdin(Stdio::null());
        Self {
            program: Running::new(command.spawn().unwrap()),
            folder,
        }
    }

    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Waits until the virtual machine's network is up.
    pub(super) fn wait_until_up(&mut self) {
        self.wait_for_boots(1);
    }

    /// Waits until the network is up for the `boots`th time.
    pub(super) fn wait_for_boots(&mut self, boots: usize) {
        wait_for_boots(&self.log(), boots, &mut self.program);
    }

    /// Resets the virtual machine, like the reset button, and waits until its network is up again.
    pub(super) fn reset(&mut self) {
        let boots = boots_in(&text_of(&self.log()));
        self.monitor("system_reset");
        self.wait_for_boots(boots + 1);
    }

    fn connect(&self, name: &str) -> UnixStream {
        let path = self.folder.join(name);
        let stream = wait_for("no socket", || UnixStream::connect(&path).ok());
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream
    }

    /// Runs a command of QEMU's monitor. Returns its output.
    pub(super) fn monitor(&self, command: &str) -> String {
        let mut stream = &self.connect("monitor");
        let until_prompt = |mut stream: &UnixStream| {
            let (mut said, mut byte) = (Vec::new(), [0]);
            while !said.ends_with(PROMPT) {
                stream.read_exact(&mut byte).unwrap();
                said.extend(byte);
            }
            String::from_utf8_lossy(&said).into_owned()
        };
        until_prompt(stream);
        writeln!(stream, "{command}").unwrap();
        until_prompt(stream)
    }

    pub(super) fn pid(&self) -> u64 {
        self.program.pid().into()
    }
}

fn text_of(log: &Path) -> String {
    let log = fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&log).into_owned()
}

/// Returns the number of times that a virtual machine's network has been configured.
fn boots_in(log: &str) -> usize {
    log.matches("network up").count()
}

/// Waits until the network of a virtual machine with this log is up for the `boots`th time.
pub(super) fn wait_for_boots(log: &Path, boots: usize, vmm: &mut Running) {
    // An emulated CPU takes a multiple of a real one's time, and shares few real ones.
    let end = Instant::now() + 5 * TIMEOUT;
    loop {
        let text = text_of(log);
        if boots_in(&text) >= boots {
            return;
        }
        assert!(!vmm.is_over(), "{text}");
        assert!(Instant::now() < end, "does not boot: {text}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Writes the virtual machine's initial file system to `initrd` in a folder.
pub(super) fn write_initrd(folder: &Path, kernel: &Kernel) {
    fs::create_dir_all(folder.join("root/bin")).unwrap();
    fs::write(folder.join("root/init"), INIT).unwrap();
    sh(
        folder,
        &format!(
            "cd root && chmod +x init && mkdir -p proc sys dev modules && \
             find {} -name 'virtio*.ko' -o -name '*failover.ko' | xargs cp -t modules && \
             cp $(command -v busybox) bin/ && \
             find . | busybox cpio -o -H newc 2>/dev/null | gzip -1 > ../initrd",
            kernel.modules.display()
        ),
    );
}

/// Returns the kernel's command line for a virtual machine with this address.
pub(super) fn command_line(address: &str) -> String {
    // On a busy host the emulated timer fails the kernel's check, and the kernel panics.
    format!("console=ttyS0 rdinit=/init quiet no_timer_check address={address}")
}

/// Returns QEMU's description of memory that can be shared.
pub(super) fn memory(id: &str, bytes: u64) -> String {
    format!("memory-backend-memfd,id={id},size={bytes},share=on")
}
