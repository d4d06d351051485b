//! Reasons why an aggregate was flushed, or why a packet was not held.

use abi::counts::Counts;

abi::named_enum! {
    /// Reason for flushing an aggregate. Each has a counter, which includes aggregates of a single
    /// segment.
    pub enum Reason: u8 {
        /// The poll ended, and the policy does not wait longer.
        Poll = "poll",
        /// The longest wait had passed.
        Time = "time",
        /// Adaptive: no segment of the flow arrived during the wait.
        Silence = "silence",
        /// Adaptive: no further segment was expected in time.
        Unexpected = "unexpected",
        /// Its last segment had PSH.
        Push = "push",
        /// Its last segment had FIN.
        Fin = "fin",
        /// Its last segment was shorter than the others.
        Short = "short",
        /// It reached the maximum number of segments.
        Segments = "segments",
        /// Another segment of its size would not fit.
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
        /// The next packet's length differed from the one in its IP header.
        Padded = "padded",
        /// The next packet was already an aggregate, or too long to be part of one.
        Gso = "gso",
        /// The next packet had an invalid checksum.
        BadChecksum = "bad_checksum",
        /// The next packet could not be verified: its memory was inaccessible, or its blank
        /// checksum is not TCP's.
        Unverified = "unverified",
        /// The next packet claimed payload bytes that no buffer holds.
        Bare = "bare",
        /// The next packet was marked "congestion experienced" (`lro`).
        Congested = "congested",
        /// The next packet had TCP options other than an aligned timestamp with a non-zero echo
        /// (`lro`).
        TcpOption = "tcp_option",
        /// The snapshot of a TCP packet contains no ports: its flow is unknown, so every aggregate
        /// is flushed.
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
        /// The next packet broke rule "TCP options", typically by its timestamp.
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
        /// The next packet broke rule "header lengths": its IP extensions or TCP options differ.
        HeaderLengths = "header_lengths",
        /// Another flow needed its slot.
        TableFull = "table_full",
        /// Buffers ran low.
        NoDescriptor = "no_descriptor",
        /// The owner of its buffers revoked a page.
        Revoked = "revoked",
        /// The settings changed.
        Settings = "settings",
        /// The interface closed, or its packets take another path.
        Drain = "drain",
    }
}

/// One counter per reason, in aggregates.
pub(super) type ReasonCounts = Counts<Reason, { Reason::COUNT }>;
