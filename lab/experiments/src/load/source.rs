//! The source: a thread per stream, all on the load's core.

use super::{CHUNK, Shared, Spec};
use figures::socket;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub(super) fn start(spec: &Spec, shared: &Arc<Shared>) -> anyhow::Result<()> {
    for _ in 0..spec.flows.max(1) {
        let mut stream = socket::connect(spec.address)?;
        let shared = Arc::clone(shared);
        std::thread::Builder::new().spawn(move || {
            let chunk: Vec<u8> = (0..CHUNK).map(|at| (at * 131) as u8).collect();
            loop {
                shared.wait();
                while shared.run.load(Ordering::Relaxed) {
                    match stream.write(&chunk) {
                        Ok(count) if count > 0 => shared.count(count),
                        _ => return,
                    }
                }
            }
        })?;
    }
    Ok(())
}
