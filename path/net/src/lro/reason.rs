//! Why an aggregate went on, or why a packet was not held.

/// Every cause has its counter. What an aggregate went on for is counted also when it had
/// grown to no more than its first segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Reason {
    /// The poll ended, and the policy waits for nothing more.
    Poll,
    /// Its time was up.
    Time,
    /// Adaptive: the flow fell silent while it waited.
    Silence,
    /// Adaptive: nothing was expected in time.
    Unexpected,
    /// PSH.
    Push,
    /// FIN, on its last segment.
    Fin,
    /// Its last segment was shorter than the others.
    Short,
    /// It had as many segments as it may have.
    Segments,
    /// It could not take another segment of its size.
    Bytes,
    /// The next packet of its flow had no payload.
    Ack,
    /// … had SYN, RST or URG, or began with CWR (`lro`: a flag other than ACK and PSH).
    Control,
    /// … had IPv4 options or, under `lro`, IPv6 extension headers, or a routing header.
    IpOptions,
    /// … was a fragment with ports.
    Fragment,
    /// … was not as long as its IP header said.
    Padded,
    /// … was an aggregate already, or too long to become one.
    Gso,
    /// … had a wrong checksum.
    BadChecksum,
    /// … could not be verified: its memory was gone, or its checksum is to be put elsewhere.
    Unverified,
    /// … had bytes of payload that no buffer holds.
    Bare,
    /// … was marked "congestion experienced" (`lro`).
    Congested,
    /// … had TCP options other than an aligned timestamp that echoes something (`lro`).
    TcpOption,
    /// A TCP packet whose ports could not be seen: whose it is is unknown, so everything ends.
    Hidden,
    /// The next packet of its flow broke rule "sequence number".
    Sequence,
    /// … rule "acknowledgement number".
    Acknowledgement,
    /// … rule "flags".
    Flags,
    /// … rule "window".
    Window,
    /// … rule "urgent pointer".
    UrgentPointer,
    /// … rule "TCP options": timestamps, mostly.
    TcpOptions,
    /// … rule "payload length": it was longer.
    Length,
    /// … rule "traffic class": TOS and ECN.
    TrafficClass,
    /// … rule "flow label".
    FlowLabel,
    /// … rule "hop limit".
    HopLimit,
    /// … rule "identification".
    Identification,
    /// … rule "don't fragment".
    DontFragment,
    /// … rule "extension headers".
    Extensions,
    /// … rule "header lengths": other IP extensions or TCP options than before.
    HeaderLengths,
    /// Its place was needed for another flow.
    TableFull,
    /// Buffers ran low.
    NoDescriptor,
    /// The settings changed.
    Settings,
    /// The interface closed.
    Drain,
}

impl Reason {
    /// All of them, in order.
    pub const ALL: [Self; 39] = [
        Self::Poll,
        Self::Time,
        Self::Silence,
        Self::Unexpected,
        Self::Push,
        Self::Fin,
        Self::Short,
        Self::Segments,
        Self::Bytes,
        Self::Ack,
        Self::Control,
        Self::IpOptions,
        Self::Fragment,
        Self::Padded,
        Self::Gso,
        Self::BadChecksum,
        Self::Unverified,
        Self::Bare,
        Self::Congested,
        Self::TcpOption,
        Self::Hidden,
        Self::Sequence,
        Self::Acknowledgement,
        Self::Flags,
        Self::Window,
        Self::UrgentPointer,
        Self::TcpOptions,
        Self::Length,
        Self::TrafficClass,
        Self::FlowLabel,
        Self::HopLimit,
        Self::Identification,
        Self::DontFragment,
        Self::Extensions,
        Self::HeaderLengths,
        Self::TableFull,
        Self::NoDescriptor,
        Self::Settings,
        Self::Drain,
    ];

    /// The counter's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Time => "time",
            Self::Silence => "silence",
            Self::Unexpected => "unexpected",
            Self::Push => "push",
            Self::Fin => "fin",
            Self::Short => "short",
            Self::Segments => "segments",
            Self::Bytes => "bytes",
            Self::Ack => "ack",
            Self::Control => "control",
            Self::IpOptions => "ip_options",
            Self::Fragment => "fragment",
            Self::Padded => "padded",
            Self::Gso => "gso",
            Self::BadChecksum => "bad_checksum",
            Self::Unverified => "unverified",
            Self::Bare => "bare",
            Self::Congested => "congested",
            Self::TcpOption => "tcp_option",
            Self::Hidden => "hidden",
            Self::Sequence => "sequence",
            Self::Acknowledgement => "acknowledgement",
            Self::Flags => "flags",
            Self::Window => "window",
            Self::UrgentPointer => "urgent_pointer",
            Self::TcpOptions => "tcp_options",
            Self::Length => "length",
            Self::TrafficClass => "traffic_class",
            Self::FlowLabel => "flow_label",
            Self::HopLimit => "hop_limit",
            Self::Identification => "identification",
            Self::DontFragment => "dont_fragment",
            Self::Extensions => "extensions",
            Self::HeaderLengths => "header_lengths",
            Self::TableFull => "table_full",
            Self::NoDescriptor => "no_descriptor",
            Self::Settings => "settings",
            Self::Drain => "drain",
        }
    }
}
