//! Features that the two ends offer and request: converts nodes of the xenstore (public/io/netif.h)
//! to the records of the data path, and back.

use abi::{GrantRef, Handle, PAGE};
use config::domain::Offloads;
use smallvec::SmallVec;
use vif::netif::{BackRecord, Features, FrontRecord, MAX_SLOTS_STOCK, RecordError};

/// Grant reference that represents the event channel's page in a frontend's record. That page
/// belongs to this domain, and no grant of a frontend has this reference.
pub const OWN_PAGE: GrantRef = GrantRef(u32::MAX);

/// Maximum number of queues of an interface.
pub const QUEUES_MAX: usize = 4;

/// Nodes of a backend and their features. A node states that the backend *accepts* the feature.
const BACK: [(&str, Features); 4] = [
    ("feature-sg", Features::SG),
    ("feature-gso-tcpv4", Features::GSO_TCPV4),
    ("feature-gso-tcpv6", Features::GSO_TCPV6),
    ("feature-ipv6-csum-offload", Features::IPV6_CSUM),
];

/// Nodes of a frontend and their features: those of a backend, and those that only a frontend has.
const FRONT: [(&str, Features); 6] = [
    ("feature-sg", Features::SG),
    ("feature-gso-tcpv4", Features::GSO_TCPV4),
    ("feature-gso-tcpv6", Features::GSO_TCPV6),
    ("feature-ipv6-csum-offload", Features::IPV6_CSUM),
    ("feature-no-csum-offload", Features::NO_CSUM),
    ("request-rx-copy", Features::RX_COPY),
];

/// Returns the offer to every frontend. It always accepts blank checksums over IPv4, because a
/// stock frontend leaves them blank regardless of the offer.
#[must_use]
pub fn backend_offer(offloads: Offloads) -> BackRecord {
    let checksums = Features::SG.with(Features::RX_COPY);
    let features = match offloads {
        Offloads::None => checksums,
        Offloads::Checksum => checksums.with(Features::IPV6_CSUM),
        Offloads::Tso => checksums
            .with(Features::IPV6_CSUM)
            .with(Features::GSO_TCPV4)
            .with(Features::GSO_TCPV6),
    };
    BackRecord {
        features,
        max_order: 0,
        max_slots: MAX_SLOTS_STOCK,
    }
}

/// Returns the nodes of a backend with this offer.
#[must_use]
pub fn back_nodes(offer: &BackRecord) -> Vec<(&'static str, String)> {
    let switch = |is_on: bool| if is_on { "1" } else { "0" }.to_owned();
    let of = |(name, feature)| (name, switch(offer.features.has(feature)));
    let features = BACK.into_iter().map(of);
    let fixed = [
        ("feature-rx-copy", switch(true)),
        ("feature-rx-flip", switch(false)),
        ("feature-split-event-channels", switch(true)),
        ("feature-ctrl-ring", switch(true)),
        ("feature-multicast-control", switch(true)),
        ("feature-dynamic-multicast-control", switch(true)),
        ("multi-queue-max-queues", QUEUES_MAX.to_string()),
    ];
    features.chain(fixed).collect()
}

/// The choices of a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontendChoice {
    /// Its record, with the rings of the first queue; the page of the event channel is
    /// [`OWN_PAGE`].
    pub record: FrontRecord,
    /// Its queues, at least one and at most [`QUEUES_MAX`].
    pub queues: Vec<FrontendQueue>,
    /// Its control ring, if it has one.
    pub control: Option<ControlPage>,
}

/// A frontend's control ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlPage {
    /// The ring's page.
    pub ring: GrantRef,
    /// Its event channel.
    pub port: u32,
}

/// One queue of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontendQueue {
    /// The pages of the ring from the guest and of the ring to it.
    pub rings: [GrantRef; 2],
    /// Its event channels.
    pub ports: EventPorts,
}

/// A frontend's ends of a queue's event channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPorts {
    /// One channel for both rings.
    Shared(u32),
    /// A channel for each ring (`feature-split-event-channels`).
    Split {
        /// Event channel for packets from the guest.
        tx: u32,
        /// Event channel for packets to the guest.
        rx: u32,
    },
}

/// Reason why a frontend's nodes are unusable.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrontendError {
    /// A node is missing or not a number.
    #[error("the guest's `{0}` is missing or not a number")]
    Node(String),
    /// The guest uses no queue, or more queues than were offered.
    #[error("the guest uses {0} queues, but the offer is 1 to {QUEUES_MAX}")]
    Queues(u32),
    /// Both event channels have the same port.
    #[error("the guest's `event-channel-tx` and `event-channel-rx` are both {0}")]
    SamePort(u32),
    /// Two rings have the same page.
    #[error("two rings of the guest have the same grant reference {0}")]
    SameRing(u32),
    /// The record is invalid.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Returns the choices of a frontend. `node` returns the value of one of its nodes. `mac` is the
