//! Where a packet, and so a cycle, can be.

abi::named_enum! {
    /// A station of a packet's way; in the order of a packet towards a guest.
    pub enum Hop: usize {
        /// The NIC's receive and transmit calls.
        Nic = "nic",
        /// Large receive offload.
        Lro = "lro",
        /// Forwarding decision, offloads done in software.
        Bridge = "bridge",
        /// Packets to slots and back, driver's side.
        Netback = "netback",
        /// Publishing indices and ringing doorbells.
        Ring = "ring",
        /// Making granted pages usable and giving them up again.
        Grant = "grant",
        /// Moving bytes between domains.
        Copy = "copy",
        /// Packets to slots and back, guest's side.
        Netfront = "netfront",
        /// What stands behind a netfront.
        Endpoint = "endpoint",
        /// Looking for work and finding none; falling asleep and waking up.
        Idle = "idle",
        /// Everything else that the domain does: connecting, answering the monitor.
        Control = "control",
    }
}
