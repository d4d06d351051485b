//! The required part of bpf(2): a hash map, maps of AF_XDP sockets and of programs, counters, and
//! an assembler for about thirty instructions. The programs are so small that they need no compiler
//! and no loader library.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
const BPF_MAP_GET_NEXT_KEY: libc::c_long = 4;
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_MAP_TYPE_HASH: u32 = 1;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_PROG_ARRAY: u32 = 3;
const BPF_MAP_TYPE_XSKMAP: u32 = 17;
const BPF_XDP: u32 = 37;
const BPF_TCX_EGRESS: u32 = 47;
/// Maximum number of attempts to load a program. A signal may interrupt the verifier.
const LOAD_ATTEMPTS_MAX: u32 = 20;
/// Pseudo source register of a 64-bit immediate that is the descriptor of a map.
pub(super) const BPF_PSEUDO_MAP_FD: u8 = 1;
/// Instruction that loads a 64-bit immediate. A second instruction contains the upper half.
pub(super) const LOAD_IMMEDIATE: u8 = 0x18;
/// Instruction that calls a helper.
pub(super) const CALL: u8 = 0x85;
/// Instruction that calls the function whose address is in a register.
pub(super) const CALL_REGISTER: u8 = 0x8d;

/// An instruction: opcode, registers, offset, immediate (linux/bpf.h, `struct bpf_insn`).
pub(super) type Instruction = [u8; 8];

/// Helper: `map_lookup_elem(map, key) -> value or null`.
pub(super) const MAP_LOOKUP_ELEM: i32 = 1;
/// Helper: `tail_call(context, map of programs, index)`. Returns only if the program does not
/// exist.
pub(super) const TAIL_CALL: i32 = 12;
/// Helper: `skb_load_bytes(skb, offset, to, len) -> 0 or an error`.
pub(super) const SKB_LOAD_BYTES: i32 = 26;
/// Helper: `redirect_map(map, index, action without an entry) -> action`.
pub(super) const REDIRECT_MAP: i32 = 51;
/// Helper: `xdp_get_buff_len(frame) -> bytes`.
pub(super) const XDP_GET_BUFF_LEN: i32 = 188;
/// Helper: `xdp_load_bytes(frame, offset, to, len) -> 0 or an error`.
pub(super) const XDP_LOAD_BYTES: i32 = 189;

/// All helpers that programs call. They access only the program's memory, packet and maps.
pub(super) const HELPERS: [i32; 6] = [
    MAP_LOOKUP_ELEM,
    TAIL_CALL,
    SKB_LOAD_BYTES,
    REDIRECT_MAP,
    XDP_GET_BUFF_LEN,
    XDP_LOAD_BYTES,
];

/// Type of a program.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub(super) enum ProgramType {
    SocketFilter = 1,
    SchedCls = 3,
    Xdp = 6,
}

/// A register: r0 for the result, r1 … r5 for arguments, r6 … r9 preserved by calls, r10 the frame
/// pointer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reg(pub(super) u8);

pub(super) const R0: Reg = Reg(0);
pub(super) const R1: Reg = Reg(1);
pub(super) const R2: Reg = Reg(2);
pub(super) const R3: Reg = Reg(3);
pub(super) const R4: Reg = Reg(4);
pub(super) const R6: Reg = Reg(6);
pub(super) const R7: Reg = Reg(7);
pub(super) const R8: Reg = Reg(8);
pub(super) const R9: Reg = Reg(9);
pub(super) const R10: Reg = Reg(10);

/// A jump target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Label(pub(super) u32);

/// First label that an assembler allocates.
const FRESH: u32 = 1 << 16;

/// A program under construction.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: BTreeMap<Label, usize>,
    fresh: u32,
}

impl Assembler {
    fn emit(&mut self, opcode: u8, dst: u8, src: u8, offset: i16, imm: i32) -> &mut Self {
        let [o0, o1] = offset.to_le_bytes();
        let [i0, i1, i2, i3] = imm.to_le_bytes();
        self.code
            .push([opcode, src << 4 | dst, o0, o1, i0, i1, i2, i3]);
        self
    }

