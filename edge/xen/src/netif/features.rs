//! What both ends offer and ask for: nodes of the xenstore (public/io/netif.h) as the records that
//! the path knows, and the other way round.

use abi::{GrantRef, Handle, PAGE};
use config::domain::Offloads;
use smallvec::SmallVec;
use vif::netif::{BackRecord, Features, FrontRecord, MAX_SLOTS_STOCK, RecordError};

/// In the place of the event channel's page in a frontend's record: that page is this domain's own,
/// and no grant of any frontend's has this reference.
pub const OWN_PAGE: GrantRef = GrantRef(u32::MAX);

/// Queues that an interface may have.
pub const QUEUES_MAX: usize = 4;

/// Features of a backend and their nodes. A node says that the backend *takes* it.
const BACK: [(&str, Features); 4] = [
    ("feature-sg", Features::SG),
    ("feature-gso-tcpv4", Features::GSO_TCPV4),
    ("feature-gso-tcpv6", Features::GSO_TCPV6),
    ("feature-ipv6-csum-offload", Features::IPV6_CSUM),
];

/// Features of a frontend and their nodes: the same, and what only a frontend says.
const FRONT: [(&str, Features); 6] = [
    ("feature-sg", Features::SG),
    ("feature-gso-tcpv4", Features::GSO_TCPV4),
    ("feature-gso-tcpv6", Features::GSO_TCPV6),
    ("feature-ipv6-csum-offload", Features::IPV6_CSUM),
    ("feature-no-csum-offload", Features::NO_CSUM),
    ("request-rx-copy", Features::RX_COPY),
];

/// What is offered to every frontend. A stock one leaves checksums over IPv4 blank whatever it is
/// told, so these are always taken.
#[must_use]
pub fn offered(offloads: Offloads) -> BackRecord {
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

/// The nodes of a backend that offers this.
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

/// What a frontend has chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Its record, with the rings of the first queue; the page of the event channel is
    /// [`OWN_PAGE`].
    pub record: FrontRecord,
    /// Its queues: one at least, [`QUEUES_MAX`] at most.
    pub queues: Vec<Queue>,
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

/// One queue of a frontend's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The pages of the ring from the guest and of the one to it.
    pub rings: [GrantRef; 2],
    /// Its event channels.
    pub ports: Ports,
}

/// A frontend's ends of a queue's event channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// One channel for both rings.
    Shared(u32),
    /// A channel for each ring (`feature-split-event-channels`).
    Split {
        /// For packets from the guest.
        tx: u32,
        /// For packets to the guest.
        rx: u32,
    },
}

/// Why what a frontend wrote cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFront {
    /// A node is not there, or no number.
    #[error("the guest's `{0}` is missing or no number")]
    Node(String),
    /// It uses none, or more than it was offered.
    #[error("the guest uses {0} queues, and was offered 1 to {QUEUES_MAX}")]
    Queues(u32),
    /// Two event channels with one end.
    #[error("the guest's `event-channel-tx` and `event-channel-rx` are both {0}")]
    SamePort(u32),
    /// One page for two rings.
    #[error("two rings of the guest's are both {0}")]
    SameRing(u32),
    /// The record makes no sense.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// What a frontend has chosen whose nodes `node` reads, and whose MAC the toolstack says.
///
/// # Errors
/// [`BadFront`].
pub fn chosen(
    mac: [u8; 6],
    mut node: impl FnMut(&str) -> Option<String>,
) -> Result<Chosen, BadFront> {
    let mut number = |name: &str| -> Option<u32> { node(name)?.trim().parse().ok() };
    let count = number("multi-queue-num-queues").unwrap_or(1);
    let queues: Vec<Queue> = match count {
        // The nodes of a single queue are the interface's.
        1 => vec![queue("", &mut number)?],
        _ if (2..=QUEUES_MAX as u32).contains(&count) => (0..count)
            .map(|n| queue(&format!("queue-{n}/"), &mut number))
            .collect::<Result<_, _>>()?,
        _ => return Err(BadFront::Queues(count)),
    };
    let control = match number("ctrl-ring-ref") {
        None => None,
        Some(ring) => Some(ControlPage {
            ring: GrantRef(ring),
            port: number("event-channel-ctrl")
                .ok_or_else(|| BadFront::Node("event-channel-ctrl".to_owned()))?,
        }),
    };
    let features = FRONT
        .into_iter()
        .filter(|(name, _)| number(name).unwrap_or(0) != 0);
    let features = features.fold(Features::default(), |all, (_, feature)| all.with(feature));
    // What a frontend has written may be anything: two rings in one page, for instance.
    let record = |queue: &Queue| {
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
        return Err(BadFront::SameRing(*ring));
    }
    let record = records.into_iter().next();
    let record = record.ok_or(BadFront::Queues(0))?;
    Ok(Chosen {
        record,
        queues,
        control,
    })
}

