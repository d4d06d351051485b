//! The messages that each program may send.
//!
//! | from | to | messages |
//! |---|---|---|
//! | manager | core | [`CoreRequest`] |
//! | core | manager | [`CoreMessage`] |
//! | core | netd | [`NetdRequest`] |
//! | netd | core | [`NetdReply`] |

use super::field::{Field, Reader, Text, Writer, fields};
use super::record::Message;
use super::stage::Stage;
use super::wire::Malformed;
use crate::DomId;
use crate::status::Program;

/// The number of words of a set of CPUs.
pub const CPU_WORDS: usize = 16;

/// Declares an enum of messages, each with its number and its fields, so that encoding and decoding
/// follow from one list.
macro_rules! messages {
    (
        $(#[$meta:meta])*
        pub enum $enum:ident {
            $(
                $(#[doc = $doc:literal])+
                $number:literal $kind:ident {
                    $($(#[doc = $field_doc:literal])+ $field:ident: $type:ty,)*
                }
            )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $enum {
            $($(#[doc = $doc])+ $kind { $($(#[doc = $field_doc])+ $field: $type,)* },)+
        }

        impl Message for $enum {
            fn put(&self, fields: &mut Writer) -> u32 {
                match self {
                    $(Self::$kind { $($field),* } => {
                        $($field.put(fields);)*
                        // Not every message has fields.
                        let _ = &fields;
                        $number
                    })+
                }
            }

            fn take(kind: u32, fields: &mut Reader<'_>) -> Result<Self, Malformed> {
                Ok(match kind {
                    $($number => Self::$kind { $($field: <$type as Field>::take(fields)?),* },)+
                    _ => return Err(Malformed::Kind(kind)),
                })
            }
        }
    };
}

messages! {
    /// The manager's requests to the core. The core answers each by [`CoreMessage::Done`] or
    /// [`CoreMessage::Refused`].
    pub enum CoreRequest {
        /// Builds a domain. Attached: its configuration. Done: its id.
        1 Create {
            /// Its specification.
            domain: NewDomain,
        }
        /// Makes netd open a device. Attached: its description, which only netd interprets. Done:
        /// the number of its descriptors for domains. Attached to the answer: netd's notes
        /// ([`crate::machine::OpenedNotes`]).
        2 Open {
            /// The number that the manager assigns to it.
            dev: u32,
        }
        /// Closes a device. Domains keep the descriptors that they received.
        3 Close {
            /// The device.
            dev: u32,
        }
        /// Gives a domain that has not started a descriptor of a device, as its next device.
        4 GiveDevice {
            /// The domain.
            domain: DomId,
            /// The device.
            dev: u32,
            /// The index of the device's descriptor.
            place: u32,
            /// Whether the domain may make control calls for the device.
            controls: bool,
        }
        /// Gives a domain a socket over page frames, its own or another domain's. Attached, for a
        /// dedicated queue: its description for netd.
        5 GiveSocket {
            /// The socket.
            socket: NewSocket,
        }
        /// Skips a domain's next device.
        6 SkipDevice {
            /// The domain.
            domain: DomId,
        }
        /// Connects two domains. Done: the backend's number of the connection in the upper half,
        /// the frontend's in the lower half.
        7 Connect {
            /// The serving domain.
            backend: DomId,
            /// The served domain.
            frontend: DomId,
            /// Number of the interface within the frontend.
            handle: u16,
        }
        /// Starts a domain's process. Attached to the answer: the reading end of its console, and
        /// its mailbox.
        8 Start {
            /// The domain.
            domain: DomId,
        }
        /// Abandons a domain that was built but has no process.
        9 Abandon {
            /// The domain.
            domain: DomId,
            /// The reason.
            why: Text,
        }
        /// Kills a domain.
        10 Kill {
            /// The domain.
            domain: DomId,
            /// The reason.
            why: Text,
        }
        /// Makes a domain check its mailbox.
        11 NotifyMailbox {
            /// The domain.
            domain: DomId,
        }
        /// Requests the status of every domain and connection. Attached to the answer:
        /// [`super::CoreStatus`].
        12 Status {}
        /// Requests the audit. Attached to the answer: [`crate::status::Audit`].
        13 Audit {}
        /// Keeps the attached file, to which this manager writes its state, for the next manager.
        14 KeepStateFile {}
        /// Stops the machine.
        16 End {
            /// Whether the machine failed.
            failed: bool,
        }
        /// Removes a domain that was torn down, and its connections, so that its name and numbers
        /// are free. The core rejects this as busy while one of its pages is in use.
        17 Forget {
            /// The domain.
            domain: DomId,
        }
        /// Keeps the attached descriptors for the next manager: clients' sockets, and the log.
        18 KeepDescriptors {}
        /// Leaves the attached bytes for the next core's manager. The core writes all of them, or
        /// rejects the request.
        19 SaveState {}
    }
}

messages! {
    /// Messages of the core to the manager.
    pub enum CoreMessage {
        /// The first message. Attached: the machine's description from standard input, the state
        /// that the previous manager kept, and the descriptors that it kept by
        /// [`CoreRequest::KeepDescriptors`].
        1 Init {
            /// Process id of the core.
            pid: u32,
            /// The start time of the core, on the monotonic clock.
            began_ns: u64,
            /// The user who may use the control socket, besides root.
            user: u32,
            /// Whether a previous manager kept its state.
            has_kept: bool,
            /// The user id to which the manager should change, if possible.
            own_user: u32,
        }
        /// Reports a running domain to a manager that did not start it. Attached: its console, and
        /// its mailbox.
        2 Console {
            /// The domain.
            domain: DomId,
        }
        /// A request succeeded.
        3 Done {
            /// The result, if it is a number.
            value: u64,
        }
        /// A request failed. Attached: the reason.
        4 Refused {
            /// Whether a retry may succeed because something is busy.
            is_busy: bool,
        }
        /// A domain has reached another stage.
        5 StageChanged {
            /// The domain.
            domain: DomId,
            /// The stage.
            stage: Stage,
            /// The reason of its exit, or a description of the stage.
            text: Text,
        }
        /// All connections of a domain are up, except those whose other end is dead.
        6 Connected {
            /// The domain.
            domain: DomId,
        }
        /// A device was lost: see [`NetdReply::Lost`]. The core sends this to each manager
        /// while the device is open.
        7 DeviceLost {
            /// The device.
            dev: u32,
            /// Whether the interface was removed while its network namespace still exists.
            is_removed: bool,
        }
    }
}

messages! {
    /// Requests of the core to netd.
    #[derive(Copy)]
    pub enum NetdRequest {
        /// Opens a device. Attached: its description.
        1 Open {
            /// Its number.
            dev: u32,
        }
        /// Adopts a device that a previous netd opened. Attached: the attachments of
        /// [`NetdReply::Opened`].
        2 Adopt {
            /// Its number.
            dev: u32,
            /// The number of its descriptors for domains.
            given: u32,
        }
        /// Closes a device or a socket. Attached, if a previous netd opened it: the notes of
        /// [`NetdReply::Opened`]. netd closes all its descriptors of the device or socket.
        3 Close {
            /// Its number.
            dev: u32,
        }
        /// Creates a socket on a device, without memory. Attached, for a queue: its description.
        4 Socket {
            /// The device.
            on: u32,
            /// The socket's number.
            dev: u32,
            /// Whether it is a dedicated queue.
            is_queue: bool,
        }
        /// Binds a socket whose memory is registered.
        5 Bind {
            /// The socket's number.
            dev: u32,
        }
        /// Adopts a socket that a previous netd bound. Attached: the attachments of
        /// [`NetdReply::Made`] and [`NetdReply::Bound`].
        6 AdoptSocket {
            /// The device.
            on: u32,
            /// The socket's number.
            dev: u32,
            /// Whether it is a dedicated queue.
            is_queue: bool,
        }
        /// Executes a control call of a domain to a device. Within 50 ms, netd answers by
        /// [`NetdReply::Value`] or [`NetdReply::Failed`], or sends [`NetdReply::Working`] first.
        7 Control {
            /// The device or socket.
            dev: u32,
            /// The domain's words.
            words: [u64; 2],
        }
        /// Ends a socket. netd answers once the socket no longer receives frames.
        8 End {
            /// The socket.
            dev: u32,
        }
        /// The first request after the adoptions. Attached: the link for [`NetdRequest::Control`]
        /// and [`NetdRequest::End`], which netd serves from then on, and the machine's description
        /// from standard input.
        9 Init {}
    }
}

messages! {
    /// Answers of netd.
    pub enum NetdReply {
        /// A device is open. Attached: netd's notes for adopting it, a line for each feature that
        /// the system lacks, the descriptors for domains, and netd's own descriptors.
        1 Opened {
            /// The number of descriptors for domains.
            given: u32,
        }
        /// A socket without memory was created. Attached: its descriptor, and netd's notes for
        /// adopting it.
        2 Made {}
        /// The socket is bound. Attached: netd's descriptors for adopting it.
        3 Bound {
            /// The pages of its rings, in the order of [`Ring::ALL`](crate::xdp::Ring::ALL).
            rings: [RingExtent; 4],
            /// Whether the domain's successor can continue with it.
            is_reusable: bool,
        }
        /// The request failed. Attached: the reason.
        4 Refused {
            /// Whether a retry may succeed because something is busy.
            is_busy: bool,
        }
        /// The result of a control call.
        5 Value {
            /// The value.
            value: u64,
        }
        /// A control call failed.
        6 Failed {
            /// The errno.
            errno: i32,
        }
        /// The request may take as long as a grace period of the kernel.
        7 Working {}
        /// A device was lost. netd sends this without a request and without a token, once for each
        /// reason.
        8 Lost {
            /// The device.
            dev: u32,
            /// Whether the interface was removed. Otherwise its network namespace was removed or
            /// replaced under its name.
            is_removed: bool,
        }
    }
}

/// The specification of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDomain {
    /// The domain that it replaces, which must be torn down.
    pub replaces: Option<DomId>,
    /// Its name, for messages and its log. The core identifies domains by their ids. Only the
    /// manager identifies them by name, and keeps the names of living domains unique.
    pub name: Text,
    /// Its program.
    pub program: Program,
    /// The number of its page frames.
    pub frames: u32,
    /// Entries of its classic grant table, which also limits its counted tables.
    pub grant_entries: u32,
    /// Slots of its grant window.
    pub window_slots: u32,
    /// The maximum number of its frames that forced revocations by its granters may use up at a
    /// time: see [`crate::counted::Revocation::Force`].
    pub collateral: u32,
    /// Its weight among the granters that share the machine-wide rate of revocations.
    pub weight: u32,
    /// The number of devices that it receives before its start.
    pub devices: u32,
    /// The maximum number of pages of foreign memory that it may have mapped: see
    /// [`crate::hypercall::HypercallKind::ForeignMap`].
    pub foreign_pages: u32,
    /// CPUs that it may run on, one bit each; all zero: every CPU.
    pub cpus: [u64; CPU_WORDS],
    /// Rate of the time stamp counter in Hz, passed to the domain. If it is 0, the domain measures
    /// the rate.
    pub tsc_hz: u64,
}

/// A socket that receives into page frames and sends from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSocket {
    /// The domain that receives the socket.
    pub domain: DomId,
    /// The device to which the socket belongs.
    pub on: u32,
    /// The domain that owns the page frames, if it is another one. The socket is then that domain's
    /// dedicated queue, and only receives.
    pub frames_owner: Option<DomId>,
    /// The first frame.
    pub first_frame: u32,
    /// The number of frames.
    pub frames: u32,
    /// Size of a chunk, which holds one packet, in bytes.
    pub chunk_bytes: u32,
    /// Entries of each ring.
    pub entries: u32,
    /// The first slot of its rings in the domain's window.
    pub rings_slot: u32,
    /// Whether it is a PCI device instead of a socket. The frames are then mapped in its I/O page
    /// table, and its registers have the slots of the rings.
    pub is_pci: bool,
}

/// Pages of a socket's mapping that contain a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingExtent {
    /// The first page.
    pub page: u32,
    /// The number of pages; 0: the ring does not exist.
    pub pages: u32,
}

fields! {
    NewDomain {
        replaces name program frames grant_entries window_slots collateral weight devices
        foreign_pages cpus tsc_hz
    }
}
fields! {
    NewSocket { domain on frames_owner first_frame frames chunk_bytes entries rings_slot is_pci }
}
fields! { RingExtent { page pages } }
