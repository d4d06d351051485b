//! Firewall rules as a program. The kernel runs the program on a frame before it writes any byte of
//! the frame into a guest's page. The program's decision on a frame equals the bridge's
//! (`specs/bridge.md`, BR-18 and BR-20). The program cannot leave frames to the shared queue,
//! because a socket receives no frames of another queue.
//!
//! | module | job |
//! |---|---|
//! | `headers` | extraction of the fields that rules match |
//! | this module | the rules, compiled for each class of frames |
//!
//! Rules become code, not data: the compiler omits rules that a class of frames cannot match, and a
//! rule costs nothing for fields that it does not match. The program has no loop and no pointer
//! into the frame, so the verifier's work is about proportional to its length. A field that the
//! program cannot read (*hidden*) matches all rules that deny and no rule that allows, so the
//! action of a rule determines the result of a comparison with such a field.

mod headers;
#[cfg(test)]
mod tests;

use super::shared::XDP_DROP;
use crate::bpf::{
    Assembler, CounterMap, Label, MAP_LOOKUP_ELEM, R0, R1, R2, R6, R7, R8, R10, XDP_GET_BUFF_LEN,
};
use abi::firewall::{RuleLists, RulePrefix, RuleRecord};
use headers::{
    DESTINATION_PORT, DESTINATION4, DESTINATION6, HIDDEN, HeaderBlocks, NUMBER, SOURCE_PORT,
    SOURCE4, SOURCE6,
};
use std::io;
use std::net::IpAddr;

/// Stack offset of a rule's number.
const KEY: i16 = -8;

/// Classes of frames, for which rules are compiled separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Ipv4,
    Ipv6,
    /// Frames with a known EtherType other than IP.
    Other,
}

/// Emits a program that drops the frames that the rules deny, and counts them by the rule's number
/// in `denied`. For all other frames, the program continues with the code of `passed`, with the
/// frame in r6.
///
/// # Errors
/// Returns an error if a rule has a range of ports whose end is less than its beginning.
pub(super) fn compile(
    rules: &RuleLists,
    denied: &CounterMap,
    passed: impl FnOnce(&mut Assembler),
) -> io::Result<Assembler> {
    let all = || rules.from_wire.iter().chain(&rules.to_guest);
    let ports = all().flat_map(|rule| [rule.source_ports, rule.destination_ports]);
    if ports.flatten().any(|(first, last)| first > last) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut program = Assembler::default();
    program.mov(R6, R1);
    if rules.is_empty() {
        passed(&mut program);
        return Ok(program);
    }
    let [drop, deny, pass] = std::array::from_fn(|_| program.fresh());
    let found = HeaderBlocks::new(&mut program, drop);
    headers::parse_headers(&mut program, &found);
    let mut compiler = Compiler {
        program,
        rules,
        deny,
        pass,
    };
    let ipv4 = Some(headers::IPV4);
    let ipv6 = Some(headers::IPV6);
    for (label, ethertype) in [
        (found.hidden, None),
        (found.hidden4, ipv4),
        (found.hidden6, ipv6),
    ] {
        compiler.program.label(label);
        compiler.hidden(ethertype);
    }
    for (label, class) in [
        (found.other, Class::Other),
        (found.ipv4, Class::Ipv4),
        (found.ipv6, Class::Ipv6),
    ] {
        compiler.program.label(label);
        compiler.class(class);
    }
    let mut program = compiler.program;
    // The verifier rejects unreachable code.
    if program.is_target(deny) {
        program.label(deny);
        count(&mut program, denied, drop);
    }
    program.label(drop).mov_imm(R0, XDP_DROP).exit();
    if program.is_target(pass) {
        program.label(pass);
        passed(&mut program);
    }
    Ok(program)
}

/// Emits code that counts a frame for the rule whose number is in r7, and jumps to `otherwise` if
/// the counter does not exist.
fn count(program: &mut Assembler, denied: &CounterMap, otherwise: Label) {
    program
        .mov(R1, R6)
        .call(XDP_GET_BUFF_LEN)
        .mov(R8, R0)
        .store_u32(R10, KEY, R7)
        .load_map(R1, denied)
        .mov(R2, R10)
        .add_imm(R2, KEY.into())
        .call(MAP_LOOKUP_ELEM)
        .jump_eq_imm(R0, 0, otherwise)
        .mov_imm(R1, 1)
        .atomic_add_u64(R0, 0, R1)
        .atomic_add_u64(R0, 8, R8);
}

struct Compiler<'a> {
    program: Assembler,
    rules: &'a RuleLists,
    deny: Label,
    pass: Label,
}

