//! The dashboard of `contrib/grafana`. Grafana shows a wrong panel as an empty panel or omits it,
//! so the tests check the dashboard against
//!
//! - the documented model ("Dashboard JSON model", version 36 and later): every key is known and
//!   has the right type, every enumerated value is valid;
//! - rules that no schema expresses: panels do not overlap, ids are unique, the dashboard or
//!   Grafana defines every variable;
//! - Prometheus: it parses all queries (`promtool`);
//! - the metrics of a machine: each metric in a query exists, with the labels and label values that
//!   the query uses.

use crate::metrics::contrib;
use crate::test_dir::{SIM, TestDir, wait};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use testing::{promtool, require};

/// Columns of Grafana's grid.
const COLUMNS: u64 = 24;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Dashboard {
    title: String,
    uid: String,
    tags: BTreeSet<String>,
    schema_version: u64,
    version: u64,
    #[serde(rename = "editable")]
    _editable: bool,
    refresh: String,
    #[serde(rename = "time")]
    _time: TimeRange,
    timezone: Timezone,
    graph_tooltip: u64,
    templating: Templating,
    annotations: Annotations,
    panels: Vec<Panel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TimeRange {
    #[serde(rename = "from")]
    _from: String,
    #[serde(rename = "to")]
    _to: String,
}

#[derive(Deserialize, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Timezone {
    Browser,
    Utc,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Templating {
    list: Vec<Variable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Annotations {
    list: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(
    deny_unknown_fields,
    tag = "type",
    rename_all = "lowercase",
    rename_all_fields = "camelCase"
)]
enum Variable {
    Datasource {
        name: String,
        /// The kind of data source.
        query: String,
        label: String,
        hide: u64,
    },
    Query {
        name: String,
        label: String,
        datasource: DataSource,
        query: VariableQuery,
        refresh: u64,
        #[serde(rename = "includeAll")]
        _include_all: bool,
        #[serde(rename = "multi")]
        _multi: bool,
        hide: u64,
        sort: u64,
    },
}

impl Variable {
    fn name(&self) -> &str {
        match self {
            Self::Datasource { name, .. } | Self::Query { name, .. } => name,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct VariableQuery {
    query: String,
    ref_id: String,
}

#[derive(Deserialize, PartialEq, Eq, Debug)]
#[serde(deny_unknown_fields)]
struct DataSource {
    #[serde(rename = "type")]
    kind: String,
    uid: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Panel {
    id: u64,
    #[serde(rename = "type")]
    _kind: PanelKind,
    title: String,
    description: Option<String>,
    datasource: DataSource,
    grid_pos: GridPos,
    #[serde(rename = "fieldConfig")]
    _field_config: FieldConfig,
    #[serde(default, rename = "options")]
    _options: PanelOptions,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum PanelKind {
    Stat,
    Timeseries,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GridPos {
    x: u64,
    y: u64,
    w: u64,
    h: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldConfig {
    #[serde(rename = "defaults")]
    _defaults: FieldDefaults,
    #[serde(rename = "overrides")]
    _overrides: Vec<Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldDefaults {
    #[serde(rename = "unit")]
    _unit: Unit,
}

/// Units of Grafana that the dashboard uses.
#[derive(Deserialize)]
enum Unit {
    #[serde(rename = "none")]
    Number,
    #[serde(rename = "Bps")]
    BytesPerSecond,
    #[serde(rename = "pps")]
    PacketsPerSecond,
    #[serde(rename = "ops")]
    OperationsPerSecond,
    #[serde(rename = "percentunit")]
    Share,
    #[serde(rename = "s")]
    Seconds,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct PanelOptions {
    #[serde(rename = "legend")]
    _legend: Option<Legend>,
    #[serde(rename = "tooltip")]
    _tooltip: Option<Tooltip>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Legend {
    #[serde(rename = "displayMode")]
    _display_mode: LegendMode,
    #[serde(rename = "placement")]
    _placement: Placement,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum LegendMode {
    List,
    Table,
    Hidden,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Placement {
    Bottom,
    Right,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tooltip {
    #[serde(rename = "mode")]
    _mode: TooltipMode,
    #[serde(default, rename = "sort")]
    _sort: TooltipSort,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum TooltipMode {
    Single,
    Multi,
    None,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "lowercase")]
enum TooltipSort {
    #[default]
    None,
    Asc,
    Desc,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Target {
    ref_id: String,
    datasource: DataSource,
    expr: String,
    legend_format: String,
}

fn dashboard() -> Dashboard {
    let text = fs::read_to_string(contrib("grafana/grantway.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn targets(dashboard: &Dashboard) -> Vec<&Target> {
    let targets: Vec<&Target> = dashboard.panels.iter().flat_map(|p| &p.targets).collect();
    assert!(targets.len() > 15);
    targets
}

/// Returns the words of a text that may be names of metrics, labels or variables.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(move |c| !is_part(c)).filter(|w| !w.is_empty())
}

#[test]
fn the_dashboard_is_valid() {
    let dashboard = dashboard();
    assert!((1..=80).contains(&dashboard.title.len()));
    assert!((1..=40).contains(&dashboard.uid.len()));
    assert!(!dashboard.tags.is_empty() && dashboard.version > 0);
    // Version 36 is the first one with panels of this form.
    assert!(dashboard.schema_version >= 36);
    assert!(dashboard.graph_tooltip <= 2);
    assert_eq!(dashboard.timezone, Timezone::Browser);
    assert!(dashboard.annotations.list.is_empty());
    let refresh = dashboard.refresh.strip_suffix('s');
    assert!(refresh.is_some_and(|n| n.parse::<u32>().is_ok()));
    let source = DataSource {
        kind: "prometheus".to_owned(),
        uid: "${datasource}".to_owned(),
    };
    for variable in &dashboard.templating.list {
        match variable {
            Variable::Datasource {
                name,
                query,
                label,
                hide,
            } => {
                assert_eq!(
                    (name.as_str(), query.as_str()),
                    ("datasource", "prometheus")
                );
                assert!(!label.is_empty() && *hide <= 2);
            }
            Variable::Query {
                datasource,
                query,
                label,
                refresh,
                hide,
                sort,
                ..
            } => {
                assert_eq!(*datasource, source);
                assert!(query.query.starts_with("label_values("), "{}", query.query);
                assert!(!query.ref_id.is_empty() && !label.is_empty());
                assert!(*refresh <= 2 && *hide <= 2 && *sort <= 8);
            }
        }
    }
    let variables = dashboard.templating.list.iter().map(Variable::name);
    let variables: BTreeSet<&str> = variables.chain(["__rate_interval", "__range"]).collect();
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in &dashboard.panels {
        let (id, title, GridPos { x, y, w, h }) = (panel.id, &panel.title, &panel.grid_pos);
        assert!(ids.insert(id), "two panels {id}");
        assert!(!title.is_empty() && panel.description.as_deref() != Some(""));
        assert!(*w > 0 && *h > 0 && x + w <= COLUMNS, "{title}");
        for place in (*x..x + w).flat_map(|x| (*y..y + h).map(move |y| (x, y))) {
            assert!(taken.insert(place), "{title}: another panel at {place:?}");
        }
        assert_eq!(panel.datasource, source, "{title}");
        let mut refs = BTreeSet::new();
        for target in &panel.targets {
            assert!(refs.insert(&target.ref_id), "{title}: {}", target.ref_id);
            assert_eq!(target.datasource, source, "{title}");
            for used in target.expr.split('$').skip(1) {
                let name = words(used).next().unwrap_or_default();
                assert!(variables.contains(name), "{title}: ${name}");
            }
        }
        assert!(!refs.is_empty(), "{title}");
    }
}

#[test]
fn prometheus_parses_the_queries() {
    require!(tool("promtool"));
    let place = TestDir::new();
    let dashboard = dashboard();
    let rule = |(n, target): (usize, &Target)| {
        let query = target.expr.replace("$__rate_interval", "5m");
        let query = query.replace("$__range", "1h");
        let query = serde_json::to_string(&query).unwrap();
        format!("  - record: query:{n}\n    expr: {query}\n")
    };
    let targets = targets(&dashboard).into_iter().enumerate();
    let rules: String = targets.map(rule).collect();
    let file = place.file("q.yml", &format!("groups:\n- name: q\n  rules:\n{rules}"));
    promtool(&["check", "rules", &file], "");
}

/// Labels that Prometheus adds to scraped metrics.
const OF_PROMETHEUS: [&str; 2] = ["instance", "job"];

/// A selector in a query: the metric's name, and for each label the required value, if any.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Selector {
    name: String,
    labels: BTreeMap<String, Option<String>>,
}

/// Returns the selectors in a query. Their labels include those by which the query sums.
fn selectors(query: &str) -> Vec<Selector> {
    let by = query.split("by (").skip(1);
    let by = by.flat_map(|rest| words(rest.split(')').next().unwrap_or_default()));
    let by: BTreeSet<&str> = by.collect();
    let mut found = Vec::new();
    for (at, _) in query.match_indices("grantway_") {
        let name = words(&query[at..]).next().unwrap();
        let braces = query[at + name.len()..].strip_prefix('{');
        let matchers = braces.and_then(|rest| rest.split('}').next());
        let mut labels: BTreeMap<_, _> = by.iter().map(|by| ((*by).to_owned(), None)).collect();
        for matcher in matchers.unwrap_or_default().split(',') {
            let Some(label) = words(matcher).next() else {
                continue;
            };
            let value = matcher[label.len()..].strip_prefix("=\"");
            let value = value.map(|value| value.trim_end_matches('"').to_owned());
            labels.insert(label.to_owned(), value);
        }
        let name = name.to_owned();
        found.push(Selector { name, labels });
    }
    found
}

/// Returns whether a selector matches the line of a sample.
fn is_selected(line: &str, selector: &Selector) -> bool {
    let name = words(line).next();
    let labels = line
        .split_once('{')
        .and_then(|(_, rest)| rest.rsplit_once('}'));
    let labels = labels.map_or("", |(labels, _)| labels);
    let has = |(label, value): (&String, &Option<String>)| {
        let value = value.as_ref().map(|value| format!("{value}\""));
        let text = format!("{label}=\"{}", value.unwrap_or_default());
        let starts = labels.match_indices(&text).map(|(at, _)| at);
        let mut before = starts.map(|at| labels[..at].chars().last());
        OF_PROMETHEUS.contains(&label.as_str()) || before.any(|c| matches!(c, None | Some(',')))
    };
    name == Some(&selector.name) && selector.labels.iter().all(has)
}

#[test]
fn selectors_are_found_in_queries_and_samples() {
    let query = "sum by (le, domain) (rate(grantway_a_bucket{instance=~\"$i\",way=\"in\"}[5m])) \
                 / grantway_b > 0";
    let [first, second] = selectors(query).try_into().unwrap();
    let label = |name: &str, value: Option<&str>| (name.to_owned(), value.map(str::to_owned));
    let by = [label("le", None), label("domain", None)];
    let own = [label("instance", None), label("way", Some("in"))];
    assert_eq!(first.name, "grantway_a_bucket");
    assert_eq!(first.labels, by.clone().into_iter().chain(own).collect());
    assert_eq!(
        (second.name.as_str(), second.labels),
        ("grantway_b", by.into())
    );
    for (line, is) in [
        (
            "grantway_a_bucket{domain=\"d\",way=\"in\",le=\"1\"} 3",
            true,
        ),
        (
            "grantway_a_bucket{domain=\"d\",way=\"out\",le=\"1\"} 3",
            false,
        ),
        (
            "grantway_a_bucket{domain=\"d\",away=\"in\",le=\"1\"} 3",
            false,
        ),
        ("grantway_a_bucket{way=\"in\",le=\"1\"} 3", false),
        ("grantway_a{domain=\"d\",way=\"in\",le=\"1\"} 3", false),
    ] {
        assert_eq!(is_selected(line, &first), is, "{line}");
    }
}

#[test]
fn queries_select_existing_metrics() {
    let place = TestDir::with_machine();
    // Large receive offload and a restart make all metrics exist.
    let file = place.file("m.toml", &format!("lro.at = \"both\"\n{SIM}"));
    let up = place.run(&["up", &file, "--detach"]);
    assert!(up.ok(), "{up:?}\n{}", place.read("run/grantway.log"));
    let restart = place.run(&["restart", "web"]);
    assert!(restart.ok(), "{restart:?}");
    let dashboard = dashboard();
    let mut missing: Vec<Selector> = Vec::new();
    for target in targets(&dashboard) {
        let mut found = selectors(&target.expr);
        assert!(!found.is_empty(), "{}", target.expr);
        // The legend contains the labels that name a series.
        for shown in target.legend_format.split("{{").skip(1) {
            let label = shown.split("}}").next().unwrap().to_owned();
            for selector in &mut found {
                selector.labels.entry(label.clone()).or_default();
            }
        }
        missing.append(&mut found);
    }
    for variable in &dashboard.templating.list {
        if let Variable::Query { query, .. } = variable {
            missing.append(&mut selectors(&query.query));
        }
    }
    // No stream runs, so no segments wait for others, and this metric is absent.
    missing.retain(|selector| selector.name != "grantway_lro_wait_seconds_bucket");
    // A domain's counters may be missing while the domain answers slowly.
    wait(|| {
        let metrics = place.run(&["metrics"]);
        assert!(metrics.ok(), "{metrics:?}");
        missing.retain(|selector| !metrics.out.lines().any(|line| is_selected(line, selector)));
        println!("missing metrics: {missing:?}");
        missing.is_empty().then_some(())
    });
    assert!(place.run(&["down"]).ok());
}
