//! The beginning, the packets and the end of flows, by protocol.

use super::packets::{ACK, CONVERSATION, FIN, Part, RST, SYN, Talk};
use super::{ESTABLISHED, KEYS, NEW, RELATED, SECOND, classify, go, memory, table};
use net::flows::{Classification, Direction, FlowPhase, Flows};
use net::packet::protocol;

const BOTH: [Talk; 2] = [
    CONVERSATION,
    Talk {
        v6: true,
        ..CONVERSATION
    },
];

/// FW-2: the handshake, data, and both FINs.
#[test]
fn a_tcp_connection_passes_through_its_phases() {
    for talk in BOTH {
        for (here, there) in [
            (Direction::In, Direction::Out),
            (Direction::Out, Direction::In),
        ] {
            let mut table = table(64);
            assert_eq!(
                classify(&table, there, &talk.tcp(there, SYN | ACK), 0),
                Classification::Unknown
            );
            assert_eq!(
                classify(&table, there, &talk.tcp(there, ACK), 0),
                Classification::Unknown
            );
            assert_eq!(go(&mut table, here, &talk.tcp(here, SYN), 0), NEW);
            for (direction, flags, phase) in [
                (here, SYN, FlowPhase::Opening),
                (here, ACK, FlowPhase::Opening),
                (there, SYN | ACK, FlowPhase::Answered),
                (there, ACK, FlowPhase::Answered),
                (here, ACK, FlowPhase::Established),
                (here, SYN, FlowPhase::Established),
                (there, ACK, FlowPhase::Established),
                (there, ACK | FIN, FlowPhase::Closing),
                (here, ACK, FlowPhase::Closing),
                (here, ACK | FIN, FlowPhase::Closed),
                (there, ACK, FlowPhase::Closed),
            ] {
                assert_eq!(
                    go(&mut table, direction, &talk.tcp(direction, flags), 0),
                    ESTABLISHED
                );
                let flow = table.flows(0).next().unwrap();
                assert_eq!((flow.phase, flow.initiator), (phase, here), "{flags}");
            }
            assert_eq!(table.flows(0).next().unwrap().packets, 12);
            // Another connection with the same ports.
            assert_eq!(go(&mut table, there, &talk.tcp(there, SYN), 0), NEW);
            assert_eq!(
                table
                    .flows(0)
                    .map(|flow| flow.initiator)
                    .collect::<Vec<_>>(),
                [there]
            );
        }
    }
}

/// FW-3: datagrams and echoes have flows, with the reply in the other direction.
#[test]
fn datagrams_and_echoes_have_flows() {
    for talk in BOTH {
        let mut table = table(64);
        assert_eq!(
            go(&mut table, Direction::In, &talk.udp(Direction::In), 0),
            NEW
        );
        assert_eq!(
            go(&mut table, Direction::Out, &talk.udp(Direction::Out), 0),
            ESTABLISHED
        );
        let other = Talk {
            port_outside: 444,
            ..talk
        };
        assert_eq!(
            classify(&table, Direction::Out, &other.udp(Direction::Out), 0),
            NEW
        );

        assert_eq!(
            classify(&table, Direction::Out, &talk.echo(Direction::Out, false), 0),
            Classification::Unknown
        );
        assert_eq!(
            go(
                &mut table,
                Direction::In,
                &talk.echo(Direction::In, true),
                0
            ),
            NEW
        );
        assert_eq!(
            go(
                &mut table,
                Direction::Out,
                &talk.echo(Direction::Out, false),
                0
            ),
            ESTABLISHED
        );
        // A request with the identifier of an echo that the station itself has sent.
        assert_eq!(
            classify(&table, Direction::Out, &talk.echo(Direction::Out, true), 0),
            NEW
        );
        assert_eq!(table.flows(0).count(), 2);
    }
}