/// MAC that the toolstack has written.
///
/// # Errors
///
/// Returns [`FrontendError`].
pub fn read_choice(
    mac: [u8; 6],
    mut node: impl FnMut(&str) -> Option<String>,
) -> Result<FrontendChoice, FrontendError> {
    let mut number = |name: &str| -> Option<u32> { node(name)?.trim().parse().ok() };
    let count = number("multi-queue-num-queues").unwrap_or(1);
    let queues: Vec<FrontendQueue> = match count {
        // The nodes of a single queue are in the interface's directory.
        1 => vec![queue("", &mut number)?],
        _ if (2..=QUEUES_MAX as u32).contains(&count) => (0..count)
            .map(|n| queue(&format!("queue-{n}/"), &mut number))
            .collect::<Result<_, _>>()?,
        _ => return Err(FrontendError::Queues(count)),
    };
    let control = match number("ctrl-ring-ref") {
        None => None,
        Some(ring) => Some(ControlPage {
            ring: GrantRef(ring),
            port: number("event-channel-ctrl")
                .ok_or_else(|| FrontendError::Node("event-channel-ctrl".to_owned()))?,
        }),
    };
    let features = FRONT
        .into_iter()
        .filter(|(name, _)| number(name).unwrap_or(0) != 0);
    let features = features.fold(Features::default(), |all, (_, feature)| all.with(feature));
    // A frontend's nodes may contain anything, for example two rings in one page.
    let record = |queue: &FrontendQueue| {
        let record = FrontRecord {
            features,
            max_slots: MAX_SLOTS_STOCK,
            rx_buffer: PAGE as u16,
            mac,
            table: Handle(0),
            event: OWN_PAGE,
            tx_ring: SmallVec::from_iter([queue.rings[0]]),
            rx_ring: SmallVec::from_iter([queue.rings[1]]),
        };
        FrontRecord::decode(&record.encode())
    };
    let records = queues.iter().map(record).collect::<Result<Vec<_>, _>>()?;
    let mut rings: Vec<u32> = queues
        .iter()
        .flat_map(|q| q.rings)
        .chain(control.map(|control| control.ring))
        .map(|ring| ring.0)
        .collect();
    rings.sort_unstable();
    let twice = rings.windows(2).find(|pair| pair.first() == pair.last());
    if let Some(ring) = twice.and_then(<[u32]>::first) {
        return Err(FrontendError::SameRing(*ring));
    }
    let record = records.into_iter().next();
    let record = record.ok_or(FrontendError::Queues(0))?;
    Ok(FrontendChoice {
        record,
        queues,
        control,
    })
}

