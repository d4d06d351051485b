//! Attribution of samples: by domain, class and function, and by the domain on whose behalf they
//! ran.

pub mod rules;

use crate::model::{DomainKind, Session, Space, StackFrame, Thread};
use rules::{FunctionInfo, Rules};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Method of finding a sample's class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Classing {
    /// The class of the nearest function in the call stack that a rule matches.
    #[default]
    Nearest,
    /// The class of the function itself, as in the papers, which had no callers.
    Flat,
}

/// Attributed samples of one domain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DomainProfile {
    /// Total.
    pub samples: u64,
    /// Samples whose stack has a function of user code.
    pub in_user: u64,
    /// Samples in `in_user` whose stack reaches `main`, the start of a thread, or an agent's code.
    pub whole: u64,
    /// Samples by class, in the order of the rules.
    pub classes: Vec<u64>,
    /// Samples by module and function.
    pub symbols: BTreeMap<(String, String), u64>,
    /// Samples by the domain on whose behalf they ran: this domain, unless a rule names another.
    pub charged_to: BTreeMap<String, u64>,
}

/// Attributed samples of a session.
#[derive(Clone, Debug)]
pub struct Attribution {
    /// Class names.
    pub classes: Vec<String>,
    /// Samples by domain index.
    pub parts: Vec<DomainProfile>,
}

impl Attribution {
    /// Attributes a session's samples.
    #[must_use]
    pub fn new(session: &Session, rules: &Rules, classing: Classing) -> Self {
        let empty = DomainProfile {
            classes: vec![0; rules.classes().len()],
            ..DomainProfile::default()
        };
        let mut parts = vec![empty; session.domains.len()];
        // Many samples have equal stacks and threads, so each pair is attributed only once.
        let mut counts: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        for sample in &session.samples {
            *counts.entry((sample.2, sample.3)).or_default() += 1;
        }
        let mut lookup = Lookup::new(session, rules, classing);
        for ((thread, stack), count) in counts {
            let Some(thread) = session.threads.get(thread as usize) else {
                continue;
            };
            let index = thread.domain as usize;
            let Some(part) = parts.get_mut(index) else {
                continue;
            };
            part.samples += count;
            if let Some(is_whole) = is_whole(session, stack) {
                part.in_user += count;
                part.whole += u64::from(is_whole) * count;
            }
            if let Some(sum) = part.classes.get_mut(lookup.class(index, stack)) {
                *sum += count;
            }
            *part.symbols.entry(symbol(session, stack)).or_default() += count;
            let charged_to = lookup.charged_to(thread, stack);
            *part.charged_to.entry(charged_to).or_default() += count;
        }
        Self {
            classes: rules.classes().to_vec(),
            parts,
        }
    }
}

/// Returns the threads and stacks whose samples have a class, by its index.
pub(crate) fn stacks_of_class(
    session: &Session,
    rules: &Rules,
    classing: Classing,
    class: usize,
) -> BTreeSet<(u32, u32)> {
    let mut lookup = Lookup::new(session, rules, classing);
    let pairs: BTreeSet<_> = session.samples.iter().map(|of| (of.2, of.3)).collect();
    let is_of_class = |&(thread, stack): &(u32, u32)| {
        let thread = session.threads.get(thread as usize);
        thread.is_some_and(|thread| lookup.class(thread.domain as usize, stack) == class)
    };
    pairs.into_iter().filter(is_of_class).collect()
}

/// Cached results of the rules for the functions of a session.
struct Lookup<'a> {
    session: &'a Session,
    rules: &'a Rules,
    classing: Classing,
    /// Class of each function, by domain and frame.
    classes: HashMap<(usize, usize), Option<usize>>,
    charged_to: HashMap<(usize, usize), Option<String>>,
}

impl<'a> Lookup<'a> {
    fn new(session: &'a Session, rules: &'a Rules, classing: Classing) -> Self {
        Self {
            session,
            rules,
            classing,
            classes: HashMap::new(),
            charged_to: HashMap::new(),
        }
    }

