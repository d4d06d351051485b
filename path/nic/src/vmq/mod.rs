//! NICs with a queue per guest: the interface of the thesis (Ram, *Efficient I/O virtualization*,
//! chapter 3, Table 3.1), by the thesis's names.
//!
//! Such a NIC looks at a frame's destination MAC and chooses a queue by it *before* it stores the
//! frame. So the backend of a guest can post that guest's own pages to the guest's queue, and
//! frames need no copy. Frames to MACs that no queue has, broadcast and multicast among them, go
//! to the NIC's shared queue ([`crate::Nic::rx`]).
//!
//! ```text
//!   backend ──── Vmq, 8 calls ────► NIC       avail, alloc, free, size, set_size, set_mac,
//!                                             enable, disable (and one more: split_headers)
//!   backend ◄─── Backend, 3 calls ── NIC      alloc a buffer, free a buffer, a frame came
//! ```
//!
//! The life of a queue:
//!
//! ```text
//!            alloc_queue        set_mac, enable_queue         disable_queue
//!   free ───────────────► idle ───────────────────────► enabled ─────────► draining
//!    ▲                     │ ▲                                                │
//!    └──── free_queue ─────┘ └────── by poll: no stale frame can be left ─────┘
//! ```
//!
//! **The rule that protects guests from each other.** A NIC chooses a frame's queue some time
//! before it stores the frame there. When a queue has lost its MAC, frames to that MAC are still in
//! the queue, and more may arrive. Until the queue has drained ([`Vmq::is_draining`]) the backend
//! gives it *buffers of its own* and forwards what it yields like frames of the shared queue; only
//! then may the queue have another guest's MAC and pages. [`MultiQueue`] refuses everything else.
//!
//! Only the receiving side has queues: sending never copied in the first place (3.1).

mod contract;
mod queue;

pub use contract::{Backend, Freed, QueueId, Steering, Vmq, VmqError};
pub use queue::{MultiQueue, Receive, Received};
