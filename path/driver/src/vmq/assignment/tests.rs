use super::*;
use crate::ports::BridgePort;
use crate::testing::{driver_config, nic_port_of, vif_port};
use nic::vmq::{MultiQueue, ReceiveSide, Steering, Vmq, VmqReceived};
use nic::{Buffers, Frame, Nic, TxReport};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A guest with a rate limit gets no queue, because the driver cannot drop frames in its pages.
#[test]
fn rate_limited_guest_gets_no_queue() {
    let guest = |name: &str, more: &str| {
        format!("[[guest]]\nname = \"{name}\"\n[[guest.vif]]\nendpoint = \"sink\"\n{more}")
    };
    let rule = "[[guest.vif.rule]]\naction = \"deny\"\n";
    let limit = "rate_to_guest_mbps = 5\n";
    let text = [
        "[[nic]]\nname = \"wire\"\nkind = \"sim\"\nqueues = \"vmq\"\nvmq_queues = 2\n\
         addresses = [\"10.0.0.1/24\"]\n",
        &guest("a", ""),
        &guest("b", limit),
        &guest("c", &format!("rate_mbps = 5\n{rule}")),
        &guest("d", &format!("{limit}{rule}")),
    ]
    .concat();
    let config = driver_config(&text);
    let mut queues = Assignment::new(0, &config.nics[0]).unwrap();
    for (port, vif) in (1..).zip(&config.vifs) {
        queues.add_guest(port, vif);
    }
    let arrivals = [1, 2, 3, 4].map(|port| queues.arrival(port));
    let [whole, header, copied] = [Arrival::Whole, Arrival::HeaderLast, Arrival::Copied];
    assert_eq!(arrivals, [whole, copied, header, copied]);
}

/// State of the mock steering: the queue of each MAC, and whether it rejects all changes.
#[derive(Debug, Default)]
struct Table {
    queues: BTreeMap<[u8; 6], QueueId>,
    rejects_changes: bool,
}

/// A NIC without traffic, with three queues.
#[derive(Clone, Debug, Default)]
struct MockNic(Rc<RefCell<Table>>);

impl Steering for MockNic {
    fn steer(&mut self, mac: [u8; 6], queue: Option<QueueId>) -> Result<u64, VmqError> {
        let mut table = self.0.borrow_mut();
        if table.rejects_changes {
            return Err(VmqError::Refused(2));
        }
        match queue {
            Some(queue) => table.queues.insert(mac, queue),
            None => table.queues.remove(&mac),
        };
        Ok(0)
    }

    fn effective(&mut self) -> u64 {
        0
    }
}

impl ReceiveSide for MockNic {
    fn queues(&self) -> usize {
        3
    }

    fn receive(
        &mut self,
        _queue: QueueId,
        _now_ns: u64,
        _budget: usize,
        _split: bool,
        _buffers: &mut dyn Buffers,
        _out: &mut Vec<Frame>,
    ) -> VmqReceived {
        VmqReceived::default()
    }

    fn release(&mut self, _queue: QueueId, _buffers: &mut dyn Buffers) {}
}

struct MockNicPort(MultiQueue<MockNic, MockNic>);

impl Nic for MockNicPort {
    fn caps(&self) -> Caps {
        Caps::default()
    }

    fn rx(
        &mut self,
        _now_ns: u64,
        _budget: usize,
        _buffers: &mut dyn Buffers,
        _out: &mut Vec<Frame>,
    ) -> usize {
        0
    }

    fn tx(&mut self, _now_ns: u64, _frames: &[Frame], _pick: &[u32]) -> TxReport {
        TxReport::default()
    }

    fn vmq(&mut self) -> Option<&mut dyn Vmq> {
        Some(&mut self.0)
    }
}

/// VMQ-5, VMQ-14: the driver never writes a revoked queue's frames into the guest's pages, even if
/// the NIC rejects the change.
#[test]
fn revoked_queue_does_not_write_guest_pages() {
    let text = "[[nic]]\nname = \"wire\"\nkind = \"sim\"\nqueues = \"vmq\"\n\
                addresses = [\"10.0.0.1/24\"]\n[[guest]]\nname = \"a\"\n[[guest.vif]]\n\
                endpoint = \"sink\"\n";
    let plain = driver_config(text);
    let ruled = driver_config(&format!("{text}[[guest.vif.rule]]\naction = \"deny\"\n"));
    for is_removed in [false, true] {
        let nic = MockNic::default();
        let steered = MultiQueue::new(nic.clone(), nic.clone());
        let port = nic_port_of("wire", Box::new(MockNicPort(steered)));
        let mut ports = BridgePorts::default();
        ports.insert(BridgePort::Nic(Box::new(port)));
        ports.insert(BridgePort::Vif(Box::new(vif_port("a"))));
        let mut queues = Assignment::new(0, &plain.nics[0]).unwrap();
        queues.add_guest(1, &plain.vifs[0]);
        queues.assign(&mut ports, 1, 0, 64).unwrap();
        let assigned = queues.assigned(0).unwrap();
        assert_eq!((assigned.port, assigned.split), (Some(1), false));

        nic.0.borrow_mut().rejects_changes = true;
        if is_removed {
            queues.remove_guest(&mut ports, 1);
            queues.add_guest(1, &ruled.vifs[0]);
        } else {
            queues.change(&mut ports, 1, &ruled.vifs[0]);
        }
        let assigned = queues.assigned(0).unwrap();
        assert_eq!(
            (assigned.port, assigned.phase),
            (None, AssignmentPhase::Joining)
        );
        assert_eq!(
            nic.0.borrow().queues.len(),
            1,
            "the MAC is still steered to the queue"
        );
        let taken = queues.assign(&mut ports, 1, 0, 64);
        assert_eq!(
            (taken, queues.assigned_queues()),
            (Err(VmqError::MacTaken), 1)
        );
        queues.rebalance(&mut ports, 0, 64);
        assert_eq!(queues.assigned(0).unwrap().phase, AssignmentPhase::Joining);

        nic.0.borrow_mut().rejects_changes = false;
        queues.rebalance(&mut ports, 0, 64);
        assert_eq!(queues.assigned(0).unwrap().phase, AssignmentPhase::Leaving);
        assert!(nic.0.borrow().queues.is_empty());
        queues.assign(&mut ports, 1, 0, 64).unwrap();
        let next = queues.assigned(1).unwrap();
        assert_eq!((next.port, next.split), (Some(1), true));
        assert_ne!(next.queue, assigned.queue);
    }
}
