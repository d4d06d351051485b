//! NICs with descriptor rings and DMA ([specs/dma.md](../../../../specs/dma.md)): the driver posts
//! buffers by I/O address, and the device writes frames into them without the driver's help.
//!
//! ```text
//!   driver                        queue memory                        device
//!   ReceiveQueue,   ── posts ───► descriptors  ── takes ───► SoftDevice
//!   TransmitQueue   ◄── checks ── completions  ◄── writes ──
//!        │                                                       │
//!        └── buffers ◄── IoTable: I/O page → memory ◄── DMA ─────┘
//! ```
//!
//! **The driver trusts nothing that the device writes.** It keeps a private list of posted buffers.
//! A completion that does not match this list closes the NIC, and every posted buffer returns to
//! its supply.
//!
//! **The device can access only mapped pages.** The [`IoTable`] checks every access of the device,
//! also to queue memory. Only the table's owner changes it; the device borrows it. An access to an
//! unmapped page is an I/O fault: the device counts it, writes nothing, and completes the
//! descriptor with an error.
//!
//! | module | contents |
//! |---|---|
//! | [`addr`] | I/O addresses |
//! | [`table`] | the I/O page table |
//! | [`layout`] | descriptors, completions, and the layout of a queue's memory |
//! | [`queue`] | the two ends of a queue |
//! | [`receive`], [`transmit`] | the driver's queues of frames |
//! | [`control`] | control words of dedicated queues |
//! | `chunks` | memory for frames to send |
//! | [`checksum`] | checksum offloads in software |
//! | [`soft`] | a device in software, and a NIC of this device and its driver |
//! | [`pci`] | the drivers of devices on a PCI bus |
//! | [`granted`] | the I/O page table of a device in a separate domain |
//! | [`remote`] | the driver of such a device |
//! | [`dedicated`] | the driver's end of a dedicated queue of such a device |
//! | [`record`] | the record that gives the device the addresses of the queues |

pub mod addr;
pub mod checksum;
mod chunks;
pub mod control;
pub mod dedicated;
pub mod granted;
pub mod layout;
pub mod pci;
pub mod queue;
pub mod receive;
pub mod record;
pub mod remote;
pub mod remote_link;
pub mod small_frames;
pub mod soft;
pub mod table;
pub mod transmit;

pub use addr::IoAddr;
pub use chunks::Chunk;
pub use dedicated::RemoteQueue;
pub use granted::GrantedMemory;
pub use queue::{DmaError, Misuse, QueueName};
pub use receive::ReceiveQueue;
pub use record::QueueRecord;
pub use remote::RemoteNic;
pub use remote_link::{DeviceDoorbell, RemoteSetup};
pub use small_frames::ReceivedBuffer;
pub use soft::{SoftDevice, SoftNic, Wire};
pub use table::{IoFault, IoMemory, IoTable};
pub use transmit::TransmitQueue;