    fn class(&mut self, domain: usize, stack: u32) -> usize {
        let (session, rules) = (self.session, self.rules);
        let kind = session
            .domains
            .get(domain)
            .map_or(DomainKind::Other, |d| d.kind);
        let depth = match self.classing {
            Classing::Nearest => usize::MAX,
            Classing::Flat => 1,
        };
        session
            .frames_of(stack)
            .filter(|(_, frame)| self.classing == Classing::Nearest || !frame.inlined)
            .take(depth)
            .find_map(|(number, frame)| {
                *self
                    .classes
                    .entry((domain, number))
                    .or_insert_with(|| rules.class(kind, function(session, frame)?))
            })
            .unwrap_or_else(|| rules.unmatched_class())
    }

    fn charged_to(&mut self, thread: &Thread, stack: u32) -> String {
        let (session, rules) = (self.session, self.rules);
        let index = thread.domain as usize;
        let Some(domain) = session.domains.get(index) else {
            return String::new();
        };
        let by_call = session.frames_of(stack).find_map(|(number, frame)| {
            self.charged_to
                .entry((index, number))
                .or_insert_with(|| {
                    rules.charged_to(&domain.name, domain.kind, function(session, frame)?)
                })
                .clone()
        });
        by_call
            .or_else(|| rules.thread_charged_to(&domain.name, domain.kind, &thread.name))
            .unwrap_or_else(|| domain.name.clone())
    }
}

fn function<'a>(session: &'a Session, frame: &'a StackFrame) -> Option<FunctionInfo<'a>> {
    let module = session.module(frame)?;
    Some(FunctionInfo {
        space: module.space,
        module: module.name(),
        symbol: &frame.symbol,
    })
}

/// Functions in which user code begins: of a process and of a thread, in all C libraries.
const ENTRY_POINTS: [&str; 10] = [
    "main",
    "_start",
    "_start_c",
    "__libc_start_main",
    "__libc_start_call_main",
    "start_thread",
    "clone",
    "clone3",
    "__clone",
    "__clone3",
];

/// Returns whether a stack reaches the beginning of user code; `None` for a stack without any.
fn is_whole(session: &Session, stack: u32) -> Option<bool> {
    let mut has_user = false;
    let is_origin = |frame: &StackFrame| {
        let module = session.module(frame).filter(|m| m.space == Space::User);
        has_user |= module.is_some();
        module.is_some_and(|m| m.is_agent() || ENTRY_POINTS.contains(&frame.symbol.as_str()))
    };
    let is_whole = session
        .frames_of(stack)
        .map(|(_, frame)| frame)
        .any(is_origin);
    has_user.then_some(is_whole)
}

/// Returns the functions of a stack, innermost first, without those that were inlined from Rust's
/// standard library.
pub(crate) fn functions_of(session: &Session, stack: u32) -> impl Iterator<Item = &StackFrame> {
    let frames = session.frames_of(stack).map(|(_, frame)| frame);
    frames.filter(|frame| !frame.inlined || !is_of_the_language(&frame.symbol))
}

/// Returns the module and the name of a stack's function. Replaces a function that was inlined from
/// Rust's standard library by its caller.
#[must_use]
pub fn symbol(session: &Session, stack: u32) -> (String, String) {
    let frame = functions_of(session, stack).next();
    frame.map_or_else(Default::default, |frame| {
        let module = session.module(frame).map_or("", |module| module.name());
        (module.to_owned(), frame.symbol.clone())
    })
}

