//! Units and descriptions of metrics by name, and the side of 1 on which a ratio is better.

use crate::stats::ThresholdSide;

/// Payload of a full TCP segment with timestamps in a 1514-byte frame: a 1500-byte IP packet
/// without the IPv4 header (20), the TCP header (20) and the timestamps (12). This is the
/// denominator of `cycles_per_packet` for streams.
pub const SEGMENT_BYTES: f64 = 1448.0;

/// Returns the unit of a metric.
#[must_use]
pub fn unit(metric: &str) -> &'static str {
    if let Some(of) = metric.strip_prefix("difference.") {
        return of.split_once('.').map_or("", |(_, metric)| unit(metric));
    }
    if let Some(of) = metric.strip_prefix("paper.") {
        return unit(of);
    }
    let last = metric
        .strip_prefix("ratio.")
        .map_or(metric, |_| "ratio")
        .split('.')
        .next()
        .unwrap_or_default();
    match last {
        "throughput" | "peak_throughput" => "Gb/s",
        "packets" => "Mpps",
        "in_flight" => "frames",
        "transactions" | "replies" | "peak_replies" => "1/s",
        "connection_ms" => "ms",
        "cycles_per_ack" => "cycles/ACK",
        "cycles_per_request" => "cycles/request",
        "latency_us" | "flush_latency_us" => "us",
        "cycles_per_byte" => "cycles/byte",
        "cycles_per_packet" => "cycles/packet",
        "instructions_per_packet" => "instructions/packet",
        "instructions_per_request" => "instructions/request",
        "cache_misses_per_packet" | "dtlb_misses_per_packet" | "itlb_misses_per_packet" => {
            "misses/packet"
        }
        "cache_misses_per_request" | "dtlb_misses_per_request" | "itlb_misses_per_request" => {
            "misses/request"
        }
        "instructions_per_second" => "instructions/s",
        "cache_misses_per_second" | "dtlb_misses_per_second" | "itlb_misses_per_second" => {
            "misses/s"
        }
        "cache_misses_per_instruction"
        | "dtlb_misses_per_instruction"
        | "itlb_misses_per_instruction" => "misses/instruction",
        "hypercalls_per_packet" | "notifications_per_packet" => "hypercalls/packet",
        "grant_operations_per_packet" => "operations/packet",
        "lro_rate" => "segments/aggregate",
        "interrupts" => "interrupts/s",
        "outage_ms" | "up_ms" | "up_all_ms" | "queue_ms" => "ms",
        "attach_ms" | "detach_ms" | "link_gone_ms" => "ms",
        "neighbour_p50_us" | "neighbour_p999_us" => "us",
        "neighbour_lost" => "datagrams",
        "drops" => "packets",
        "acks" | "sacks" | "segments" | "wire_received" | "wire_sent" => "packets/GB",
        "segments_per_ack" => "segments/ACK",
        "regret" => "sum of shares",
        "dominated" => "policies",
        "grants" => "pages",
        "pages_reused" | "packets_per_page_used" => "packets/page",
        "granted_anew" => "pages/packet",
        "file_copied" => "frames",
        "system_calls" => "calls",
        "steal" | "share" | "difference" | "overhead" | "loss" | "corrected_share"
        | "sack_share" | "unanswered" | "hit_rate" | "events_counted" | "flush_within_us"
        | "ack_share" | "limit_share" => "share",
        "cycles" | "ran_in" | "on_behalf_of" => "cycles",
        "samples" => "samples",
        "cost_ns" => "ns",
        "rate" => "1/s",
        "shim_rss_mb" => "MB",
        "idle_cpu" => "share",
        "bytes_per_receive" | "frame_bytes" => "bytes",
        _ => "",
    }
}

