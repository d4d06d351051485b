//! Why a frame went nowhere.

use serde::ser::{Serialize, SerializeMap, Serializer};

macro_rules! reasons {
    ($(#[doc = $doc:literal] $variant:ident = $name:literal;)*) => {
        /// Why the bridge dropped a frame.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(usize)]
        pub enum DropReason { $(#[doc = $doc] $variant,)* }

        impl DropReason {
            /// Every reason.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// Its name in counters.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// What it means, in a sentence.
            #[must_use]
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => $doc.trim(),)* }
            }
        }
    };
}

reasons! {
    /// It came in by a port that there is not.
    UnknownPort = "unknown_port";
    /// It is shorter than an Ethernet header.
    Runt = "runt";
    /// Its memory is not there any more.
    Fault = "fault";
    /// From a NIC: its source is a group's address, or all zeros.
    BadSource = "bad_source";
    /// From a NIC: its source is a guest's.
    BoundSource = "bound_source";
    /// From a guest: its source is not one of the guest's MACs.
    ForgedSource = "forged_source";
    /// From a guest: ARP that claims another's MAC or address.
    ForgedArp = "forged_arp";
    /// From a guest: neighbour discovery that claims another's MAC or address.
    ForgedNd = "forged_nd";
    /// From a guest that is no router: a router advertisement or a redirect.
    ForgedRouter = "forged_router";
    /// From a guest: headers that hide what the frame is (too many, too long, or nonsense).
    Obscure = "obscure";
    /// A rule of the port that it came in by, or of the one that it would go out by, denies it.
    Firewall = "firewall";
    /// To a group address that bridges keep to themselves.
    ReservedGroup = "reserved_group";
    /// Above the port's rate.
    RateLimit = "rate_limit";
    /// Above the port's budget of broadcast and multicast frames.
    GroupBudget = "group_budget";
    /// Its destination is behind the port that it came in by.
    SamePort = "same_port";
    /// There is no port that it could go to.
    NoPort = "no_port";
}

/// A counter per reason, in frames.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    /// Counts one frame.
    pub(super) fn count(&mut self, reason: DropReason) {
        if let Some(count) = self.0.get_mut(reason as usize) {
            *count += 1;
        }
    }

    /// Adds another's counts.
    pub(super) fn absorb(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(&other.0) {
            *count += more;
        }
    }

    /// Frames dropped for this reason.
    #[must_use]
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0.get(reason as usize).copied().unwrap_or(0)
    }

    /// Frames dropped for any reason.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every reason with its count, zeros too.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL
            .into_iter()
            .map(|reason| (reason, self.get(reason)))
    }
}

impl Serialize for Drops {
    /// As a map from name to count.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(DropReason::ALL.len()))?;
        for (reason, count) in self.iter() {
            map.serialize_entry(reason.name(), &count)?;
        }
        map.end()
    }
}
