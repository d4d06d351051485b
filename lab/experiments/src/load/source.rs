//! The source: a thread per stream, all on the load's core.

use super::spec::{CHUNK, LoadSpec};
use super::state::LoadState;
use figures::socket;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) fn start(spec: &LoadSpec, state: &Arc<LoadState>) -> anyhow::Result<()> {
    for _ in 0..spec.flows.max(1) {
        let mut stream = socket::connect(spec.address)?;
        let state = Arc::clone(state);
        std::thread::Builder::new().spawn(move || {
            let chunk: Vec<u8> = (0..CHUNK).map(|at| (at * 131) as u8).collect();
            loop {
                state.wait();
                while state.run.load(Ordering::Relaxed) {
                    match stream.write(&chunk) {
                        Ok(count) if count > 0 => state.count(count),
                        _ => return,
                    }
                }
            }
        })?;
    }
    Ok(())
}
