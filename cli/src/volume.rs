//! Frame and byte counts.

use serde_json::Value;

/// A number of frames and their total bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Volume {
    pub(crate) frames: u64,
    pub(crate) bytes: u64,
}

impl Volume {
    /// Reads a domain's counters of a port's traffic in one direction: `in` or `out`. Invalid
    /// numbers count as zero.
    pub(crate) fn of(traffic: &Value, way: &str) -> Self {
        let count = |what| traffic[format!("{way}_{what}")].as_u64().unwrap_or(0);
        Self {
            frames: count("packets"),
            bytes: count("bytes"),
        }
    }

    /// Returns the sum of both counts.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            frames: self.frames.saturating_add(other.frames),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    /// Returns the difference to `before`. Negative differences become zero.
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            frames: self.frames.saturating_sub(before.frames),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn invalid_counts_are_zero_and_sums_saturate() {
        let traffic = json!({ "in_packets": u64::MAX, "in_bytes": 7, "out_packets": -1 });
        let received = Volume::of(&traffic, "in");
        assert_eq!((received.frames, received.bytes), (u64::MAX, 7));
        assert_eq!(Volume::of(&traffic, "out"), Volume::default());
        assert_eq!(Volume::of(&json!([1]), "in"), Volume::default());
        let twice = received.plus(received);
        assert_eq!((twice.frames, twice.bytes), (u64::MAX, 14));
        assert_eq!(received.since(twice).bytes, 0);
        assert_eq!(twice.since(received).bytes, 7);
    }
}
