//! Extracts the fields of a frame that rules match. The result equals that of `net`'s parser for a
//! snapshot of 128 bytes: at most two VLAN tags and eight extension headers, all within these
//! bytes.
//!
//! A helper that checks the frame's length reads all bytes. Offsets are numbers, never pointers.
//!
//! | register | while headers are parsed |
//! |---|---|
//! | r6 | the frame |
//! | r7 | offset of the next header |
//! | r8 | EtherType, then protocol |
//! | r9 | length of the snapshot |
//!
//! The program stores the fields on the stack, at offsets whose values the verifier does not track.
//! Otherwise the verifier would follow each value through all rules. For untracked values, it
//! assumes both results of a comparison, and visits every rule once.

use crate::bpf::{
    Assembler, Label, R0, R1, R2, R3, R4, R6, R7, R8, R9, R10, XDP_GET_BUFF_LEN, XDP_LOAD_BYTES,
};

/// The port of a packet without ports. It is outside the range of ports.
const ABSENT: i32 = 1 << 16;
/// The value of a field that the program cannot read, for example a fragment's port. It is outside
/// the range of all fields.
pub(super) const HIDDEN: i32 = 1 << 17;

/// EtherTypes.
pub(super) const IPV4: u16 = 0x0800;
pub(super) const IPV6: u16 = 0x86dd;
const ARP: i32 = 0x0806;
const REVERSE_ARP: i32 = 0x8035;
const VLAN: i32 = 0x8100;
const SERVICE_VLAN: i32 = 0x88a8;
/// Smallest EtherType. Smaller values are lengths of 802.3 frames.
const ETHERTYPE_MIN: i32 = 1536;

/// IP protocols.
const FRAGMENT: i32 = 44;
const AUTHENTICATION: i32 = 51;
/// Extension headers: hop-by-hop, routing, fragment, authentication, destination, mobility.
const EXTENSIONS: [i32; 6] = [0, 43, FRAGMENT, AUTHENTICATION, 60, 135];
/// Protocols whose header begins with two ports: TCP, UDP, DCCP, SCTP, UDP-Lite.
const WITH_PORTS: [i32; 5] = [6, 17, 33, 132, 136];

/// Size of a snapshot in bytes.
const SNAPSHOT: i32 = 128;
const ETHERNET: i32 = 14;
const MAX_TAGS: usize = 2;
const MAX_EXTENSIONS: usize = 8;
/// The first bytes of ARP for IPv4 over Ethernet, and of an RFC 1042 SNAP header, as the values
/// that loads of four and two bytes return.
const ARP_BEGINS: (u32, u32) = (u32::from_ne_bytes([0, 1, 8, 0]), half([6, 4]));
const SNAP_BEGINS: (u32, u32) = (u32::from_ne_bytes([0xaa, 0xaa, 3, 0]), half([0, 0]));
const ARP_BYTES: i32 = 28;
/// Number of bytes, starting at the EtherType, that one call reads for nearly all frames. For a
/// frame without a tag, they contain an IPv6 header and two ports.
const PREFETCH_BYTES: i32 = 2 + 40 + 4;
const PREFETCH_FRAME_MIN: i32 = ETHERNET - 2 + PREFETCH_BYTES;
/// Offsets of the transport header in a frame without tags, IPv4 options and extension headers.
const TRANSPORT4: i32 = ETHERNET + 20;
const TRANSPORT6: i32 = ETHERNET + 40;

const fn half(bytes: [u8; 2]) -> u32 {
    u16::from_ne_bytes(bytes) as u32
}

// Offsets on the stack, below the key of a counter. The verifier does not track the value of an
// eight-byte slot of which only the upper half is written.
/// The protocol, or [`HIDDEN`]; for other frames than IP, the EtherType.
pub(super) const NUMBER: i16 = -12;
/// The source port, or [`HIDDEN`].
pub(super) const SOURCE_PORT: i16 = -20;
/// The destination port.
pub(super) const DESTINATION_PORT: i16 = -28;
/// An IP header without options.
const IP: i16 = -72;
/// A header of at most 8 bytes.
const SMALL_HEADER: i16 = -80;
/// The offset of the IP header.
const IP_AT: i16 = -88;

