//! Tests of the papers' data.

use super::*;

#[test]
fn every_paper_has_all_of_its_tables_and_figures() {
    let mut items = 0;
    for (name, text) in TEXTS {
        let paper = Paper::parse(text).unwrap();
        assert_eq!(paper.name, name);
        items += paper.item.len();
    }
    assert_eq!(items, 44);
    assert_eq!(Paper::find("xen").unwrap_err().exit_code(), 2);
}

#[test]
fn ratios_use_the_first_baseline_with_the_metric() {
    let ram = Paper::find("ram").unwrap();
    let of = |config: &str, to: &str, metric: &str| {
        let ratios = ram.ratios(config);
        let found = ratios.iter().find(|r| r.to == to && r.metric == metric);
        found.map(|ratio| (ratio.ratio * 100.0).round())
    };
    let (total, driver) = ("cycles_per_packet.total", "cycles_per_packet.driver");
    assert_eq!(of("ram-xen", "ram-linux", total), Some(450.0));
    assert_eq!(
        of("ram-xen", "ram-linux", driver),
        None,
        "Linux has no such domain"
    );
    assert_eq!(of("ram-mq", "ram-xen", driver), Some(33.0));
    assert_eq!(
        of("ram-mq-ngm", "ram-xen", total),
        Some(49.0),
        "a ratio in the text"
    );
    assert!(ram.ratios("ram-linux").is_empty());
}

#[test]
fn a_ratio_relates_one_point_of_both() {
    let menon = Paper::find("menon").unwrap();
    let of = |config: &str| {
        let ratios = menon.ratios(config).into_iter();
        let streams = ratios.filter(|ratio| ratio.metric == "throughput");
        streams.map(|r| (r.to, r.at)).collect::<Vec<_>>()
    };
    // The driver domain's two-NIC value and Linux's three-NIC value belong to different points and
    // form no ratio. The ratio in the text relates three-NIC values.
    let at = |wires| BTreeMap::from([("wires", wires)]);
    assert_eq!(of("menon-domain0"), [("menon-linux", at(3.0))]);
    assert_eq!(of("menon-guest1"), [("menon-domain0", at(1.0))]);
    assert_eq!(of("menon-send-guest0"), [("menon-send-domain0", at(4.0))]);
    let ratio = &menon.ratios("menon-guest1")[0];
    assert!(ratio.is_of(&[("wires", "1"), ("dir", "to_guest")].into()));
    assert!(!ratio.is_of(&[("wires", "4")].into()));
    assert!(ratio.is_of(&BTreeMap::new()), "a column of one NIC");
    let ratio = &menon.ratios("menon-domain0")[0];
    assert!(!ratio.is_of(&BTreeMap::new()), "its ratio has three NICs");
}

#[test]
fn values_by_definition_form_no_ratio() {
    for (name, config, others) in [
        ("hatori", "hatori-guest2", 0),
        ("hatori", "hatori-guest3", 0),
        ("sccp", "sccp-lro", 0),
        ("oi", "oi-lro", 0),
        ("oi", "oi-da", 1),
        ("sccp", "sccp-optimized", 1),
    ] {
        let paper = Paper::find(name).unwrap();
        let ratios = paper.ratios(config).into_iter();
        let rates = ratios.filter(|ratio| ratio.metric == "lro_rate");
        assert_eq!(rates.count(), others, "{config}");
    }
}

#[test]
fn a_ratio_to_another_path_is_marked() {
    for (name, config, metric, marked) in [
        ("oi", "oi-xen", "throughput", true),
        ("oi", "oi-lro", "throughput", false),
        ("menon", "menon-guest1", "throughput", true),
        ("menon", "menon-guest0", "throughput", false),
        ("ram", "ram-transmit-ngm", "throughput", true),
    ] {
        let paper = Paper::find(name).unwrap();
        let ratios = paper.ratios(config);
        let found = ratios.iter().find(|ratio| ratio.metric == metric).unwrap();
        assert_eq!(found.not_comparable.is_some(), marked, "{config}");
    }
}

#[test]
fn a_value_stated_twice_is_compared_once() {
    let oi = Paper::find("oi").unwrap();
    let ratios = oi.ratios("oi-lro");
    let of: Vec<f64> = ratios
        .iter()
        .filter(|ratio| ratio.metric == "throughput")
        .map(|ratio| ratio.ratio)
        .collect();
    assert_eq!(of, [0.5772 / 0.5359], "table 4's, not table 1's");
    let claims = oi.ratios("oi-bo");
    let claims = claims.iter().filter(|ratio| ratio.effect);
    let claims: Vec<&str> = claims.map(|ratio| ratio.metric).collect();
    assert_eq!(claims, ["cycles_per_byte.driver"]);
}

