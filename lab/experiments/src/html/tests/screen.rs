//! Tests that render pages in a headless browser: no page is blank, no element overflows, and every
//! figure has ink.

use super::*;
use miniz_oxide::inflate::decompress_to_vec_zlib;
use serde_json::Value as Json;
use std::path::Path;
use std::process::Command;
use testing::require;

const BROWSER: &str = "chromium-headless-shell";
/// Widths of a telephone's, a tablet's and a computer's window, pixels.
const WIDTHS: [usize; 3] = [390, 768, 1280];
/// Width of A4 paper between margins of 1 cm, pixels.
const PRINTED_WIDTH: usize = 718;
/// Minimum size of a figure's text, pixels.
const TEXT_SIZE_MIN: f64 = 11.0;
/// Minimum contrast of text (WCAG 2.2, 1.4.3).
const CONTRAST_MIN: f64 = 4.5;
/// Width of the right margin that must be blank, pixels: less than the body's padding.
const MARGIN: usize = 8;
/// Minimum difference between the components of a coloured pixel, as opposed to a grey pixel of
/// text.
const COLOURED: u8 = 40;
/// Minimum number of coloured pixels in a figure.
const INK_MIN: usize = 30;

/// Script that is added to a copy of the page. It reports the positions of figures, texts that
/// overflow or overlap, the smallest text of a figure, and the lowest contrast of a text.
const CHECK_SCRIPT: &str = "<script>
const box = e => {
    const b = e.getBoundingClientRect();
    return [b.left, b.top, b.right, b.bottom];
};
const meet = (a, b) => Math.min(a[2], b[2]) - Math.max(a[0], b[0]) > 1
    && Math.min(a[3], b[3]) - Math.max(a[1], b[1]) > 2;
const figures = [...document.querySelectorAll('svg')];
const wrong = figures.flatMap(svg => {
    const out = box(svg), texts = [...svg.querySelectorAll('text')];
    const bars = [...svg.querySelectorAll('rect')].map(box);
    return texts.filter((text, n) => {
        const b = box(text);
        return b[0] < out[0] - 1 || b[1] < out[1] - 1 || b[2] > out[2] + 1 || b[3] > out[3] + 1
            || texts.slice(n + 1).some(other => meet(b, box(other)))
            || bars.some(bar => meet(b, bar));
    }).map(text => text.textContent);
});
const parts = colour => colour.match(/[0-9.]+/g).slice(0, 3).map(Number);
const light = colour => {
    const [r, g, b] = parts(colour).map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ground = light(getComputedStyle(document.body).backgroundColor);
const contrast = e => {
    const style = getComputedStyle(e);
    const ink = light(e instanceof SVGElement ? style.fill : style.color);
    return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
};
const written = [...document.querySelectorAll('h1,h2,h3,p,pre,a,li,th,td,dt,dd,summary,text')];
const texts = [...document.querySelectorAll('svg text')];
const size = text => parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a;
const root = document.documentElement;
root.dataset.seen = JSON.stringify({ width: root.scrollWidth, height: root.scrollHeight, wrong,
    text: Math.min(...texts.map(size)), contrast: Math.min(...written.map(contrast)),
    figures: figures.map(svg => ({ name: svg.getAttribute('aria-label'), at: box(svg) })) });
</script></body>";

/// Renders a page of a folder in a browser and returns its output.
fn browse(folder: &Path, page: &str, dark: bool, args: &[String]) -> String {
    let file = folder.join("page.html");
    std::fs::write(&file, page).unwrap();
    let scheme = if dark { 0 } else { 1 };
    let output = Command::new("timeout")
        .args([
            "120",
            BROWSER,
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
        ])
        .arg(format!("--blink-settings=preferredColorScheme={scheme}"))
        .arg(format!("--user-data-dir={}", folder.join("home").display()))
        .args(args)
        .arg(format!("file://{}", file.display()))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// An image with 8 bits per component.
struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    fn at(&self, x: usize, y: usize) -> [u8; 3] {
        self.pixels[y * self.width + x]
    }

    /// Decodes a PNG as the browser writes it: not interlaced, without a palette.
    fn of(png: &[u8]) -> Self {
        let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap()) as usize;
        let (width, height) = (number(16), number(20));
        let bytes = match (png[24], png[25], png[28]) {
            (8, 2, 0) => 3,
            (8, 6, 0) => 4,
            other => panic!("another kind of PNG: {other:?}"),
        };
        let (mut packed, mut at) = (Vec::new(), 8);
        while at < png.len() {
            if &png[at + 4..at + 8] == b"IDAT" {
                packed.extend(&png[at + 8..at + 8 + number(at)]);
            }
            at += 12 + number(at);
        }
        let rows = decompress_to_vec_zlib(&packed).unwrap();
        let mut above = vec![0_u8; width * bytes];
        let mut pixels = Vec::with_capacity(width * height);
        for row in rows.chunks(1 + width * bytes) {
            let mut line = row[1..].to_vec();
            for x in 0..line.len() {
                let left = if x < bytes { 0 } else { line[x - bytes] };
                let corner = if x < bytes { 0 } else { above[x - bytes] };
                line[x] = line[x].wrapping_add(predicted(row[0], left, above[x], corner));
            }
            pixels.extend(
                line.chunks(bytes)
                    .map(|pixel| [pixel[0], pixel[1], pixel[2]]),
            );
            above = line;
        }
        assert_eq!(pixels.len(), width * height);
        Self {
            width,
            height,
            pixels,
        }
    }
}

