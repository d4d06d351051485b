//! The messages: what each program may say to which.
//!
//! | from | to | what |
//! |---|---|---|
//! | manager | core | [`Ask`] |
//! | core | manager | [`Tell`] |
//! | core | netd | [`Task`] |
//! | netd | core | [`Outcome`] |

use super::field::{Field, Reader, Text, Writer, fields};
use super::record::Message;
use super::stage::Stage;
use super::wire::Malformed;
use crate::DomId;
use crate::status::Program;

/// Words of a set of CPUs.
pub const CPU_WORDS: usize = 16;

/// Declares an enum of messages, each with its number and its fields: encoding and decoding are
/// made of one list.
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
    /// What the manager asks of the core. Each is answered by [`Tell::Done`] or [`Tell::Refused`].
    pub enum Ask {
        /// Build a domain; its configuration is beside. Done: its id.
        1 Create {
            /// It.
            domain: NewDomain,
        }
        /// Have netd open a device; its description, which is netd's to read, is beside. Done: how
        /// many descriptors it has for domains; beside, what netd says of it
        /// ([`crate::machine::OpenedNotes`]).
        2 Open {
            /// The number that the manager gives it.
            unit: u32,
        }
        /// Close one again. Domains that were given descriptors keep them.
        3 Close {
            /// Which.
            unit: u32,
        }
        /// Give a domain that was not started a descriptor of a device, as its next one.
        4 Give {
            /// The domain.
            domain: DomId,
            /// The device.
            unit: u32,
            /// Which of its descriptors.
            place: u32,
            /// Whether the domain can tell the device something.
            told: bool,
        }
        /// Give it a socket over page frames, its own or another domain's. For a queue of its own,
        /// a description for netd is beside.
        5 GiveSocket {
            /// It.
            socket: NewSocket,
        }
        /// Leave its next device out.
        6 GiveNothing {
            /// The domain.
            domain: DomId,
        }
        /// Connect two domains. Done: the backend's number of the connection in the upper half, the
        /// frontend's in the lower one.
        7 Connect {
            /// Who serves.
            backend: DomId,
            /// Who is served.
            frontend: DomId,
            /// Number of the interface within the frontend.
            handle: u16,
        }
        /// Start a domain's process. Beside the answer: the reading end of its console, and its
        /// mailbox.
        8 Start {
            /// The domain.
            domain: DomId,
        }
        /// Clear away a domain that was built and has no process.
        9 GiveUp {
            /// The domain.
            domain: DomId,
            /// Why.
            why: Text,
        }
        /// End a domain.
        10 Kill {
            /// The domain.
            domain: DomId,
            /// Why.
            why: Text,
        }
        /// Have a domain look into its mailbox.
        11 Knock {
            /// The domain.
            domain: DomId,
        }
        /// Beside the answer: every domain and connection ([`super::CoreStatus`]).
        12 Status {}
        /// Beside the answer: the audit ([`crate::status::Audit`]).
        13 Audit {}
        /// Keep the file beside for the next manager, who reads what this one has written to it.
        14 Keep {}
        /// End everything.
        16 End {
            /// Whether the machine failed.
            failed: bool,
        }
        /// Forget a domain that is gone, and its connections: its name and numbers are free then.
        /// Refused as busy while anybody has a page of it.
        17 Forget {
            /// The domain.
            domain: DomId,
        }
        /// Hold the descriptors beside for the next manager: clients' sockets, and the log.
        18 Hold {}
        /// Leave the bytes beside for the next core's manager: written as a whole, or refused.
        19 Leave {}
    }
}

messages! {
    /// What the core tells the manager.
    pub enum Tell {
        /// First of all. Beside: the machine's description as it came on standard input, what the
        /// manager before has kept, and what the first one has had held.
        1 Welcome {
            /// Process id of the core.
            pid: u32,
            /// When it began, by the monotonic clock.
            began_ns: u64,
            /// Who may speak to the control socket, beside root.
            user: u32,
            /// Whether a manager before has kept something.
            has_kept: bool,
            /// The user that the manager is to be, if that is possible.
            own_user: u32,
        }
        /// A domain that runs, for a manager that did not start it. Beside: its console, and its
        /// mailbox.
        2 Console {
            /// The domain.
            domain: DomId,
        }
        /// An ask was carried out.
        3 Done {
            /// What was asked for, if that is a number.
            value: u64,
        }
        /// It was not. Beside: why, in words.
        4 Refused {
            /// Whether it may go later: something is busy.
            is_busy: bool,
        }
        /// A domain's life has come to another stage.
        5 Life {
            /// The domain.
            domain: DomId,
            /// Where it stands.
            stage: Stage,
            /// How it ended, or the stage in words.
            text: Text,
        }
        /// All connections of a domain are up, but for those whose other end is dead.
        6 Connected {
            /// The domain.
            domain: DomId,
        }
        /// A device is of no use any more: see [`Outcome::Lost`]. The core sends it to each manager
        /// while the device is open.
        7 Lost {
            /// The device.
            unit: u32,
            /// Whether the interface was removed and its network namespace is still there.
            is_removed: bool,
        }
    }
}

