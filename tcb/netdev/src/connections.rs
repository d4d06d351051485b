//! Limits on the connections that each guest may have open through a translated interface. Without
//! them, one guest could fill the kernel's connection table, which the whole namespace shares.

use crate::netlink::{NLM_F_CREATE, NetlinkRequest};
use crate::nftables::{
    CMP_EQ, CT_STATUS, DROP, HOOK_PREROUTING, META_IIFNAME, NEW_SET, NftRule, NftTable, message,
};

/// Priority after connection tracking and before translation. A packet dropped here leaves no entry
/// in the connection table, which keeps entries only for packets that pass all hooks.
const PRIORITY_MANGLE: i32 = -150;
const CHAIN: &str = "connections";
/// Bit of `CT_STATUS`: an earlier packet of the connection has passed. The state *new* is not
/// sufficient, because it applies to all packets of a connection without replies.
const CONFIRMED: u32 = 1 << 3;
const META_IIFTYPE: u32 = 8;
const ETHERNET: u16 = libc::ARPHRD_ETHER;
const LINK_HEADER: u32 = 0;
const MAC_AT: u32 = 6;
const MAC_BYTES: u32 = 6;
/// Key type that `nft` shows as `ether_addr`.
const KEY_TYPE: u32 = 9;
const SET_F_TIMEOUT: u32 = 0x10;
const SET_F_EVAL: u32 = 0x20;
/// Lifetime of a guest's bucket after its last new connection. The bucket is full again by then.
const BUCKET_TIMEOUT_MS: u64 = 60_000;
/// Capacity of a set in MACs, more than the guests of one interface.
const GUESTS_MAX: u32 = 65_535;
const OP_ADD: u32 = 0;
const OP_UPDATE: u32 = 1;
/// Flag of an expression that matches above its limit, not below.
const F_INVERT: u32 = 1;

/// One of the two limits of a guest.
struct ConnectionLimit {
    set: &'static str,
    id: u32,
    flags: u32,
    op: u32,
}

const RATE: ConnectionLimit = ConnectionLimit {
    set: "started",
    id: 1,
    flags: SET_F_EVAL | SET_F_TIMEOUT,
    op: OP_UPDATE,
};
const OPEN: ConnectionLimit = ConnectionLimit {
    set: "open",
    id: 2,
    flags: SET_F_EVAL,
    op: OP_ADD,
};

impl NftTable {
    /// Limits each MAC behind `ifname` to `most` open connections, and to a burst of `most` new
    /// connections with a sustained rate of an eighth of that per second. Drops packets that begin
    /// further connections.
    ///
    /// Checks the rate first, because the kernel's list of a guest's open connections also contains
    /// connections that were just dropped, until a clean-up removes them in small batches.
    pub(crate) fn limit_connections(&mut self, most: u32, ifname: &str) {
        self.chain(CHAIN, "filter", HOOK_PREROUTING, PRIORITY_MANGLE);
        let per_second = u64::from(most / 8).max(1);
        self.limit(&RATE, ifname, |expression| {
            expression.text(1, "limit");
            expression.nested(2, |data| {
                data.attribute(1, &per_second.to_be_bytes());
                data.attribute(2, &1u64.to_be_bytes());
                data.attribute(3, &most.to_be_bytes());
                data.attribute(5, &F_INVERT.to_be_bytes());
            });
        });
        self.limit(&OPEN, ifname, |expression| {
            expression.text(1, "connlimit");
            expression.nested(2, |data| {
                data.attribute(1, &most.to_be_bytes());
                data.attribute(2, &F_INVERT.to_be_bytes());
            });
        });
    }

    fn limit(
        &mut self,
        limit: &ConnectionLimit,
        ifname: &str,
        expression: impl FnOnce(&mut NetlinkRequest),
    ) {
        let mut set = message(NEW_SET, NLM_F_CREATE);
        set.text(1, self.name());
        set.text(2, limit.set);
        set.attribute(3, &limit.flags.to_be_bytes());
        set.attribute(4, &KEY_TYPE.to_be_bytes());
        set.attribute(5, &MAC_BYTES.to_be_bytes());
        set.nested(9, |size| size.attribute(1, &GUESTS_MAX.to_be_bytes()));
        set.attribute(10, &limit.id.to_be_bytes());
        if limit.flags & SET_F_TIMEOUT != 0 {
            set.attribute(11, &BUCKET_TIMEOUT_MS.to_be_bytes());
        }
        self.push(set);
        self.rule(CHAIN, |rule| {
            rule.interface(META_IIFNAME, CMP_EQ, ifname);
            rule.connection(CT_STATUS, CMP_EQ, CONFIRMED);
            rule.meta(META_IIFTYPE, CMP_EQ, &ETHERNET.to_ne_bytes());
            rule.load(LINK_HEADER, MAC_AT, MAC_BYTES);
            rule.beyond(limit, expression);
            rule.expression("counter", |_| {});
            rule.verdict(DROP);
        });
    }
}

impl NftRule {
    /// Matches if the MAC in the register has exceeded its limit.
    fn beyond(&mut self, limit: &ConnectionLimit, expression: impl FnOnce(&mut NetlinkRequest)) {
        self.expression("dynset", |data| {
            data.text(1, limit.set);
            data.attribute(2, &limit.id.to_be_bytes());
            data.attribute(3, &limit.op.to_be_bytes());
            data.attribute(4, &crate::nftables::REG.to_be_bytes());
            data.nested(7, expression);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;
    use std::process::Command;
    use testing::require;

    /// Compares the rules with the output of `nft`.
    #[test]
    fn connections_of_each_mac_are_limited() {
        require!(netns, tool("nft"));
        let rules = Namespace::new().unwrap().enter(|| {
            let mut table = NftTable::empty("grantway-up0", "");
            table.limit_connections(4000, "up0");
            let _kept = table.install().unwrap();
            let nft = Command::new("nft").args(["list", "ruleset"]).output();
            String::from_utf8(nft.unwrap().stdout).unwrap()
        });
        let rules = rules.unwrap();
        let rate = "update @started { ether saddr limit rate over 500/second burst 4000 packets }";
        let open = "add @open { ether saddr ct count over 4000 }";
        for limit in [rate, open] {
            let rule = format!("{limit} counter packets 0 bytes 0 drop");
            assert!(rules.contains(&rule), "{rule}: {rules}");
        }
        assert_eq!(
            rules.matches("iifname \"up0\" ct status").count(),
            2,
            "{rules}"
        );
        assert!(rules.contains("hook prerouting priority mangle"), "{rules}");
    }
}