    /// `dst = src`
    pub(super) fn mov(&mut self, dst: Reg, src: Reg) -> &mut Self {
        self.emit(0xbf, dst.0, src.0, 0, 0)
    }

    /// `dst = imm`
    pub(super) fn mov_imm(&mut self, dst: Reg, imm: i32) -> &mut Self {
        self.emit(0xb7, dst.0, 0, 0, imm)
    }

    /// `dst += imm`
    pub(super) fn add_imm(&mut self, dst: Reg, imm: i32) -> &mut Self {
        self.emit(0x07, dst.0, 0, 0, imm)
    }

    /// `dst += src`
    pub(super) fn add(&mut self, dst: Reg, src: Reg) -> &mut Self {
        self.emit(0x0f, dst.0, src.0, 0, 0)
    }

    /// `dst &= src`
    pub(super) fn and(&mut self, dst: Reg, src: Reg) -> &mut Self {
        self.emit(0x5f, dst.0, src.0, 0, 0)
    }

    /// `dst ^= src`
    pub(super) fn xor(&mut self, dst: Reg, src: Reg) -> &mut Self {
        self.emit(0xaf, dst.0, src.0, 0, 0)
    }

    /// `dst = (u32)dst & imm`
    pub(super) fn and_u32(&mut self, dst: Reg, imm: u32) -> &mut Self {
        self.emit(0x54, dst.0, 0, 0, imm as i32)
    }

    /// `dst = (u32)dst ^ imm`
    pub(super) fn xor_u32(&mut self, dst: Reg, imm: u32) -> &mut Self {
        self.emit(0xa4, dst.0, 0, 0, imm as i32)
    }

    /// `dst = (u32)dst << imm`
    pub(super) fn shl_u32(&mut self, dst: Reg, imm: i32) -> &mut Self {
        self.emit(0x64, dst.0, 0, 0, imm)
    }

    /// `dst = (u32)dst >> imm`
    pub(super) fn shr_u32(&mut self, dst: Reg, imm: i32) -> &mut Self {
        self.emit(0x74, dst.0, 0, 0, imm)
    }

    /// `dst = be16_to_cpu((u16)dst)`
    pub(super) fn swap_be16(&mut self, dst: Reg) -> &mut Self {
        self.emit(0xdc, dst.0, 0, 0, 16)
    }

    /// `dst = imm`
    pub(super) fn mov_u64(&mut self, dst: Reg, imm: u64) -> &mut Self {
        self.emit(LOAD_IMMEDIATE, dst.0, 0, 0, imm as i32);
        self.emit(0, 0, 0, 0, (imm >> 32) as i32)
    }

    /// `dst = *(u8 *)(src + offset)`
    pub(super) fn load_u8(&mut self, dst: Reg, src: Reg, offset: i16) -> &mut Self {
        self.emit(0x71, dst.0, src.0, offset, 0)
    }

    /// `dst = *(u16 *)(src + offset)`
    pub(super) fn load_u16(&mut self, dst: Reg, src: Reg, offset: i16) -> &mut Self {
        self.emit(0x69, dst.0, src.0, offset, 0)
    }

    /// `dst = *(u32 *)(src + offset)`
    pub(super) fn load_u32(&mut self, dst: Reg, src: Reg, offset: i16) -> &mut Self {
        self.emit(0x61, dst.0, src.0, offset, 0)
    }

    /// `dst = *(u64 *)(src + offset)`
    pub(super) fn load_u64(&mut self, dst: Reg, src: Reg, offset: i16) -> &mut Self {
        self.emit(0x79, dst.0, src.0, offset, 0)
    }

    /// `*(u32 *)(dst + offset) = src`
    pub(super) fn store_u32(&mut self, dst: Reg, offset: i16, src: Reg) -> &mut Self {
        self.emit(0x63, dst.0, src.0, offset, 0)
    }

    /// `*(u64 *)(dst + offset) = imm`
    pub(super) fn store_u64_imm(&mut self, dst: Reg, offset: i16, imm: i32) -> &mut Self {
        self.emit(0x7a, dst.0, 0, offset, imm)
    }

