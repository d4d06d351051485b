//! LRO configuration of a column.

use serde::Deserialize;

/// An LRO configuration, named like its column: `none` or
/// `<physical|virtual|both>-<skb|page>-<linearize|scatter>-<flush>`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum LroColumn {
    /// No LRO.
    None,
    /// LRO at one or both places.
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

impl LroColumn {
    /// Returns the settings that select this configuration, in the form of `grantway set`.
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

/// Merge rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LroRules {
    /// Merges only packets that segmentation restores byte for byte; PSH ends an aggregate.
    #[default]
    Gro,
    /// Merges like the papers' engine, `inet_lro`, and also merges packets with PSH.
    InetLro,
}

impl LroRules {
    /// Returns the settings that select these rules.
    #[must_use]
    pub fn switches(self) -> [(&'static str, &'static str); 2] {
        match self {
            Self::Gro => [("lro.rules", "gro"), ("lro.psh", "flush")],
            Self::InetLro => [("lro.rules", "lro"), ("lro.psh", "merge")],
        }
    }
}

impl TryFrom<String> for LroColumn {
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
