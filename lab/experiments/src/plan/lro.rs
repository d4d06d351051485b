//! The point in the space of LRO's switches that a column is measured at.

use serde::Deserialize;

/// A point in the space of LRO's switches, written as the columns are named: `none`, or
/// `<physical|virtual|both>-<skb|page>-<linearize|scatter>-<flush>`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Lro {
    /// None.
    None,
    /// Somewhere.
    At {
        /// `physical`, `virtual` or `both`.
        at: String,
        /// `skb` or `page`.
        buffers: String,
        /// `linearize` or `scatter`.
        backend: String,
        /// `poll`, `da2`, `t20`, `t50`, `adaptive`.
        flush: String,
    },
}

impl Lro {
    /// The switches that lead here, as `grantway set` has them.
    #[must_use]
    pub fn switches(&self) -> Vec<(&'static str, &str)> {
        match self {
            Self::None => vec![("lro.at", "none")],
            Self::At {
                at,
                buffers,
                backend,
                flush,
            } => vec![
                ("lro.buffers", buffers),
                ("lro.backend", backend),
                ("lro.flush", flush),
                ("lro.at", at),
            ],
        }
    }
}

/// Which packets are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LroRules {
    /// What segmentation gives back byte for byte; PSH ends an aggregate.
    #[default]
    Gro,
    /// As the papers' engine did, `inet_lro`; PSH is merged like the rest.
    InetLro,
}

impl LroRules {
    /// The switches that lead here.
    #[must_use]
    pub fn switches(self) -> [(&'static str, &'static str); 2] {
        match self {
            Self::Gro => [("lro.rules", "gro"), ("lro.psh", "flush")],
            Self::InetLro => [("lro.rules", "lro"), ("lro.psh", "merge")],
        }
    }
}

impl TryFrom<String> for Lro {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let words: Vec<&str> = name.split('-').collect();
        match *words.as_slice() {
            ["none"] => Ok(Self::None),
            [
                at @ ("physical" | "virtual" | "both"),
                buffers @ ("skb" | "page"),
                backend @ ("linearize" | "scatter"),
                flush,
            ] => Ok(Self::At {
                at: at.to_owned(),
                buffers: buffers.to_owned(),
                backend: backend.to_owned(),
                flush: flush.to_owned(),
            }),
            _ => Err(format!(
                "lro `{name}`: none, or \
                 <physical|virtual|both>-<skb|page>-<linearize|scatter>-<flush>"
            )),
        }
    }
}