pub(super) const SOURCE4: i16 = IP + 12;
pub(super) const DESTINATION4: i16 = IP + 16;
pub(super) const SOURCE6: i16 = IP + 8;
pub(super) const DESTINATION6: i16 = IP + 24;

/// The labels at which the program continues after parsing, by the class of the frame.
pub(super) struct HeaderBlocks {
    /// For an IPv4 packet.
    pub(super) ipv4: Label,
    /// For an IPv6 packet.
    pub(super) ipv6: Label,
    /// For a frame with another known EtherType.
    pub(super) other: Label,
    /// For a frame marked as IPv4 whose headers cannot be parsed.
    pub(super) hidden4: Label,
    /// For a frame marked as IPv6 whose headers cannot be parsed.
    pub(super) hidden6: Label,
    /// For a frame whose EtherType is unknown.
    pub(super) hidden: Label,
    /// For a frame shorter than an Ethernet header.
    runt: Label,
}

impl HeaderBlocks {
    /// Creates labels, which are placed later.
    pub(super) fn new(program: &mut Assembler, runt: Label) -> Self {
        Self {
            ipv4: program.fresh(),
            ipv6: program.fresh(),
            other: program.fresh(),
            hidden4: program.fresh(),
            hidden6: program.fresh(),
            hidden: program.fresh(),
            runt,
        }
    }
}

/// Parses the headers of the frame in r6.
pub(super) fn parse_headers(program: &mut Assembler, found: &HeaderBlocks) {
    let [ipv4, ipv6, arp, other, network, whole] = std::array::from_fn(|_| program.fresh());
    program
        .mov(R1, R6)
        .call(XDP_GET_BUFF_LEN)
        .mov(R9, R0)
        .jump_lt_imm(R9, ETHERNET, found.runt)
        .jump_lt_imm(R9, SNAPSHOT, whole)
        .mov_imm(R9, SNAPSHOT)
        .label(whole);
    tags(program, network, found.hidden);
    program
        .label(network)
        .store_u32(R10, IP_AT, R7)
        .jump_eq_imm(R8, IPV4.into(), ipv4)
        .jump_eq_imm(R8, IPV6.into(), ipv6)
        .jump_eq_imm(R8, ARP, arp)
        .jump_eq_imm(R8, REVERSE_ARP, arp)
        .jump_gt_imm(R8, ETHERTYPE_MIN - 1, other);
    // A frame with an 802.3 length may carry a packet behind a SNAP header, which some stacks
    // accept.
    load(program, 6, SMALL_HEADER, other);
    unless_begins(program, SNAP_BEGINS, other).jump(found.hidden);
    // ARP is checked only behind a tag: without a tag its EtherType is always known, and rules
    // match no other field of ARP.
    program
        .label(arp)
        .jump_eq_imm(R7, ETHERNET, other)
        .mov(R1, R7)
        .add_imm(R1, ARP_BYTES)
        .jump_gt(R1, R9, found.hidden);
    load(program, 6, SMALL_HEADER, found.hidden);
    unless_begins(program, ARP_BEGINS, found.hidden).jump(other);
    program
        .label(other)
        .store_u32(R10, NUMBER, R8)
        .jump(found.other)
        .label(ipv4);
    self::ipv4(program, found);
    program.label(ipv6);
    self::ipv6(program, found);
}

/// Skips VLAN tags: at `network`, r8 is the EtherType behind them and r7 its offset.
fn tags(program: &mut Assembler, network: Label, too_many: Label) {
    let [short, first] = std::array::from_fn(|_| program.fresh());
    program
        .mov_imm(R7, ETHERNET - 2)
        .jump_lt_imm(R9, PREFETCH_FRAME_MIN, short);
    load(program, PREFETCH_BYTES, IP - 2, too_many);
    program.load_u16(R8, R10, IP - 2).jump(first).label(short);
    load(program, 2, SMALL_HEADER, too_many);
    program.load_u16(R8, R10, SMALL_HEADER).label(first);
    for behind in 0..=MAX_TAGS {
        if behind > 0 {
            program.add_imm(R7, 2);
            load(program, 2, SMALL_HEADER, too_many);
            program.load_u16(R8, R10, SMALL_HEADER);
        }
        let tag = program.fresh();
        program
            .swap_be16(R8)
            .add_imm(R7, 2)
            .jump_eq_imm(R8, VLAN, tag)
            .jump_ne_imm(R8, SERVICE_VLAN, network)
            .label(tag);
    }
    program.jump(too_many);
}

