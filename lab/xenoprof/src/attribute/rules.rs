//! Rule files, which assign functions to classes and to the domains on whose behalf they run.
//!
//! `rules/thesis.rules` describes the format and contains the thesis's classes.

use crate::model::{DomainKind, Space};
use std::path::{Path, PathBuf};

/// The default rules: Ram's thesis, table 2.1.
const THESIS: &str = include_str!("../../rules/thesis.rules");

/// Parsed rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    classes: Vec<String>,
    lines: Vec<Rule>,
    charged_to: Vec<(Rule, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    /// Index of the class; unused for `behalf`.
    class: usize,
    /// Domain kinds to which the rule applies; `None`: every kind.
    kinds: Option<Vec<String>>,
    place: MatchTarget,
    globs: Vec<String>,
}

/// The part of a sample that a rule matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MatchTarget {
    Any,
    Code(Space),
    Thread,
}

/// Error in a rule file.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{path}:{line}: {what}")]
pub struct RuleError {
    path: PathBuf,
    line: usize,
    what: String,
}

/// A function, as rules see it.
#[derive(Clone, Copy, Debug)]
pub struct FunctionInfo<'a> {
    /// Kernel or user space.
    pub space: Space,
    /// Last component of its module's path.
    pub module: &'a str,
    /// Symbol name.
    pub symbol: &'a str,
}

impl Rules {
    /// Returns the default rules.
    #[must_use]
    pub fn thesis() -> Self {
        // Cannot fail, because a test parses them.
        Self::parse(Path::new("thesis.rules"), THESIS).unwrap_or_else(|_| Self {
            classes: vec!["other".to_owned()],
            lines: Vec::new(),
            charged_to: Vec::new(),
        })
    }

    /// Reads a rule file.
    ///
    /// # Errors
    /// Returns the error, with its line.
    pub fn read(path: &Path) -> Result<Self, RuleError> {
        let text = std::fs::read_to_string(path).map_err(|error| RuleError {
            path: path.to_owned(),
            line: 0,
            what: error.to_string(),
        })?;
        Self::parse(path, &text)
    }

    /// Parses the text of a rule file.
    ///
    /// # Errors
    /// Returns the error, with its line.
    pub fn parse(path: &Path, text: &str) -> Result<Self, RuleError> {
        let mut rules = Self {
            classes: Vec::new(),
            lines: Vec::new(),
            charged_to: Vec::new(),
        };
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            rules.line(line).map_err(|what| RuleError {
                path: path.to_owned(),
                line: number,
                what,
            })?;
        }
        if rules.classes.is_empty() {
            return Err(RuleError {
                path: path.to_owned(),
                line: text.lines().count(),
                what: "no line `classes: NAME…`".to_owned(),
            });
        }
        Ok(rules)
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        if let Some(names) = line.strip_prefix("classes:") {
            if !self.classes.is_empty() {
                return Err("a second line `classes:`".to_owned());
            }
            self.classes = names.split_whitespace().map(str::to_owned).collect();
            if let Some(name) = self.classes.iter().find(|name| !is_name(name)) {
                return Err(format!(
                    "`{name}` is not a valid class name: use letters, digits, `-` and `_`"
                ));
            }
            return Ok(());
        }
        let (rule, who) = match line.split_once(" -> ") {
            Some((rule, who)) => (rule, Some(who.trim())),
            None => (line, None),
        };
        let mut words = rule.split_whitespace();
        let (Some(class), Some(kinds), Some(place)) = (words.next(), words.next(), words.next())
        else {
            return Err("write CLASS KINDS SPACE GLOB…".to_owned());
        };
        let rule = Rule {
            class: self.classes.iter().position(|c| c == class).unwrap_or(0),
            kinds: parse_kinds(kinds)?,
            place: match place {
                "*" => MatchTarget::Any,
                "kernel" => MatchTarget::Code(Space::Kernel),
                "user" => MatchTarget::Code(Space::User),
                "thread" => MatchTarget::Thread,
                _ => return Err(format!("`{place}` is not kernel, user, thread or *")),
            },
            globs: words.map(str::to_owned).collect(),
        };
        if rule.globs.is_empty() {
            return Err(
                "the name of a function is missing: write CLASS KINDS SPACE GLOB…".to_owned(),
            );
        }
        match (class, who) {
            ("behalf", Some(who)) if !who.is_empty() => {
                self.charged_to.push((rule, who.to_owned()));
            }
            ("behalf", _) => return Err("behalf … -> WHO: WHO is missing".to_owned()),
            (_, Some(_)) => return Err("`->` belongs to lines of `behalf`".to_owned()),
            _ if self.classes.iter().any(|c| c == class) => self.lines.push(rule),
            _ => {
                return Err(format!(
                    "unknown class `{class}`; known classes: {}",
                    self.classes.join(", ")
                ));
            }
        }
        Ok(())
    }

    /// Returns the class names, in print order.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Returns the class of functions that no rule matches.
    #[must_use]
    pub fn unmatched_class(&self) -> usize {
        self.classes.len().saturating_sub(1)
    }

    /// Returns the index of a function's class.
    #[must_use]
    pub fn class(&self, kind: DomainKind, function: FunctionInfo<'_>) -> Option<usize> {
        self.lines
            .iter()
            .find(|rule| rule.fits(kind, function).is_some())
            .map(|rule| rule.class)
    }

    /// Returns the domain that the callees of a function are charged to.
    #[must_use]
    pub fn charged_to(
        &self,
        domain: &str,
        kind: DomainKind,
        function: FunctionInfo<'_>,
    ) -> Option<String> {
        self.charged_to.iter().find_map(|(rule, who)| {
            let star = rule.fits(kind, function)?;
            Some(fill(who, domain, &star))
        })
    }

    /// Returns the domain that a thread is charged to.
    #[must_use]
    pub fn thread_charged_to(
        &self,
        domain: &str,
        kind: DomainKind,
        thread: &str,
    ) -> Option<String> {
        self.charged_to
            .iter()
            .filter(|(rule, _)| rule.place == MatchTarget::Thread && rule.is_for(kind))
            .find_map(|(rule, who)| {
                let star = rule.globs.iter().find_map(|glob| matches(glob, thread))?;
                Some(fill(who, domain, star))
            })
    }
}

