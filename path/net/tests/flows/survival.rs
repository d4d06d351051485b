//! A table that another process adopts.

use super::packets::{ACK, CONVERSATION, SYN, Talk};
use super::{ESTABLISHED, IDENTITY, KEYS, SECOND, classify, go, memory};
use net::flows::{Classification, Direction, Flows};
use proptest::prelude::*;

/// FW-10: the next process has every flow.
#[test]
fn a_table_outlives_its_process() {
    let memory = memory(64);
    let mut table = Flows::new(memory, IDENTITY, KEYS, 0).unwrap();
    let six = Talk {
        v6: true,
        ..CONVERSATION
    };
    for talk in [CONVERSATION, six] {
        for (direction, flags) in [
            (Direction::In, SYN),
            (Direction::Out, SYN | ACK),
            (Direction::In, ACK),
        ] {
            go(&mut table, direction, &talk.tcp(direction, flags), SECOND);
        }
        go(
            &mut table,
            Direction::In,
            &talk.echo(Direction::In, true),
            SECOND,
        );
    }
    let before: Vec<_> = table.flows(SECOND).collect();
    drop(table);
    let table = Flows::adopt(memory, IDENTITY, 2 * SECOND).unwrap();
    for talk in [CONVERSATION, six] {
        assert_eq!(
            classify(
                &table,
                Direction::Out,
                &talk.tcp(Direction::Out, ACK),
                2 * SECOND
            ),
            ESTABLISHED
        );
        assert_eq!(
            classify(
                &table,
                Direction::Out,
                &talk.echo(Direction::Out, false),
                2 * SECOND
            ),
            ESTABLISHED
        );
    }
    assert_eq!(table.flows(SECOND).collect::<Vec<_>>(), before);
    table.release_memory();
    assert!(Flows::adopt(memory, IDENTITY, 2 * SECOND).is_none());
}

/// FW-10: a table is adopted for the same port alone.
#[test]
fn a_table_of_another_port_is_not_adopted() {
    let span = memory(64);
    assert!(Flows::adopt(span, 0, 0).is_none(), "zeros");
    Flows::new(span, IDENTITY, KEYS, 0).unwrap();
    assert!(Flows::adopt(span, IDENTITY, 0).is_some());
    assert!(Flows::adopt(span, IDENTITY + 1, 0).is_none());
    for bytes in [0, 8, Flows::bytes(64) - 64, Flows::bytes(48)] {
        assert!(
            Flows::new(span.take(bytes), IDENTITY, KEYS, 0).is_none(),
            "{bytes}"
        );
    }
}

/// FW-10: a flow with a time stamp in the future, or too far in the past, is discarded.
#[test]
fn moments_of_another_time_are_not_believed() {
    let memory = memory(64);
    let mut table = Flows::new(memory, IDENTITY, KEYS, 0).unwrap();
    go(
        &mut table,
        Direction::In,
        &CONVERSATION.udp(Direction::In),
        100 * SECOND,
    );
    for (now, count) in [(101, 1), (99, 0), (100, 0)] {
        let table = Flows::adopt(memory, IDENTITY, now * SECOND).unwrap();
        assert_eq!(table.flows(now * SECOND).count(), count, "{now}");
    }
}

proptest! {
    /// FW-10: for any words that a dead process has left, the adopted table is sound: each flow is
    /// found once, where it belongs, and none has an impossible kind.
    #[test]
    fn invalid_entries_are_cleared_on_adoption(
        words in prop::collection::vec((8usize..16 * 8 + 8, 0u64..64, any::<u64>()), 0..200),
        talks in prop::collection::vec((1u8..5, 1u16..5), 0..12),
    ) {
        let span = memory(16);
        let mut table = Flows::new(span, IDENTITY, KEYS, 0).unwrap();
        for (other, port_outside) in talks {
            let talk = Talk { other, port_outside, ..CONVERSATION };
            let subject = net::flows::Subject::of(&talk.udp(Direction::In));
            let lookup = table.classify(Direction::In, &subject, SECOND);
            let _ = table.pass(Direction::In, &subject, &lookup, 60, SECOND);
        }
        drop(table);
        for (at, shift, value) in words {
            let word = span.u64(at * 8).unwrap();
            word.fetch_xor(value >> shift, std::sync::atomic::Ordering::Relaxed);
        }
        let mut table = Flows::adopt(span, IDENTITY, 2 * SECOND).unwrap();
        let flows: Vec<_> = table.flows(2 * SECOND).collect();
        for (n, flow) in flows.iter().enumerate() {
            prop_assert_eq!(flow.inside.is_ipv4(), flow.outside.is_ipv4());
            prop_assert_eq!(flow.phase.name() == "asked" || flow.phase.name() == "replied",
                flow.protocol != 6);
            let same = |other: &net::flows::FlowStatus| {
                (other.protocol, other.inside, other.outside, other.ports)
                    == (flow.protocol, flow.inside, flow.outside, flow.ports)
            };
            if flow.ports.is_some() {
                prop_assert!(!flows[..n].iter().any(same));
            }
        }
        // The table works.
        let other = Talk { other: 99, ..CONVERSATION };
        let again = go(&mut table, Direction::In, &other.udp(Direction::In), 2 * SECOND);
        prop_assert_ne!(again, Classification::Unknown);
    }
}