fn ipv4(program: &mut Assembler, found: &HeaderBlocks) {
    let malformed = program.fresh();
    load_ip(program, 20, malformed);
    program
        .load_u8(R1, R10, IP)
        .mov(R2, R1)
        .shr_u32(R2, 4)
        .jump_ne_imm(R2, 4, malformed)
        .and_u32(R1, 15)
        .jump_lt_imm(R1, 5, malformed)
        .shl_u32(R1, 2)
        .add(R7, R1)
        .jump_gt(R7, R9, malformed)
        .load_u8(R8, R10, IP + 9)
        // The fragment offset in r1: a later fragment has no transport header.
        .load_u16(R1, R10, IP + 6)
        .swap_be16(R1)
        .and_u32(R1, 0x1fff);
    ports(program, TRANSPORT4, found.ipv4);
    program.label(malformed);
    hidden(program, found.hidden4, found.hidden);
}

fn ipv6(program: &mut Assembler, found: &HeaderBlocks) {
    let [malformed, later, obscure, end, transport] = std::array::from_fn(|_| program.fresh());
    load_ip(program, 40, malformed);
    program
        .load_u8(R1, R10, IP)
        .shr_u32(R1, 4)
        .jump_ne_imm(R1, 6, malformed)
        .load_u8(R8, R10, IP + 6)
        .add_imm(R7, 40);
    for _ in 0..MAX_EXTENSIONS {
        extension(program, end, later, malformed);
    }
    unless_extension(program, malformed).jump(end);
    // A later fragment names the first header of the fragmented part: if that is an extension
    // header, the transport header is unknown.
    program.label(later);
    unless_extension(program, obscure)
        .mov_imm(R1, 1)
        .jump(transport)
        .label(obscure)
        .mov_imm(R8, HIDDEN);
    store_without_ports(program, HIDDEN).jump(found.ipv6);
    program.label(end).mov_imm(R1, 0).label(transport);
    ports(program, TRANSPORT6, found.ipv6);
    program.label(malformed);
    hidden(program, found.hidden6, found.hidden);
}

/// Skips one extension header. Continues at `end` if the next header is not an extension header,
/// and at `later` after the header of a later fragment.
fn extension(program: &mut Assembler, end: Label, later: Label, malformed: Label) {
    let [present, fragment, words, step, next] = std::array::from_fn(|_| program.fresh());
    unless_extension(program, present).jump(end).label(present);
    // 8 bytes are the minimum length of an extension header.
    load(program, 8, SMALL_HEADER, malformed);
    program
        .load_u8(R2, R10, SMALL_HEADER)
        .load_u8(R1, R10, SMALL_HEADER + 1)
        .jump_eq_imm(R8, FRAGMENT, fragment)
        .jump_eq_imm(R8, AUTHENTICATION, words)
        .add_imm(R1, 1)
        .shl_u32(R1, 3)
        .jump(step)
        .label(words)
        .add_imm(R1, 2)
        .shl_u32(R1, 2)
        .label(step)
        .mov(R8, R2)
        .add(R7, R1)
        .jump_gt(R7, R9, malformed)
        .jump(next)
        .label(fragment)
        .mov(R8, R2)
        .add_imm(R7, 8)
        .load_u16(R1, R10, SMALL_HEADER + 2)
        .swap_be16(R1)
        .shr_u32(R1, 3)
        .jump_ne_imm(R1, 0, later)
        .label(next);
}

/// Continues at `present` if r8 is the protocol of an extension header.
fn unless_extension(program: &mut Assembler, present: Label) -> &mut Assembler {
    for extension in EXTENSIONS {
        program.jump_eq_imm(R8, extension, present);
    }
    program
}

