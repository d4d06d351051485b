//! Tests of pages with known figures.

use super::*;
use crate::papers::Question;
use crate::plan::{ColumnConfig, Ratio};
use crate::runner::{ReproducedConfig, ReproducedConfigs, Samples, words};
use std::collections::BTreeSet;

mod bars;
mod claims;
mod screen;

const PAPERS: [&str; 5] = ["hatori", "sccp", "oi", "ram", "menon"];

/// Returns the points of a curve's axis.
fn axis(key: &str) -> &'static [&'static str] {
    match key {
        "wires" => &["1", "2", "4"],
        "buffer" => &["1024", "8192", "262144"],
        _ => &["1000", "5000", "20000"],
    }
}

/// Returns the configurations with figures of an item.
fn configs(item: &Item, column: &str) -> Vec<ColumnConfig> {
    let plain = ColumnConfig::new(column, &[]);
    let fixed = item.at.iter();
    let fixed = fixed.fold(plain, |config, (key, value)| config.with(key, value));
    match &item.against {
        Some(key) => {
            let point = |value: &&str| fixed.clone().with(key, value);
            axis(key).iter().map(point).collect()
        }
        None => vec![fixed],
    }
}

/// Returns figures for all values in the paper's tables and figures, with one column per
/// configuration.
fn measured(paper: &Paper) -> (Vec<Figure>, ReproducedConfigs<'_>) {
    let (mut samples, mut reproduced) = (Samples::default(), ReproducedConfigs::new());
    let mut number = 0_u32;
    for item in &paper.item {
        let mut metrics: Vec<String> = Vec::new();
        for metric in &item.metrics {
            match metric.strip_suffix('*') {
                Some(start) => {
                    metrics.extend(
                        ["copy", "grant", "network+usercopy+other"]
                            .map(|class| format!("{start}{class}")),
                    );
                }
                None => metrics.push(metric.clone()),
            }
        }
        for column in &item.configs {
            reproduced.insert(column, ReproducedConfig::usual(column));
            for config in configs(item, column) {
                for round in 0..9 {
                    let mut values = BTreeMap::new();
                    for metric in &metrics {
                        number = (number * 31 + 7) % 101;
                        values.insert(metric.clone(), 1.0 + f64::from(number) / 10.0);
                    }
                    if let Some(of) = &item.distribution {
                        values.extend(
                            [("1", 0.2), ("30", 0.6), ("200", 1.0)]
                                .map(|(most, share)| (format!("{}.{most}", of.share), share)),
                        );
                    }
                    samples.add(&config, round, &values);
                }
            }
        }
    }
    let mut figures = samples.figures(&paper.name);
    figures.extend(samples.paper_comparisons(&paper.name, paper, &reproduced));
    (figures, reproduced)
}

/// Returns the page of a fully measured paper.
fn page_of(paper: &Paper) -> (String, Vec<Figure>) {
    let (figures, reproduced) = measured(paper);
    (page_with(paper, &reproduced, &figures), figures)
}

/// Returns the page of a paper with these figures.
fn page_with(paper: &Paper, reproduced: &ReproducedConfigs<'_>, figures: &[Figure]) -> String {
    let part = PaperPart {
        paper,
        reproduced,
        figures,
        window_s: 1.0,
    };
    let from = Provenance::collect("here".to_owned(), true);
    page(&from, &[part], &Flames::default())
}

/// Returns the drawn values of a page: source, configuration, metric, position, value.
fn drawn(page: &str) -> Vec<[String; 5]> {
    let with_data = page
        .split('<')
        .filter(|part| part.contains(" data-value=\""));
    let names = ["who", "config", "metric", "at", "value"];
    let of = |part: &str| names.map(|name| attribute(part, name).unwrap_or_default());
    with_data.map(of).collect()
}

fn attribute(part: &str, name: &str) -> Option<String> {
    let rest = part.split(format!(" data-{name}=\"").as_str()).nth(1)?;
    Some(rest.split('"').next()?.to_owned())
}