/// Returns whether a symbol belongs to Rust's standard library, such as `core::ptr::read`,
/// `<core::option::Option<T>>::map` and `<u64>::wrapping_add`.
fn is_of_the_language(symbol: &str) -> bool {
    let path = symbol.trim_start_matches('<');
    let of_library = ["core::", "alloc::", "std::"]
        .iter()
        .any(|library| path.starts_with(library));
    let of_type = path.split(['>', ' ']).next().unwrap_or_default();
    of_library || (path.len() < symbol.len() && !of_type.contains("::"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::session;

    #[test]
    fn samples_count_by_class_function_and_beneficiary() {
        let session = session();
        let found = Attribution::new(&session, &Rules::thesis(), Classing::Nearest);
        let driver = &found.parts[0];
        assert_eq!(driver.samples, 100);
        let class = |name| {
            let at = found
                .classes
                .iter()
                .position(|class| class == name)
                .unwrap();
            driver.classes[at]
        };
        assert_eq!(
            (class("copy"), class("network"), class("driver")),
            (60, 40, 0)
        );
        assert_eq!(
            driver.symbols,
            [
                (("driver".to_owned(), "shmem::engine::copy".to_owned()), 60),
                (("[kernel]".to_owned(), "tcp_v4_rcv".to_owned()), 40),
            ]
            .into()
        );
        assert_eq!(driver.charged_to, [("driver".to_owned(), 100)].into());
        assert_eq!(found.parts[2].samples, 0);
    }

    #[test]
    fn stacks_that_reach_main_are_counted() {
        let mut session = session();
        let whole = |session: &Session| {
            let found = Attribution::new(session, &Rules::thesis(), Classing::Nearest);
            found
                .parts
                .iter()
                .map(|part| (part.in_user, part.whole))
                .collect::<Vec<_>>()
        };
        assert_eq!(whole(&session), [(100, 0), (0, 0), (0, 0)]);
        session.frames[0].symbol = "main".to_owned();
        assert_eq!(whole(&session), [(100, 100), (0, 0), (0, 0)]);
        // So are those of an agent, whose code has no symbols.
        session.frames[0].symbol = "0x48".to_owned();
        session.modules[0].path = "/proc/7/root/memfd:grantway-agent (deleted)".to_owned();
        assert_eq!(whole(&session), [(100, 100), (0, 0), (0, 0)]);
        session.frames[0].symbol = "main".to_owned();
        // A kernel function of that name is not an origin.
        session.modules[0].space = Space::Kernel;
        assert_eq!(whole(&session)[0], (0, 0));
    }

    #[test]
    fn the_nearest_caller_decides_unless_flat() {
        let mut session = session();
        // No rule matches the function that copies.
        session.frames[1].symbol = "memset".to_owned();
        let class = |how| {
            let found = Attribution::new(&session, &Rules::thesis(), how);
            let most = found.parts[0]
                .classes
                .iter()
                .enumerate()
                .max_by_key(|c| c.1);
            found.classes[most.unwrap().0].clone()
        };
        assert_eq!(class(Classing::Nearest), "netback");
        assert_eq!(class(Classing::Flat), "other");
    }

    #[test]
    fn a_stack_inside_a_tap_write_serves_the_receiver() {
        let mut session = session();
        session.frames[3].symbol = "__netif_receive_skb".to_owned();
        let found = Attribution::new(&session, &Rules::thesis(), Classing::Nearest);
        assert_eq!(
            found.parts[0].charged_to,
            [
                ("driver".to_owned(), 60),
                ("stack-behind-driver".to_owned(), 40)
            ]
            .into()
        );
    }

    #[test]
    fn names_of_the_standard_library_are_skipped() {
        for symbol in [
            "core::ptr::read",
            "<u64>::min",
            "<*const T>::add",
            "<core::ops::R as X>::y",
        ] {
            assert!(is_of_the_language(symbol), "{symbol}");
        }
        for symbol in [
            "net::Bridge::forward",
            "<vif::Ring as vif::Words>::slot",
            "memcpy",
        ] {
            assert!(!is_of_the_language(symbol), "{symbol}");
        }
    }

    #[test]
    fn samples_have_one_class_function_and_beneficiary() {
        let session = session();
        for how in [Classing::Nearest, Classing::Flat] {
            for part in Attribution::new(&session, &Rules::thesis(), how).parts {
                assert_eq!(part.classes.iter().sum::<u64>(), part.samples);
                assert_eq!(part.symbols.values().sum::<u64>(), part.samples);
                assert_eq!(part.charged_to.values().sum::<u64>(), part.samples);
            }
        }
    }
}
