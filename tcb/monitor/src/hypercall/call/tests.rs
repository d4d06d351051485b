use super::*;
use abi::counted::Revocation;
use abi::{GrantRef, Slot};
use proptest::prelude::*;
use std::cell::RefCell;

const WIDE: u64 = 1 << 32;

fn decoded<'a>(
    buffers: &'a mut Operations,
    kind: HypercallKind,
    ops: &[[u64; 3]],
) -> Result<DecodedCall<'a>, Errno> {
    buffers.decode(kind as u32, ops.len(), |op| ops[op])
}

/// Kinds that take one operation, with words and the call that they decode to.
const SINGLE: &[(HypercallKind, [u64; 3], DecodedCall<'static>)] = &[
    (
        HypercallKind::ConnectSet,
        [3, XenbusState::Connected as u64, 9],
        DecodedCall::ConnectSet(ConnId(3), Some(XenbusState::Connected)),
    ),
    // Neither the connection nor the state is valid.
    (
        HypercallKind::ConnectSet,
        [WIDE, 7, 0],
        DecodedCall::ConnectSet(ConnId(u32::MAX), None),
    ),
    (
        HypercallKind::ConnectSet,
        [WIDE, XenbusState::Closed as u64, 0],
        DecodedCall::ConnectSet(ConnId(u32::MAX), Some(XenbusState::Closed)),
    ),
    (
        HypercallKind::ConnectGet,
        [7, 8, 9],
        DecodedCall::ConnectGet(ConnId(7)),
    ),
    (
        HypercallKind::ConnectGet,
        [WIDE, 0, 0],
        DecodedCall::ConnectGet(ConnId(u32::MAX)),
    ),
    (
        HypercallKind::TableCreate,
        [1, 256, 0],
        DecodedCall::TableCreate(ConnId(1), 256),
    ),
    (
        HypercallKind::TableCreate,
        [WIDE, u64::MAX, 0],
        DecodedCall::TableCreate(ConnId(u32::MAX), u32::MAX),
    ),
    (
        HypercallKind::TableBind,
        [2 << 32 | 5, 64 << 32 | 10, 20],
        DecodedCall::TableBind(BindOp {
            granter: abi::DomId(2),
            table: Handle(5),
            first: Slot(10),
            tables: Slot(20),
            entries: 64,
        }),
    ),
    (
        HypercallKind::TableShare,
        [2 << 32 | 5, WIDE | 10, 0],
        DecodedCall::TableShare(ShareOp {
            table: Handle(5),
            conn: ConnId(2),
            first: Slot(10),
        }),
    ),
    (
        HypercallKind::TableEnd,
        [WIDE | 4, 0, 0],
        DecodedCall::TableEnd(Handle(4)),
    ),
    (
        HypercallKind::DeviceEnd,
        [u64::MAX, 0, 0],
        DecodedCall::DeviceEnd(u64::MAX),
    ),
];

#[test]
fn single_operation_kinds_take_exactly_one() {
    let mut buffers = Operations::default();
    for (kind, words, call) in SINGLE {
        assert_eq!(
            decoded(&mut buffers, *kind, &[*words]),
            Ok(*call),
            "{kind:?} {words:x?}"
        );
        for count in [0, 2, OPS_MAX] {
            let ops = vec![*words; count];
            let refused = decoded(&mut buffers, *kind, &ops);
            assert_eq!(refused, Err(Errno::INVAL), "{kind:?} × {count}");
        }
    }
}

#[test]
fn ready_takes_no_operations() {
    let mut buffers = Operations::default();
    assert_eq!(
        decoded(&mut buffers, HypercallKind::Ready, &[]),
        Ok(DecodedCall::Ready)
    );
    let refused = decoded(&mut buffers, HypercallKind::Ready, &[[0; 3]]);
    assert_eq!(refused, Err(Errno::INVAL));
}

#[test]
fn a_batch_is_decoded_in_order() {
    let create = CreateGrantOp {
        table: Handle(1),
        index: 2,
        frame: 3,
        readonly: false,
        io: true,
    };
    let revoke = RevokeOp {
        table: Handle(1),
        gref: GrantRef(2),
        how: Revocation::Drain,
    };
    let foreign = ForeignMap {
        number: u32::MAX,
        page: 7,
        offset: WIDE,
        bytes: u64::MAX,
    };
    let controls = [[1, 2, 3], [u64::MAX; 3]];
    let cases = [
        (
            HypercallKind::GrantCreate,
            vec![create.encode()],
            DecodedCall::GrantCreate(&[create]),
        ),
        (
            HypercallKind::GrantRevoke,
            vec![revoke.encode()],
            DecodedCall::GrantRevoke(&[revoke]),
        ),
        (
            HypercallKind::DeviceControl,
            controls.to_vec(),
            DecodedCall::DeviceControl(&controls),
        ),
        (
            HypercallKind::GrantCopy,
            controls.to_vec(),
            DecodedCall::Other(HypercallKind::GrantCopy, &controls),
        ),
        (
            HypercallKind::GrantMap,
            vec![],
            DecodedCall::Other(HypercallKind::GrantMap, &[]),
        ),
        (
            HypercallKind::ForeignMap,
            vec![foreign.encode()],
            DecodedCall::ForeignMap(foreign),
        ),
        (
            HypercallKind::ForeignUnmap,
            vec![[9, 0, 0]],
            DecodedCall::ForeignUnmap(9),
        ),
    ];
    let mut buffers = Operations::default();
    for (kind, words, call) in cases {
        assert_eq!(decoded(&mut buffers, kind, &words), Ok(call), "{kind:?}");
    }
}

#[test]
fn an_invalid_call_is_rejected_unread() {
    let mut buffers = Operations::default();
    let unread = |_| -> [u64; 3] { panic!("an operation was read") };
    for kind in [0, 14, 15, 21, u32::MAX] {
        assert_eq!(buffers.decode(kind, 1, unread), Err(Errno::INVAL), "{kind}");
    }
    for count in [OPS_MAX + 1, u32::MAX as usize] {
        let refused = buffers.decode(HypercallKind::GrantCopy as u32, count, unread);
        assert_eq!(refused, Err(Errno::INVAL), "{count}");
    }
}

proptest! {
    /// Any kind, count and words yield a call or `EINVAL`, never a panic, and no operation is read
    /// twice.
    #[test]
    fn every_input_is_decoded_or_rejected(
        kind in 0u32..23,
        count in 0..OPS_MAX + 2,
        words in prop::array::uniform3(any::<u64>()),
    ) {
        let read = RefCell::new(vec![0; OPS_MAX]);
        let mut buffers = Operations::default();
        let call = buffers.decode(kind, count, |op| {
            read.borrow_mut()[op] += 1;
            words
        });
        prop_assert!(read.borrow().iter().all(|&times| times <= 1));
        let read_count = read.borrow().iter().sum::<usize>();
        prop_assert_eq!(read_count, if call.is_ok() { count } else { 0 });
    }
}