messages! {
    /// What the core has netd do.
    #[derive(Copy)]
    pub enum Task {
        /// Open a device; its description is beside.
        1 Open {
            /// Its number.
            unit: u32,
        }
        /// Take up a device that a netd before has opened. Beside: what [`Outcome::Opened`] had.
        2 TakeUp {
            /// Its number.
            unit: u32,
            /// How many of its descriptors are domains'.
            given: u32,
        }
        /// Forget a device, or a socket. Beside, if a netd before was to do so: what
        /// [`Outcome::Opened`] had said to take it up, of which no descriptor is left.
        3 Close {
            /// Its number.
            unit: u32,
        }
        /// Make a socket on a device, over no memory yet; a queue's description is beside.
        4 Socket {
            /// The device.
            on: u32,
            /// The socket's number.
            unit: u32,
            /// Whether it is a queue of one guest alone.
            is_queue: bool,
        }
        /// Bind it: its memory is registered.
        5 Bind {
            /// The socket's number.
            unit: u32,
        }
        /// Take up a socket that a netd before has bound. Beside: what [`Outcome::Made`] and
        /// [`Outcome::Bound`] had.
        6 TakeUpSocket {
            /// The device.
            on: u32,
            /// The socket's number.
            unit: u32,
            /// Whether it is a queue of one guest alone.
            is_queue: bool,
        }
        /// A domain tells a device something. Answered within 50 ms by [`Outcome::Value`],
        /// [`Outcome::Failed`], or [`Outcome::Working`] first.
        7 Control {
            /// The device or socket.
            unit: u32,
            /// The domain's words.
            words: [u64; 2],
        }
        /// Nothing may come by a socket any more: answered when that is so.
        8 End {
            /// The socket.
            unit: u32,
        }
        /// Before anything is opened, and after all that was to be taken up: what comes by the link
        /// beside is answered from here on. It is for [`Task::Control`] and [`Task::End`]; beside
        /// it, the machine's description as it came on standard input.
        9 Welcome {}
    }
}

messages! {
    /// What netd answers.
    pub enum Outcome {
        /// A device is open. Beside: what netd has to know to take it up, a line for each thing
        /// that the system could not provide, the descriptors for domains, and those that netd
        /// needs.
        1 Opened {
            /// How many are for domains.
            given: u32,
        }
        /// A socket is there, over no memory yet. Beside: its descriptor, and what netd has to know
        /// to take it up.
        2 Made {}
        /// It is bound. Beside: what netd needs to take it up.
        3 Bound {
            /// What is to be seen of its rings, in the order of their places.
            rings: [RingPlace; 4],
            /// Whether the domain that takes its domain's place can go on with it.
            lasts: bool,
        }
        /// It was not done. Beside: why, in words.
        4 Refused {
            /// Whether it may go later: something is busy.
            is_busy: bool,
        }
        /// The answer to a domain's words.
        5 Value {
            /// It.
            value: u64,
        }
        /// The same, an error.
        6 Failed {
            /// The system's number of it.
            errno: i32,
        }
        /// This may take as long as a grace period of the kernel's.
        7 Working {}
        /// A device is of no use any more. netd sends it without a task and without a token, once
        /// for each reason.
        8 Lost {
            /// The device.
            unit: u32,
            /// Whether the interface was removed. Otherwise the name of its network namespace
            /// stands for no namespace any more, or for another one.
            is_removed: bool,
        }
    }
}

/// What a domain is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDomain {
    /// The domain whose place it takes, of which nothing is left.
    pub replaces: Option<DomId>,
    /// Its name, in words and beside its log. The manager, which alone goes by names, gives no two
    /// domains that live the same; the core tells domains apart by their ids.
    pub name: Text,
    /// Its program.
    pub program: Program,
    /// Page frames of its own.
    pub frames: u32,
    /// Entries of its classic grant table, and of its largest other one.
    pub grant_entries: u32,
    /// Slots of its grant window.
    pub window_slots: u32,
    /// Frames that others' forced revocations may cost it at a time: see
    /// [`crate::counted::Revocation::Force`].
    pub collateral: u32,
    /// Its share of what all granters may cost the users of their grants, beside others' shares.
    pub weight: u32,
    /// Devices that it is given before its start.
    pub devices: u32,
    /// CPUs that it may run on, a bit each; none: all.
    pub cpus: [u64; CPU_WORDS],
    /// Rate of the time-stamp counter, for it to know; 0: it measures that by itself.
    pub tsc_hz: u64,
}

/// A socket over page frames, which it receives into and sends from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewSocket {
    /// The domain that is given it.
    pub domain: DomId,
    /// The device that it is on.
    pub on: u32,
    /// Whose the page frames are, if they are another domain's: it only receives then, as a queue
    /// of that domain's own.
    pub of: Option<DomId>,
    /// The first one.
    pub first_frame: u32,
    /// How many.
    pub frames: u32,
    /// Bytes of a chunk, which holds one packet.
    pub chunk_bytes: u32,
    /// Entries of each ring.
    pub entries: u32,
    /// Slot of the domain's window from which on its rings lie.
    pub rings_slot: u32,
}

/// Pages of a socket's mappings that show a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingPlace {
    /// The first page.
    pub page: u32,
    /// How many; 0: there is no such ring.
    pub pages: u32,
}

fields! {
    NewDomain {
        replaces name program frames grant_entries window_slots collateral weight devices cpus
        tsc_hz
    }
}
fields! { NewSocket { domain on of first_frame frames chunk_bytes entries rings_slot } }
fields! { RingPlace { page pages } }
