//! What domains tell their devices: answered at once, whatever is being opened meanwhile.

use crate::unit::Unit;
use abi::core::{Outcome, Record, Task};
use link::{Link, LinkError};
use rustix::event::PollFlags;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Every device and socket, by its number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Units(Arc<Mutex<BTreeMap<u32, Arc<Unit>>>>);

impl Units {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Unit>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, unit: u32) -> Option<Arc<Unit>> {
        self.lock().get(&unit).cloned()
    }
}

/// Serves the link on a thread of its own, until it is closed.
pub(crate) fn start(link: Link, units: Units) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("told".into());
    thread.spawn(move || {
        // When it ends, so does the core, or it has closed the other link too.
        while let Ok(true) = turn(&link, &units) {}
    })?;
    Ok(())
}

/// Answers what is there, or waits for it; false: the other end is gone.
fn turn(link: &Link, units: &Units) -> Result<bool, LinkError> {
    let Some(received) = link.receive::<Task>()? else {
        link.wait(PollFlags::IN, None);
        return Ok(true);
    };
    let token = received.record.token;
    let answer = |message| match link.send(&Record { token, message }, &[]) {
        // An end that leaves its answers lying does not wait for them: this one is dropped.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(LinkError::from(error)),
        _ => Ok(()),
    };
    match received.record.message {
        Task::Control { unit, words } => {
            let unit = units.get(unit).unwrap_or(Arc::new(Unit::File));
            if unit.takes_long(words) {
                answer(Outcome::Working {})?;
            }
            answer(unit.told(words))?;
        }
        Task::End { unit } => {
            answer(Outcome::Working {})?;
            let unit = units.get(unit).unwrap_or(Arc::new(Unit::File));
            answer(unit.end())?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames may still come by it, and its memory would be somebody else's.
    #[test]
    fn what_could_not_be_taken_up_has_not_ended() {
        let (ours, theirs) = Link::pair().unwrap();
        let units = Units::default();
        units.lock().insert(1, Arc::new(Unit::Stuck));
        let ended = |unit| {
            let message = Task::End { unit };
            ours.send(&Record { token: 7, message }, &[]).unwrap();
            assert!(turn(&theirs, &units).unwrap());
            let said = [(); 2].map(|()| ours.receive::<Outcome>().unwrap().unwrap().record);
            assert!(said.iter().all(|record| record.token == 7));
            assert_eq!(said[0].message, Outcome::Working {});
            said[1].message.clone()
        };
        assert!(matches!(ended(1), Outcome::Failed { .. }));
        assert_eq!(ended(2), Outcome::Value { value: 0 }, "it was closed");
    }
}
