//! An assembler for system-call filters, which translates rules into a classic BPF program.
//!
//! It supports only the tests that the policies need. All rules kill any process after a call
//! of another architecture (`int 0x80`) or of the x32 ABI, because the same number means another
//! call there.

use libc::{c_long, sock_filter};

/// Action on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterAction {
    /// The kernel executes the call.
    Allow,
    /// The call returns this errno and is not executed (0 simulates success).
    Errno(u16),
    /// The holder of the listener answers the call.
    Notify,
    /// The process is killed by SIGSYS.
    Kill,
}

impl FilterAction {
    const fn code(self) -> u32 {
        match self {
            Self::Allow => libc::SECCOMP_RET_ALLOW,
            Self::Errno(errno) => libc::SECCOMP_RET_ERRNO | errno as u32,
            Self::Notify => libc::SECCOMP_RET_USER_NOTIF,
            Self::Kill => libc::SECCOMP_RET_KILL_PROCESS,
        }
    }
}

/// A condition on a call's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArgumentTest {
    /// All 64 bits of the argument equal this value.
    Is(u8, u64),
    /// The low 32 bits of the argument are below this value. For arguments that the kernel takes as
    /// `int` or `unsigned int` (descriptors): the kernel also ignores their high bits.
    Below32(u8, u32),
    /// No bit other than these is set.
    NoneBut(u8, u32),
    /// The low 32 bits, with the bits of `.1` cleared, are one of these.
    OneOf(u8, u32, &'static [u32]),
    /// All these bits are set in the low 32 bits.
    All(u8, u32),
    /// The high 32 bits, with the bits of `.1` cleared, equal this value.
    High(u8, u32, u32),
    /// Argument `.0` is an address and argument `.1` a length that is not 0; the range lies within
    /// the `.3` bytes starting at `.2`. The base `.2` must be aligned to 4 GiB, and the size `.3`
    /// must be 1 byte … 4 GiB.
    Inside(u8, u8, u64, u64),
}

/// The rule for one system call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyscallRule {
    /// Its number.
    pub(crate) nr: c_long,
    /// The tests. The action is `then` if all of them hold.
    pub(crate) tests: Vec<ArgumentTest>,
    /// The action if all tests hold.
    pub(crate) then: FilterAction,
    /// The action otherwise.
    pub(crate) otherwise: FilterAction,
}

const LD: u16 = 0x20; // A = word of struct seccomp_data at k
const TAX: u16 = 0x07; // X = A
const ADD_X: u16 = 0x0c;
const SUB_K: u16 = 0x14;
const AND_K: u16 = 0x54;
const JEQ: u16 = 0x15;
const JGT: u16 = 0x25;
const JGE: u16 = 0x35;
const JGE_X: u16 = 0x3d;
const JSET: u16 = 0x45;
const RET: u16 = 0x06;

// struct seccomp_data { int nr; u32 arch; u64 instruction_pointer; u64 args[6]; }
const NR: u32 = 0;
const ARCH: u32 = 4;
const fn lo(arg: u8) -> u32 {
    16 + 8 * arg as u32
}
const fn hi(arg: u8) -> u32 {
    lo(arg) + 4
}

const AUDIT_ARCH_X86_64: u32 = 0xc000_003e;
const X32_BIT: u32 = 0x4000_0000;

/// A jump's target within a test: an instruction, given by its distance from the next one, or the
/// action `otherwise`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JumpTarget {
    Skip(u8),
    Fail,
}

/// An instruction whose jumps are not resolved yet.
struct UnresolvedInstruction {
    code: u16,
    k: u32,
    jumps: Option<(JumpTarget, JumpTarget)>,
}

const fn op(code: u16, k: u32) -> UnresolvedInstruction {
    UnresolvedInstruction {
        code,
        k,
        jumps: None,
    }
}
const fn need(code: u16, k: u32) -> UnresolvedInstruction {
    UnresolvedInstruction {
        code,
        k,
        jumps: Some((JumpTarget::Skip(0), JumpTarget::Fail)),
    }
}
const fn forbid(code: u16, k: u32) -> UnresolvedInstruction {
    UnresolvedInstruction {
        code,
        k,
        jumps: Some((JumpTarget::Fail, JumpTarget::Skip(0))),
    }
}

