//! Stages of a packet's path, to which the ledger charges cycles.

abi::named_enum! {
    /// A stage of a packet's path, in the order in which a packet to a guest passes them.
    pub enum Hop: usize {
        /// The NIC's receive and transmit calls.
        Nic = "nic",
        /// Large receive offload.
        Lro = "lro",
        /// Forwarding decisions, and offloads in software.
        Bridge = "bridge",
        /// Conversion between packets and slots in the driver domain.
        Netback = "netback",
        /// Publishing indices and ringing doorbells.
        Ring = "ring",
        /// Mapping and releasing granted pages.
        Grant = "grant",
        /// Copying between domains.
        Copy = "copy",
        /// Conversion between packets and slots in the guest.
        Netfront = "netfront",
        /// The endpoint of a guest's interface.
        Endpoint = "endpoint",
        /// Polls that find no work, sleeps and wake-ups.
        Idle = "idle",
        /// All other work, such as connecting and answering the monitor.
        Control = "control",
    }
}