/// Returns a description of a metric with its unit and denominator, such as `ACKs per GB of
/// payload`.
#[must_use]
pub fn words(metric: &str) -> String {
    let (stem, part) = metric.split_once('.').unwrap_or((metric, ""));
    let per_unit = stem.split_once("_per_").and_then(|(what, by)| {
        let what = match what {
            "cycles" | "instructions" => what,
            "cache_misses" => "last-level cache misses",
            "dtlb_misses" => "data-TLB misses",
            "itlb_misses" => "instruction-TLB misses",
            _ => return None,
        };
        let by = match by {
            "packet" => "packet of 1514 bytes",
            "byte" => "byte of payload",
            "ack" => "additional ACK",
            other => other,
        };
        Some(format!("{what} per {by}"))
    });
    let whole = match stem {
        "throughput" => "throughput, Gb/s of payload",
        "peak_throughput" => "peak throughput with any number of NICs, Gb/s of payload",
        "packets" => "million packets per second",
        "transactions" => "requests per second",
        "replies" => "replies per second",
        "peak_replies" => "peak replies per second",
        "unanswered" => "unanswered share of the connections",
        "lro_rate" => "LRO rate, packets received per packet delivered",
        "interrupts" => "interrupts of NICs' devices per second",
        "flush_latency_us" => "wait of an aggregate's first packet, microseconds",
        "flush_within_us" => "share of aggregates whose first packet waits at most N µs",
        "wire_received" => "packets received from the wire per GB of payload",
        "wire_sent" => "packets sent to the wire per GB of payload",
        "segments" => "packets delivered to TCP per GB of payload",
        "acks" => "ACKs per GB of payload",
        "sacks" => "selective ACKs per GB of payload",
        "segments_per_ack" => "packets delivered to TCP per ACK",
        "sack_share" => "selective ACKs, share of all ACKs",
        "pages_reused" => "packets received per granted page",
        "packets_per_page_used" => "packets per page used",
        "granted_anew" => "pages granted anew per packet of 1514 bytes",
        "hit_rate" => "share of uses whose page was already granted",
        _ => "",
    };
    let words = match per_unit {
        Some(words) => words,
        None if whole.is_empty() => return metric.to_owned(),
        None => whole.to_owned(),
    };
    let part = match part {
        "" => return words,
        "*" => "by part".to_owned(),
        "total" => "all".to_owned(),
        "p50" => "median".to_owned(),
        "p99" => "99th percentile".to_owned(),
        part => {
            // The name may end in a class, as in `driver.class.copy`. Without a class it means all
            // classes.
            let part = part.strip_suffix(".*").unwrap_or(part);
            let (domain, rest) = part.split_once('.').unwrap_or((part, ""));
            let named = |word: &str| match word {
                "driver" => "driver domain".to_owned(),
                "grants" => "grant mechanism".to_owned(),
                "class" => "by class".to_owned(),
                word => word.replace("class.", "class ").replace("hop.", "hop "),
            };
            let both = [domain, rest].into_iter().filter(|word| !word.is_empty());
            both.map(named).collect::<Vec<_>>().join(", ")
        }
    };
    format!("{words}: {part}")
}

/// Returns the side of 1 on which a ratio of this metric shows an improvement.
#[must_use]
pub fn better(metric: &str) -> ThresholdSide {
    match metric.split('.').next().unwrap_or_default() {
        "throughput"
        | "peak_throughput"
        | "packets"
        | "transactions"
        | "replies"
        | "peak_replies"
        | "lro_rate"
        | "pages_reused"
        | "packets_per_page_used"
        | "hit_rate" => ThresholdSide::Above,
        _ => ThresholdSide::Below,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_in_words_name_their_denominator() {
        for (metric, said) in [
            ("acks", "ACKs per GB of payload"),
            ("throughput", "throughput, Gb/s of payload"),
            ("cycles_per_byte.total", "cycles per byte of payload: all"),
            (
                "cycles_per_packet.driver.class.copy",
                "cycles per packet of 1514 bytes: driver domain, class copy",
            ),
            (
                "dtlb_misses_per_instruction.total",
                "data-TLB misses per instruction: all",
            ),
            (
                "flush_latency_us.p99",
                "wait of an aggregate's first packet, microseconds: 99th percentile",
            ),
            ("cycles_per_request.guest", "cycles per request: guest"),
            ("cycles_per_request.*", "cycles per request: by part"),
            (
                "cycles_per_packet.driver.class.*",
                "cycles per packet of 1514 bytes: driver domain, by class",
            ),
            (
                "cycles_per_packet.driver.grants",
                "cycles per packet of 1514 bytes: driver domain, grant mechanism",
            ),
            ("unknown.x", "unknown.x"),
        ] {
            assert_eq!(words(metric), said);
        }
    }

    #[test]
    fn metrics_have_units_and_better_sides() {
        assert_eq!(unit("throughput"), "Gb/s");
        assert_eq!(unit("cycles_per_packet.driver.hop.copy"), "cycles/packet");
        assert_eq!(unit("ratio.forwarder.throughput"), "");
        assert_eq!(
            unit("difference.shared-64.cycles_per_packet.driver"),
            "cycles/packet"
        );
        assert_eq!(unit("closure.driver"), "");
        assert_eq!(better("throughput"), ThresholdSide::Above);
        assert_eq!(unit("packets_per_page_used"), "packets/page");
        assert_eq!(better("packets_per_page_used"), ThresholdSide::Above);
        assert_eq!(better("latency_us.p50"), ThresholdSide::Below);
        assert_eq!(better("cycles_per_byte.total"), ThresholdSide::Below);
    }
}