/// Returns the predictor of a PNG filter for a byte.
fn predicted(filter: u8, left: u8, above: u8, corner: u8) -> u8 {
    let [a, b, c] = [left, above, corner].map(i16::from);
    let to = |from: i16| (a + b - c - from).abs();
    match filter {
        0 => 0,
        1 => left,
        2 => above,
        3 => ((a + b) / 2) as u8,
        _ if to(a) <= to(b) && to(a) <= to(c) => left,
        _ if to(b) <= to(c) => above,
        _ => corner,
    }
}

/// Returns the report of [`CHECK_SCRIPT`] about a page in a window of this width.
fn report(folder: &Path, page: &str, width: usize, dark: bool) -> Json {
    let page_with_check = page.replace("</body>", CHECK_SCRIPT);
    let dom = [
        "--dump-dom".to_owned(),
        format!("--window-size={width},800"),
    ];
    let dom = browse(folder, &page_with_check, dark, &dom);
    let seen = dom.split("data-seen=\"").nth(1).unwrap();
    let seen = seen.split('"').next().unwrap();
    let seen = seen
        .replace("&quot;", "\"")
        .replace("&lt;", "<")
        .replace("&gt;", ">");
    serde_json::from_str(&seen.replace("&amp;", "&")).unwrap()
}

/// Returns the faults of a page that is rendered in a window of this width.
fn faults(page: &str, width: usize, dark: bool) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let seen = report(folder.path(), page, width, dark);
    let mut faults = Vec::new();
    let needed = seen["width"].as_u64().unwrap() as usize;
    if needed > width {
        faults.push(format!("{needed} pixels wide"));
    }
    for (name, least) in [("text", TEXT_SIZE_MIN), ("contrast", CONTRAST_MIN)] {
        let found = seen[name].as_f64().unwrap();
        if found < least {
            faults.push(format!("{name}: {found:.1}, below {least}"));
        }
    }
    for text in seen["wrong"].as_array().unwrap() {
        faults.push(format!("{text} overflows or overlaps"));
    }
    let file = folder.path().join("page.png");
    let height = seen["height"].as_u64().unwrap() as usize;
    let size = format!("--window-size={width},{height}");
    let shot = [format!("--screenshot={}", file.display()), size];
    browse(folder.path(), page, dark, &shot);
    let picture = Picture::of(&std::fs::read(&file).unwrap());
    assert_eq!((picture.width, picture.height), (width, height));
    let paper = picture.at(0, 0);
    let lines = 0..picture.height;
    if lines
        .clone()
        .any(|y| (width - MARGIN..width).any(|x| picture.at(x, y) != paper))
    {
        faults.push("an element crosses the right margin".to_owned());
    }
    if lines
        .clone()
        .all(|y| (0..width).all(|x| picture.at(x, y) == paper))
    {
        faults.push("blank".to_owned());
    }
    for figure in seen["figures"].as_array().unwrap() {
        let at = figure["at"].as_array().unwrap();
        let [left, top, right, bottom] =
            [0, 1, 2, 3].map(|n| at[n].as_f64().unwrap().max(0.0) as usize);
        let within =
            (top..bottom.min(height)).flat_map(|y| (left..right.min(width)).map(move |x| (x, y)));
        let coloured = |(x, y): &(usize, usize)| {
            let pixel = picture.at(*x, *y);
            pixel.iter().max().unwrap() - pixel.iter().min().unwrap() > COLOURED
        };
        if within.filter(coloured).count() < INK_MIN {
            faults.push(format!("{} is empty", figure["name"]));
        }
    }
    faults
}