    /// `*(u64 *)(dst + offset) += src`, atomically
    pub(super) fn atomic_add_u64(&mut self, dst: Reg, offset: i16, src: Reg) -> &mut Self {
        self.emit(0xdb, dst.0, src.0, offset, 0)
    }

    /// `dst = the map`
    pub(super) fn load_map(&mut self, dst: Reg, map: &impl AsFd) -> &mut Self {
        let fd = map.as_fd().as_raw_fd();
        self.emit(LOAD_IMMEDIATE, dst.0, BPF_PSEUDO_MAP_FD, 0, fd);
        self.emit(0, 0, 0, 0, 0)
    }

    /// `r0 = helper(r1 …)`
    pub(super) fn call(&mut self, helper: i32) -> &mut Self {
        self.emit(CALL, 0, 0, 0, helper)
    }

    /// `goto to`
    pub(super) fn jump(&mut self, to: Label) -> &mut Self {
        self.jump_if(0x05, R0, R0, 0, to)
    }

    /// `if dst == imm goto to`
    pub(super) fn jump_eq_imm(&mut self, dst: Reg, imm: i32, to: Label) -> &mut Self {
        self.jump_if(0x15, dst, R0, imm, to)
    }

    /// `if dst != imm goto to`
    pub(super) fn jump_ne_imm(&mut self, dst: Reg, imm: i32, to: Label) -> &mut Self {
        self.jump_if(0x55, dst, R0, imm, to)
    }

    /// `if dst > imm goto to`, as unsigned numbers
    pub(super) fn jump_gt_imm(&mut self, dst: Reg, imm: i32, to: Label) -> &mut Self {
        self.jump_if(0x25, dst, R0, imm, to)
    }

    /// `if dst < imm goto to`, as unsigned numbers
    pub(super) fn jump_lt_imm(&mut self, dst: Reg, imm: i32, to: Label) -> &mut Self {
        self.jump_if(0xa5, dst, R0, imm, to)
    }

    /// `if dst != src goto to`
    pub(super) fn jump_ne(&mut self, dst: Reg, src: Reg, to: Label) -> &mut Self {
        self.jump_if(0x5d, dst, src, 0, to)
    }

    /// `if dst > src goto to`, as unsigned numbers
    pub(super) fn jump_gt(&mut self, dst: Reg, src: Reg, to: Label) -> &mut Self {
        self.jump_if(0x2d, dst, src, 0, to)
    }

    fn jump_if(&mut self, opcode: u8, dst: Reg, src: Reg, imm: i32, to: Label) -> &mut Self {
        self.jumps.push((self.code.len(), to));
        self.emit(opcode, dst.0, src.0, 0, imm)
    }

    /// `return r0`
    pub(super) fn exit(&mut self) -> &mut Self {
        self.emit(0x95, 0, 0, 0, 0)
    }

    /// Places `label` here, as the target of its jumps.
    pub(super) fn label(&mut self, label: Label) -> &mut Self {
        self.labels.insert(label, self.code.len());
        self
    }

    /// Returns a label that is not used yet.
    pub(super) fn fresh(&mut self) -> Label {
        self.fresh += 1;
        Label(FRESH + self.fresh)
    }

    /// Returns whether any jump has the target `label`.
    pub(super) fn is_target(&self, label: Label) -> bool {
        self.jumps.iter().any(|&(_, to)| to == label)
    }

    /// Returns the program with the distances of all jumps.
    pub(super) fn finish(&self) -> io::Result<Vec<Instruction>> {
        let mut code = self.code.clone();
        for &(at, to) in &self.jumps {
            let distance = self
                .labels
                .get(&to)
                .and_then(|&target| i16::try_from(target as i64 - at as i64 - 1).ok())
                .ok_or(io::ErrorKind::InvalidInput)?;
            if let Some([_, _, low, high, ..]) = code.get_mut(at) {
                [*low, *high] = distance.to_le_bytes();
            }
        }
        Ok(code)
    }
}

