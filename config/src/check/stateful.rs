//! Checks of rules that keep state: settings that exclude them.

use crate::findings::Findings;
use crate::model::Config;
use crate::problem::ConfigPart;
use crate::rule::{FirewallRule, INBOUND, keep_state};

pub(super) fn check(config: &Config, found: &mut Findings) {
    let mut tables = 0;
    for (n, nic) in config.nics.iter().enumerate() {
        tables += u32::from(keep_state(&nic.settings.rules));
        workers(config, found, &nic.settings.rules, |r| {
            ConfigPart::NicRule(n, r)
        });
    }
    for ((g, v), _, vif) in config.vifs() {
        let (part, rules) = (ConfigPart::Vif(g, v), &vif.settings.rules);
        let is_stateful = vif.stateful || keep_state(rules);
        tables += u32::from(is_stateful);
        workers(config, found, rules, |r| ConfigPart::VifRule(g, v, r));
        if vif.stateful {
            one_worker(config, found, part, "firewall");
            if let Some(r) = rules.iter().position(|rule| rule.name == INBOUND) {
                let what =
                    format!("`name` is \"{INBOUND}\", the name that `firewall` gives its rule");
                found.add(ConfigPart::VifRule(g, v, r), "name", what, "choose another");
            }
        } else if vif.inbound.is_some() {
            let what = "`inbound` is set, and `firewall` is not \"stateful\"";
            found.add(part, "inbound", what, "write both, or leave it out");
        }
        let Some(pdev) = &vif.pdev else { continue };
        let nic = config.nic(&pdev.nic);
        if is_stateful || nic.is_some_and(|nic| keep_state(&nic.settings.rules)) {
            let what = format!("`pdev` is \"{pdev}\", and the rules before it keep state");
            let remedy = "leave one of them out: the kernel applies the rules before a dedicated \
                          queue, and tracks no flows";
            found.add(part, "pdev", what, remedy);
        }
    }
    let most = config.driver.flow_tables;
    if tables > most {
        let what =
            format!("NICs and interfaces that keep state: {tables}; `flow_tables` is {most}");
        let remedy = "write how many of them may keep state at the same time";
        found.add(ConfigPart::Driver, "flow_tables", what, remedy);
    }
}

fn workers(
    config: &Config,
    found: &mut Findings,
    rules: &[FirewallRule],
    part: impl Fn(usize) -> ConfigPart,
) {
    if let Some(r) = rules.iter().position(|rule| rule.state.is_some()) {
        one_worker(config, found, part(r), "state");
    }
}

/// Checks that there is one worker: packets of one flow may pass two workers, one in each
/// direction, and workers share no state.
fn one_worker(config: &Config, found: &mut Findings, part: ConfigPart, key: &'static str) {
    let workers = config.driver.workers;
    if workers > 1 {
        let what = format!("rules keep state, and `workers` is {workers}");
        let remedy = "write workers = 1 in [driver]: a request and its reply may pass different \
                      workers, which share no flows";
        found.add(part, key, what, remedy);
    }
}
