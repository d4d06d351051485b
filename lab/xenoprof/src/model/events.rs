//! The events of a session.
//!
//! Samples and losses refer to an event by its number. Everything that shows a session shows one
//! event at a time, so that figures of different events are never added up.

use super::{Head, SampledEvent, Session};
use crate::unit::Unit;
use std::borrow::Cow;

impl SampledEvent {
    /// Returns the unit that it counts.
    #[must_use]
    pub fn unit(&self) -> Unit {
        Unit::of(&self.event)
    }

    /// Returns the nanoseconds between two samples, if the event measures time.
    #[must_use]
    pub fn sample_ns(&self, tsc_hz: u64) -> Option<f64> {
        let period = self.period as f64;
        match self.unit() {
            Unit::Nanoseconds => Some(period),
            Unit::Cycles => (tsc_hz > 0).then(|| period * 1e9 / tsc_hz as f64),
            Unit::Occurrences => None,
        }
    }
}

impl Head {
    /// Returns the sampled events, in the order of their numbers.
    pub fn events(&self) -> impl Iterator<Item = SampledEvent> {
        let first = SampledEvent {
            event: self.event.clone(),
            tier: self.tier,
            period: self.period,
        };
        std::iter::once(first).chain(self.more_events.iter().cloned())
    }

    /// Sets the sampled events.
    pub fn set_events(&mut self, events: impl IntoIterator<Item = SampledEvent>) {
        let mut events = events.into_iter();
        if let Some(first) = events.next() {
            (self.event, self.tier, self.period) = (first.event, first.tier, first.period);
        }
        self.more_events = events.collect();
    }

    /// Returns the unit of the first event.
    #[must_use]
    pub fn unit(&self) -> Unit {
        Unit::of(&self.event)
    }

    /// Returns whether samples of the first event divide CPU time.
    #[must_use]
    pub fn is_time(&self) -> bool {
        self.unit() != Unit::Occurrences
    }

    /// Returns the name of the whole that samples of the first event divide: the time, or the
    /// event.
    #[must_use]
    pub fn whole(&self) -> &str {
        match self.is_time() {
            true => "time",
            false => &self.event,
        }
    }
}

impl Session {
    /// Returns the session as if it had sampled only the event with this number.
    #[must_use]
    pub fn of_event(&self, number: usize) -> Cow<'_, Self> {
        if self.head.more_events.is_empty() {
            return Cow::Borrowed(self);
        }
        let mut head = self.head.clone();
        head.set_events(self.head.events().nth(number));
        let mut samples = self.samples.clone();
        samples.retain_mut(|sample| std::mem::take(&mut sample.4) as usize == number);
        let mut losses = self.losses.clone();
        losses.retain_mut(|loss| std::mem::take(&mut loss.event) as usize == number);
        Cow::Owned(Self {
            head,
            samples,
            losses,
            domains: self.domains.clone(),
            threads: self.threads.clone(),
            modules: self.modules.clone(),
            files: self.files.clone(),
            frames: self.frames.clone(),
            stacks: self.stacks.clone(),
            markers: self.markers.clone(),
        })
    }

    /// Returns the number of the event with this name.
    ///
    /// # Errors
    /// Returns the names of the sampled events.
    pub fn event(&self, name: &str) -> Result<usize, String> {
        let names: Vec<String> = self.head.events().map(|sampled| sampled.event).collect();
        names.iter().position(|known| known == name).ok_or_else(|| {
            let (name, known) = (figures::clean::line(name), names.join(", "));
            format!("no event `{name}`; sampled events: {known}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Tier;
    use crate::testing::{session, with_page_faults};

    #[test]
    fn an_event_has_its_samples_and_losses() {
        let both = with_page_faults();
        assert_eq!(*both.of_event(0), session());
        let faults = both.of_event(1);
        assert_eq!(faults.head.event, "page-faults");
        assert_eq!((faults.head.period, faults.head.tier), (2, Tier::Software));
        assert!(faults.head.more_events.is_empty());
        assert_eq!(faults.samples.len(), 120);
        assert!(faults.samples.iter().all(|sample| sample.4 == 0));
        assert_eq!(faults.losses.len(), 1);
        assert!(both.of_event(2).samples.is_empty());
    }

    #[test]
    fn an_unknown_event_lists_the_sampled_ones() {
        let both = with_page_faults();
        assert_eq!(both.event("page-faults"), Ok(1));
        let error = both.event("faults").unwrap_err();
        assert_eq!(
            error,
            "no event `faults`; sampled events: cpu-clock, page-faults"
        );
    }

    #[test]
    fn samples_of_clocks_and_cycles_have_a_time() {
        let ns = |event: &str| {
            let event = event.to_owned();
            let sampled = SampledEvent {
                event,
                tier: Tier::Pmu,
                period: 3_000_000,
            };
            sampled.sample_ns(2_000_000_000)
        };
        assert_eq!(ns("task-clock"), Some(3_000_000.0));
        assert_eq!(ns("cycles"), Some(1_500_000.0));
        assert_eq!((ns("page-faults"), ns("x")), (None, None));
    }
}
