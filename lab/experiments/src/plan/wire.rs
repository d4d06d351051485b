//! The wire: what it is, and how fast.

use serde::Deserialize;

/// The wire's speed: gigabits of frames a second, by the NIC's token bucket, or `unbounded`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "String")]
pub struct Wire {
    /// As it is written.
    pub name: String,
    /// Megabits a second; none: as fast as it goes.
    pub mbps: Option<f64>,
}

impl Wire {
    /// A wire without a limit.
    #[must_use]
    pub fn unbounded() -> Self {
        Self {
            name: "unbounded".to_owned(),
            mbps: None,
        }
    }
}

impl TryFrom<String> for Wire {
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
                "wire `{name}`: gigabits a second, or \"unbounded\""
            )),
        }
    }
}

/// When the driver domain looks at what the wire brought, written `event`, `spin` or `tick` and
/// microseconds: `tick50`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub enum Moderation {
    /// When there is something.
    Event,
    /// All the time.
    Spin,
    /// At every tick of so many microseconds.
    Tick(u32),
}

impl Moderation {
    /// Its name as a key.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Event => "event".to_owned(),
            Self::Spin => "spin".to_owned(),
            Self::Tick(us) => format!("tick{us}"),
        }
    }
}

impl TryFrom<String> for Moderation {
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
                     so many microseconds"
                )),
            },
        }
    }
}

/// What becomes of TCP packets on the wire, in millionths of them. The wire's end then sends every
/// packet by itself, so that it is packets that are lost and not what segmentation undoes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Lost, either way.
    pub loss_ppm: u32,
    /// Overtaken by those behind them, on their way to the machine.
    pub reorder_ppm: u32,
}

impl Faults {
    /// Says what is wrong.
    pub(super) fn check(self) -> Result<(), &'static str> {
        match self.loss_ppm.max(self.reorder_ppm) {
            0..=500_000 => Ok(()),
            _ => Err("`loss_ppm` and `reorder_ppm` are at most 500000, half of all"),
        }
    }
}

/// What a machine's wire is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WireNic {
    /// A TAP.
    #[default]
    Tap,
    /// An AF_XDP socket on a veth pair.
    Xdp,
}
