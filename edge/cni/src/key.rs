//! Who is meant: an attachment is a network's name, a container's id and an interface's name, and
//! everything that is called something is called after these three. The namespace's path is none of
//! them: runtimes leave it out, or have another one, when the container goes.

/// Which interface of which container in which network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key<'a> {
    pub(crate) network: &'a str,
    pub(crate) container: &'a str,
    pub(crate) ifname: &'a str,
}

impl Key<'_> {
    /// The name of its guest: 29 characters, of 32 that a name may have.
    pub(crate) fn guest(&self) -> String {
        let key = self.hash();
        format!(
            "{}{:016x}",
            prefix(self.network),
            ((key >> 64) ^ key) as u64
        )
    }

    /// The MAC that it has unless somebody asks for one: as good as unique among all hosts of a
    /// network, and the same one whenever the container is started.
    pub(crate) fn mac(&self) -> String {
        let key = self.hash();
        let [a, b, c, d, e, ..] = ((key >> 88) ^ key).to_le_bytes();
        format!("02:{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}")
    }

    /// No name has a zero byte, so no two keys are the same text.
    fn hash(&self) -> u128 {
        let text = [self.network, self.container, self.ifname].join("\0");
        fnv(text.as_bytes())
    }
}

/// What the names of all guests of a network begin with, and no others.
pub(crate) fn prefix(network: &str) -> String {
    let hash = fnv(network.as_bytes());
    format!("cni-{:08x}-", ((hash >> 96) ^ hash) as u32)
}

/// FNV-1a of 128 bits (RFC 9923). It has to be the same in all versions of this program, and need
/// not stand against anybody: who chooses ids of containers may do worse things.
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
    fn hashes_are_those_of_the_specification() {
        assert_eq!(fnv(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(fnv(b"foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }

    #[test]
    fn names_stay_what_they_were() {
        let key = Key {
            network: "gwnet",
            container: "584b1177090309aacc13ee40884a3d450b12b35cb02582657f37127bc41d36ea",
            ifname: "eth0",
        };
        assert_eq!(key.guest(), GUEST);
        assert_eq!(key.mac(), MAC);
        let other = Key {
            ifname: "eth1",
            ..key
        };
        assert!(other.guest().starts_with(&prefix("gwnet")) && other.guest() != key.guest());
        let elsewhere = Key {
            network: "gwnet2",
            ..key
        };
        assert!(!elsewhere.guest().starts_with(&prefix("gwnet")));
        client::check_name(&key.guest()).unwrap();
    }

    const GUEST: &str = "cni-c92ea666-292d1189fd476ab7";
    const MAC: &str = "02:95:09:a6:0b:18";
}
