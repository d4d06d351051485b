//! Colours of flame graphs, and their legend: a hue for each class, light in user code, dark in the
//! kernel.

use crate::attribute::rules::{FunctionInfo, Rules};
use crate::model::{DomainKind, Session, Space};
use figures::clean;
use inferno::flamegraph::color::{Color, PaletteMap};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write as _;

/// Hues of the classes, in the order of the rules; they repeat.
const HUES: [[u8; 3]; 9] = [
    [190, 150, 220],
    [240, 128, 112],
    [120, 170, 235],
    [150, 215, 235],
    [140, 205, 130],
    [245, 180, 90],
    [235, 140, 200],
    [235, 220, 90],
    [205, 205, 195],
];
/// Functions that no rule matches.
const NO_CLASS: [u8; 3] = [236, 228, 206];
/// Domains.
const NO_FUNCTION: [u8; 3] = [225, 225, 225];
/// Brightness of the kernel's functions, percent.
const KERNEL: u16 = 75;
/// Position of the legend's text, pixels.
const BASE_Y: usize = 48;
/// Size of the legend's squares, pixels.
const SQUARE: usize = 10;
/// Width of a character of the legend, pixels.
const CHARACTER: usize = 8;
/// Maximum width of the legend, pixels.
const WIDTH_MAX: usize = 1150;

/// Colours of a flame graph's frames.
pub(super) struct Palette {
    pub(super) colors: PaletteMap,
    /// Classes with functions, in the order of the rules; the last one is functions without class.
    used: BTreeSet<usize>,
}

impl Palette {
    /// Chooses the colours of all functions in `stacks`, each of which has its domain, its index
    /// and its number of samples. A name with several classes has the colour of the class with the
    /// most samples.
    pub(super) fn new(
        session: &Session,
        rules: &Rules,
        stacks: impl Iterator<Item = ((usize, u32), u64)>,
    ) -> Self {
        let mut palette = Self {
            colors: PaletteMap::default(),
            used: BTreeSet::new(),
        };
        for domain in &session.domains {
            let name = plain(&domain.name);
            palette.colors.insert(name, color(NO_FUNCTION, Space::User));
        }
        let mut samples: HashMap<(DomainKind, usize), u64> = HashMap::new();
        for ((domain, stack), count) in stacks {
            let domain = session.domains.get(domain);
            let kind = domain.map_or(DomainKind::Other, |domain| domain.kind);
            for (number, _) in session.frames_of(stack) {
                *samples.entry((kind, number)).or_default() += count;
            }
        }
        let mut names: BTreeMap<Cow<'_, str>, BTreeMap<(usize, Space), u64>> = BTreeMap::new();
        for ((kind, number), count) in samples {
            let Some(frame) = session.frames.get(number) else {
                continue;
            };
            let module = session.module(frame);
            let space = module.map_or(Space::User, |module| module.space);
            let class = module.and_then(|module| {
                let function = FunctionInfo {
                    space,
                    module: module.name(),
                    symbol: &frame.symbol,
                };
                rules.class(kind, function)
            });
            let of_name = names.entry(plain(&frame.symbol)).or_default();
            let of_class = (class.unwrap_or(rules.classes().len()), space);
            *of_name.entry(of_class).or_default() += count;
        }
        for (name, classes) in names {
            let most = classes.into_iter().max_by_key(|(_, count)| *count);
            if let Some(((class, space), _)) = most {
                palette.used.insert(class);
                palette.colors.insert(name, color(hue(rules, class), space));
            }
        }
        palette
    }

    /// Returns the legend as SVG elements: for each class the colour in user code, in the kernel,
    /// and the name.
    pub(super) fn legend(&self, rules: &Rules) -> String {
        let mut out = String::from("<g id=\"legend\">");
        let mut x = SQUARE;
        let text = |out: &mut String, x: &mut usize, text: &str| {
            let text = clean::line(text);
            let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
            let _infallible = write!(out, "<text x=\"{x}\" y=\"{BASE_Y}\">{escaped}</text>");
            *x += (text.chars().count() + 2) * CHARACTER;
        };
        text(&mut out, &mut x, "light: user code, dark: kernel");
        for class in &self.used {
            let name = rules
                .classes()
                .get(*class)
                .map_or("no class", String::as_str);
            if x + (name.chars().count() + 4) * CHARACTER > WIDTH_MAX {
                text(&mut out, &mut x, "…");
                break;
            }
            for space in [Space::User, Space::Kernel] {
                let Color { r, g, b } = color(hue(rules, *class), space);
                let y = BASE_Y - SQUARE;
                let _infallible = write!(
                    out,
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{SQUARE}\" height=\"{SQUARE}\" \
                     fill=\"rgb({r},{g},{b})\"/>"
                );
                x += SQUARE + 2;
            }
            x += 2;
            text(&mut out, &mut x, name);
        }
        out.push_str("</g>");
        out
    }
}

fn hue(rules: &Rules, class: usize) -> [u8; 3] {
    let is_class = class < rules.classes().len();
    let hue = HUES.get(class % HUES.len()).filter(|_| is_class);
    hue.copied().unwrap_or(NO_CLASS)
}

fn color(hue: [u8; 3], space: Space) -> Color {
    let [r, g, b] = match space {
        Space::User => hue,
        Space::Kernel => hue.map(|part| (u16::from(part) * KERNEL / 100) as u8),
    };
    Color { r, g, b }
}

/// Returns a name without the characters that separate frames. A space becomes a no-break space,
/// because the drawing library parses a number after a space as a sample count.
pub(super) fn plain(name: &str) -> Cow<'_, str> {
    let mut name = clean::line(name);
    if name.contains(';') {
        name = Cow::Owned(name.replace(';', ":"));
    }
    let is_count = |word: &str| word.chars().all(|c| c.is_ascii_digit() || c == '.');
    match name.trim_end().rsplit_once(' ') {
        Some((head, last)) if is_count(last) => Cow::Owned(format!("{head}\u{a0}{last}")),
        _ => name,
    }
}