impl ArgumentTest {
    fn draft(self, out: &mut Vec<UnresolvedInstruction>) {
        match self {
            Self::Is(arg, value) => out.extend([
                op(LD, hi(arg)),
                need(JEQ, (value >> 32) as u32),
                op(LD, lo(arg)),
                need(JEQ, value as u32),
            ]),
            Self::Below32(arg, bound) => out.extend([op(LD, lo(arg)), forbid(JGE, bound)]),
            Self::NoneBut(arg, mask) => out.extend([
                op(LD, hi(arg)),
                need(JEQ, 0),
                op(LD, lo(arg)),
                forbid(JSET, !mask),
            ]),
            Self::OneOf(arg, ignored, values) => {
                out.extend([op(LD, lo(arg)), op(AND_K, !ignored)]);
                for left in (0..values.len()).rev() {
                    let k = values[values.len() - 1 - left];
                    let other = if left == 0 {
                        JumpTarget::Fail
                    } else {
                        JumpTarget::Skip(0)
                    };
                    let jumps = Some((JumpTarget::Skip(short(left)), other));
                    out.push(UnresolvedInstruction {
                        code: JEQ,
                        k,
                        jumps,
                    });
                }
            }
            Self::All(arg, mask) => {
                out.push(op(LD, lo(arg)));
                for bit in 0..32 {
                    if mask & 1 << bit != 0 {
                        out.push(need(JSET, 1 << bit));
                    }
                }
            }
            Self::High(arg, ignored, value) => {
                out.extend([op(LD, hi(arg)), op(AND_K, !ignored), need(JEQ, value)]);
            }
            Self::Inside(addr, len, base, bytes) => out.extend([
                op(LD, hi(addr)),
                need(JEQ, (base >> 32) as u32),
                op(LD, hi(len)),
                need(JEQ, 0),
                op(LD, lo(len)),
                forbid(JEQ, 0),
                // Compute the last byte's offset. The sum must not overflow 32 bits, and must be
                // below the end.
                op(LD, lo(addr)),
                op(TAX, 0),
                op(LD, lo(len)),
                op(SUB_K, 1),
                op(ADD_X, 0),
                need(JGE_X, 0),
                forbid(JGT, (bytes - 1) as u32),
            ]),
        }
    }
}

const fn ret(action: FilterAction) -> sock_filter {
    sock_filter {
        code: RET,
        jt: 0,
        jf: 0,
        k: action.code(),
    }
}
const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

/// Returns the program of `rules`, which are tried in order. `default` applies to calls without a
/// rule.
pub(crate) fn assemble(rules: &[SyscallRule], default: FilterAction) -> Vec<sock_filter> {
    let mut program = vec![
        jump(LD, ARCH, 0, 0),
        jump(JEQ, AUDIT_ARCH_X86_64, 1, 0),
        ret(FilterAction::Kill),
        jump(LD, NR, 0, 0),
        jump(JGE, X32_BIT, 0, 1),
        ret(FilterAction::Kill),
    ];
    for rule in rules {
        let mut drafts = Vec::new();
        for test in &rule.tests {
            test.draft(&mut drafts);
        }
        // A rule consists of its tests, `then` and `otherwise`. The tests overwrite A, so each rule
        // ends with a return.
        let fail = drafts.len() + 1;
        let skip = if drafts.is_empty() {
            1
        } else {
            drafts.len() + 2
        };
        program.push(jump(JEQ, rule.nr as u32, 0, short(skip)));
        for (at, draft) in drafts.iter().enumerate() {
            let to = |to| match to {
                JumpTarget::Skip(further) => further,
                JumpTarget::Fail => short(fail - at - 1),
            };
            let (jt, jf) = draft.jumps.map_or((0, 0), |(t, f)| (to(t), to(f)));
            program.push(jump(draft.code, draft.k, jt, jf));
        }
        program.push(ret(rule.then));
        if !drafts.is_empty() {
            program.push(ret(rule.otherwise));
        }
    }
    program.push(ret(default));
    program
}

