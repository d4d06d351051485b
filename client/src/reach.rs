//! What a driver domain could touch, as the monitor accounts for it.

use abi::machine::{Audit, Program, Status};

/// What the driver domain of a machine could touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Pages of all guests that they granted.
    pub granted: u64,
    /// Pages that they own.
    pub owned: u64,
    /// Grants, mappings or frames that nobody accounts for: 0, or the monitor has a bug.
    pub leaked: u64,
    /// System calls that the driver domain's filter lets through.
    pub system_calls: u64,
    /// Hypercalls that it made.
    pub hypercalls: u64,
    /// Operations in them.
    pub operations: u64,
    /// What the start had to do without, in words.
    pub missing: Vec<String>,
}

impl Reach {
    /// Of a machine that says this of itself.
    #[must_use]
    pub fn of(status: &Status, audit: &Audit) -> Self {
        let guests: Vec<&str> = status
            .domains
            .iter()
            .filter(|domain| domain.program == Program::Guest)
            .map(|domain| domain.name.as_str())
            .collect();
        let mut reach = Self {
            leaked: audit.leaked,
            missing: status.missing.clone(),
            ..Self::default()
        };
        for domain in &audit.domains {
            if guests.contains(&domain.name.as_str()) {
                reach.granted += u64::from(domain.granted);
                reach.owned += u64::from(domain.owned);
            }
        }
        for domain in &status.domains {
            if domain.program == Program::Driver {
                reach.system_calls = u64::from(domain.system_calls);
                reach.hypercalls += domain.hypercalls;
                reach.operations += domain.operations;
            }
        }
        reach
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guests_pages_are_counted_and_the_drivers_calls() {
        let domain = |name: &str, program: &str| {
            serde_json::json!({
                "name": name, "id": 1, "program": program, "state": "running", "alive": true,
                "pid": 1, "agent_pid": 2, "cpu_ns": 0, "agent_cpu_ns": 0, "worker_cpu_ns": 0,
                "hypercalls": 7, "operations": 9, "system_calls": 23,
            })
        };
        let account = |name: &str, owned: u32, granted: u32| {
            serde_json::json!({
                "name": name, "alive": true, "owned": owned, "granted": granted, "mapped": 0,
                "collateral_used": 0, "in_use": [],
            })
        };
        let status = serde_json::json!({
            "name": "m", "pid": 1, "up_ns": 1, "up_took_ns": 1, "monitor_cpu_ns": 0,
            "missing": ["mseal"], "connections": [],
            "domains": [domain("driver", "driver"), domain("a", "guest"), domain("b", "guest")],
        });
        let audit = serde_json::json!({
            "leaked": 0, "created": 0, "revoked": 0, "forced": 0,
            "domains": [account("driver", 100, 50), account("a", 10, 4), account("b", 20, 8)],
        });
        let status = serde_json::from_value(status).unwrap();
        let reach = Reach::of(&status, &serde_json::from_value(audit).unwrap());
        assert_eq!(
            reach,
            Reach {
                granted: 12,
                owned: 30,
                leaked: 0,
                system_calls: 23,
                hypercalls: 7,
                operations: 9,
                missing: vec!["mseal".to_owned()],
            }
        );
    }
}
