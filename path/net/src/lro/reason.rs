//! Why an aggregate went on, or why a packet was not held.

use abi::counts::Counts;

abi::named_enum! {
    /// Every cause has its counter. The cause is counted also for an aggregate that had grown to no
    /// more than its first segment.
    pub enum Reason: u8 {
        /// The poll ended, and the policy waits for nothing more.
        Poll = "poll",
        /// It had waited as long as it may.
        Time = "time",
        /// Adaptive: the flow fell silent while it waited.
        Silence = "silence",
        /// Adaptive: no further segment was expected in time.
        Unexpected = "unexpected",
        /// PSH.
        Push = "push",
        /// FIN, on its last segment.
        Fin = "fin",
        /// Its last segment was shorter than the others.
        Short = "short",
        /// It had as many segments as it may have.
        Segments = "segments",
        /// It could not take another segment of its size.
        Bytes = "bytes",
        /// The next packet of its flow had no payload.
        Ack = "ack",
        /// The next packet had SYN, RST or URG, or began with CWR (`lro`: a flag other than ACK and
        /// PSH).
        Control = "control",
        /// The next packet had IPv4 options, a routing header or, under `lro`, IPv6 extension
        /// headers.
        IpOptions = "ip_options",
        /// The next packet was a fragment with ports.
        Fragment = "fragment",
        /// The next packet was not as long as its IP header said.
        Padded = "padded",
        /// The next packet was an aggregate already, or too long to become one.
        Gso = "gso",
        /// The next packet had a wrong checksum.
        BadChecksum = "bad_checksum",
        /// The next packet could not be verified: its memory was gone, or its checksum is to be put
        /// elsewhere.
        Unverified = "unverified",
        /// The next packet had bytes of payload that no buffer holds.
        Bare = "bare",
        /// The next packet was marked "congestion experienced" (`lro`).
        Congested = "congested",
        /// The next packet had TCP options other than an aligned timestamp that echoes something
        /// (`lro`).
        TcpOption = "tcp_option",
        /// A TCP packet showed no ports: its flow is unknown, so every aggregate ends.
        Hidden = "hidden",
        /// The next packet broke rule "sequence number".
        Sequence = "sequence",
        /// The next packet broke rule "acknowledgement number".
        Acknowledgement = "acknowledgement",
        /// The next packet broke rule "flags".
        Flags = "flags",
        /// The next packet broke rule "window".
        Window = "window",
        /// The next packet broke rule "urgent pointer".
        UrgentPointer = "urgent_pointer",
        /// The next packet broke rule "TCP options": timestamps, mostly.
        TcpOptions = "tcp_options",
        /// The next packet broke rule "payload length": it was longer.
        Length = "length",
        /// The next packet broke rule "traffic class": TOS and ECN.
        TrafficClass = "traffic_class",
        /// The next packet broke rule "flow label".
        FlowLabel = "flow_label",
        /// The next packet broke rule "hop limit".
        HopLimit = "hop_limit",
        /// The next packet broke rule "identification".
        Identification = "identification",
        /// The next packet broke rule "don't fragment".
        DontFragment = "dont_fragment",
        /// The next packet broke rule "extension headers".
        Extensions = "extensions",
        /// The next packet broke rule "header lengths": other IP extensions or TCP options than
        /// before.
        HeaderLengths = "header_lengths",
        /// Its place was needed for another flow.
        TableFull = "table_full",
        /// Buffers ran low.
        NoDescriptor = "no_descriptor",
        /// The settings changed.
        Settings = "settings",
        /// The interface closed.
        Drain = "drain",
    }
}

/// A counter per reason, in aggregates.
pub(super) type ReasonCounts = Counts<Reason, { Reason::COUNT }>;