/// Converts a jump's distance. Rules are constants of this crate, so a longer distance is a bug of
/// this crate.
fn short(distance: usize) -> u8 {
    u8::try_from(distance).expect("a rule of at most 255 instructions")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the kernel's result for a call.
    pub(crate) fn run(program: &[sock_filter], nr: u32, arch: u32, args: [u64; 6]) -> u32 {
        let load = |k: u32| match k {
            NR => nr,
            ARCH => arch,
            16..64 => (args[(k as usize - 16) / 8] >> (k % 8 * 8)) as u32,
            _ => panic!("load at {k}"),
        };
        let (mut a, mut x, mut pc) = (0u32, 0u32, 0usize);
        loop {
            let i = &program[pc];
            pc += 1;
            let holds = match i.code {
                RET => return i.k,
                LD => {
                    a = load(i.k);
                    continue;
                }
                TAX => {
                    x = a;
                    continue;
                }
                ADD_X => {
                    a = a.wrapping_add(x);
                    continue;
                }
                AND_K => {
                    a &= i.k;
                    continue;
                }
                SUB_K => {
                    a = a.wrapping_sub(i.k);
                    continue;
                }
                JEQ => a == i.k,
                JGT => a > i.k,
                JGE => a >= i.k,
                JGE_X => a >= x,
                JSET => a & i.k != 0,
                other => panic!("instruction {other:#x}"),
            };
            pc += usize::from(if holds { i.jt } else { i.jf });
        }
    }

    /// Returns the result for a call of this architecture.
    pub(crate) fn decide(program: &[sock_filter], nr: c_long, args: [u64; 6]) -> u32 {
        run(program, nr as u32, AUDIT_ARCH_X86_64, args)
    }

    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;
    const DENIED: u32 = libc::SECCOMP_RET_ERRNO | 7;

    fn filter_with(test: ArgumentTest) -> Vec<sock_filter> {
        let rules = [
            SyscallRule {
                nr: 10,
                tests: vec![test],
                then: FilterAction::Allow,
                otherwise: FilterAction::Errno(7),
            },
            SyscallRule {
                nr: 11,
                tests: vec![],
                then: FilterAction::Notify,
                otherwise: FilterAction::Kill,
            },
        ];
        assemble(&rules, FilterAction::Errno(1))
    }

    #[test]
    fn other_architectures_and_x32_are_killed() {
        let program = filter_with(ArgumentTest::Is(0, 0));
        assert_eq!(
            run(&program, 10, 0x4000_0003, [0; 6]),
            libc::SECCOMP_RET_KILL_PROCESS
        );
        assert_eq!(
            decide(&program, 10 | 0x4000_0000, [0; 6]),
            libc::SECCOMP_RET_KILL_PROCESS
        );
        assert_eq!(
            run(&program, u32::MAX, AUDIT_ARCH_X86_64, [0; 6]),
            libc::SECCOMP_RET_KILL_PROCESS
        );
    }

    #[test]
    fn unnamed_calls_get_the_default_action() {
        let program = filter_with(ArgumentTest::Is(0, 0));
        assert_eq!(decide(&program, 12, [0; 6]), libc::SECCOMP_RET_ERRNO | 1);
        assert_eq!(decide(&program, 11, [9; 6]), libc::SECCOMP_RET_USER_NOTIF);
    }

    #[test]
    fn argument_tests_accept_only_their_arguments() {
        const ONE_OF: ArgumentTest = ArgumentTest::OneOf(0, 0x180, &[0, 9, 10]);
        let window = ArgumentTest::Inside(0, 1, 0x6000_0000_0000, 0x10_0000);
        let high = ArgumentTest::High(0, 0x3ff, 0x7000);
        let whole = ArgumentTest::Inside(0, 1, 0x6000_0000_0000, 1 << 32);
        for (test, args, expected) in [
            (
                ArgumentTest::Is(1, 0x1_0000_0002),
                [0, 0x1_0000_0002],
                ALLOWED,
            ),
            (ArgumentTest::Is(1, 0x1_0000_0002), [0, 0x2], DENIED),
            (
                ArgumentTest::Is(1, 0x1_0000_0002),
                [0, 0x1_0000_0003],
                DENIED,
            ),
            (ArgumentTest::Below32(0, 512), [511, 0], ALLOWED),
            (ArgumentTest::Below32(0, 512), [512, 0], DENIED),
            (ArgumentTest::Below32(0, 512), [0xffff_ffff, 0], DENIED),
            (ArgumentTest::Below32(0, 512), [0x1_0000_0000, 0], ALLOWED),
            (ArgumentTest::Below32(0, 512), [0x1_0000_0200, 0], DENIED),
            (ArgumentTest::NoneBut(0, 3), [3, 0], ALLOWED),
            (ArgumentTest::NoneBut(0, 3), [4, 0], DENIED),
            (ArgumentTest::NoneBut(0, 3), [1 << 40, 0], DENIED),
            (ONE_OF, [0, 0], ALLOWED),
            (ONE_OF, [0x89, 0], ALLOWED),
            (ONE_OF, [0x18a, 0], ALLOWED),
            (ONE_OF, [7, 0], DENIED),
            (ONE_OF, [0x8b, 0], DENIED),
            (ONE_OF, [0x200, 0], DENIED),
            (ArgumentTest::All(0, 0x11), [0x1f, 0], ALLOWED),
            (ArgumentTest::All(0, 0x11), [0x10, 0], DENIED),
            (ArgumentTest::All(0, 0x11), [0x01, 0], DENIED),
            (high, [0x7000_0000_0000, 0], ALLOWED),
            (high, [0x73ff_ffff_f000, 0], ALLOWED),
            (high, [0x7400_0000_0000, 0], DENIED),
            (high, [0x6fff_ffff_f000, 0], DENIED),
            (window, [0x6000_0000_0000, 0x1000], ALLOWED),
            (window, [0x6000_0000_0000, 0x10_0000], ALLOWED),
            (window, [0x6000_0000_0000, 0x10_0001], DENIED),
            (window, [0x6000_000f_f000, 0x1000], ALLOWED),
            (window, [0x6000_000f_f000, 0x2000], DENIED),
            (window, [0x6000_0010_0000, 0x1000], DENIED),
            (window, [0x6000_0000_0000, 0], DENIED),
            (window, [0x6000_0000_0000, 0x1_0000_1000], DENIED),
            (window, [0x6000_ffff_f000, 0xffff_ffff], DENIED),
            (window, [0x5fff_ffff_f000, 0x1000], DENIED),
            (window, [0x0000_0000_1000, 0x1000], DENIED),
            (whole, [0x6000_0000_0000, 0xffff_f000], ALLOWED),
            (whole, [0x6000_ffff_f000, 0x1000], ALLOWED),
            (whole, [0x6000_ffff_f000, 0x2000], DENIED),
        ] {
            let [a, b] = args;
            let got = decide(&filter_with(test), 10, [a, b, 0, 0, 0, 0]);
            assert_eq!(got, expected, "{test:?} of {args:x?}");
        }
    }
}
