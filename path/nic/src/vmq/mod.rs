//! NICs with a queue per guest: the interface of the thesis (Ram, *Efficient I/O virtualization*,
//! chapter 3, Table 3.1), under the thesis's names.
//!
//! The NIC selects a queue by a frame's destination MAC *before* it stores the frame. So the
//! backend can post a guest's pages to that guest's queue, and the NIC writes frames directly to
//! these pages, without a copy. Frames for other MACs, including broadcast and multicast, use the
//! NIC's shared queue ([`crate::Nic::rx`]).
//!
//! ```text
//!   backend ──── Vmq, 8 calls ────► NIC       avail, alloc, free, size, set_size, set_mac,
//!                                             enable, disable (and one more: split_headers)
//!   backend ◄─── Backend, 3 calls ── NIC      alloc a buffer, free a buffer, a frame arrived
//! ```
//!
//! The states of a queue:
//!
//! ```text
//!            alloc_queue        set_mac, enable_queue         disable_queue
//!   free ───────────────► idle ───────────────────────► enabled ─────────► draining
//!    ▲                     │ ▲                                                │
//!    └──── free_queue ─────┘ └──── poll, when no stale frame can remain ───────┘
//! ```
//!
//! **The rule that protects guests from each other.** A NIC selects a frame's queue some time
//! before it stores the frame there. When a queue loses its MAC, the queue still holds frames for
//! that MAC, and more may arrive. Until the queue has drained ([`Vmq::is_draining`]), the backend
//! supplies *its own buffers* and forwards the received frames like those of the shared queue. Only
//! then may the queue get another guest's MAC and pages. [`MultiQueue`] rejects calls in any other
//! order.
//!
//! Only the receive side has queues, because sending never needs a copy (section 3.1).

mod contract;
mod queue;

pub use contract::{QueueId, ReturnReason, Steering, Vmq, VmqBackend, VmqError};
pub use queue::{MultiQueue, ReceiveSide, VmqReceived};