/// Stores the ports of the packet whose transport header begins at r7, and continues at `to`. If r1
/// is not zero, the packet is a fragment without a transport header. Bytes at `usual` may have been
/// fetched with the IP header.
fn ports(program: &mut Assembler, usual: i32, to: Label) {
    let [has, hidden, elsewhere, loaded] = std::array::from_fn(|_| program.fresh());
    let fetched = IP + (usual - ETHERNET) as i16;
    for protocol in WITH_PORTS {
        program.jump_eq_imm(R8, protocol, has);
    }
    store_without_ports(program, ABSENT)
        .jump(to)
        .label(has)
        .jump_ne_imm(R1, 0, hidden)
        .jump_ne_imm(R7, usual, elsewhere)
        .jump_lt_imm(R9, PREFETCH_FRAME_MIN, elsewhere)
        .load_u16(R1, R10, fetched)
        .load_u16(R2, R10, fetched + 2)
        .jump(loaded)
        .label(elsewhere);
    load(program, 4, SMALL_HEADER, hidden);
    program
        .load_u16(R1, R10, SMALL_HEADER)
        .load_u16(R2, R10, SMALL_HEADER + 2)
        .label(loaded)
        .swap_be16(R1)
        .swap_be16(R2);
    store_ports(program).jump(to).label(hidden);
    store_without_ports(program, HIDDEN).jump(to);
}

/// Stores protocol r8, and the value `ports`, which is not a port number, for both ports.
fn store_without_ports(program: &mut Assembler, ports: i32) -> &mut Assembler {
    program.mov_imm(R1, ports).mov_imm(R2, ports);
    store_ports(program)
}

/// Stores protocol r8 and the ports in r1 and r2.
fn store_ports(program: &mut Assembler) -> &mut Assembler {
    program
        .store_u32(R10, NUMBER, R8)
        .store_u32(R10, SOURCE_PORT, R1)
        .store_u32(R10, DESTINATION_PORT, R2)
}

/// Continues with a frame whose headers cannot be parsed: at `plain` if the frame has no tags, and
/// at `tagged` otherwise.
fn hidden(program: &mut Assembler, plain: Label, tagged: Label) {
    program
        .load_u32(R1, R10, IP_AT)
        .jump_ne_imm(R1, ETHERNET, tagged)
        .jump(plain);
}

/// Continues at `otherwise` unless the 6 loaded bytes are `first` and `last`.
fn unless_begins(
    program: &mut Assembler,
    (first, last): (u32, u32),
    otherwise: Label,
) -> &mut Assembler {
    program
        .load_u32(R1, R10, SMALL_HEADER)
        .xor_u32(R1, first)
        .jump_ne_imm(R1, 0, otherwise)
        .load_u16(R1, R10, SMALL_HEADER + 4)
        .xor_u32(R1, last)
        .jump_ne_imm(R1, 0, otherwise)
}

/// Loads the first `bytes` bytes of the IP header at r7 onto the stack unless they were fetched
/// already, or continues at `otherwise`.
fn load_ip(program: &mut Assembler, bytes: i32, otherwise: Label) {
    let [missing, present] = std::array::from_fn(|_| program.fresh());
    program
        .jump_lt_imm(R9, PREFETCH_FRAME_MIN, missing)
        .jump_eq_imm(R7, ETHERNET, present)
        .label(missing);
    load(program, bytes, IP, otherwise);
    program.label(present);
}

/// Loads the `bytes` bytes at r7 onto the stack, or continues at `otherwise` if the snapshot does
/// not contain them.
fn load(program: &mut Assembler, bytes: i32, to: i16, otherwise: Label) {
    program
        .mov(R1, R7)
        .add_imm(R1, bytes)
        .jump_gt(R1, R9, otherwise)
        .mov(R1, R6)
        .mov(R2, R7)
        .mov(R3, R10)
        .add_imm(R3, to.into())
        .mov_imm(R4, bytes)
        .call(XDP_LOAD_BYTES)
        .jump_ne_imm(R0, 0, otherwise);
}
