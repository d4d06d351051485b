//! The access of a machine's driver domain, by the monitor's accounting.

use abi::machine::{Audit, Program, Status};

/// The access of a machine's driver domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverAccess {
    /// Pages that all guests have granted.
    pub granted: u64,
    /// Pages that all guests own.
    pub owned: u64,
    /// Unaccounted grants, mappings or frames: 0, or the monitor has a bug.
    pub leaked: u64,
    /// System calls that the driver domain's filter allows.
    pub system_calls: u64,
    /// Hypercalls that it has made.
    pub hypercalls: u64,
    /// Operations in these hypercalls.
    pub operations: u64,
    /// Protections that were not available at the start.
    pub missing: Vec<String>,
}

impl DriverAccess {
    /// Computes the access from the machine's status and audit.
    #[must_use]
    pub fn of(status: &Status, audit: &Audit) -> Self {
        let guests: Vec<&str> = status
            .domains
            .iter()
            .filter(|domain| domain.program == Program::Guest)
            .map(|domain| domain.name.as_str())
            .collect();
        let mut access = Self {
            leaked: audit.leaked,
            missing: status.missing.clone(),
            ..Self::default()
        };
        for domain in &audit.domains {
            if guests.contains(&domain.name.as_str()) {
                access.granted += u64::from(domain.granted);
                access.owned += u64::from(domain.owned);
            }
        }
        for domain in &status.domains {
            if domain.program == Program::Driver {
                access.system_calls = u64::from(domain.system_calls);
                access.hypercalls += domain.hypercalls;
                access.operations += domain.operations;
            }
        }
        access
    }

    /// Formats the access as text; `number` formats each number.
    #[must_use]
    pub fn text(&self, number: impl Fn(f64) -> String) -> String {
        let share = match self.owned {
            0 => 0.0,
            owned => 100.0 * self.granted as f64 / owned as f64,
        };
        let mut text = format!(
            "Access of the driver domain\n  \
             {} of the guest's {} pages ({} %), \
             each until its guest or the monitor revokes it\n  \
             {} system calls allowed; {} hypercalls made with {} operations\n  \
             {} grants or frames unaccounted for\n",
            number(self.granted as f64),
            number(self.owned as f64),
            number(share),
            self.system_calls,
            number(self.hypercalls as f64),
            number(self.operations as f64),
            self.leaked,
        );
        if !self.missing.is_empty() {
            text += &format!("  Not available here: {}\n", self.missing.join("; "));
        }
        text
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
        let access = DriverAccess::of(&status, &serde_json::from_value(audit).unwrap());
        assert_eq!(
            access,
            DriverAccess {
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
