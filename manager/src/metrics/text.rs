//! The two text formats that collectors read.
//!
//! The formats differ in the names of counters, in units, and in the last line. Both use only types
//! that the older format has: counters, gauges and histograms. node_exporter and `promtool check
//! metrics` read the older format; `prometheus-client`, the Prometheus project's crate, writes only
//! the newer one.

use std::fmt::{self, Write as _};

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4, which node_exporter's textfile collector reads.
    Text,
}

impl MetricFormat {
    /// Returns the HTTP content type.
    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// A family of metrics. The name ends with the unit, if the family has one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetricFamily {
    /// `counter`, `gauge` or `histogram`.
    pub(crate) kind: &'static str,
    /// The name, without the suffix `_total` of a counter.
    pub(crate) name: &'static str,
    pub(crate) unit: Option<&'static str>,
    /// The help text, without quotes and line breaks.
    pub(crate) help: &'static str,
}

/// A sample: its labels (names and values), its value, and its part of the family.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MetricSample(
    pub(crate) Vec<(&'static str, String)>,
    pub(crate) String,
    pub(crate) SamplePart,
);

impl MetricSample {
    /// Returns the sample with its role in the family changed to `part`.
    pub(super) fn of(self, part: SamplePart) -> Self {
        Self(self.0, self.1, part)
    }
}

/// The role of a sample in its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SamplePart {
    /// The value of a counter or a gauge.
    Whole,
    /// A bucket of a histogram. The last label is the bound, [`LE`].
    Bucket,
    /// The sum of a histogram's values.
    Sum,
    /// The number of a histogram's values.
    Count,
}

/// The label of a bucket's bound.
pub(crate) const LE: &str = "le";

/// A writer of the text.
#[derive(Debug)]
pub(crate) struct MetricText {
    format: MetricFormat,
    text: String,
}

impl MetricText {
    pub(crate) fn new(format: MetricFormat) -> Self {
        let text = String::new();
        Self { format, text }
    }

    /// Writes a family and its samples.
    pub(crate) fn family(&mut self, family: &MetricFamily, samples: &[MetricSample]) {
        self.head(family);
        for sample in samples {
            let suffix = match (sample.2, family.kind) {
                (SamplePart::Whole, "counter") => "_total",
                (SamplePart::Whole, _) => "",
                (SamplePart::Bucket, _) => "_bucket",
                (SamplePart::Sum, _) => "_sum",
                (SamplePart::Count, _) => "_count",
            };
            self.sample(family.name, suffix, sample);
        }
    }

    fn head(&mut self, family: &MetricFamily) {
        let MetricFamily {
            kind,
            name,
            unit,
            help,
        } = family;
        let suffix = match (self.format, kind) {
            (MetricFormat::Text, &"counter") => "_total",
            _ => "",
        };
        self.line(format_args!("# HELP {name}{suffix} {help}"));
        self.line(format_args!("# TYPE {name}{suffix} {kind}"));
        if let (MetricFormat::OpenMetrics, Some(unit)) = (self.format, unit) {
            self.line(format_args!("# UNIT {name} {unit}"));
        }
    }

    fn sample(&mut self, name: &str, suffix: &str, MetricSample(labels, value, _): &MetricSample) {
        self.text.push_str(name);
        self.text.push_str(suffix);
        for (at, (label, value)) in labels.iter().enumerate() {
            self.text.push(if at == 0 { '{' } else { ',' });
            self.text.push_str(label);
            self.text.push_str("=\"");
            self.text.extend(value.chars().flat_map(escaped));
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        self.line(format_args!(" {value}"));
    }

    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.text, "{line}");
    }

    /// Returns the whole text.
    pub(crate) fn finish(mut self) -> String {
        if self.format == MetricFormat::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// Escapes a character for the value of a label.
fn escaped(c: char) -> impl Iterator<Item = char> {
    let (escape, c) = match c {
        '\n' => (Some('\\'), 'n'),
        '"' | '\\' => (Some('\\'), c),
        c => (None, c),
    };
    escape.into_iter().chain([c])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(format: MetricFormat) -> String {
        let mut text = MetricText::new(format);
        let family = |kind, name, unit, help| MetricFamily {
            kind,
            name,
            unit,
            help,
        };
        let label = |name, value: &str| (name, value.to_owned());
        let bytes = vec![label("domain", "a\"b\\c\nd"), label("port", "p")];
        text.family(
            &family("counter", "x_bytes", Some("bytes"), "Bytes."),
            &[MetricSample(bytes, "7".to_owned(), SamplePart::Whole)],
        );
        text.family(
            &family("gauge", "x_up", None, "Up."),
            &[MetricSample(
                Vec::new(),
                "0.5".to_owned(),
                SamplePart::Whole,
            )],
        );
        let bucket = |le, count: u64| {
            let labels = vec![label("domain", "d"), label("le", le)];
            MetricSample(labels, count.to_string(), SamplePart::Bucket)
        };
        text.family(
            &family("histogram", "x_wait_seconds", Some("seconds"), "Waits."),
            &[
                bucket("0.1", 2),
                bucket("+Inf", 5),
                // A whole number of seconds is written without a decimal point.
                MetricSample(vec![label("domain", "d")], "2".to_owned(), SamplePart::Sum),
                MetricSample(
                    vec![label("domain", "d")],
                    "5".to_owned(),
                    SamplePart::Count,
                ),
            ],
        );
        text.finish()
    }

    #[test]
    fn open_metrics_has_units_and_an_end_line() {
        let expected = r#"# HELP x_bytes Bytes.
# TYPE x_bytes counter
# UNIT x_bytes bytes
x_bytes_total{domain="a\"b\\c\nd",port="p"} 7
# HELP x_up Up.
# TYPE x_up gauge
x_up 0.5
# HELP x_wait_seconds Waits.
# TYPE x_wait_seconds histogram
# UNIT x_wait_seconds seconds
x_wait_seconds_bucket{domain="d",le="0.1"} 2
x_wait_seconds_bucket{domain="d",le="+Inf"} 5
x_wait_seconds_sum{domain="d"} 2
x_wait_seconds_count{domain="d"} 5
# EOF
"#;
        assert_eq!(text(MetricFormat::OpenMetrics), expected);
    }

    #[test]
    fn the_older_format_has_no_units() {
        let expected = r#"# HELP x_bytes_total Bytes.
# TYPE x_bytes_total counter
x_bytes_total{domain="a\"b\\c\nd",port="p"} 7
# HELP x_up Up.
# TYPE x_up gauge
x_up 0.5
# HELP x_wait_seconds Waits.
# TYPE x_wait_seconds histogram
x_wait_seconds_bucket{domain="d",le="0.1"} 2
x_wait_seconds_bucket{domain="d",le="+Inf"} 5
x_wait_seconds_sum{domain="d"} 2
x_wait_seconds_count{domain="d"} 5
"#;
        assert_eq!(text(MetricFormat::Text), expected);
    }
}
