//! Attacks of hostile stations.

use super::packets::{ACK, CONVERSATION, FIN, Part, RST, SYN, Talk};
use super::{ESTABLISHED, NEW, SECOND, classify, go, table, try_to_go};
use net::flows::{Classification, Direction, FlowPhase, Flows};
use net::packet::protocol;

/// Completes a handshake.
fn connect(table: &mut Flows, talk: Talk, now_ns: u64) {
    for (direction, flags) in [
        (Direction::In, SYN),
        (Direction::Out, SYN | ACK),
        (Direction::In, ACK),
    ] {
        go(table, direction, &talk.tcp(direction, flags), now_ns);
    }
}

fn phase(table: &Flows, now_ns: u64) -> FlowPhase {
    table.flows(now_ns).next().unwrap().phase
}

fn numbered(n: u32) -> Talk {
    Talk {
        other: (n >> 16) as u8,
        port_outside: n as u16,
        ..CONVERSATION
    }
}

/// FW-7: no flood displaces an established connection, and a new connection succeeds during the
/// flood.
#[test]
fn a_syn_flood_evicts_no_connection() {
    let mut table = table(4096);
    let victims: Vec<_> = (0..1500).map(|n| numbered(0x10_0000 | n)).collect();
    for talk in &victims {
        connect(&mut table, *talk, 0);
    }
    for n in 0..1_000_000_u32 {
        let frame = numbered(0x20_0000 + n).tcp(Direction::Out, SYN);
        assert_eq!(go(&mut table, Direction::Out, &frame, SECOND), NEW);
    }
    let late = numbered(0x90_0000);
    connect(&mut table, late, 2 * SECOND);
    for talk in victims.iter().chain([&late]) {
        let data = talk.tcp(Direction::Out, ACK);
        assert_eq!(
            classify(&table, Direction::Out, &data, 2 * SECOND),
            ESTABLISHED
        );
    }
    let unconfirmed = table
        .flows(2 * SECOND)
        .filter(|flow| flow.phase == FlowPhase::Opening);
    assert!(unconfirmed.count() <= 2048);
    assert!(table.totals().displaced > 900_000);
}

/// FW-7: a flood of datagrams displaces no answered flow.
#[test]
fn a_flood_of_datagrams_evicts_no_stream() {
    let mut table = table(1024);
    let streams: Vec<_> = (0..300).map(|n| numbered(0x10_0000 | n)).collect();
    for talk in &streams {
        go(&mut table, Direction::In, &talk.udp(Direction::In), 0);
        go(&mut table, Direction::Out, &talk.udp(Direction::Out), 0);
    }
    for talk in &streams {
        go(
            &mut table,
            Direction::Out,
            &talk.udp(Direction::Out),
            5 * SECOND,
        );
    }
    for n in 0..100_000 {
        go(
            &mut table,
            Direction::Out,
            &numbered(0x20_0000 + n).udp(Direction::Out),
            6 * SECOND,
        );
    }
    for talk in &streams {
        assert_eq!(
            classify(
                &table,
                Direction::Out,
                &talk.udp(Direction::Out),
                7 * SECOND
            ),
            ESTABLISHED
        );
    }
}

/// FW-7: a table that is full of connections refuses others until one has ended.
#[test]
fn a_full_table_refuses_new_flows() {
    let mut table = table(16);
    let mut all = Vec::new();
    for n in 0..64 {
        let talk = numbered(n);
        if try_to_go(&mut table, Direction::In, &talk.tcp(Direction::In, SYN), 0).is_ok() {
            connect(&mut table, talk, 0);
            all.push(talk);
        }
    }
    assert_eq!(table.flows(0).count(), 16);
    assert_eq!(all.len(), 16);
    assert_eq!(table.totals().refused, 48);
    for talk in &all {
        for direction in [Direction::In, Direction::Out] {
            go(&mut table, direction, &talk.tcp(direction, ACK | FIN), 0);
        }
    }
    assert_eq!(
        go(
            &mut table,
            Direction::In,
            &numbered(99).tcp(Direction::In, SYN),
            0
        ),
        NEW
    );
}

/// A forged RST does not end a connection, even if the connection has been idle for longer than the
/// timeout of a reset connection.
#[test]
fn a_forged_rst_ends_no_idle_connection() {
    let mut table = table(64);
    connect(&mut table, CONVERSATION, 0);
    let now = 3600 * SECOND;
    let segment = |by, flags| CONVERSATION.tcp(by, flags);
    go(
        &mut table,
        Direction::Out,
        &segment(Direction::Out, RST),
        now,
    );
    assert_eq!(phase(&table, now), FlowPhase::Reset);
    for by in [Direction::Out, Direction::In, Direction::Out] {
        assert_eq!(go(&mut table, by, &segment(by, ACK), now), ESTABLISHED);
    }
    assert_eq!(phase(&table, now), FlowPhase::Established);
}