#[test]
fn drawn_values_are_measured_values() {
    for name in PAPERS {
        let paper = Paper::find(name).unwrap();
        let (page, figures) = page_of(&paper);
        let index = Index::new(&figures);
        let mut seen = BTreeSet::new();
        for [who, config, metric, at, value] in drawn(&page) {
            let share = format!("{metric}.{at}");
            let known = match who.as_str() {
                "ours" => {
                    let found = index.get(&config, &metric).or(index.get(&config, &share));
                    let found = found.unwrap_or_else(|| panic!("{config} {metric} {at}"));
                    seen.insert((found.config.clone(), found.metric.clone()));
                    found.value
                }
                _ => {
                    let at: Option<f64> = at.parse().ok();
                    let mut stated = paper.values(&config, &metric);
                    let at =
                        |stated: &Value| at.is_none_or(|at| stated.at.values().any(|x| *x == at));
                    // A paper may state a value twice.
                    let drawn = |known: f64| value.parse() == Ok(known);
                    let found = stated.find(|(known, stated)| at(stated) && drawn(*known));
                    found.map(|(value, _)| value)
                }
            };
            assert_eq!(value.parse().ok(), known, "{who} {config} {metric} {at}");
        }
        for figure in &figures {
            let beside = ["paper.", "quotient."];
            let whole = (figure.config.clone(), figure.metric.clone());
            let is_beside = beside.iter().any(|start| figure.metric.starts_with(start));
            assert!(is_beside || seen.contains(&whole), "{whole:?} is not drawn");
        }
        assert!(page.contains("None of its figures is a result"));
        // The name of SVG's namespace is not an address to load.
        let local = page.replace("http://www.w3.org/2000/svg", "");
        let elsewhere = ["<script", "://", " src=", "@import", "url("];
        assert!(
            !elsewhere.iter().any(|word| local.contains(word)),
            "no external resources"
        );
    }
}

#[test]
fn curves_of_the_papers_are_curves_here() {
    let paper = Paper::find("menon").unwrap();
    let (page, _) = page_of(&paper);
    let of = |id: &str| {
        let of = section(&page, id);
        of.to_owned()
    };
    // The text of figure 3 states values only for Linux with three NICs and the driver domain with
    // two.
    let nics = of("figure 3");
    assert_eq!(nics.matches("<polyline").count(), 4);
    assert!(nics.contains("data-who=\"paper\" data-at=\"3\" data-value=\"2.462\""));
    assert!(nics.contains("data-who=\"paper\" data-at=\"2\" data-value=\"1.878\""));
    let points = |text: &str| text.matches("<circle").count();
    assert_eq!(points(&nics), 2 * axis("wires").len() + 2);
    // The text does not state any value of figure 1.
    let buffers = of("figure 1");
    assert_eq!(points(&buffers), 4 * axis("buffer").len());
    assert!(
        !buffers.contains("<td>menon-linux@wires"),
        "no points of another curve"
    );
    // The statement about four NICs is beside our figures for four NICs, here and in the text's
    // table.
    assert!(!of("figure 3").contains("same sign") && !of("figure 3").contains("opposite"));
    let sends = of("figure 6");
    assert!(!sends.contains("3.76"), "{sends}");
    assert!(buffers.contains(
        "The paper's text states no value of: throughput, Gb/s of payload (menon-linux, "
    ));
    assert_eq!(points(&of("figure 7")), 3 * 4 * axis("offered").len());
    assert!(!of("figure 8").contains("<circle"), "bars, at one rate");
}

#[test]
fn a_mean_of_the_paper_is_marked_beside_ours() {
    let oi = Paper::find("oi").unwrap();
    let (page, figures) = page_of(&oi);
    let marked: Vec<_> = drawn(&page)
        .into_iter()
        .filter(|[.., value]| value == "33.17")
        .collect();
    assert!(!marked.is_empty());
    for [_, _, metric, ..] in marked {
        assert_eq!(metric, "flush_latency_us.mean");
    }
    let beside = figures.iter().filter(|f| f.value == Some(33.17));
    let beside: Vec<&str> = beside.map(|f| f.metric.as_str()).collect();
    assert_eq!(beside, ["paper.flush_latency_us.mean"]);
}

#[test]
fn values_by_window_show_the_window_length() {
    let (page, _) = page_of(&Paper::find("ram").unwrap());
    let of = section(&page, "page reuse");
    assert!(of.contains("Our windows have 1 s."), "{of}");
    for metric in ["pages_reused", "packets_per_page_used"] {
        assert!(of.contains(&format!("title=\"{metric}\"")), "{metric}");
    }
    assert_eq!(page.matches("Our windows have 1 s.").count(), 1);
}

#[test]
fn each_ratio_has_a_verdict() {
    let paper = Paper::find("sccp").unwrap();
    let (page, figures) = page_of(&paper);
    let compared = figures
        .iter()
        .filter(|figure| figure.metric.starts_with("quotient."));
    let said = |figure: &Figure| format!("<td>{}</td>", words(figure.verdict.unwrap()));
    for figure in compared {
        assert!(page.contains(&said(figure)), "{figure:?}");
    }
}

