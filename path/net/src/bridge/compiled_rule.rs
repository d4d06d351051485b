//! A firewall rule in the form in which frames are compared with it.

use super::frame_properties::{Inspected, Missing, Properties};
use super::prefix::Prefix;
use super::rule::Rule;
use std::ops::RangeInclusive;

/// A compiled rule. The values of fields that it does not test have no meaning.
#[derive(Debug)]
pub(super) struct CompiledRule {
    /// Properties that it tests. A frame must have all of them, with the values below.
    tested: Properties,
    pub(super) allow: bool,
    protocol: u8,
    ethertype: u16,
    source_ports: [u16; 2],
    destination_ports: [u16; 2],
    /// Prefixes of source and destination, if one is tested. They are large and rare.
    prefixes: Option<Box<[Option<Prefix>; 2]>>,
}

impl CompiledRule {
    pub(super) fn of(rule: &Rule) -> Self {
        let field = |is_tested, field| if is_tested { field } else { Properties::NONE };
        let tested = [
            field(rule.ethertype.is_some(), Properties::ETHERTYPE),
            field(rule.protocol.is_some(), Properties::PROTOCOL),
            field(rule.source.is_some(), Properties::SOURCE),
            field(rule.destination.is_some(), Properties::DESTINATION),
            field(rule.source_ports.is_some(), Properties::SOURCE_PORTS),
            field(
                rule.destination_ports.is_some(),
                Properties::DESTINATION_PORTS,
            ),
            rule.direction.map_or(Properties::NONE, Properties::from),
            rule.state.map_or(Properties::NONE, Properties::from),
        ];
        let ends = |range: &Option<RangeInclusive<u16>>| {
            range.as_ref().map_or([0; 2], |it| [*it.start(), *it.end()])
        };
        let prefixes = [rule.source, rule.destination];
        Self {
            tested: tested
                .into_iter()
                .fold(Properties::NONE, |all, one| all | one),
            allow: rule.allow,
            protocol: rule.protocol.unwrap_or(0),
            ethertype: rule.ethertype.unwrap_or(0),
            source_ports: ends(&rule.source_ports),
            destination_ports: ends(&rule.destination_ports),
            prefixes: (prefixes != [None; 2]).then(|| Box::new(prefixes)),
        }
    }

    /// Returns whether it tests one of these properties.
    #[inline]
    pub(super) fn tests(&self, properties: impl Into<Properties>) -> bool {
        self.tested.intersects(properties.into())
    }

    /// Returns whether the rule matches a frame with these fields that lacks the properties
    /// `missing`. A hidden property counts against the frame.
    #[inline]
    pub(super) fn decides(&self, frame: &Inspected, missing: Missing) -> bool {
        if self.tested.intersects(missing.absent) {
            return false;
        }
        if self.allow && self.tested.intersects(missing.hidden) {
            return false;
        }
        let known = self.tested.without(missing.hidden);
        let within = |ports: [u16; 2], port: u16| ports[0] <= port && port <= ports[1];
        let differs = known.intersects(Properties::DESTINATION_PORTS)
            && !within(self.destination_ports, frame.destination_port)
            || known.intersects(Properties::PROTOCOL) && self.protocol != frame.protocol
            || known.intersects(Properties::ETHERTYPE) && self.ethertype != frame.ethertype
            || known.intersects(Properties::SOURCE_PORTS)
                && !within(self.source_ports, frame.source_port)
            || self.prefixes_differ(known, frame);
        !differs
    }

    #[inline]
    fn prefixes_differ(&self, known: Properties, frame: &Inspected) -> bool {
        let Some(prefixes) = &self.prefixes else {
            return false;
        };
        let [source, destination] = **prefixes;
        let differs = |field, own: Option<Prefix>, other| {
            known.intersects(field) && own.is_some_and(|own| !own.contains(other))
        };
        differs(Properties::SOURCE, source, frame.source)
            || differs(Properties::DESTINATION, destination, frame.destination)
    }
}
