//! Stages of a packet's path, to which cycles are charged.

abi::named_enum! {
    /// A stage of a packet's path. The order is that of a packet to a guest.
    pub enum Hop: usize {
        /// The NIC's receive and transmit calls.
        Nic = "nic",
        /// Large receive offload.
        Lro = "lro",
        /// Forwarding decision, offloads in software.
        Bridge = "bridge",
        /// Packets to slots and back, driver's side.
        Netback = "netback",
        /// Publishing indices and ringing doorbells.
        Ring = "ring",
        /// Making granted pages accessible and releasing them.
        Grant = "grant",
        /// Copying between domains.
        Copy = "copy",
        /// Packets to slots and back, guest's side.
        Netfront = "netfront",
        /// The endpoint behind a netfront.
        Endpoint = "endpoint",
        /// Vain polls; falling asleep and waking up.
        Idle = "idle",
        /// All other work: connecting, answering the monitor.
        Control = "control",
    }
}
