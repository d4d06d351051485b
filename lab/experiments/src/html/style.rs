//! Styles of the page and of saved figures.

use std::fmt::Write as _;

/// Colours: name, light theme, dark theme.
const COLOURS: [(&str, &str, &str); 11] = [
    ("ink", "#1a1a1a", "#e6e6e6"),
    ("paper", "#fff", "#16181b"),
    ("soft", "#666", "#a0a0a0"),
    ("line", "#ccc", "#444"),
    ("ours", "#1f5f99", "#6aa8e0"),
    ("theirs", "#c47a1c", "#e0a45a"),
    ("bad", "#a02020", "#ff8080"),
    ("c2", "#2e7d4f", "#6cc18c"),
    ("c3", "#8a3fa0", "#c08ad6"),
    ("c4", "#a02020", "#ff8080"),
    ("c5", "#4b5563", "#a3adba"),
];

/// Rules of the page. Figures are wide enough for text of 11 pixels, and scroll on a narrow screen.
const PAGE: &str = "\
    body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);\
    max-width:60rem;margin:auto;padding:1rem;overflow-wrap:anywhere}\
    table{border-collapse:collapse;font-size:.85rem;display:block;overflow-x:auto;\
    overflow-wrap:normal}\
    th,td{padding:.2rem .6rem;border-bottom:1px solid var(--line);text-align:right}\
    th:first-child,td:first-child,td:last-child,th:last-child{text-align:left}\
    .claims th,.claims td{text-align:left}\
    pre{white-space:pre-wrap;color:var(--soft)}.soft{color:var(--soft)}.warn{color:var(--bad)}\
    a{color:var(--ours)}.save{font-size:.8rem}.mark{text-decoration:none;font-weight:bold}\
    .items{columns:12rem;padding-left:1rem;font-size:.9rem}dl{font-size:.9rem}\
    dt{font-weight:bold}dd{margin-left:1rem}\
    figure{margin:.5rem 0;overflow-x:auto}\
    svg{width:100%;min-width:49rem;height:auto;display:block}\
    @media print{body{max-width:none;padding:0}h2,h3{break-after:avoid}figure,tr{\
    break-inside:avoid}figure{overflow:visible}svg{min-width:0}.save{display:none}\
    table{display:table;overflow:visible;font-size:.6rem;overflow-wrap:anywhere}\
    th,td{padding:.1rem .3rem}}";

const FIGURE: &str = "\
    text{fill:var(--ink);font:12px system-ui,sans-serif}\
    .end{text-anchor:end}.middle{text-anchor:middle}\
    .ours{fill:var(--ours)}.paper{fill:var(--theirs)}.range{stroke:var(--ink)}\
    .s0{stroke:var(--ours);fill:var(--ours)}.s1{stroke:var(--theirs);fill:var(--theirs)}\
    .s2{stroke:var(--c2);fill:var(--c2)}.s3{stroke:var(--c3);fill:var(--c3)}\
    .s4{stroke:var(--c4);fill:var(--c4)}.s5{stroke:var(--c5);fill:var(--c5)}\
    .line{fill:none;stroke-width:1.8}.s1.line{stroke-dasharray:7 3}.s2.line{stroke-dasharray:2 2}\
    .s3.line{stroke-dasharray:9 3 2 3}.s4.line{stroke-dasharray:4 4}\
    .s5.line{stroke-dasharray:12 4}.axis{stroke:var(--soft);fill:none}";

/// Returns the style sheet of the page, with a light and a dark theme.
pub(super) fn page() -> String {
    let (mut light, mut dark) = (String::new(), String::new());
    for (name, of_light, of_dark) in COLOURS {
        let _infallible = write!(light, "--{name}:{of_light};");
        let _infallible = write!(dark, "--{name}:{of_dark};");
    }
    format!(
        ":root{{{light}color-scheme:light dark}}\
         @media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}{PAGE}{FIGURE}"
    )
}

/// Returns the style sheet of a saved figure, in the light theme. It has no custom properties,
/// because some programs that draw SVG do not support them.
pub(super) fn figure() -> String {
    let sheet = FIGURE.to_owned();
    COLOURS.iter().fold(sheet, |sheet, (name, light, _)| {
        sheet.replace(&format!("var(--{name})"), light)
    })
}
