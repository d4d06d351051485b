//! Domains' control calls to devices, answered on a separate thread, without waiting for the
//! opening of other devices.

use crate::device::NetDev;
use abi::core::{NetdReply, NetdRequest, Record};
use link::{Link, LinkError};
use rustix::event::PollFlags;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All devices and sockets, by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct NetDevs(Arc<Mutex<BTreeMap<u32, Arc<NetDev>>>>);

impl NetDevs {
    pub(crate) fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<NetDev>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, dev: u32) -> Option<Arc<NetDev>> {
        self.lock().get(&dev).cloned()
    }
}

/// Serves the link on a separate thread until it is closed.
pub(crate) fn start(link: Link, devs: NetDevs) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("control".into());
    thread.spawn(move || {
        // An error means that the core has exited, or has also closed the other link.
        while let Ok(true) = answer_next(&link, &devs) {}
    })?;
    Ok(())
}

/// Answers the next task, or waits for one. Returns false if the core sends any other task.
fn answer_next(link: &Link, devs: &NetDevs) -> Result<bool, LinkError> {
    let Some(received) = link.receive::<NetdRequest>()? else {
        link.wait(PollFlags::IN, None);
        return Ok(true);
    };
    let token = received.record.token;
    let answer = |message| match link.send(&Record { token, message }, &[]) {
        // A core that leaves answers unread does not wait for this answer, so netd drops it.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(LinkError::from(error)),
        _ => Ok(()),
    };
    match received.record.message {
        NetdRequest::Control { dev, words } => {
            let dev = devs.get(dev).unwrap_or(Arc::new(NetDev::File));
            if dev.may_block(words) {
                answer(NetdReply::Working {})?;
            }
            answer(dev.control(words))?;
        }
        NetdRequest::End { dev } => {
            answer(NetdReply::Working {})?;
            let dev = devs.get(dev).unwrap_or(Arc::new(NetDev::File));
            answer(dev.end())?;
        }
        _ => return Ok(false),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames may still arrive on the socket, and its memory could then belong to another domain.
    #[test]
    fn a_socket_that_was_not_adopted_is_not_ended() {
        let (ours, theirs) = Link::pair().unwrap();
        let devs = NetDevs::default();
        devs.lock().insert(1, Arc::new(NetDev::Stuck(None)));
        let ended = |dev| {
            let message = NetdRequest::End { dev };
            ours.send(&Record { token: 7, message }, &[]).unwrap();
            assert!(answer_next(&theirs, &devs).unwrap());
            let replies = [(); 2].map(|()| ours.receive::<NetdReply>().unwrap().unwrap().record);
            assert!(replies.iter().all(|record| record.token == 7));
            assert_eq!(replies[0].message, NetdReply::Working {});
            replies[1].message.clone()
        };
        assert!(matches!(ended(1), NetdReply::Failed { .. }));
        assert_eq!(
            ended(2),
            NetdReply::Value { value: 0 },
            "the socket was closed"
        );
    }
}
