//! Loads that keep a core awake: a thread that runs only when nothing else wants the core, so that
//! the core never halts and a wake-up costs no exit to the hypervisor below.

use figures::helper::{self, LineChild};
use figures::measure::pin;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

/// What the helper is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpinSpec {
    /// The core to keep awake.
    pub cpu: usize,
}

/// One spinner per core, asleep until told.
#[derive(Debug)]
pub struct Spinners {
    children: Vec<LineChild>,
    awake: bool,
}

impl Spinners {
    /// Starts one for each of `cpus`.
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn new(cpus: &[usize]) -> anyhow::Result<Self> {
        let mut children = Vec::new();
        for &cpu in cpus {
            let mut command = helper::own("spin")?;
            command.arg(serde_json::to_string(&SpinSpec { cpu })?);
            children.push(LineChild::start(
                "spinner",
                command,
                Duration::from_secs(5),
            )?);
        }
        Ok(Self {
            children,
            awake: false,
        })
    }

    /// Keeps the cores awake, or lets them halt.
    ///
    /// # Errors
    /// If a spinner has gone.
    pub fn set(&mut self, awake: bool) -> anyhow::Result<()> {
        if self.awake != awake {
            for child in &mut self.children {
                child.ask(if awake { "go" } else { "stop" }, Duration::from_secs(5))?;
            }
            self.awake = awake;
        }
        Ok(())
    }
}

/// The helper.
///
/// # Errors
/// If the core or the scheduling class cannot be had.
pub fn main(spec: &SpinSpec) -> anyhow::Result<()> {
    pin(spec.cpu)?;
    let running = Arc::new(AtomicBool::new(false));
    let (flag, (ready, idle)) = (Arc::clone(&running), std::sync::mpsc::channel());
    let spinner = std::thread::Builder::new().spawn(move || {
        // SCHED_IDLE: gives way at once to anything else that becomes runnable.
        let set = set_thread_priority_and_policy(
            thread_native_id(),
            ThreadPriority::Min,
            ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle),
        );
        let refused = set.is_err();
        if ready.send(refused).is_err() || refused {
            return;
        }
        loop {
            // A plain load, no PAUSE: a hypervisor may take a loop of pauses for a lock's and exit.
            while flag.load(Ordering::Relaxed) {}
            std::thread::park();
        }
    })?;
    if idle.recv().unwrap_or(true) {
        anyhow::bail!("the idle scheduling class is refused");
    }
    helper::reply(&json!({"ready": true}));
    helper::serve(|line| {
        running.store(line == "go", Ordering::Relaxed);
        spinner.thread().unpark();
        Some(json!({}))
    });
    Ok(())
}
