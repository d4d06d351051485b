//! Fairness between vifs: deficit round robin (Shreedhar and Varghese 1995) between vifs, in bytes,
//! with a rate limit per vif.
//!
//! A ring does not say how large its next packet is before it is taken, so a turn may overshoot by
//! one packet; what it overshot is a debt that the vif's next turns pay (surplus round robin).
//! Unlike a drop, a turn that has to wait leaves the packets in the guest's ring: back-pressure.

use nic::rate::TokenBucket;
use std::collections::VecDeque;

/// The least quantum: a frame. With the bound on debts it bounds the rounds after which a vif gets
/// a turn.
pub const QUANTUM_MIN: u32 = 1514;

/// Bytes that a vif may owe: more than one packet can be.
const DEBT_MAX: i64 = 1 << 20;

/// A turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Take from this vif until `bytes` are reached, then call [`Fair::served`].
    Serve {
        /// Which.
        vif: usize,
        /// How much, at least 1. The last packet may exceed it.
        bytes: u32,
    },
    /// All vifs with work wait for their rate limits; the first is ready at this moment. None: it
    /// never will be.
    Wait(Option<u64>),
    /// No vif has work.
    Idle,
}

#[derive(Debug)]
struct Vif {
    quantum: u32,
    /// Bytes that it may still take; negative: a debt.
    deficit: i64,
    rate: Option<TokenBucket>,
    /// Whether it stands in the line.
    active: bool,
}

/// The line of vifs. They are named by numbers of the caller's.
#[derive(Debug, Default)]
pub struct Fair {
    vifs: Vec<Option<Vif>>,
    line: VecDeque<usize>,
}

impl Fair {
    /// A line without vifs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds vif `number`, or gives it other shares: `quantum` bytes a round (at least
    /// [`QUANTUM_MIN`]), at most what `rate` allows.
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
                *slot = Some(Vif {
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

    /// Vif `number` has work: it joins the line, if it does not stand there.
    pub fn activate(&mut self, number: usize) {
        if let Some(Some(vif)) = self.vifs.get_mut(number)
            && !vif.active
        {
            vif.active = true;
            self.line.push_back(number);
        }
    }

    /// Whose turn it is. Asking again without [`Fair::served`] gives the next in line.
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

    /// Vif `number` has taken `bytes`; `more`: it still has work.
    pub fn served(&mut self, number: usize, bytes: u32, more: bool) {
        let Some(Some(vif)) = self.vifs.get_mut(number) else {
            return;
        };
        vif.deficit = vif.deficit.saturating_sub(bytes.into()).max(-DEBT_MAX);
        if let Some(rate) = &mut vif.rate {
            rate.charge(bytes);
        }
        if more {
            // What a rate limit kept it from taking is not saved up.
            vif.deficit = vif.deficit.min(vif.quantum.into());
        } else {
            // A vif without work saves nothing up; debts stay.
            vif.deficit = vif.deficit.min(0);
            vif.active = false;
            self.line.retain(|vif| *vif != number);
        }
    }
}
