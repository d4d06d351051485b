//! Tests of bar charts.

use super::*;

#[test]
fn the_total_is_the_base_of_its_classes() {
    let paper = Paper::find("menon").unwrap();
    let mut samples = Samples::default();
    for (column, guest, driver) in [("menon-linux", 40e3, 0.0), ("menon-domain0", 10e3, 50e3)] {
        let config = ColumnConfig::new(column, &[("offered", "5000")]);
        let of = |part: &str, cycles| (format!("cycles_per_request.{part}"), cycles);
        let parts = [of("guest", guest), of("driver", driver)];
        let total = of("total", guest + driver);
        samples.add(&config, 0, &parts.into_iter().chain([total]).collect());
    }
    let figures = samples.figures("menon");
    let reproduced = ReproducedConfigs::from(
        ["menon-linux", "menon-domain0"].map(|name| (name, ReproducedConfig::usual(name))),
    );
    let page = page_with(&paper, &reproduced, &figures);
    let (bars, table) = section(&page, "figure 8").split_once("<table>").unwrap();
    // All cycles of Linux belong to the guest, so its bar is the total.
    let widths = bars.split("<rect ").skip(1).map(|bar| {
        let width = bar.split(" width=\"").nth(1).unwrap();
        width.split('"').next().unwrap().parse::<f64>().unwrap()
    });
    let widths: Vec<f64> = widths.collect();
    let shares = widths.iter().map(|width| width / widths[2]);
    let shares: Vec<f64> = shares.map(|share| (share * 100.0).round()).collect();
    assert_eq!(shares, [0.0, 125.0, 100.0, 25.0], "{bars}");
    assert!(bars.contains(">1.5</text>"), "the axis' end: {bars}");
    assert!(!bars.contains(" × "), "the table has no ratio: {bars}");
    assert!(!bars.contains("cycles_per_request.total"), "{bars}");
    assert!(table.contains("title=\"cycles_per_request.total\">cycles per request: all</td>"));
}

/// Returns the rows of an item's table about a configuration's metric: our ratio, the paper's, and
/// the baseline.
fn table_ratios<'a>(item: &'a str, config: &str, metric: &str) -> Vec<[&'a str; 3]> {
    let title = format!("<td title=\"{metric}\">");
    let is_own = |row: &&str| {
        let rest = row.strip_prefix("<tr><td>");
        let rest = rest.and_then(|row| row.strip_prefix(config));
        rest.and_then(|rest| rest.split_once("</td>"))
            .is_some_and(|(keys, rest)| {
                (keys.is_empty() || keys.starts_with('@')) && rest.starts_with(&title)
            })
    };
    let ratios = |row: &'a str| {
        let cells: Vec<&str> = row.split("</td><td>").collect();
        let (ratio, to) = cells[4].split_once(" (").unwrap_or((cells[4], ""));
        [cells[3], ratio, to.trim_end_matches(')')]
    };
    item.lines().filter(is_own).map(ratios).collect()
}

#[test]
fn bars_have_the_ratios_of_the_table() {
    for name in PAPERS {
        let paper = Paper::find(name).unwrap();
        let (page, _) = page_of(&paper);
        let mut compared = 0;
        for item in paper.item.iter().map(|item| section(&page, &item.id)) {
            for bar in item.split("<rect ").skip(1) {
                let [who, config, metric] =
                    ["who", "config", "metric"].map(|name| attribute(bar, name).unwrap());
                let text = bar.split("<text ").nth(2).unwrap();
                let text = text.split(['>', '<']).nth(1).unwrap();
                let printed = text.split_once(" (").map(|(_, ratio)| {
                    let (ratio, to) = ratio.split_once(" × ").unwrap();
                    (ratio, to.trim_end_matches(')'))
                });
                let side = usize::from(who == "paper");
                let mut known = table_ratios(item, &config, &metric).into_iter();
                match printed {
                    Some((ratio, to)) => {
                        let is_equal = |row: [&str; 3]| (row[side], row[2]) == (ratio, to);
                        assert!(known.any(is_equal), "{who}, {config}, {metric}: {text}");
                        compared += 1;
                    }
                    None => assert!(known.all(|row| row[side] == "–"), "{config}, {metric}"),
                }
            }
        }
        assert!(compared > 0, "{name}");
    }
}