/// Loads a program whose instructions refer to maps by descriptor. None of its helpers requires a
/// GPL licence.
pub(super) fn load(kind: u32, code: &[Instruction]) -> io::Result<OwnedFd> {
    let license = c"MIT OR Apache-2.0";
    let attr = ProgLoad {
        prog_type: kind,
        insn_cnt: code.len() as u32,
        insns: code.as_ptr() as u64,
        license: license.as_ptr() as u64,
        rest: [0; 2],
    };
    let mut tries = 1;
    loop {
        // SAFETY: the kernel reads the attributes, the instructions and the licence, all of which
        // outlive the call.
        match unsafe { bpf_fd(BPF_PROG_LOAD, &attr) } {
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && tries < LOAD_ATTEMPTS_MAX =>
            {
                tries += 1;
            }
            loaded => return loaded,
        }
    }
}

/// Runs an XDP program for every packet received on an interface of the calling thread's namespace,
/// until the returned descriptor is closed.
pub(super) fn attach_xdp(program: &OwnedFd, index: u32, flags: u32) -> io::Result<OwnedFd> {
    attach(program, index, BPF_XDP, flags)
}

/// Runs a [`ProgramType::SchedCls`] program for every packet sent on an interface of the calling
/// thread's namespace, before the kernel selects its queue, until the returned descriptor is
/// closed.
pub(super) fn attach_egress(program: &OwnedFd, index: u32) -> io::Result<OwnedFd> {
    attach(program, index, BPF_TCX_EGRESS, 0)
}

fn attach(program: &OwnedFd, index: u32, attach_type: u32, flags: u32) -> io::Result<OwnedFd> {
    let attr = LinkCreate {
        prog_fd: program.as_raw_fd() as u32,
        target: index,
        attach_type,
        flags,
    };
    // SAFETY: the kernel reads the attributes.
    unsafe { bpf_fd(BPF_LINK_CREATE, &attr) }
}

/// Returns whether the interface of an XDP program's link was removed.
pub(super) fn is_removed(link: &OwnedFd) -> bool {
    // The beginning of `struct bpf_link_info`: type, id, program, padding, the interface's index.
    let mut info = [0u32; 5];
    let attr = ObjectInfo {
        fd: link.as_raw_fd() as u32,
        bytes: size_of_val(&info) as u32,
        info: info.as_mut_ptr() as u64,
    };
    // SAFETY: the kernel reads the attributes, and writes at most `bytes` bytes to `info`.
    let done = unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &attr) };
    done.is_ok() && matches!(info, [_, _, _, _, 0])
}

/// A map from keys of `key` bytes to u32s.
#[derive(Debug)]
pub(super) struct Map {
    fd: OwnedFd,
    key: u32,
}

impl AsFd for Map {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Map {
    /// Creates an empty map of up to `entries` entries with keys of 8 bytes.
    pub(super) fn new(entries: u32) -> io::Result<Self> {
        Self::create(BPF_MAP_TYPE_HASH, 8, entries)
    }

    /// Creates a map of `queues` AF_XDP sockets, all unset. Its values are set as descriptors.
    pub(super) fn sockets(queues: u32) -> io::Result<Self> {
        Self::create(BPF_MAP_TYPE_XSKMAP, 4, queues)
    }

    /// Creates a map of `programs` programs for tail calls, all unset. Its values are set as
    /// descriptors.
    pub(super) fn programs(programs: u32) -> io::Result<Self> {
        Self::create(BPF_MAP_TYPE_PROG_ARRAY, 4, programs)
    }

    fn create(map_type: u32, key: u32, entries: u32) -> io::Result<Self> {
        let fd = create(map_type, key, 4, entries)?;
        Ok(Self { fd, key })
    }

    /// Adopts a map that another process created, with keys of `key` bytes.
    pub(super) fn adopt(fd: OwnedFd, key: u32) -> Self {
        Self { fd, key }
    }

    /// Sets an entry.
    pub(super) fn set(&self, key: &[u8], value: u32) -> io::Result<()> {
        let attr = self.element(key, &raw const value as u64)?;
        // SAFETY: the kernel reads the attributes, the key, whose length `element` has checked, and
        // 4 bytes of value.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &attr) }.map(drop)
    }

