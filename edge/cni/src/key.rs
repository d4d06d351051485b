//! Identity of an attachment: the network's name, the container's id and the interface's name. All
//! other names are derived from these three. The namespace's path is not part of the identity,
//! because a runtime may omit it for DEL or pass another one.

/// The identity of an attachment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttachmentKey<'a> {
    pub(crate) network: &'a str,
    pub(crate) container: &'a str,
    pub(crate) ifname: &'a str,
}

impl AttachmentKey<'_> {
    /// Returns the guest's name, which has 29 characters of the 32 allowed.
    pub(crate) fn guest(&self) -> String {
        let key = self.hash();
        format!(
            "{}{:016x}",
            prefix(self.network),
            ((key >> 64) ^ key) as u64
        )
    }

    /// Returns the default MAC, which is practically unique in a network and the same for each
    /// start of the container.
    pub(crate) fn mac(&self) -> String {
        let key = self.hash();
        let [a, b, c, d, e, ..] = ((key >> 88) ^ key).to_le_bytes();
        format!("02:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}")
    }

    /// Hashes the names, separated by zero bytes. No name contains a zero byte, so different keys
    /// have different texts.
    fn hash(&self) -> u128 {
        let text = [self.network, self.container, self.ifname].join("\0");
        fnv(text.as_bytes())
    }
}

/// Returns the prefix that identifies the guests of a network. The names of these guests begin with
/// it, and no other name does.
pub(crate) fn prefix(network: &str) -> String {
    let hash = fnv(network.as_bytes());
    format!("cni-{:08x}-", ((hash >> 96) ^ hash) as u32)
}

/// Returns the 128-bit FNV-1a hash (RFC 9923). The hash must be the same in all versions of this
/// program. It need not resist attacks, because an attacker who chooses container ids already has
/// more power.
fn fnv(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, byte| {
        (hash ^ u128::from(*byte)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_match_the_specification() {
        assert_eq!(fnv(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(fnv(b"foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    #[test]
    fn names_are_the_same_in_all_versions() {
        let key = AttachmentKey {
            network: "gwnet",
            container: "584b1177090309aacc13ee40884a3d450b12b35cb02582657f37127bc41d36ea",
            ifname: "eth0",
        };
        assert_eq!(key.guest(), GUEST);
        assert_eq!(key.mac(), MAC);
        let other = AttachmentKey {
            ifname: "eth1",
            ..key
        };
        assert!(other.guest().starts_with(&prefix("gwnet")) && other.guest() != key.guest());
        let elsewhere = AttachmentKey {
            network: "gwnet2",
            ..key
        };
        assert!(!elsewhere.guest().starts_with(&prefix("gwnet")));
        client::check_name(&key.guest()).unwrap();
    }

    const GUEST: &str = "cni-c92ea666-292d1189fd476ab7";
    const MAC: &str = "02:95:09:a6:0b:18";
}
