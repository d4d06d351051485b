//! What a worker of the driver domain is told, until it says that it has done it. It may be busy
//! with another request, or dead and on its way back: it is told again, and does nothing twice.

use crate::core::{Core, Refusal};
use crate::world::World;
use abi::core::Stage;
use abi::layout::mailbox;
use abi::mailbox::Request;

/// Between two tries.
const AGAIN_NS: u64 = 1_000_000;
/// The same while it is not there.
const GONE_NS: u64 = 5_000_000;

/// One request to one worker.
#[derive(Debug)]
pub(super) struct Telling {
    /// The worker's place in the machine.
    pub(super) worker: usize,
    request: Vec<u8>,
    stands: Stands,
}

#[derive(Debug)]
enum Stands {
    /// It is told at this time.
    At(u64),
    /// It was told: the token of the answer.
    Told(u32),
    Done,
}

impl Telling {
    /// A request to the worker at a place, from now on.
    ///
    /// # Errors
    /// It is longer than a request may be.
    pub(super) fn new(worker: usize, request: &Request) -> Result<Self, String> {
        let request = serde_json::to_vec(request).map_err(|error| error.to_string())?;
        if request.len() > mailbox::IN_MAX {
            return Err(format!(
                "an interface is described by {} bytes, and {} is the most: give it fewer rules",
                request.len(),
                mailbox::IN_MAX
            ));
        }
        Ok(Self {
            worker,
            request,
            stands: Stands::At(0),
        })
    }

    /// Whether it has done it.
    pub(super) fn is_done(&self) -> bool {
        matches!(self.stands, Stands::Done)
    }

    /// When it is told next, if it is not it that is waited for.
    pub(super) fn due_ns(&self) -> Option<u64> {
        match self.stands {
            Stands::At(at) => Some(at),
            Stands::Told(_) | Stands::Done => None,
        }
    }

    /// The token of the answer that is waited for.
    pub(super) fn token(&self) -> Option<u32> {
        match self.stands {
            Stands::Told(token) => Some(token),
            Stands::At(_) | Stands::Done => None,
        }
    }

    /// It need not be told any more.
    pub(super) fn give_up(&mut self) {
        self.stands = Stands::Done;
    }

    /// It is told again in a while, whatever it has said.
    pub(super) fn put_off(&mut self, now_ns: u64) {
        self.stands = Stands::At(now_ns.saturating_add(GONE_NS));
    }

    /// Goes on with it.
    ///
    /// # Errors
    /// The worker refuses: why.
    pub(super) fn turn(
        &mut self,
        core: &mut Core,
        world: &World,
        now_ns: u64,
    ) -> Result<(), String> {
        match self.stands {
            Stands::At(at) if now_ns >= at => {
                let id = world.id(self.worker);
                let runs = |id: &abi::DomId| world.stage(*id) == Some(Stage::Running);
                self.stands = match id.filter(runs) {
                    Some(domain) => Stands::Told(core.relay(domain, &self.request, now_ns)),
                    None => Stands::At(now_ns.saturating_add(GONE_NS)),
                };
            }
            Stands::Told(token) => match core.reply(token) {
                None => {}
                Some(Ok(reply)) => {
                    self.stands = Stands::Done;
                    refused(&reply)?;
                }
                Some(Err(Refusal { is_busy, .. })) => {
                    let wait = if is_busy { AGAIN_NS } else { GONE_NS };
                    self.stands = Stands::At(now_ns.saturating_add(wait));
                }
            },
            Stands::At(_) | Stands::Done => {}
        }
        Ok(())
    }
}

/// What a worker has to say against it, if it says so.
fn refused(reply: &[u8]) -> Result<(), String> {
    match serde_json::from_slice::<abi::mailbox::Refusal>(reply) {
        Ok(refusal) => Err(refusal.error),
        Err(_) => Ok(()),
    }
}