/// FW-5: a silent flow is removed, and an unconfirmed one sooner.
#[test]
fn silent_flows_are_forgotten() {
    let talk = CONVERSATION;
    let mut table = table(64);
    let (request, reply) = (
        talk.tcp(Direction::In, SYN),
        talk.tcp(Direction::Out, SYN | ACK),
    );
    go(&mut table, Direction::In, &request, 0);
    assert_eq!(
        classify(&table, Direction::Out, &reply, 29 * SECOND),
        ESTABLISHED
    );
    assert_eq!(
        classify(&table, Direction::Out, &reply, 34 * SECOND),
        Classification::Unknown
    );
    assert_eq!(table.flows(34 * SECOND).count(), 0);
    let begun = 40 * SECOND;
    for (direction, flags) in [
        (Direction::In, SYN),
        (Direction::Out, SYN | ACK),
        (Direction::In, ACK),
    ] {
        go(&mut table, direction, &talk.tcp(direction, flags), begun);
    }
    let data = talk.tcp(Direction::Out, ACK);
    assert_eq!(
        classify(&table, Direction::Out, &data, begun + 7300 * SECOND),
        ESTABLISHED
    );
    assert_eq!(
        classify(&table, Direction::Out, &data, begun + 8100 * SECOND),
        Classification::Unknown
    );
}

/// FW-4: an ICMP error is related to the flow of the packet that it quotes.
#[test]
fn errors_about_a_flow_are_related() {
    for talk in BOTH {
        let mut table = table(64);
        let icmp = if talk.v6 {
            protocol::ICMPV6
        } else {
            protocol::ICMP
        };
        let requests = [
            (protocol::TCP, talk.tcp(Direction::In, SYN)),
            (protocol::UDP, talk.udp(Direction::In)),
            (icmp, talk.echo(Direction::In, true)),
        ];
        for (number, request) in requests {
            let error = talk.error(Direction::Out, number);
            assert_eq!(
                classify(&table, Direction::Out, &error, 0),
                Classification::Unknown,
                "{number}"
            );
            go(&mut table, Direction::In, &request, 0);
            assert_eq!(
                go(&mut table, Direction::Out, &error, 0),
                RELATED,
                "{number}"
            );
            assert_eq!(
                classify(&table, Direction::In, &error, 0),
                Classification::Unknown,
                "{number}"
            );
        }
        assert!(table.flows(0).all(|flow| flow.packets == 1));
    }
}

/// FW-6: later fragments get the status of the first one.
#[test]
fn later_fragments_follow_their_first() {
    for talk in BOTH {
        let mut table = table(64);
        let part = |id, offset, more| Part { id, offset, more };
        let (first, later) = (part(5, 0, true), part(5, 2, false));
        let later = talk.part(Direction::Out, later);
        go(&mut table, Direction::In, &talk.udp(Direction::In), 0);
        assert_eq!(
            classify(&table, Direction::Out, &later, 0),
            Classification::Unknown
        );
        assert_eq!(
            go(
                &mut table,
                Direction::Out,
                &talk.part(Direction::Out, first),
                0
            ),
            ESTABLISHED
        );
        assert_eq!(go(&mut table, Direction::Out, &later, 0), ESTABLISHED);
        let other = talk.part(Direction::Out, part(6, 2, false));
        assert_eq!(
            classify(&table, Direction::Out, &other, 0),
            Classification::Unknown
        );
        assert_eq!(
            classify(&table, Direction::Out, &later, 40 * SECOND),
            Classification::Unknown
        );
    }
}

/// FW-3: the reply to a DHCP request has a source address other than the request's destination.
#[test]
fn the_answer_to_a_dhcp_request_is_related() {
    for (v6, server, client) in [(false, 67, 68), (true, 547, 546)] {
        let mut table = table(64);
        let at = |other| Talk {
            v6,
            other,
            port_inside: client,
            port_outside: server,
        };
        let offer = at(3).udp(Direction::Out);
        assert_eq!(classify(&table, Direction::Out, &offer, 0), NEW);
        go(&mut table, Direction::In, &at(255).udp(Direction::In), 0);
        assert_eq!(
            classify(&table, Direction::Out, &offer, 20 * SECOND),
            RELATED
        );
        go(
            &mut table,
            Direction::In,
            &at(255).udp(Direction::In),
            25 * SECOND,
        );
        assert_eq!(
            classify(&table, Direction::Out, &offer, 50 * SECOND),
            RELATED
        );
        assert_eq!(classify(&table, Direction::Out, &offer, 60 * SECOND), NEW);
    }
}