fn fill(who: &str, domain: &str, star: &str) -> String {
    who.replace("{domain}", domain).replace("{*}", star)
}

fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    name != "behalf" && name.chars().all(good)
}

fn parse_kinds(text: &str) -> Result<Option<Vec<String>>, String> {
    const KINDS: [DomainKind; 6] = [
        DomainKind::Monitor,
        DomainKind::Driver,
        DomainKind::Guest,
        DomainKind::Process,
        DomainKind::Kernel,
        DomainKind::Other,
    ];
    if text == "*" {
        return Ok(None);
    }
    let kinds: Vec<String> = text.split(',').map(str::to_owned).collect();
    match kinds
        .iter()
        .find(|kind| !KINDS.iter().any(|known| known.name() == *kind))
    {
        Some(kind) => Err(format!(
            "`{kind}` is not a kind of domain: monitor, driver, guest, process, kernel, other or *"
        )),
        None => Ok(Some(kinds)),
    }
}

impl Rule {
    fn is_for(&self, kind: DomainKind) -> bool {
        self.kinds
            .as_ref()
            .is_none_or(|kinds| kinds.iter().any(|name| name == kind.name()))
    }

    /// Returns the text that matches the first `*` of the matching glob.
    fn fits(&self, kind: DomainKind, function: FunctionInfo<'_>) -> Option<String> {
        let here = match self.place {
            MatchTarget::Any => true,
            MatchTarget::Code(space) => space == function.space,
            MatchTarget::Thread => false,
        };
        if !here || !self.is_for(kind) {
            return None;
        }
        self.globs.iter().find_map(|glob| {
            let star = match glob.strip_prefix('@') {
                Some(glob) => matches(glob, function.module),
                None => matches(glob, function.symbol),
            };
            star.map(str::to_owned)
        })
    }
}