/// FW-8: a forged RST ends no connection whose stations continue.
#[test]
fn a_forged_rst_ends_no_connection() {
    let mut table = table(64);
    connect(&mut table, CONVERSATION, 0);
    let direction = |by| CONVERSATION.tcp(by, ACK);
    for round in 0..100 {
        let now = round * 200 * SECOND;
        go(
            &mut table,
            Direction::Out,
            &CONVERSATION.tcp(Direction::Out, RST),
            now,
        );
        assert_eq!(phase(&table, now), FlowPhase::Reset);
        // The station whose address is the source of the forged RST sent this segment before the
        // RST.
        assert_eq!(
            go(&mut table, Direction::Out, &direction(Direction::Out), now),
            ESTABLISHED
        );
        assert_eq!(phase(&table, now), FlowPhase::Reset);
        assert_eq!(
            go(&mut table, Direction::In, &direction(Direction::In), now),
            ESTABLISHED
        );
        assert_eq!(
            go(&mut table, Direction::Out, &direction(Direction::Out), now),
            ESTABLISHED
        );
        assert_eq!(phase(&table, now), FlowPhase::Established);
    }
    // Both stations act on this RST: others can immediately take the connection's entry, which
    // expires soon.
    let now = 30_000 * SECOND;
    connect(&mut table, CONVERSATION, now);
    go(
        &mut table,
        Direction::In,
        &CONVERSATION.tcp(Direction::In, RST),
        now,
    );
    assert_eq!(
        classify(
            &table,
            Direction::Out,
            &direction(Direction::Out),
            now + 200 * SECOND
        ),
        ESTABLISHED
    );
    assert_eq!(
        classify(
            &table,
            Direction::Out,
            &direction(Direction::Out),
            now + 400 * SECOND
        ),
        Classification::Unknown
    );
}

/// FW-8: a forged FIN does not end a connection whose stations continue.
#[test]
fn a_forged_fin_ends_no_connection() {
    let mut table = table(64);
    connect(&mut table, CONVERSATION, 0);
    for by in [Direction::Out, Direction::In] {
        go(&mut table, by, &CONVERSATION.tcp(by, ACK | FIN), 0);
    }
    for second in 0..1000 {
        let by = if second % 2 == 0 {
            Direction::In
        } else {
            Direction::Out
        };
        assert_eq!(
            go(&mut table, by, &CONVERSATION.tcp(by, ACK), second * SECOND),
            ESTABLISHED
        );
    }
}

/// FW-4: an error about a packet that no flow has sent is unknown.
#[test]
fn errors_that_belong_to_no_flow_are_unknown() {
    for talk in [
        CONVERSATION,
        Talk {
            v6: true,
            ..CONVERSATION
        },
    ] {
        let mut table = table(64);
        connect(&mut table, talk, 0);
        go(&mut table, Direction::In, &talk.udp(Direction::In), 0);
        let at = if talk.v6 { 54 } else { 34 };
        let inner = at + 8;
        let (transport, source) = match talk.v6 {
            false => (inner + 20, inner + 12),
            true => (inner + 40, inner + 8),
        };
        let error = talk.error(Direction::Out, protocol::TCP);
        assert_ne!(
            classify(&table, Direction::Out, &error, 0),
            Classification::Unknown
        );
        // The quoted packet has another port, another protocol, another sender or an invalid
        // version, or is truncated.
        for (at, value) in [(transport + 1, 0xff), (source + 3, 77), (inner, 0xff)] {
            let mut forged = error.clone();
            forged[at] ^= value;
            assert_eq!(
                classify(&table, Direction::Out, &forged, 0),
                Classification::Unknown,
                "{at}"
            );
        }
        let udp = talk.error(Direction::Out, 132);
        assert_eq!(
            classify(&table, Direction::Out, &udp, 0),
            Classification::Unknown
        );
        for len in 0..transport + 4 {
            assert_eq!(
                classify(&table, Direction::Out, &error[..len], 0),
                Classification::Unknown,
                "{len}"
            );
        }
    }
}

/// FW-6: a fragment that overlaps the checked header is unknown.
#[test]
fn overlapping_fragments_are_unknown() {
    for talk in [
        CONVERSATION,
        Talk {
            v6: true,
            ..CONVERSATION
        },
    ] {
        let mut table = table(64);
        connect(&mut table, talk, 0);
        let header = talk.tcp(Direction::Out, ACK);
        let header = &header[if talk.v6 { 54 } else { 34 }..];
        let part = |offset, bytes: &[u8]| {
            let part = Part {
                id: 5,
                offset,
                more: offset == 0,
            };
            talk.frame(Direction::Out, protocol::TCP, bytes, Some(part))
        };
        // The first fragment is too short to hold the transport header.
        for len in [8, 12, 19] {
            let tiny = part(0, &header[..len]);
            assert_eq!(
                classify(&table, Direction::Out, &tiny, 0),
                Classification::Unknown,
                "{len}"
            );
        }
        let first = part(0, &[header, &[0; 4]].concat());
        assert_eq!(go(&mut table, Direction::Out, &first, 0), ESTABLISHED);
        for offset in [1, 2] {
            let over = part(offset, &[0; 24]);
            assert_eq!(
                classify(&table, Direction::Out, &over, 0),
                Classification::Unknown,
                "{offset}"
            );
        }
        assert_eq!(
            classify(&table, Direction::Out, &part(3, &[0; 24]), 0),
            ESTABLISHED
        );
        // A first fragment with other ports, which belongs to no flow, changes nothing.
        let other = Talk {
            port_outside: 22,
            ..talk
        };
        let bytes = other.tcp(Direction::Out, ACK);
        let bytes = &bytes[if talk.v6 { 54 } else { 34 }..];
        assert_eq!(
            go(&mut table, Direction::Out, &part(0, bytes), 0),
            Classification::Unknown
        );
    }
}