/// FW-9: for a while, the table picks up connections that are older than itself.
#[test]
fn older_connections_are_picked_up_for_a_while() {
    let mut table = Flows::new(memory(64), 1, KEYS, 10 * SECOND).unwrap();
    let (request, reply) = (
        CONVERSATION.tcp(Direction::In, ACK),
        CONVERSATION.tcp(Direction::Out, ACK),
    );
    for flags in [SYN | ACK, RST, FIN, RST | ACK] {
        assert_eq!(
            classify(
                &table,
                Direction::In,
                &CONVERSATION.tcp(Direction::In, flags),
                0
            ),
            Classification::Unknown
        );
    }
    assert_eq!(
        classify(&table, Direction::In, &request, 11 * SECOND),
        Classification::Unknown
    );
    assert_eq!(go(&mut table, Direction::In, &request, 9 * SECOND), NEW);
    assert_eq!(
        table.flows(9 * SECOND).next().unwrap().phase,
        FlowPhase::Opening
    );
    assert_eq!(
        go(&mut table, Direction::Out, &reply, 11 * SECOND),
        ESTABLISHED
    );
    assert_eq!(
        table.flows(11 * SECOND).next().unwrap().phase,
        FlowPhase::Established
    );
}

/// FW-1: neighbour discovery and group membership have no flows.
#[test]
fn neighbours_are_found_without_a_flow() {
    let table = table(64);
    let six = Talk {
        v6: true,
        ..CONVERSATION
    };
    let icmp = |kind| {
        six.frame(
            Direction::Out,
            protocol::ICMPV6,
            &[kind, 0, 0, 0, 0, 0, 0, 0],
            None,
        )
    };
    for kind in 133..=137 {
        let mut frame = icmp(kind);
        assert_eq!(
            classify(&table, Direction::Out, &frame, 0),
            Classification::Untracked,
            "{kind}"
        );
        // A hop limit below 255: a router has forwarded it from another network.
        frame[21] = 254;
        assert_eq!(
            classify(&table, Direction::Out, &frame, 0),
            Classification::Unknown,
            "{kind}"
        );
    }
    let mut query = icmp(130);
    query[21] = 1;
    assert_eq!(
        classify(&table, Direction::Out, &query, 0),
        Classification::Untracked
    );
    let igmp = CONVERSATION.frame(Direction::Out, 2, &[0x11, 0, 0, 0, 0, 0, 0, 0], None);
    assert_eq!(
        classify(&table, Direction::Out, &igmp, 0),
        Classification::Untracked
    );
    // LLDP, a redirect, and an empty frame.
    let mut lldp = igmp.clone();
    lldp[12..14].copy_from_slice(&[0x88, 0xcc]);
    let redirect = CONVERSATION.frame(Direction::Out, 1, &[5; 28], None);
    for frame in [&lldp[..], &redirect, &[]] {
        assert_eq!(
            classify(&table, Direction::Out, frame, 0),
            Classification::Unknown
        );
    }
}

/// FW-2: a snapshot ends within long options of TCP over IPv6.
#[test]
fn a_segment_with_long_options_belongs_to_its_flow() {
    let talk = Talk {
        v6: true,
        ..CONVERSATION
    };
    let mut table = table(64);
    go(&mut table, Direction::In, &talk.tcp(Direction::In, SYN), 0);
    go(
        &mut table,
        Direction::Out,
        &talk.tcp(Direction::Out, SYN | ACK),
        0,
    );
    let mut frame = talk.tcp(Direction::In, ACK);
    frame[54 + 12] = 0xf0;
    // Time stamps and three blocks of a selective acknowledgement.
    let payload = 60u16.to_be_bytes();
    frame[18..20].copy_from_slice(&payload);
    frame.resize(96, 1);
    assert_eq!(classify(&table, Direction::In, &frame, 0), ESTABLISHED);
    frame.insert(12, 0);
    frame.splice(12..13, [0x81, 0, 0, 5]);
    assert_eq!(classify(&table, Direction::In, &frame, 0), ESTABLISHED);
}
