//! A virtual machine behind a guest's interface.

use abi::PAGE;
use abi::machine::VhostUser;
use std::str::FromStr;

/// Permissions of a file, written in octal: `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileMode(pub u32);

impl FromStr for FileMode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mode = u32::from_str_radix(text, 8).ok();
        mode.filter(|mode| *mode <= 0o777)
            .map(Self)
            .ok_or("not an octal number up to 0777, like 0660")
    }
}

/// A virtual machine whose monitor uses vhost-user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualMachine {
    /// The socket's path.
    pub socket: String,
    /// Whether the virtual machine monitor listens on the socket and Grantway connects to it.
    pub client: bool,
    /// The owner of a listening socket; `None`: the user of the machine.
    pub owner: Option<String>,
    /// The group of a listening socket, if it is set.
    pub group: Option<String>,
    /// The mode of a listening socket.
    pub mode: FileMode,
    /// Number of queue pairs that the virtual machine may use; `None`: one for each worker of the
    /// driver domain.
    pub queue_pairs: Option<u32>,
    /// The maximum memory of the virtual machine, GiB.
    pub memory_gib: u32,
}

impl VirtualMachine {
    /// Default permissions of a socket.
    pub const MODE: FileMode = FileMode(0o600);
    /// The default for `memory_gib`.
    pub const MEMORY_GIB: u32 = 1024;
    /// The maximum of `memory_gib`.
    pub const MEMORY_GIB_MAX: u32 = 2048;

    /// Maximum number of queue pairs.
    pub const QUEUE_PAIRS_MAX: u32 = 8;

    /// Returns the number of queue pairs if the driver domain has `workers` workers.
    pub(crate) fn queue_pairs(&self, workers: u32) -> u32 {
        let usual = workers.clamp(1, Self::QUEUE_PAIRS_MAX);
        self.queue_pairs.unwrap_or(usual)
    }

    /// Returns the maximum memory of the virtual machine, bytes.
    pub(crate) const fn memory_bytes(&self) -> u64 {
        (self.memory_gib as u64) << 30
    }

    /// Returns the number of pages that may be mapped: the memory, and a log of its pages during a
    /// migration.
    pub(crate) const fn pages(&self) -> u32 {
        const GIB: u32 = (1 << 30) / PAGE as u32;
        self.memory_gib.saturating_mul(GIB).saturating_add(GIB)
    }

    /// Returns the device of the domain that serves it.
    pub(crate) fn device(&self) -> VhostUser {
        VhostUser {
            path: self.socket.clone(),
            client: self.client,
            owner: self.owner.clone(),
            group: self.group.clone(),
            mode: self.mode.0,
        }
    }
}
