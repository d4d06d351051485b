//! Addresses that `host-local` has assigned. Each has a file, whose name is the address and which
//! contains the container's id and the interface. `host-local` does not implement GC.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The program that writes these files.
pub(crate) const PROGRAM: &str = "host-local";
/// Default folder of these files, which `dataDir` overrides.
const DATA_DIR: &str = "/var/lib/cni/networks";

/// Returns the containers and interfaces with addresses of a network, without duplicates.
pub(crate) fn holders(data_dir: Option<&Path>, network: &str) -> Vec<(String, String)> {
    let folder = data_dir.map_or(PathBuf::from(DATA_DIR), Path::to_owned);
    let files = fs::read_dir(folder.join(network)).into_iter().flatten();
    let is_address = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        name.to_str()
            .is_some_and(|name| name.parse::<IpAddr>().is_ok())
    };
    let files = files.flatten().filter(is_address);
    let holder = |entry: fs::DirEntry| holder(&fs::read_to_string(entry.path()).ok()?);
    let mut holders: Vec<_> = files.filter_map(holder).collect();
    holders.sort();
    holders.dedup();
    holders
}

/// Returns the container and the interface of a reservation. Old versions recorded only the
/// container; their addresses cannot be released for a single interface.
fn holder(text: &str) -> Option<(String, String)> {
    let mut lines = text.lines().map(str::trim);
    let (container, ifname) = (lines.next()?, lines.next()?);
    let are_there = !container.is_empty() && !ifname.is_empty();
    are_there.then(|| (container.to_owned(), ifname.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_name_container_and_interface() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("net");
        fs::create_dir(&folder).unwrap();
        for (name, text) in [
            ("10.1.0.2", "c1\r\neth0"),
            ("fd00::2", "c1\r\neth0"),
            ("10.1.0.3", "c0\neth1\n"),
            ("10.1.0.4", "old"),
            ("last_reserved_ip.0", "c9\r\neth0"),
            ("lock", ""),
        ] {
            fs::write(folder.join(name), text).unwrap();
        }
        let pair = |container: &str, ifname: &str| (container.to_owned(), ifname.to_owned());
        let all = [pair("c0", "eth1"), pair("c1", "eth0")];
        assert_eq!(holders(Some(dir.path()), "net"), all);
        assert_eq!(holders(Some(dir.path()), "absent"), []);
    }
}
