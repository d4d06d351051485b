//! A virtual machine behind a guest's interface.

use crate::domain::GrantMode;
use crate::findings::Findings;
use crate::problem::ConfigPart;
use crate::table::TomlTable;
use abi::PAGE;
use abi::machine::VhostUser;
use serde::Deserialize;

/// The maximum length of a Unix socket's path, bytes.
const SOCKET_PATH_MAX: usize = 107;

/// Permissions of a file, written in octal: `"0660"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct FileMode(pub u32);

impl TryFrom<String> for FileMode {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let mode = u32::from_str_radix(&text, 8).ok();
        let mode = mode.filter(|mode| *mode <= 0o777);
        mode.map(Self).ok_or("write it like \"0660\"")
    }
}

/// A virtual machine whose monitor uses vhost-user.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VirtualMachine {
    /// The socket's path.
    pub socket: String,
    /// Whether the virtual machine monitor listens on the socket and Grantway connects to it.
    #[serde(skip)]
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

impl Default for VirtualMachine {
    fn default() -> Self {
        Self {
            socket: String::new(),
            client: false,
            owner: None,
            group: None,
            mode: FileMode(0o600),
            queue_pairs: None,
            memory_gib: 1024,
        }
    }
}

impl VirtualMachine {
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

/// Reads a virtual machine.
pub(crate) fn read(t: &TomlTable<'_, '_>) -> VirtualMachine {
    t.needs(
        "socket",
        "write the path of its socket: socket = \"/run/grantway/vhost/web.sock\"",
    );
    let modes = [("server", false), ("client", true)];
    VirtualMachine {
        client: t.choice("socket_mode", &modes).unwrap_or(false),
        ..t.fields()
    }
}

/// Checks a virtual machine, whose domain's pages the driver accesses by `grants`.
pub(crate) fn check(
    found: &mut Findings,
    part: ConfigPart,
    machine: &VirtualMachine,
    grants: GrantMode,
) {
    let path = &machine.socket;
    if !path.starts_with('/') || path.len() > SOCKET_PATH_MAX {
        let what = format!("`socket` is \"{path}\"");
        let remedy = format!("write an absolute path of at most {SOCKET_PATH_MAX} bytes");
        found.add(part, "socket", what, remedy);
    }
    let most = VirtualMachine::MEMORY_GIB_MAX;
    found.range(part, "memory_gib", machine.memory_gib, 1..=most);
    let pairs = machine.queue_pairs.unwrap_or(1);
    found.range(
        part,
        "queue_pairs",
        pairs,
        1..=VirtualMachine::QUEUE_PAIRS_MAX,
    );
    let has_owner = machine.owner.is_some() || machine.group.is_some();
    if machine.client && has_owner {
        let what =
            "the virtual machine's monitor creates the socket, but `owner` or `group` is set";
        let remedy = "leave these out, or write socket_mode = \"server\"";
        found.add(part, "socket_mode", what, remedy);
    }
    if grants.exchanges_pages() {
        let what = "the virtual machine's domain has no window for pages that change hands";
        let remedy = "write another `grants` in [driver], or another `endpoint`";
        found.add(part, "endpoint", what, remedy);
    }
}
