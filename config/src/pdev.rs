//! The name of a dedicated queue of an AF_XDP NIC: `pdev = "NIC:QUEUE"`, as in Ram's thesis.

use crate::text::read_as_text;
use std::fmt;
use std::str::FromStr;

/// A dedicated queue of a NIC.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pdev {
    /// The NIC's name.
    pub nic: String,
    /// The queue's number, from 1.
    pub queue: u32,
}

impl FromStr for Pdev {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = "not a NIC and the number of a queue, like wire:1";
        let (nic, queue) = text.rsplit_once(':').ok_or(wrong)?;
        Ok(Self {
            nic: nic.to_owned(),
            queue: queue.parse().map_err(|_| wrong)?,
        })
    }
}

read_as_text!(Pdev, |_| "write it like \"wire:1\"");

impl fmt::Display for Pdev {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.nic, self.queue)
    }
}
