//! Names of metrics: their units, and which side is the better one.

use crate::stats::Side;

/// Payload of a full segment with timestamps in a 1514-byte frame: 1500 bytes of IP less 20 of
/// IPv4, 20 of TCP and 12 of timestamps. The denominator of `cycles_per_packet` for streams.
pub const SEGMENT_BYTES: f64 = 1448.0;

/// The unit of a metric.
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
        "throughput" => "Gb/s",
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
        "hypercalls_per_packet" | "notifications_per_packet" => "hypercalls/packet",
        "grant_operations_per_packet" => "operations/packet",
        "lro_rate" => "segments/aggregate",
        "outage_ms" | "up_ms" | "up_all_ms" => "ms",
        "attach_ms" | "detach_ms" | "link_gone_ms" => "ms",
        "neighbour_p50_us" | "neighbour_p999_us" => "us",
        "neighbour_lost" => "datagrams",
        "drops" => "packets",
        "acks" | "sacks" | "segments" => "packets/GB",
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
        | "ack_share" => "share",
        "cycles" | "ran_in" | "on_behalf_of" => "cycles",
        "samples" => "samples",
        "cost_ns" => "ns",
        "rate" => "1/s",
        "bytes_per_receive" => "bytes",
        _ => "",
    }
}

/// The side of 1 on which a ratio of this metric is the better one.
#[must_use]
pub fn better(metric: &str) -> Side {
    match metric.split('.').next().unwrap_or_default() {
        "throughput"
        | "packets"
        | "transactions"
        | "replies"
        | "peak_replies"
        | "lro_rate"
        | "pages_reused"
        | "packets_per_page_used"
        | "hit_rate" => Side::Above,
        _ => Side::Below,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_sides() {
        assert_eq!(unit("throughput"), "Gb/s");
        assert_eq!(unit("cycles_per_packet.driver.hop.copy"), "cycles/packet");
        assert_eq!(unit("ratio.forwarder.throughput"), "");
        assert_eq!(
            unit("difference.shared-64.cycles_per_packet.driver"),
            "cycles/packet"
        );
        assert_eq!(unit("closure.driver"), "");
        assert_eq!(better("throughput"), Side::Above);
        assert_eq!(unit("packets_per_page_used"), "packets/page");
        assert_eq!(better("packets_per_page_used"), Side::Above);
        assert_eq!(better("latency_us.p50"), Side::Below);
        assert_eq!(better("cycles_per_byte.total"), Side::Below);
    }
}