#[test]
fn contents_mark_each_verdict_of_an_item() {
    let paper = Paper::find("oi").unwrap();
    let (page, _) = page_of(&paper);
    let (_, contents) = page.split_once("<h2 id=\"contents\">").unwrap();
    let line = contents
        .lines()
        .find(|line| line.contains("#oi-table-4"))
        .unwrap();
    let table = section(&page, "table 4").split_once("</table>").unwrap().0;
    let verdicts = table.lines().filter(|row| row.starts_with("<tr><td>"));
    let verdicts = verdicts
        .filter(|row| !row.ends_with("<td></td></tr>"))
        .count();
    let marked: usize = line
        .split("<abbr ")
        .map(|before| {
            let digits = before
                .rsplit(|letter: char| !letter.is_ascii_digit())
                .next()
                .unwrap();
            digits.parse().unwrap_or(1)
        })
        .sum::<usize>()
        - 1;
    assert_eq!(marked, verdicts, "{line}");
    assert!(
        page.contains("<h3 id=\"oi-table-4\">"),
        "the anchor of the link"
    );
}

#[test]
fn values_of_an_item_are_saved_as_csv() {
    let (page, figures) = page_of(&Paper::find("oi").unwrap());
    let of = section(&page, "table 4");
    let (_, csv) = of
        .split_once("download=\"oi-table-4.csv\" href=\"")
        .unwrap();
    let csv = csv
        .split('"')
        .next()
        .unwrap()
        .replace("%0A", "\n")
        .replace("%20", " ");
    let own = Index::new(&figures)
        .get("oi-da", "throughput")
        .unwrap()
        .value
        .unwrap();
    let line = format!("\noi-da,throughput,{own},");
    assert!(csv.contains(&line), "{csv}");
}

/// Returns the section of a page about an item.
fn section<'a>(page: &'a str, id: &str) -> &'a str {
    let start = page.find(&format!("\">{id}: ")).unwrap();
    let rest = &page[start..];
    &rest[..rest.find("<h3 ").unwrap_or(rest.len())]
}

#[test]
fn rows_of_absent_columns_have_the_reason() {
    let paper = Paper::find("ram").unwrap();
    let mut samples = Samples::default();
    let total = BTreeMap::from([("cycles_per_packet.total".to_owned(), 9000.0)]);
    for round in 0..9 {
        samples.add(&ColumnConfig::new("ram-xen", &[]), round, &total);
    }
    samples.absent(&ColumnConfig::new("ram-linux", &[]), "no `ethtool`");
    let reproduced = ReproducedConfigs::from(
        ["ram-linux", "ram-xen"].map(|name| (name, ReproducedConfig::usual(name))),
    );
    let mut figures = samples.figures("ram");
    figures.extend(samples.paper_comparisons("ram", &paper, &reproduced));
    let page = page_with(&paper, &reproduced, &figures);
    let of = section(&page, "figure 2.4");
    let why = "<td>not measurable: no <code>ethtool</code></td>";
    let rows = of
        .split("<tr>")
        .filter(|row| row.contains("ram-linux</td>"));
    let rows: Vec<&str> = rows.collect();
    assert!(rows.len() > 1 && of.matches(why).count() == rows.len() + 1);
    assert!(rows.iter().all(|row| row.contains(why)), "{of}");
    assert!(
        !page.contains("<td>not measurable</td>"),
        "each has a reason"
    );
}

#[test]
fn an_item_shows_its_own_statement() {
    let (page, _) = page_of(&Paper::find("oi").unwrap());
    let (first, fourth) = (section(&page, "table 1"), section(&page, "table 4"));
    for (then, now) in [
        ("0.7151", "0.7211"),
        ("0.569", "0.5359"),
        ("0.606", "0.5772"),
    ] {
        let (then, now) = (format!("<td>{then}</td>"), format!("<td>{now}</td>"));
        assert!(first.contains(&then) && !first.contains(&now), "{first}");
        assert!(fourth.contains(&now) && !fourth.contains(&then), "{fourth}");
    }
    let (page, _) = page_of(&Paper::find("hatori").unwrap());
    let fifth = section(&page, "table 5");
    for stated in [
        "742\u{202f}000",
        "386\u{202f}000",
        "277\u{202f}000",
        "151\u{202f}000",
    ] {
        assert!(
            fifth.contains(&format!("<td>{stated}</td>")),
            "{stated}: {fifth}"
        );
    }
    assert!(!fifth.contains("354\u{202f}000"), "belongs to table 6");
    let second = section(&page, "table 2");
    assert!(second.contains("<td>0.5054</td>") && second.contains("<td>0.5084</td>"));
    assert!(fifth.contains("packets sent to the wire per GB of payload"));
    let (page, _) = page_of(&Paper::find("menon").unwrap());
    let eighth = section(&page, "table 8");
    assert!(
        eighth.contains("<td>tcp_transmit_skb</td><td>512</td><td>92</td>"),
        "{eighth}"
    );
}

