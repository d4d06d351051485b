//! Tests of the table of claims.

use super::*;
use crate::plan::WireNic;

#[test]
fn every_claim_has_a_verdict_or_is_not_in_the_run() {
    for name in PAPERS {
        let paper = Paper::find(name).unwrap();
        assert!(paper.claim.len() >= 3, "{name}");
        let (page, figures) = page_of(&paper);
        let (_, claims) = page.split_once("<h2 id=\"claims\">").unwrap();
        let (claims, _) = claims.split_once("</table>").unwrap();
        for claim in &paper.claim {
            let row = claims
                .lines()
                .find(|row| row.contains(&claim.text))
                .unwrap();
            let why = format!(">{}</td></tr>", prose(&claim.why));
            assert!(row.ends_with(&why), "{row}");
            let quotient = format!("quotient.{}.{}", claim.to, claim.metric);
            let is_own = |figure: &&Figure| {
                figure.metric == quotient && figure.config.starts_with(&claim.config)
            };
            match figures.iter().find(is_own) {
                Some(figure) => {
                    let verdict = words(figure.verdict.unwrap());
                    assert!(row.contains(verdict), "{row}");
                    let own = figure.value.unwrap() * paper.claimed(claim).unwrap().ratio;
                    assert!(row.contains(&format!("<td>{} [", number(own))), "{row}");
                }
                None if claim.metric.starts_with("instructions") => {
                    let verdict = "not measurable: this run had no performance counters";
                    assert!(row.contains(verdict), "{row}");
                }
                None => assert!(row.contains("not in this run"), "{row}"),
            }
        }
    }
}

#[test]
fn a_claim_has_a_line_for_each_kind_of_nic() {
    let paper = Paper::find("oi").unwrap();
    let (mut samples, mut reproduced) = (Samples::default(), ReproducedConfigs::new());
    for (column, config, nic, cycles) in [
        ("oi-lro", "oi-lro", WireNic::Tap, 1.0),
        ("oi-da", "oi-da", WireNic::Tap, 0.9),
        ("oi-soft-lro", "oi-lro", WireNic::Soft, 2.0),
        ("oi-soft-da", "oi-da", WireNic::Soft, 1.6),
    ] {
        let total = BTreeMap::from([("cycles_per_byte.total".to_owned(), cycles)]);
        for round in 0..9 {
            samples.add(&ColumnConfig::new(column, &[]), round, &total);
        }
        reproduced.insert(column, ReproducedConfig { config, nic });
    }
    let mut figures = samples.figures("oi");
    figures.extend(samples.paper_comparisons("oi", &paper, &reproduced));
    let page = page_with(&paper, &reproduced, &figures);
    let mut rows = page.lines();
    let first = rows.find(|row| row.contains("DA more than halves all cycles."));
    let (first, second) = (first.unwrap(), rows.next().unwrap());
    assert!(first.contains("<td>TAP</td><td>0.900"), "{first}");
    assert!(second.starts_with("<tr><td>soft</td><td>0.800"), "{second}");
    assert!(second.contains("same sign"), "{second}");
    // The other three claims have one line each.
    assert!(page.contains("<th rowspan=\"5\">"), "{first}");
}