/// Returns the text that matches the first `*` if `text` matches the glob; the empty string for a
/// glob without `*`.
fn matches<'a>(glob: &str, text: &'a str) -> Option<&'a str> {
    let Some((head, tail)) = glob.split_once('*') else {
        return (glob == text).then_some("");
    };
    let rest = text.strip_prefix(head)?;
    // Finds the shortest prefix whose remainder matches. This is fast enough, because names are
    // short and globs have few stars.
    (0..=rest.len())
        .filter(|&at| rest.is_char_boundary(at))
        .find(|&at| {
            rest.get(at..)
                .is_some_and(|rest| matches(tail, rest).is_some())
        })
        .and_then(|at| rest.get(..at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(symbol: &str) -> FunctionInfo<'_> {
        FunctionInfo {
            space: Space::Kernel,
            module: "[kernel]",
            symbol,
        }
    }

    fn user<'a>(module: &'a str, symbol: &'a str) -> FunctionInfo<'a> {
        FunctionInfo {
            space: Space::User,
            module,
            symbol,
        }
    }

    #[test]
    fn classes_are_the_thesiss_in_its_order() {
        let rules = Rules::thesis();
        assert_eq!(
            rules.classes(),
            [
                "xen", "copy", "driver", "netfront", "netback", "network", "grant", "usercopy",
                "other"
            ]
        );
        let class = |kind, function| rules.class(kind, function).map(|c| &*rules.classes()[c]);
        for (kind, function, expected) in [
            (DomainKind::Driver, kernel("tcp_v4_rcv"), Some("network")),
            (DomainKind::Driver, kernel("tun_get_user"), Some("driver")),
            (DomainKind::Driver, kernel("_copy_to_iter"), Some("driver")),
            (
                DomainKind::Process,
                kernel("_copy_to_iter"),
                Some("usercopy"),
            ),
            (DomainKind::Driver, kernel("memcpy"), None),
            (
                DomainKind::Driver,
                user("driver", "vif::ring::back::Back<W,_>::peek"),
                Some("netback"),
            ),
            (
                DomainKind::Guest,
                user("guest", "vif::ring::front::x"),
                Some("netfront"),
            ),
            (
                DomainKind::Driver,
                user("driver", "shmem::engine::avx2::copy"),
                Some("copy"),
            ),
            (
                DomainKind::Driver,
                user("driver", "shmem::engine::avx2::sum"),
                Some("network"),
            ),
            (
                DomainKind::Driver,
                user(
                    "driver-lab",
                    "<driver_lab::mapping::MappedGrants as vif::grants::Grants>::write",
                ),
                Some("grant"),
            ),
            (
                DomainKind::Driver,
                user("memfd:grantway-agent (deleted)", "agent"),
                Some("xen"),
            ),
            (DomainKind::Monitor, kernel("tcp_v4_rcv"), Some("xen")),
            (DomainKind::Process, user("iperf", "main"), None),
        ] {
            assert_eq!(class(kind, function), expected, "{function:?}");
        }
    }

    #[test]
    fn rules_name_the_beneficiary() {
        let rules = Rules::thesis();
        let receive = kernel("__netif_receive_skb_one_core");
        assert_eq!(
            rules
                .charged_to("guest", DomainKind::Guest, receive)
                .as_deref(),
            Some("stack-behind-guest")
        );
        assert_eq!(
            rules
                .charged_to("app", DomainKind::Process, receive)
                .as_deref(),
            Some("softirq")
        );
        assert_eq!(
            rules.charged_to("app", DomainKind::Process, kernel("tcp_ack")),
            None
        );
        assert_eq!(
            rules
                .thread_charged_to("monitor", DomainKind::Monitor, "w:driver")
                .as_deref(),
            Some("driver")
        );
        assert_eq!(
            rules.thread_charged_to("a", DomainKind::Process, "w:driver"),
            None
        );
    }

    #[test]
    fn globs_match() {
        assert_eq!(matches("a*c*e", "abbcde"), Some("bb"));
        assert_eq!(matches("abc", "abc"), Some(""));
        assert_eq!(matches("*", ""), Some(""));
        assert_eq!(matches("a*", "b"), None);
        assert_eq!(matches("*ü*", "xüy"), Some("x"));
        assert_eq!(matches("a*b", "ab c"), None);
    }

    #[test]
    fn faults_have_their_line() {
        let wrong = |text: &str| {
            Rules::parse(Path::new("my.rules"), text)
                .unwrap_err()
                .to_string()
        };
        for (text, expected) in [
            ("", "my.rules:0: no line `classes: NAME…`"),
            ("# x\n\n", "my.rules:2: no line `classes: NAME…`"),
            (
                "classes: a\nb * * *",
                "my.rules:2: unknown class `b`; known classes: a",
            ),
            (
                "classes: a\nclasses: a",
                "my.rules:2: a second line `classes:`",
            ),
            (
                "classes: a behalf",
                "my.rules:1: `behalf` is not a valid class name",
            ),
            (
                "classes: a\n\na * here *",
                "my.rules:3: `here` is not kernel, user",
            ),
            (
                "classes: a\na * *",
                "my.rules:2: the name of a function is missing",
            ),
            (
                "classes: a\na *",
                "my.rules:2: write CLASS KINDS SPACE GLOB…",
            ),
            (
                "classes: a\na dirver * f",
                "my.rules:2: `dirver` is not a kind",
            ),
            ("classes: a\nbehalf * * f", "my.rules:2: behalf … -> WHO"),
            ("classes: a\na * * f -> x", "my.rules:2: `->` belongs to"),
        ] {
            let error = wrong(text);
            assert!(error.starts_with(expected), "{error}");
        }
        let error = Rules::read(Path::new("/no/such.rules")).unwrap_err();
        assert!(error.to_string().starts_with("/no/such.rules:0: "));
    }
}
