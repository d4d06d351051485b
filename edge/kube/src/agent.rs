//! The agent of a node: applies the cluster's policies to the rules of its pods.
//!
//! One thread for each kind of objects follows the API server. The caller's thread applies their
//! changes, compiles the policies and sets rules that differ. It sets no rules before it has listed
//! all kinds once. Rules stay in force while the API server or the agent does not run.

use crate::api::ObjectName;
use crate::compile::Policies;
use crate::machine::{GuestState, NodeMachine};
use crate::object::Kind;
use crate::server::ApiServer;
use crate::view::ClusterView;
use client::pods::PodRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Interval between checks for new pods of the node, and for a new machine.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The settings of an agent.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// The name of its node.
    pub node: String,
    /// The control socket of the machine.
    pub socket: PathBuf,
    /// The folder in which the CNI plugin records pods.
    pub records: PathBuf,
}

/// Runs forever. `report` gets messages for the user.
pub fn run(server: &ApiServer, settings: AgentSettings, report: impl Fn(&str)) -> ! {
    let mut agent = PolicyAgent::new(settings, ClusterView::follow(server, &Kind::ALL));
    loop {
        for note in agent.turn() {
            report(&note);
        }
    }
}

struct PolicyAgent {
    settings: AgentSettings,
    machine: NodeMachine,
    view: ClusterView,
    /// Pods of the node, by guest.
    pods: BTreeMap<String, (PodRecord, GuestState)>,
    /// Whether the rules must be compiled.
    is_due: bool,
    /// Warnings that were reported.
    warnings: BTreeSet<String>,
    /// Whether all rules were set at the last check.
    was_done: bool,
}

impl PolicyAgent {
    fn new(settings: AgentSettings, view: ClusterView) -> Self {
        let machine = NodeMachine::new(settings.socket.clone());
        Self {
            settings,
            machine,
            view,
            pods: BTreeMap::new(),
            is_due: true,
            warnings: BTreeSet::new(),
            was_done: false,
        }
    }

    /// Waits for changes and carries them out. Returns messages for the user.
    fn turn(&mut self) -> Vec<String> {
        let mut notes = Vec::new();
        self.is_due |= self.view.turn(CHECK_INTERVAL, &mut notes);
        self.find_changes();
        if self.view.is_complete() {
            self.set_rules(&mut notes);
        }
        notes
    }

    /// Finds pods that the plugin has attached or detached, and a new machine.
    fn find_changes(&mut self) {
        let records = client::pods::all(&self.settings.records, |guest| {
            self.pods.get(guest).map(|(record, _)| record.clone())
        });
        // If the folder does not exist, no pod was attached.
        let records = records.unwrap_or_default();
        let is_same = self.pods.keys().eq(records.keys());
        if !is_same {
            let mut before = std::mem::take(&mut self.pods);
            for (guest, record) in records {
                let state = before.remove(&guest).map(|(_, state)| state);
                self.pods.insert(guest, (record, state.unwrap_or_default()));
            }
            self.is_due = true;
        }
        if self.machine.was_replaced() {
            for (_, state) in self.pods.values_mut() {
                *state = GuestState::default();
            }
            self.is_due = true;
        }
    }

    /// Compiles the policies if anything has changed, and sets the rules of pods whose rules
    /// differ.
    fn set_rules(&mut self, notes: &mut Vec<String>) {
        if self.is_due {
            self.is_due = false;
            self.compile(notes);
        }
        let began = Instant::now();
        let states = self.pods.iter_mut();
        let states = states.map(|(guest, (_, state))| (guest.as_str(), state));
        let set = self.machine.set(states, notes);
        let is_done = self.pods.values().all(|(_, state)| state.is_done());
        if set > 0 {
            let took = began.elapsed().as_millis();
            notes.push(format!("rules of {set} pods set in {took} ms"));
        }
        if is_done && !self.was_done {
            self.was_done = true;
            notes.push(format!(
                "{} policies, {} pods, {} of them on this node with Grantway: all rules are set",
                self.view.cluster.policies.len(),
                self.view.cluster.pods.len(),
                self.pods.len()
            ));
        }
    }

    /// Compiles the rules of this node's pods.
    fn compile(&mut self, notes: &mut Vec<String>) {
        let name = &self.settings.node;
        let node = self.view.cluster.nodes.get(name);
        let Some(node) = node.filter(|node| !node.addresses.is_empty()) else {
            let warning =
                format!("the cluster has no Node {name} with an address: rules stay as they are");
            if self.warnings.insert(warning.clone()) {
                notes.push(warning);
            }
            return;
        };
        let mut warnings = BTreeSet::new();
        let known = self.pods.values_mut().filter_map(|(record, state)| {
            let name = object_name(record);
            let pod = self.view.cluster.pods.get(&name)?;
            // The last known pod of this name may be an earlier one.
            let is_same = record.uid.is_empty() || record.uid == pod.uid;
            is_same.then_some((name, pod, state))
        });
        let known: Vec<_> = known.collect();
        let here = known.iter().map(|(name, pod, _)| (name, *pod));
        let policies = Policies::selecting(&self.view.cluster, here);
        for (policy, note) in &policies.notes {
            warnings.insert(format!("warning: NetworkPolicy {policy}: {note}"));
        }
        for (name, pod, state) in known {
            let rules = policies.rules_of(&name, pod, node);
            if rules.left_out > 0 {
                warnings.insert(format!(
                    "warning: Pod {name}: {} rules exceed the limit: their traffic is denied",
                    rules.left_out
                ));
            }
            state.set_desired(rules);
        }
        let new = warnings.difference(&self.warnings).cloned();
        notes.extend(new);
        self.warnings = warnings;
    }
}

fn object_name(record: &PodRecord) -> ObjectName {
    ObjectName {
        namespace: record.namespace.clone(),
        name: record.pod.clone(),
    }
}
