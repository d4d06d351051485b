//! Fairness between vifs: deficit round robin (Shreedhar and Varghese 1995) in bytes, with a rate
//! limit per vif.
//!
//! The size of a ring's next packet is unknown until it is taken, so a turn may overshoot by one
//! packet. The excess is a debt that the vif's next turns repay (surplus round robin). While a vif
//! waits for its turn, its packets stay in the guest's ring as backpressure and are not dropped.

use nic::rate::TokenBucket;
use std::collections::VecDeque;

/// The smallest quantum: one frame. Together with the limit on debts it bounds the number of rounds
/// until a vif gets a turn.
pub const QUANTUM_MIN: u32 = 1514;

/// Maximum debt of a vif in bytes: more than the longest packet.
const DEBT_MAX: i64 = 1 << 20;

/// A turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Take packets from this vif until `bytes` are reached, then call
    /// [`DeficitRoundRobin::served`].
    Serve {
        /// The vif's number.
        vif: usize,
        /// Bytes to take, at least 1. The last packet may exceed it.
        bytes: u32,
    },
    /// All vifs with work are waiting for their rate limits. The first is ready at this time, or
    /// never if `None`.
    Wait(Option<u64>),
    /// No vif has work.
    Idle,
}

#[derive(Debug)]
struct FairVif {
    quantum: u32,
    /// Bytes that the vif may still take; negative: a debt.
    deficit: i64,
    rate: Option<TokenBucket>,
    /// Whether it is queued.
    active: bool,
}

/// The queue of vifs. The caller assigns their numbers.
#[derive(Debug, Default)]
pub struct DeficitRoundRobin {
    vifs: Vec<Option<FairVif>>,
    line: VecDeque<usize>,
}

impl DeficitRoundRobin {
    /// Creates a queue without vifs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds vif `number` or changes its share: `quantum` bytes per round (at least
    /// [`QUANTUM_MIN`]), limited by `rate`.
    pub fn set(&mut self, number: usize, quantum: u32, rate: Option<TokenBucket>) {
        if self.vifs.len() <= number {
            self.vifs.resize_with(number + 1, || None);
        }
        let Some(slot) = self.vifs.get_mut(number) else {
            return;
        };
        let quantum = quantum.max(QUANTUM_MIN);
        match slot {
            Some(vif) => {
                vif.quantum = quantum;
                vif.rate = rate;
            }
            None => {
                *slot = Some(FairVif {
                    quantum,
                    deficit: 0,
                    rate,
                    active: false,
                })
            }
        }
    }

    /// Removes vif `number`.
    pub fn remove(&mut self, number: usize) {
        if let Some(slot) = self.vifs.get_mut(number) {
            *slot = None;
        }
        self.line.retain(|vif| *vif != number);
    }

    /// Queues vif `number`, which has work, unless it is queued already.
    pub fn activate(&mut self, number: usize) {
        if let Some(Some(vif)) = self.vifs.get_mut(number)
            && !vif.active
        {
            vif.active = true;
            self.line.push_back(number);
        }
    }

    /// Returns the next turn. A second call before [`DeficitRoundRobin::served`] returns the next
    /// vif in the queue.
    pub fn next(&mut self, now_ns: u64) -> Turn {
        let mut ready_ns = None;
        let mut limited = 0;
        while limited < self.line.len() {
            let Some(number) = self.line.pop_front() else {
                break;
            };
            self.line.push_back(number);
            let Some(Some(vif)) = self.vifs.get_mut(number) else {
                limited += 1;
                continue;
            };
            let allowed = match &mut vif.rate {
                Some(rate) => rate.available(now_ns),
                None => u32::MAX,
            };
            if allowed == 0 {
                let ready = vif.rate.as_ref().and_then(|rate| rate.ready_at(now_ns, 1));
                ready_ns = ready_ns.into_iter().chain(ready).min();
                limited += 1;
                continue;
            }
            limited = 0;
            vif.deficit = vif.deficit.saturating_add(vif.quantum.into());
            if vif.deficit > 0 {
                let bytes = u32::try_from(vif.deficit).unwrap_or(u32::MAX).min(allowed);
                return Turn::Serve { vif: number, bytes };
            }
        }
        if self.line.is_empty() {
            Turn::Idle
        } else {
            Turn::Wait(ready_ns)
        }
    }

    /// Ends the turn of vif `number`, which took `bytes`. `more` states whether it still has work.
    pub fn served(&mut self, number: usize, bytes: u32, more: bool) {
        let Some(Some(vif)) = self.vifs.get_mut(number) else {
            return;
        };
        vif.deficit = vif.deficit.saturating_sub(bytes.into()).max(-DEBT_MAX);
        if let Some(rate) = &mut vif.rate {
            rate.charge(bytes);
        }
        if more {
            // A share that could not be used because of the rate limit is not saved.
            vif.deficit = vif.deficit.min(vif.quantum.into());
        } else {
            // A vif without work saves no share; debts stay.
            vif.deficit = vif.deficit.min(0);
            vif.active = false;
            self.line.retain(|vif| *vif != number);
        }
    }
}