    /// Removes an entry. Succeeds if the entry does not exist.
    pub(super) fn remove(&self, key: &[u8]) -> io::Result<()> {
        let attr = self.element(key, 0)?;
        // SAFETY: the kernel reads the attributes and the key, which `element` has checked.
        match unsafe { bpf(BPF_MAP_DELETE_ELEM, &attr) } {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Removes all entries of a map with keys of 8 bytes.
    pub(super) fn clear(&self) -> io::Result<()> {
        let mut key = [0; 8];
        loop {
            let attr = self.element(&key, 0)?;
            // A null key requests the first key.
            let attr = Element {
                key: 0,
                value: &raw mut key as u64,
                ..attr
            };
            // SAFETY: the kernel reads the attributes, and writes a key, whose length `element` has
            // checked.
            match unsafe { bpf(BPF_MAP_GET_NEXT_KEY, &attr) } {
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(()),
                found => found?,
            };
            self.remove(&key)?;
        }
    }

    fn element(&self, key: &[u8], value: u64) -> io::Result<Element> {
        if key.len() != self.key as usize {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Element::of(&self.fd, key.as_ptr() as u64, value))
    }
}

/// Pairs of u64 counters, by index. A lookup gives a program a pointer to a pair.
#[derive(Debug)]
pub(super) struct CounterMap(OwnedFd);

impl CounterMap {
    /// Creates `entries` pairs of zeros.
    pub(super) fn new(entries: u32) -> io::Result<Self> {
        create(BPF_MAP_TYPE_ARRAY, 4, size_of::<[u64; 2]>() as u32, entries).map(Self)
    }

    /// Returns a pair.
    pub(super) fn get(&self, index: u32) -> io::Result<[u64; 2]> {
        let mut counts = [0u64; 2];
        let attr = Element::of(&self.0, &raw const index as u64, &raw mut counts as u64);
        // SAFETY: the kernel reads the attributes and 4 bytes of key, and writes a value, whose
        // size `new` has set.
        unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &attr) }?;
        Ok(counts)
    }
}

/// Counters that another process created.
impl From<OwnedFd> for CounterMap {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for CounterMap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn create(map_type: u32, key_size: u32, value_size: u32, entries: u32) -> io::Result<OwnedFd> {
    let attr = MapCreate {
        map_type,
        key_size,
        value_size,
        max_entries: entries.max(1),
    };
    // SAFETY: the kernel reads the attributes.
    unsafe { bpf_fd(BPF_MAP_CREATE, &attr) }
}

// Leading parts of `union bpf_attr`: the kernel treats the rest as zero.

#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

#[repr(C)]
struct Element {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

impl Element {
    fn of(map: &OwnedFd, key: u64, value: u64) -> Self {
        Self {
            map_fd: map.as_raw_fd() as u32,
            pad: 0,
            key,
            value,
            flags: 0,
        }
    }
}

#[repr(C)]
struct ProgLoad {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    /// log_level, log_size; log_buf.
    rest: [u64; 2],
}

/// `bpf_attr` for BPF_OBJ_GET_INFO_BY_FD.
#[repr(C)]
struct ObjectInfo {
    fd: u32,
    bytes: u32,
    info: u64,
}

#[repr(C)]
struct LinkCreate {
    prog_fd: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
}

/// Executes one bpf(2) call.
///
/// # Safety
/// `attr` is the argument of `command`, and all memory to which it points outlives the call.
unsafe fn bpf<T>(command: libc::c_long, attr: &T) -> io::Result<libc::c_long> {
    // SAFETY: the caller guarantees the attributes, whose size is given.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attr, size_of::<T>()) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Executes a bpf(2) call that returns a descriptor.
///
/// # Safety
/// See the contract of [`bpf`]; `command` returns a new descriptor.
unsafe fn bpf_fd<T>(command: libc::c_long, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: by the caller's promise.
    let fd = unsafe { bpf(command, attr) }?;
    // SAFETY: the kernel has just created the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