/// Reads one queue, whose nodes are below `place`.
fn queue(
    place: &str,
    mut number: impl FnMut(&str) -> Option<u32>,
) -> Result<FrontendQueue, FrontendError> {
    // As in xen-netback, a channel for each ring takes precedence.
    let split = number(&format!("{place}event-channel-tx"));
    let mut need = |name: &str| {
        let name = format!("{place}{name}");
        number(&name).ok_or(FrontendError::Node(name))
    };
    let rings = [need("tx-ring-ref")?, need("rx-ring-ref")?].map(GrantRef);
    let ports = match split {
        None => EventPorts::Shared(need("event-channel")?),
        Some(tx) => match need("event-channel-rx")? {
            rx if rx == tx => return Err(FrontendError::SamePort(tx)),
            rx => EventPorts::Split { tx, rx },
        },
    };
    Ok(FrontendQueue { rings, ports })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use vif::netif::Negotiated;

    const MAC: [u8; 6] = [0, 0x16, 0x3e, 1, 2, 3];

    /// Returns the nodes of Linux's netfront.
    fn stock() -> BTreeMap<&'static str, &'static str> {
        [
            ("tx-ring-ref", "8"),
            ("rx-ring-ref", "9"),
            ("event-channel", "15"),
            ("request-rx-copy", "1"),
            ("feature-rx-notify", "1"),
            ("feature-sg", "1"),
            ("feature-gso-tcpv4", "1"),
            ("feature-gso-tcpv6", "1"),
            ("feature-ipv6-csum-offload", "1"),
        ]
        .into()
    }

    fn of(nodes: &BTreeMap<&str, &str>) -> Result<FrontendChoice, FrontendError> {
        read_choice(MAC, |name| nodes.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn a_stock_frontend_gets_everything() {
        let chosen = of(&stock()).unwrap();
        let ports = EventPorts::Shared(15);
        let rings = [8, 9].map(GrantRef);
        assert_eq!(chosen.queues, [FrontendQueue { rings, ports }]);
        let negotiated = Negotiated::of(&backend_offer(Offloads::Tso), &chosen.record).unwrap();
        for end in [negotiated.to_guest, negotiated.from_guest] {
            assert!(end.gso_tcpv4 && end.gso_tcpv6 && end.csum && end.ipv6_csum);
            assert_eq!(end.max_slots, 18);
        }
        assert_eq!(
            (
                negotiated.tx_order,
                negotiated.rx_order,
                negotiated.rx_offset
            ),
            (0, 0, false)
        );
        assert!(!negotiated.rx_meta && !negotiated.any_order);
    }

    #[test]
    fn fewer_features_are_used_if_fewer_are_offered() {
        for (missing, taken) in [
            ("feature-gso-tcpv4", [false, true, true, true]),
            ("feature-gso-tcpv6", [true, false, true, true]),
            ("feature-ipv6-csum-offload", [true, true, true, false]),
            // GSO packets need several slots.
            ("feature-sg", [false, false, true, true]),
        ] {
            let mut nodes = stock();
            nodes.remove(missing);
            let record = of(&nodes).unwrap().record;
            let to = Negotiated::of(&backend_offer(Offloads::Tso), &record)
                .unwrap()
                .to_guest;
            let got = [to.gso_tcpv4, to.gso_tcpv6, to.csum, to.ipv6_csum];
            assert_eq!(got, taken, "{missing}");
        }
        let mut nodes = stock();
        nodes.insert("feature-no-csum-offload", "1");
        let record = of(&nodes).unwrap().record;
        assert!(
            !Negotiated::of(&backend_offer(Offloads::Tso), &record)
                .unwrap()
                .to_guest
                .csum
        );
    }

    #[test]
    fn blank_ipv4_checksums_are_always_accepted() {
        for offloads in [Offloads::None, Offloads::Checksum, Offloads::Tso] {
            let record = of(&stock()).unwrap().record;
            assert!(
                Negotiated::of(&backend_offer(offloads), &record)
                    .unwrap()
                    .from_guest
                    .csum
            );
        }
    }

    #[test]
    fn nodes_match_the_offer() {
        let nodes: BTreeMap<_, _> = back_nodes(&backend_offer(Offloads::Checksum))
            .into_iter()
            .collect();
        assert_eq!(nodes["feature-rx-copy"], "1");
        assert_eq!(nodes["feature-sg"], "1");
        assert_eq!(nodes["feature-ipv6-csum-offload"], "1");
        assert_eq!(nodes["feature-gso-tcpv4"], "0");
        assert_eq!(nodes["feature-multicast-control"], "1");
        assert_eq!(nodes["feature-dynamic-multicast-control"], "1");
        let all = back_nodes(&backend_offer(Offloads::Tso));
        assert!(all.contains(&("feature-gso-tcpv6", "1".to_owned())));
    }

    #[test]
    fn each_ring_may_have_an_event_channel() {
        let mut nodes = stock();
        nodes.remove("event-channel");
        nodes.insert("event-channel-tx", "15");
        assert_eq!(
            of(&nodes),
            Err(FrontendError::Node("event-channel-rx".into()))
        );
        nodes.insert("event-channel-rx", "15");
        assert_eq!(of(&nodes), Err(FrontendError::SamePort(15)));
        nodes.insert("event-channel-rx", "16");
        let split = EventPorts::Split { tx: 15, rx: 16 };
        assert_eq!(of(&nodes).unwrap().queues[0].ports, split);
        // Like xen-netback, it ignores nodes of an earlier attempt.
        nodes.insert("event-channel", "9");
        assert_eq!(of(&nodes).unwrap().queues[0].ports, split);
    }

    /// Returns the nodes of Linux's netfront on a machine with several CPUs.
    fn with_queues(count: u32) -> BTreeMap<String, String> {
        let one = [
            "tx-ring-ref",
            "rx-ring-ref",
            "event-channel-tx",
            "event-channel-rx",
        ];
        let all = stock().into_iter().filter(|(name, _)| !one.contains(name));
        let mut nodes: BTreeMap<String, String> = all
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        nodes.insert("multi-queue-num-queues".into(), count.to_string());
        for queue in 0..count {
            for (n, name) in (0..).zip(one) {
                nodes.insert(
                    format!("queue-{queue}/{name}"),
                    (queue * 4 + n + 8).to_string(),
                );
            }
        }
        nodes
    }

    #[test]
    fn a_frontend_may_have_several_queues() {
        let of =
            |nodes: &BTreeMap<String, String>| read_choice(MAC, |name| nodes.get(name).cloned());
        let nodes = with_queues(4);
        let four = of(&nodes).unwrap();
        assert_eq!(four.queues.len(), 4);
        let last = FrontendQueue {
            rings: [20, 21].map(GrantRef),
            ports: EventPorts::Split { tx: 22, rx: 23 },
        };
        assert_eq!(four.queues[3], last);
        assert_eq!(four.record.tx_ring[0], GrantRef(8));
        let with = |name: &str, value: &str| {
            let mut nodes = nodes.clone();
            nodes.insert(name.into(), value.into());
            of(&nodes)
        };
        assert_eq!(
            with("queue-2/rx-ring-ref", "8"),
            Err(FrontendError::SameRing(8))
        );
        let nothing = FrontendError::Node("queue-3/tx-ring-ref".into());
        assert_eq!(with("queue-3/tx-ring-ref", ""), Err(nothing));
        let zero = Err(RecordError::Reference.into());
        assert_eq!(with("queue-1/tx-ring-ref", "0"), zero);
    }

    #[test]
    fn a_frontend_may_have_a_control_ring() {
        assert_eq!(of(&stock()).unwrap().control, None);
        let mut nodes = stock();
        nodes.insert("ctrl-ring-ref", "11");
        assert_eq!(
            of(&nodes),
            Err(FrontendError::Node("event-channel-ctrl".into()))
        );
        nodes.insert("event-channel-ctrl", "21");
        let control = ControlPage {
            ring: GrantRef(11),
            port: 21,
        };
        assert_eq!(of(&nodes).unwrap().control, Some(control));
        nodes.insert("ctrl-ring-ref", "9");
        assert_eq!(of(&nodes), Err(FrontendError::SameRing(9)));
    }

    #[test]
    fn invalid_nodes_are_named() {
        for name in ["tx-ring-ref", "rx-ring-ref", "event-channel"] {
            for value in ["", "-1", "x", "4294967296"] {
                let mut nodes = stock();
                nodes.insert(name, value);
                assert_eq!(
                    of(&nodes),
                    Err(FrontendError::Node(name.into())),
                    "{value:?}"
                );
            }
        }
        let with = |name, value| {
            let mut nodes = stock();
            nodes.insert(name, value);
            of(&nodes)
        };
        assert_eq!(with("rx-ring-ref", "8"), Err(RecordError::Reference.into()));
        assert_eq!(with("tx-ring-ref", "0"), Err(RecordError::Reference.into()));
        assert_eq!(
            with("tx-ring-ref", "4294967295"),
            Err(RecordError::Reference.into())
        );
        for count in [0, 5, u32::MAX] {
            let refused = with("multi-queue-num-queues", count.to_string().leak());
            assert_eq!(refused, Err(FrontendError::Queues(count)));
        }
        assert!(with("multi-queue-num-queues", "1").is_ok());
        let mut flips = stock();
        flips.remove("request-rx-copy");
        let record = of(&flips).unwrap().record;
        assert!(Negotiated::of(&backend_offer(Offloads::Tso), &record).is_err());
    }

    proptest! {
        #[test]
        fn any_nodes_of_a_guest_are_handled(
            values in prop::collection::vec("\\PC{0,12}", 9),
        ) {
            let names: Vec<_> = stock().into_keys().collect();
            let nodes: BTreeMap<_, _> =
                names.into_iter().zip(values.iter().map(String::as_str)).collect();
            if let Ok(chosen) = of(&nodes) {
                prop_assert_eq!(chosen.record.mac, MAC);
                prop_assert_eq!(chosen.record.references().count(), 3);
            }
        }

        #[test]
        fn numbers_are_parsed(tx in 1u32..u32::MAX, rx in 1u32..u32::MAX, port: u32) {
            prop_assume!(tx != rx);
            let (tx_text, rx_text, port_text) = (tx.to_string(), rx.to_string(), port.to_string());
            let mut nodes = stock();
            nodes.insert("tx-ring-ref", &tx_text);
            nodes.insert("rx-ring-ref", &rx_text);
            nodes.insert("event-channel", &port_text);
            let chosen = of(&nodes).unwrap();
            prop_assert_eq!(chosen.record.tx_ring[0], GrantRef(tx));
            prop_assert_eq!(chosen.record.rx_ring[0], GrantRef(rx));
            prop_assert_eq!(chosen.queues[0].ports, EventPorts::Shared(port));
        }
    }
}
