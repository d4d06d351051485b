//! The wire: its device, speed, moderation and faults.

use serde::Deserialize;

/// Wire speed: gigabits of frames per second, limited by the NIC's token bucket, or `unbounded`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct WireSpeed {
    /// Name as written in the plan.
    pub name: String,
    /// Limit in megabits per second; `None`: no limit.
    pub mbps: Option<f64>,
}

impl WireSpeed {
    /// Returns a wire without a limit.
    #[must_use]
    pub fn unbounded() -> Self {
        Self {
            name: "unbounded".to_owned(),
            mbps: None,
        }
    }
}

impl TryFrom<String> for WireSpeed {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        if name == "unbounded" {
            return Ok(Self::unbounded());
        }
        match name.parse::<f64>() {
            Ok(gbps) if gbps > 0.0 && gbps < 1e3 => Ok(Self {
                name,
                mbps: Some(gbps * 1e3),
            }),
            _ => Err(format!(
                "wire `{name}`: must be a number of gigabits per second or \"unbounded\""
            )),
        }
    }
}

/// Work that a sender at one end of the wire leaves to the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireOffload {
    /// None: frames have at most the size of the MTU, and on a TAP they have checksums. A veth pair
    /// always leaves checksums to its other end.
    #[default]
    None,
    /// Checksums of MTU-sized frames.
    Checksum,
    /// Checksums and segmentation: frames are TCP segments of up to 64 KB.
    Segments,
}

/// Schedule by which the driver domain polls the wire: `event`, `spin`, or `tick` and microseconds,
/// such as `tick50`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub enum PollMode {
    /// On each arrival of packets.
    Event,
    /// Continuously.
    Spin,
    /// Every N microseconds.
    Tick(u32),
}

impl PollMode {
    /// Returns the value of the moderation key.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Event => "event".to_owned(),
            Self::Spin => "spin".to_owned(),
            Self::Tick(us) => format!("tick{us}"),
        }
    }
}

impl TryFrom<String> for PollMode {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let tick = || name.strip_prefix("tick")?.parse().ok();
        match name.as_str() {
            "event" => Ok(Self::Event),
            "spin" => Ok(Self::Spin),
            _ => match tick() {
                Some(us @ 1..=10_000) => Ok(Self::Tick(us)),
                _ => Err(format!(
                    "moderation `{name}`: \"event\", \"spin\", or \"tick1\" to \"tick10000\" for \
                     N microseconds"
                )),
            },
        }
    }
}

/// Loss and reordering of TCP packets on the wire, in parts per million. With faults, the wire's
/// end sends each packet separately, so that they affect packets and not aggregates that are
/// segmented later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WireFaults {
    /// Packets lost in each direction.
    pub loss_ppm: u32,
    /// Packets to the machine that later packets overtake.
    pub reorder_ppm: u32,
}

impl WireFaults {
    /// Validates the rates.
    pub(super) fn check(self) -> Result<(), &'static str> {
        match self.loss_ppm.max(self.reorder_ppm) {
            0..=500_000 => Ok(()),
            _ => Err("`loss_ppm` and `reorder_ppm` are at most 500000, half of all"),
        }
    }
}

/// Device of a machine's wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireNic {
    /// A TAP.
    #[default]
    Tap,
    /// An AF_XDP socket on a veth pair.
    Xdp,
    /// Descriptor rings of a device domain, which copies frames from and to a TAP like hardware.
    Soft,
}