#[test]
fn a_browser_draws_every_figure_without_overflow() {
    require!(tool(BROWSER));
    let views = WIDTHS
        .into_iter()
        .cycle()
        .zip([true, false].into_iter().cycle());
    let all_of_one = ["oi"; 6].into_iter();
    for (name, (width, dark)) in all_of_one.chain(PAPERS).zip(views) {
        let (page, _) = page_of(&Paper::find(name).unwrap());
        assert!(page.contains("<svg"), "{name}");
        let found = faults(&page, width, dark);
        assert_eq!(found, [""; 0], "{name}, width {width}, dark: {dark}");
    }
}

#[test]
fn printed_pages_fit_the_paper() {
    require!(tool(BROWSER));
    // A window applies the rules for print if they are for all media.
    let needed = |page: &str| {
        let printed = page.replacen("@media print{", "@media all{", 1);
        assert_ne!(printed, page, "no rules for print");
        let folder = tempfile::tempdir().unwrap();
        let seen = report(folder.path(), &printed, PRINTED_WIDTH, false);
        seen["width"].as_u64().unwrap() as usize
    };
    for name in PAPERS {
        let (page, _) = page_of(&Paper::find(name).unwrap());
        assert_eq!(needed(&page), PRINTED_WIDTH, "{name}");
    }
    let (page, _) = page_of(&Paper::find("menon").unwrap());
    let rule = "font-size:.6rem;overflow-wrap:anywhere";
    let unwrapped = page.replacen(rule, "white-space:nowrap", 1);
    assert!(needed(&unwrapped) > PRINTED_WIDTH, "tables are not wrapped");
}

#[test]
fn empty_and_overflowing_pages_are_detected() {
    require!(tool(BROWSER));
    let (page, _) = page_of(&Paper::find("oi").unwrap());
    let bars = page.replacen("<rect class=\"", "<rect fill=\"none\" class=\"no-", 1);
    assert_eq!(faults(&bars, 1280, false), [""; 0], "one bar of several");
    let first = page.find("<svg").unwrap();
    let end = first + page[first..].find("</svg>").unwrap();
    let no_bars = page[first..end].replace("<rect class=\"", "<rect fill=\"none\" class=\"no-");
    let empty = format!("{}{no_bars}{}", &page[..first], &page[end..]);
    assert_eq!(faults(&empty, 1280, false), ["\"throughput\" is empty"]);
    let wide = page.replace(
        "</h1>",
        "</h1><p style=\"width:3000px;background:red\">x</p>",
    );
    let found = faults(&wide, 1280, false);
    assert!(
        found.iter().any(|fault| fault.ends_with("pixels wide")),
        "{found:?}"
    );
    assert!(
        found
            .iter()
            .any(|fault| fault.contains("crosses the right margin")),
        "{found:?}"
    );
    let blank = page.replace("<body>", "<body style=\"visibility:hidden\">");
    assert!(faults(&blank, 1280, false).contains(&"blank".to_owned()));
    let small = page.replace("min-width:49rem", "min-width:0");
    let found = faults(&small, 390, false);
    assert!(found[0].starts_with("text: "), "{found:?}");
    let pale = page.replace("<h1>", "<h1 style=\"color:#aaa\">");
    let found = faults(&pale, 768, false);
    assert!(found[0].starts_with("contrast: "), "{found:?}");
    let long = page.replacen(
        ", the paper's</text>",
        &format!("{}</text>", "x".repeat(90)),
        1,
    );
    let found = faults(&long, 1280, false);
    assert!(
        found
            .iter()
            .any(|fault| fault.ends_with("overflows or overlaps")),
        "{found:?}"
    );
}
