//! What both ends offer and ask for: nodes of the xenstore (public/io/netif.h) as the records that
//! the path knows, and the other way round.

use abi::{GrantRef, Handle, PAGE};
use config::domain::Offloads;
use smallvec::SmallVec;
use vif::netif::{BackRecord, Features, FrontRecord, MAX_SLOTS_STOCK, RecordError};

/// In the place of the event channel's page in a frontend's record: that page is this domain's own,
/// and no grant of any frontend's has this reference.
pub const OWN_PAGE: GrantRef = GrantRef(u32::MAX);

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
        ("feature-split-event-channels", switch(false)),
    ];
    features.chain(fixed).collect()
}

/// What a frontend has chosen: its record, and the port that its event channel has at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Its record; the page of the event channel is [`OWN_PAGE`].
    pub record: FrontRecord,
    /// The remote port.
    pub port: u32,
}

/// Why what a frontend wrote cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFront {
    /// A node is not there, or no number.
    #[error("the guest's `{0}` is missing or no number")]
    Node(&'static str),
    /// It uses more than it was offered.
    #[error("the guest uses {0} queues, and was offered one")]
    Queues(u32),
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
    let mut number = |name: &'static str| -> Option<u32> { node(name)?.trim().parse().ok() };
    let queues = number("multi-queue-num-queues").unwrap_or(1);
    if queues != 1 {
        return Err(BadFront::Queues(queues));
    }
    let mut need = |name| number(name).ok_or(BadFront::Node(name));
    let ring = |gref| SmallVec::from_iter([GrantRef(gref)]);
    let tx_ring = ring(need("tx-ring-ref")?);
    let rx_ring = ring(need("rx-ring-ref")?);
    let port = need("event-channel")?;
    let features = FRONT
        .into_iter()
        .filter(|(name, _)| number(name).unwrap_or(0) != 0);
    let features = features.fold(Features::default(), |all, (_, feature)| all.with(feature));
    let record = FrontRecord {
        features,
        max_slots: MAX_SLOTS_STOCK,
        rx_buffer: PAGE as u16,
        mac,
        table: Handle(0),
        event: OWN_PAGE,
        tx_ring,
        rx_ring,
    };
    // What a frontend has written may be anything: two rings in one page, for instance.
    let record = FrontRecord::decode(&record.encode())?;
    Ok(Chosen { record, port })
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
        assert_eq!(chosen.port, 15);
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
        let all = back_nodes(&offered(Offloads::Tso));
        assert!(all.contains(&("feature-gso-tcpv6", "1".to_owned())));
    }

    #[test]
    fn nonsense_is_named() {
        for name in ["tx-ring-ref", "rx-ring-ref", "event-channel"] {
            for value in ["", "-1", "x", "4294967296"] {
                let mut nodes = stock();
                nodes.insert(name, value);
                assert_eq!(of(&nodes), Err(BadFront::Node(name)), "{value:?}");
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
        assert_eq!(
            with("multi-queue-num-queues", "4"),
            Err(BadFront::Queues(4))
        );
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
            prop_assert_eq!(chosen.port, port);
        }
    }
}