impl Compiler<'_> {
    /// Emits both lists of rules for frames of a class.
    fn class(&mut self, class: Class) {
        let rules = self.rules;
        let second = self.program.fresh();
        let through = self.list(&rules.from_wire, 0, class, second);
        if through || self.program.is_target(second) {
            self.program.label(second);
            let first = rules.from_wire.len() as i32;
            if self.list(&rules.to_guest, first, class, self.pass) {
                self.program.jump(self.pass);
            }
        }
    }

    /// Emits a list whose first rule has the number `first`. Frames that a rule allows continue at
    /// `allowed`. Returns whether the rules may leave some frames unmatched.
    fn list(&mut self, list: &[RuleRecord], first: i32, class: Class, allowed: Label) -> bool {
        for (number, rule) in (first..).zip(list) {
            if !class.may_match(rule) {
                continue;
            }
            let next = self.program.fresh();
            self.conditions(rule, class, next);
            self.decide(number, rule.allow, allowed);
            if !self.program.is_target(next) {
                return false;
            }
            self.program.label(next);
        }
        true
    }

    fn decide(&mut self, number: i32, allow: bool, allowed: Label) {
        if allow {
            self.program.jump(allowed);
        } else {
            self.program.mov_imm(R7, number).jump(self.deny);
        }
    }

    /// Emits a jump to `next` for frames that do not match a rule's conditions.
    fn conditions(&mut self, rule: &RuleRecord, class: Class, next: Label) {
        if class == Class::Other {
            if let Some(ethertype) = rule.ethertype {
                self.program
                    .load_u32(R1, R10, NUMBER)
                    .jump_ne_imm(R1, ethertype.into(), next);
            }
            return;
        }
        if let Some(protocol) = rule.protocol {
            let one = (protocol.into(), protocol.into());
            self.range(NUMBER, one, rule.allow, next);
        }
        for (ports, at) in [
            (rule.source_ports, SOURCE_PORT),
            (rule.destination_ports, DESTINATION_PORT),
        ] {
            if let Some((first, last)) = ports {
                self.range(at, (first.into(), last.into()), rule.allow, next);
            }
        }
        let (source, destination) = match class {
            Class::Ipv4 => (SOURCE4, DESTINATION4),
            _ => (SOURCE6, DESTINATION6),
        };
        for (prefix, at) in [(rule.source, source), (rule.destination, destination)] {
            if let Some(prefix) = prefix {
                self.prefix(prefix, at, next);
            }
        }
    }

    /// Emits a jump to `next` unless the number at stack offset `at` is one of `first ..= last`. A
    /// hidden number matches if the rule denies.
    fn range(&mut self, at: i16, (first, last): (i32, i32), allow: bool, next: Label) {
        let fits = self.program.fresh();
        self.program.load_u32(R1, R10, at);
        if !allow {
            self.program.jump_eq_imm(R1, HIDDEN, fits);
        }
        self.program
            .add_imm(R1, -first)
            .jump_gt_imm(R1, last - first, next)
            .label(fits);
    }

    /// Emits a jump to `next` unless the address at stack offset `at` begins with the prefix.
    fn prefix(&mut self, prefix: RulePrefix, at: i16, next: Label) {
        match prefix.address {
            IpAddr::V4(address) => {
                let rest = 32u32.saturating_sub(prefix.bits.into());
                let mask = u32::MAX.checked_shl(rest).unwrap_or(0);
                // Returns the value that a load of these bytes from the frame yields.
                let loaded = |word: u32| u32::from_ne_bytes(word.to_be_bytes());
                if mask != 0 {
                    self.program
                        .load_u32(R1, R10, at)
                        .xor_u32(R1, loaded(address.to_bits()))
                        .and_u32(R1, loaded(mask))
                        .jump_ne_imm(R1, 0, next);
                }
            }
            IpAddr::V6(address) => {
                let rest = 128u32.saturating_sub(prefix.bits.into());
                let mask = u128::MAX.checked_shl(rest).unwrap_or(0);
                let halves = |word: u128| [(word >> 64) as u64, word as u64];
                let loaded = |word: u64| u64::from_ne_bytes(word.to_be_bytes());
                let places = [at, at + 8].into_iter();
                let halves = halves(address.to_bits()).into_iter().zip(halves(mask));
                for (at, (address, mask)) in places.zip(halves).filter(|(_, (_, mask))| *mask != 0)
                {
                    self.program
                        .load_u64(R1, R10, at)
                        .mov_u64(R2, loaded(address))
                        .xor(R1, R2)
                        .mov_u64(R2, loaded(mask))
                        .and(R1, R2)
                        .jump_ne_imm(R1, 0, next);
                }
            }
        }
    }

    /// Emits the decision on frames whose headers cannot be parsed, with the EtherType if it is
    /// known.
    fn hidden(&mut self, ethertype: Option<u16>) {
        let decides = |rule: &&RuleRecord| {
            let has_conditions = rule.protocol.is_some()
                || rule.source.is_some()
                || rule.destination.is_some()
                || rule.source_ports.is_some()
                || rule.destination_ports.is_some();
            match (rule.ethertype, ethertype) {
                (Some(own), Some(other)) if own != other => false,
                (Some(_), None) => !rule.allow,
                _ => !(rule.allow && has_conditions),
            }
        };
        let mut first = 0;
        for list in [&self.rules.from_wire, &self.rules.to_guest] {
            let found = (first..).zip(list).find(|(_, rule)| decides(rule));
            if let Some((number, rule)) = found
                && !rule.allow
            {
                return self.decide(number, false, self.pass);
            }
            first += list.len() as i32;
        }
        self.program.jump(self.pass);
    }
}

impl Class {
    /// Returns whether a rule may match a frame of this class.
    fn may_match(self, rule: &RuleRecord) -> bool {
        let prefixes = [rule.source, rule.destination].into_iter().flatten();
        let of_version = |v4: bool| {
            let mut prefixes = prefixes.clone();
            prefixes.all(|prefix| prefix.address.is_ipv4() == v4)
        };
        let ethertype = |own: u16| rule.ethertype.is_none_or(|required| required == own);
        match self {
            Self::Ipv4 => ethertype(headers::IPV4) && of_version(true),
            Self::Ipv6 => ethertype(headers::IPV6) && of_version(false),
            Self::Other => {
                rule.protocol.is_none()
                    && rule.source_ports.is_none()
                    && rule.destination_ports.is_none()
                    && prefixes.count() == 0
            }
        }
    }
}