/// One queue, whose nodes are below `place`.
fn queue(place: &str, mut number: impl FnMut(&str) -> Option<u32>) -> Result<Queue, BadFront> {
    // As xen-netback looks for them: a channel for each ring first.
    let split = number(&format!("{place}event-channel-tx"));
    let mut need = |name: &str| {
        let name = format!("{place}{name}");
        number(&name).ok_or(BadFront::Node(name))
    };
    let rings = [need("tx-ring-ref")?, need("rx-ring-ref")?].map(GrantRef);
    let ports = match split {
        None => Ports::Shared(need("event-channel")?),
        Some(tx) => match need("event-channel-rx")? {
            rx if rx == tx => return Err(BadFront::SamePort(tx)),
            rx => Ports::Split { tx, rx },
        },
    };
    Ok(Queue { rings, ports })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use vif::netif::Terms;

    const MAC: [u8; 6] = [0, 0x16, 0x3e, 1, 2, 3];

    /// What Linux' netfront writes.
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

    fn of(nodes: &BTreeMap<&str, &str>) -> Result<Chosen, BadFront> {
        chosen(MAC, |name| nodes.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn a_stock_frontend_gets_everything() {
        let chosen = of(&stock()).unwrap();
        let ports = Ports::Shared(15);
        let rings = [8, 9].map(GrantRef);
        assert_eq!(chosen.queues, [Queue { rings, ports }]);
        let terms = Terms::of(&offered(Offloads::Tso), &chosen.record).unwrap();
        for end in [terms.to_guest, terms.from_guest] {
            assert!(end.gso_tcpv4 && end.gso_tcpv6 && end.csum && end.ipv6_csum);
            assert_eq!(end.max_slots, 18);
        }
        assert_eq!(
            (terms.tx_order, terms.rx_order, terms.rx_offset),
            (0, 0, false)
        );
        assert!(!terms.rx_meta && !terms.any_order);
    }

    #[test]
    fn who_offers_less_is_served_with_less() {
        for (missing, taken) in [
            ("feature-gso-tcpv4", [false, true, true, true]),
            ("feature-gso-tcpv6", [true, false, true, true]),
            ("feature-ipv6-csum-offload", [true, true, true, false]),
            // Without several slots there are no segments either.
            ("feature-sg", [false, false, true, true]),
        ] {
            let mut nodes = stock();
            nodes.remove(missing);
            let record = of(&nodes).unwrap().record;
            let to = Terms::of(&offered(Offloads::Tso), &record)
                .unwrap()
                .to_guest;
            let got = [to.gso_tcpv4, to.gso_tcpv6, to.csum, to.ipv6_csum];
            assert_eq!(got, taken, "{missing}");
        }
        let mut nodes = stock();
        nodes.insert("feature-no-csum-offload", "1");
        let record = of(&nodes).unwrap().record;
        assert!(
            !Terms::of(&offered(Offloads::Tso), &record)
                .unwrap()
                .to_guest
                .csum
        );
    }

    #[test]
    fn blank_checksums_over_ipv4_are_taken_whatever_is_offered() {
        for offloads in [Offloads::None, Offloads::Checksum, Offloads::Tso] {
            let record = of(&stock()).unwrap().record;
            assert!(
                Terms::of(&offered(offloads), &record)
                    .unwrap()
                    .from_guest
                    .csum
            );
        }
    }

    #[test]
    fn nodes_say_what_is_offered() {
        let nodes: BTreeMap<_, _> = back_nodes(&offered(Offloads::Checksum))
            .into_iter()
            .collect();
        assert_eq!(nodes["feature-rx-copy"], "1");
        assert_eq!(nodes["feature-sg"], "1");
        assert_eq!(nodes["feature-ipv6-csum-offload"], "1");
        assert_eq!(nodes["feature-gso-tcpv4"], "0");
        assert_eq!(nodes["feature-multicast-control"], "1");
        assert_eq!(nodes["feature-dynamic-multicast-control"], "1");
        let all = back_nodes(&offered(Offloads::Tso));
        assert!(all.contains(&("feature-gso-tcpv6", "1".to_owned())));
    }

    #[test]
    fn each_ring_may_have_an_event_channel() {
        let mut nodes = stock();
        nodes.remove("event-channel");
        nodes.insert("event-channel-tx", "15");
        assert_eq!(of(&nodes), Err(BadFront::Node("event-channel-rx".into())));
        nodes.insert("event-channel-rx", "15");
        assert_eq!(of(&nodes), Err(BadFront::SamePort(15)));
        nodes.insert("event-channel-rx", "16");
        let split = Ports::Split { tx: 15, rx: 16 };
        assert_eq!(of(&nodes).unwrap().queues[0].ports, split);
        // As xen-netback: what an older attempt left behind does not count.
        nodes.insert("event-channel", "9");
        assert_eq!(of(&nodes).unwrap().queues[0].ports, split);
    }

    /// What Linux' netfront writes on a machine with several processors.
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
        let of = |nodes: &BTreeMap<String, String>| chosen(MAC, |name| nodes.get(name).cloned());
        let nodes = with_queues(4);
        let four = of(&nodes).unwrap();
        assert_eq!(four.queues.len(), 4);
        let last = Queue {
            rings: [20, 21].map(GrantRef),
            ports: Ports::Split { tx: 22, rx: 23 },
        };
        assert_eq!(four.queues[3], last);
        assert_eq!(four.record.tx_ring[0], GrantRef(8));
        let with = |name: &str, value: &str| {
            let mut nodes = nodes.clone();
            nodes.insert(name.into(), value.into());
            of(&nodes)
        };
        assert_eq!(with("queue-2/rx-ring-ref", "8"), Err(BadFront::SameRing(8)));
        let nothing = BadFront::Node("queue-3/tx-ring-ref".into());
        assert_eq!(with("queue-3/tx-ring-ref", ""), Err(nothing));
        let zero = Err(RecordError::Reference.into());
        assert_eq!(with("queue-1/tx-ring-ref", "0"), zero);
    }

    #[test]
    fn a_frontend_may_have_a_control_ring() {
        assert_eq!(of(&stock()).unwrap().control, None);
        let mut nodes = stock();
        nodes.insert("ctrl-ring-ref", "11");
        assert_eq!(of(&nodes), Err(BadFront::Node("event-channel-ctrl".into())));
        nodes.insert("event-channel-ctrl", "21");
        let control = ControlPage {
            ring: GrantRef(11),
            port: 21,
        };
        assert_eq!(of(&nodes).unwrap().control, Some(control));
        nodes.insert("ctrl-ring-ref", "9");
        assert_eq!(of(&nodes), Err(BadFront::SameRing(9)));
    }

    #[test]
    fn nonsense_is_named() {
        for name in ["tx-ring-ref", "rx-ring-ref", "event-channel"] {
            for value in ["", "-1", "x", "4294967296"] {
                let mut nodes = stock();
                nodes.insert(name, value);
                assert_eq!(of(&nodes), Err(BadFront::Node(name.into())), "{value:?}");
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
            assert_eq!(refused, Err(BadFront::Queues(count)));
        }
        assert!(with("multi-queue-num-queues", "1").is_ok());
        let mut flips = stock();
        flips.remove("request-rx-copy");
        let record = of(&flips).unwrap().record;
        assert!(Terms::of(&offered(Offloads::Tso), &record).is_err());
    }

    proptest! {
        #[test]
        fn nothing_that_a_guest_writes_is_too_strange(
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
        fn numbers_come_through(tx in 1u32..u32::MAX, rx in 1u32..u32::MAX, port: u32) {
            prop_assume!(tx != rx);
            let (tx_text, rx_text, port_text) = (tx.to_string(), rx.to_string(), port.to_string());
            let mut nodes = stock();
            nodes.insert("tx-ring-ref", &tx_text);
            nodes.insert("rx-ring-ref", &rx_text);
            nodes.insert("event-channel", &port_text);
            let chosen = of(&nodes).unwrap();
            prop_assert_eq!(chosen.record.tx_ring[0], GrantRef(tx));
            prop_assert_eq!(chosen.record.rx_ring[0], GrantRef(rx));
            prop_assert_eq!(chosen.queues[0].ports, Ports::Shared(port));
        }
    }
}