#[test]
fn every_configuration_has_a_description() {
    for name in PAPERS {
        let paper = Paper::find(name).unwrap();
        let column = format!("{name}-other");
        let reproduced = paper.config.iter().map(|config| config.name.as_str());
        let reproduced = reproduced.map(|config| (config, ReproducedConfig::usual(config)));
        let mut reproduced: ReproducedConfigs<'_> = reproduced.collect();
        let first = &paper.config[0];
        reproduced.insert(&column, ReproducedConfig::usual(&first.name));
        let page = page_with(&paper, &reproduced, &[]);
        for config in &paper.config {
            let also = match config == first {
                true => format!("; also <code>{column}</code>"),
                false => String::new(),
            };
            let about = prose(&config.about);
            let line = format!("<dt>{}</dt><dd>{about}{also}</dd>\n", config.name);
            assert!(page.contains(&line), "{line}");
        }
    }
}

#[test]
fn every_item_is_shown_or_has_a_reason() {
    for name in PAPERS {
        let paper = Paper::find(name).unwrap();
        let reproduced = ReproducedConfigs::new();
        let page = page_with(&paper, &reproduced, &[]);
        for item in &paper.item {
            assert!(
                page.contains(&format!("\">{}: ", escape(&item.id))),
                "{}",
                item.id
            );
        }
        assert_eq!(
            page.matches("<p class=\"soft\">Not measured here: ")
                .count(),
            { paper.item.iter().filter(|item| item.why.is_some()).count() }
        );
        let of_classes = paper.item.iter().filter(|item| item.has_classes()).count();
        let classes = paper.classes.as_deref().map_or("no remark", |text| text);
        assert_eq!(page.matches(&prose(classes)).count(), of_classes, "{name}");
        let differing = paper.item.iter().filter_map(|item| item.differs.as_ref());
        for remark in differing {
            assert!(page.contains(&prose(remark)), "{remark}");
        }
        let missing = page
            .matches("no performance counters, so these are missing: ")
            .count();
        let of_counters = paper
            .item
            .iter()
            .filter(|item| item.without_counters.is_some());
        assert_eq!(missing, of_counters.count());
    }
}

#[test]
fn pages_with_counters_list_no_missing_events() {
    let paper = Paper::find("menon").unwrap();
    let (mut figures, reproduced) = measured(&paper);
    figures.push(Figure::single("menon", "menon-linux", EVENTS_COUNTED, 1.0));
    let page = page_with(&paper, &reproduced, &figures);
    assert!(!page.contains("no performance counters"));
    // The paper's text states ratios of instructions, and ours are beside them.
    let instructions = "data-metric=\"instructions_per_packet.total\"";
    assert!(page.contains(instructions));
}

#[test]
fn questions_are_answered_by_the_ratio_of_all_cycles() {
    let paper = Paper::find("hatori").unwrap();
    let question = &paper.question[0];
    let (config, to) = (format!("{}@wire=1", question.column), &question.to[0]);
    for (cycles, answer) in [(0.7, "yes"), (1.3, "no"), (1.0, "it makes no difference")] {
        let mut samples = Samples::default();
        for round in 0..5 {
            for (column, value) in [(&question.column, cycles), (to, 1.0)] {
                let metric = Question::ANSWER.to_owned();
                let config = ColumnConfig::new(column, &[("wire", "1")]);
                samples.add(&config, round, &BTreeMap::from([(metric, value)]));
            }
        }
        let ratio = Ratio {
            own: question.column.clone(),
            to: to.clone(),
            ..Ratio::default()
        };
        let page = page_with(
            &paper,
            &ReproducedConfigs::new(),
            &samples.ratios("hatori", &[ratio], &[]),
        );
        let asked = page.split("<h3 id=\"hatori-questions\">").nth(1).unwrap();
        let row = asked.split("<tr>").find(|row| row.contains(&config));
        let row = row.unwrap();
        assert!(row.contains(&format!("<td>÷ {to}</td>")), "{row}");
        assert!(row.ends_with(&format!("<td>{answer}</td></tr>\n")), "{row}");
        // The other ratios were not measured.
        let ratios: usize = paper.question.iter().map(|asked| asked.to.len()).sum();
        assert_eq!(asked.matches("not in this run").count(), ratios - 1);
        assert!(page.contains("<a href=\"#hatori-questions\">"));
    }
}
