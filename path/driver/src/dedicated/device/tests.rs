//! Tests of a queue with a mock monitor and a connected guest. The device does nothing.

use super::*;
use crate::dedicated::testing::{SETUP, SilentBell};
use abi::PAGE;
use abi::hypercall::HypercallKind;
use nic::dma::RemoteNic;
use nic::{Nic as _, Pool};
use runtime::testing::FakeMonitor;
use shmem::Area;
use std::sync::{Arc, Mutex};
use vif::netif::Features;
use vif::testing::{Rig, back_record, sizes};

const CONFIG: DeviceQueueConfig = DeviceQueueConfig {
    nic: 0,
    queue: 1,
    conn: 4,
    first_slot: 900,
    buffers: 128,
};
const TABLE: Handle = Handle(33);

/// Runs `act` with a queue, the NIC of its device, and the NIC's pool. The monitor answers all
/// calls with `status`. Returns the words of the calls.
fn calls_of(
    status: GrantStatus,
    act: impl FnOnce(&mut GuestDeviceQueue, &mut RemoteNic, &mut Pool),
) -> Vec<[u64; 3]> {
    let page = Area::anonymous(2 * PAGE).unwrap().span();
    let made = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::clone(&made);
    let answering = FakeMonitor::start(page, move |kind, ops| {
        assert_eq!(kind, HypercallKind::TableShare);
        shared.lock().unwrap().extend_from_slice(ops);
        vec![(status as i64, 0); ops.len()]
    });
    let area = |bytes| Area::anonymous(bytes).unwrap();
    let pool = area(64 * PAGE);
    let mut nic = RemoteNic::new(SETUP, area(SETUP.bytes()), pool).unwrap();
    let end = nic.dedicated(1).unwrap();
    let calls = Rc::new(RefCell::new(Calls::with_page(page)));
    let mut queue = GuestDeviceQueue::new(CONFIG, [2; 6], 1500, end, calls);
    act(&mut queue, &mut nic, &mut Pool::new(pool, 2048));
    drop(answering);
    std::mem::take(&mut made.lock().unwrap())
}

/// Returns a connected guest. `any_order` states whether it accepts its buffers back in any order.
fn guest(any_order: bool) -> Rig {
    let front = match any_order {
        true => Features::ALL.with(Features::RX_ANY_ORDER),
        false => Features::ALL,
    };
    Rig::with_record(sizes(), front, back_record(front))
}

fn connect(nic: &mut RemoteNic) {
    nic.lay_out().unwrap();
    nic.connect(Rc::new(SilentBell));
}

/// D-32, D-34: the driver requests sharing of the table once per device, and not per frame or
/// buffer. Buffers return when the device dies.
#[test]
fn table_is_shared_once_with_each_device() {
    let share = ShareOp {
        table: TABLE,
        conn: ConnId(CONFIG.conn),
        first: Slot(CONFIG.first_slot),
    };
    let calls = calls_of(GrantStatus::Okay, |queue, nic, pool| {
        let mut rig = guest(true);
        queue.post_to_device(&mut rig.back);
        queue.connected(TABLE);
        queue.post_to_device(&mut rig.back);
        assert_eq!(queue.due_ns(5), None, "the link is down");
        // The guest posts 128 buffers, and does not repost returned ones. The driver leaves 32 of
        // them in the ring.
        for posted in [64, 32] {
            connect(nic);
            for _ in 0..3 {
                queue.post_to_device(&mut rig.back);
            }
            assert_eq!(rig.back.outstanding(), posted);
            nic.release(pool);
            assert_eq!(queue.receive(64, &mut rig.back, &mut Vec::new()), 0);
            assert_eq!(rig.back.outstanding(), 0);
            assert_eq!(rig.back.grants_mut().held, 0);
        }
    });
    assert_eq!(calls, [share.encode(); 2]);
}

/// A guest uses the shared queue if its pages cannot be shared, or if it does not accept its
/// buffers back in any order.
#[test]
fn unsuitable_guest_uses_the_shared_queue() {
    let cases = [
        (GrantStatus::NoSpace, true, "cannot be shared", 1),
        (GrantStatus::Okay, false, "in posting order", 0),
    ];
    for (status, any_order, why, count) in cases {
        let calls = calls_of(status, |queue, nic, _| {
            let mut rig = guest(any_order);
            connect(nic);
            queue.connected(TABLE);
            for _ in 0..2 {
                queue.post_to_device(&mut rig.back);
            }
            assert_eq!(rig.back.outstanding(), 0);
            assert!(queue.last_error.contains(why), "{}", queue.last_error);
            assert_eq!(queue.stat()["state"], "waiting");
            assert_eq!(queue.due_ns(5), None);
            queue.connected(TABLE);
            assert_eq!(
                queue.due_ns(5),
                Some(5 + RETRY_INTERVAL_NS),
                "the next connection may be suitable"
            );
        });
        assert_eq!(calls.len(), count, "{why}");
    }
}

/// D-33: the driver polls a device that does not reset a stopped queue at growing intervals.
#[test]
fn polls_of_a_silent_device_back_off() {
    calls_of(GrantStatus::Okay, |queue, nic, _| {
        let mut rig = guest(true);
        connect(nic);
        queue.connected(TABLE);
        queue.post_to_device(&mut rig.back);
        queue.end();
        queue.connected(TABLE);
        let mut poll = || {
            queue.post_to_device(&mut rig.back);
            queue.due_ns(0).unwrap()
        };
        assert_eq!(
            [poll(), poll()],
            [2 * RETRY_INTERVAL_NS, 4 * RETRY_INTERVAL_NS]
        );
        let last = (0..20).map(|_| poll()).last();
        assert_eq!(last, Some(RETRY_INTERVAL_MAX_NS));
    });
}

/// D-35: if sharing with a device is rejected, the driver still requests sharing with the next
/// device.
#[test]
fn sharing_is_retried_with_the_next_device() {
    let calls = calls_of(GrantStatus::NoSpace, |queue, nic, pool| {
        let mut rig = guest(true);
        queue.connected(TABLE);
        for _ in 0..2 {
            connect(nic);
            for _ in 0..2 {
                queue.post_to_device(&mut rig.back);
                assert!(queue.last_error.contains("cannot be shared"));
            }
            nic.release(pool);
        }
    });
    assert_eq!(calls.len(), 2);
}

/// After the guest reconnects, a stopped queue starts again only when the device has stopped it.
#[test]
fn queue_of_a_closed_connection_waits_for_the_device() {
    calls_of(GrantStatus::Okay, |queue, nic, _| {
        let mut rig = guest(true);
        connect(nic);
        queue.connected(TABLE);
        queue.post_to_device(&mut rig.back);
        assert_eq!(queue.stat()["lent"], 64);
        queue.end();
        let mut next = guest(true);
        queue.connected(Handle(34));
        queue.post_to_device(&mut next.back);
        assert_eq!(next.back.outstanding(), 0);
        assert!(queue.due_ns(0).is_some() && queue.last_error.is_empty());
    });
}