/// Checks values that were once missing or had a wrong source.
#[test]
fn values_have_the_right_source() {
    for (name, config, metric, value, source) in [
        ("hatori", "hatori-native", "lro_rate", 1.0, "table 2"),
        ("hatori", "hatori-guest1", "wire_sent", 386_000.0, "table 5"),
        ("hatori", "hatori-guest2", "wire_sent", 277_000.0, "table 5"),
        ("hatori", "hatori-guest3", "wire_sent", 149_000.0, "table 5"),
        ("hatori", "hatori-guest1", "segments", 742_000.0, "table 5"),
        ("hatori", "hatori-guest2", "segments", 374_000.0, "table 5"),
        ("hatori", "hatori-guest3", "segments", 151_000.0, "table 5"),
        ("hatori", "hatori-guest1", "acks", 354_000.0, "table 6"),
        ("oi", "oi-linux", "throughput", 0.7151, "table 1"),
        ("oi", "oi-xen", "throughput", 0.569, "table 1"),
        ("oi", "oi-xen", "lro_rate", 1.0, "table 1"),
        ("oi", "oi-lro", "throughput", 0.606, "table 1"),
        ("oi", "oi-lro", "lro_rate", 2.65, "table 1"),
        (
            "ram",
            "ram-xen",
            "cycles_per_packet.driver.grants",
            1623.0,
            "section 2.4.2",
        ),
    ] {
        let paper = Paper::find(name).unwrap();
        let mut values = paper.values(config, metric);
        let matches = |(known, stated): (f64, &Value)| known == value && stated.source == source;
        assert!(values.any(matches), "{config} {metric} {value}");
    }
    let menon = Paper::find("menon").unwrap();
    for (config, metric, ratio, wires) in [
        ("menon-domain0", "instructions_per_packet.total", 1.11, 3.0),
        ("menon-domain0", "dtlb_misses_per_second.total", 13.0, 3.0),
        ("menon-domain0", "itlb_misses_per_second.total", 17.0, 3.0),
        ("menon-guest0", "instructions_per_packet.total", 2.25, 1.0),
        ("menon-guest1", "instructions_per_packet.total", 2.52, 1.0),
        (
            "menon-guest0",
            "cache_misses_per_instruction.total",
            1.97,
            1.0,
        ),
        (
            "menon-guest1",
            "cache_misses_per_instruction.total",
            1.52,
            1.0,
        ),
        (
            "menon-guest0",
            "itlb_misses_per_instruction.total",
            0.31,
            1.0,
        ),
        (
            "menon-guest1",
            "itlb_misses_per_instruction.total",
            0.72,
            1.0,
        ),
        (
            "menon-guest0",
            "dtlb_misses_per_instruction.total",
            0.54,
            1.0,
        ),
        (
            "menon-guest1",
            "dtlb_misses_per_instruction.total",
            0.87,
            1.0,
        ),
        (
            "menon-send-guest0",
            "instructions_per_second.total",
            6.0,
            1.0,
        ),
    ] {
        let ratios = menon.ratios(config);
        let stands = |known: &PaperRatio<'_>| {
            (known.metric, known.ratio) == (metric, ratio) && known.at["wires"] == wires
        };
        assert!(ratios.iter().any(stands), "{config} {metric} {ratio}");
    }
    let peaks = menon.ratios("menon-domain0");
    let peak = peaks.iter().find(|ratio| ratio.metric == "peak_throughput");
    assert_eq!(peak.unwrap().ratio, 1.878 / 2.462);
    let tables = menon.item.iter().filter(|item| item.stated.is_some());
    assert_eq!(tables.count(), 8, "tables 1 to 8");
}

#[test]
fn points_of_a_curve_belong_to_its_items() {
    let menon = Paper::find("menon").unwrap();
    let of = |id: &str, keys: &[(&'static str, &'static str)]| {
        let item = menon.item.iter().find(|item| item.id == id).unwrap();
        item.has(&keys.iter().copied().collect())
    };
    let (wires, buffer) = (("wires", "4"), ("buffer", "1024"));
    assert!(of("figure 1", &[buffer]) && !of("figure 3", &[buffer]));
    assert!(of("figure 3", &[wires]) && of("figure 5", &[]) && !of("figure 5", &[buffer]));
    let offered = |rate| of("figure 7", &[("offered", rate)]);
    assert!(offered("1000") && offered("5000"));
    // Figure 8 has one rate and no stream.
    assert!(of("figure 8", &[("offered", "5000")]));
    assert!(!of("figure 8", &[("offered", "1000")]) && !of("figure 8", &[wires]));
}

#[test]
fn faults_are_described() {
    let text = TEXTS[1].1;
    for (from, to, message) in [
        (
            "name = \"sccp-lro\"",
            "name = \"lro\"",
            "does not begin with",
        ),
        (
            "to = [\"sccp-xen\"]",
            "to = [\"sccp-nex\"]",
            "no configuration `sccp-nex`",
        ),
        (
            "metrics = [\"throughput\"",
            "metric = [\"throughput\"",
            "unknown field",
        ),
        (
            "value = 0.58865",
            "ratio = 0.58865",
            "`value`, or `ratio` and `to`",
        ),
        (
            "id = \"table 2\"\n",
            "id = \"table 2\"\nstated = { unit = \"%\", columns = [\"A\", \"B\"], \
             rows = [[\"x\", [\"1\"]]] }\n",
            "table 2: `x`: a value for every column",
        ),
        (
            "configs = [\"sccp-xen\", ",
            "configs = [\"sccp\", ",
            "no configuration `sccp`",
        ),
        (
            "why = \"The copy that BO saves is a small share of all cycles.\"\n",
            "",
            "missing field `why`",
        ),
        (
            "small share of all cycles.\"",
            "small share\"",
            "`BO does not change throughput.`: `why` is no sentence",
        ),
    ] {
        let text = text.replacen(from, to, 1);
        let error = Paper::parse(&text).unwrap_err().to_string();
        assert!(error.contains(message), "{from}: {error}");
    }
}
