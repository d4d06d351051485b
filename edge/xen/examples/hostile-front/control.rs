//! A frontend with a control ring (NETIF-29), which Linux's netfront does not have. It sends valid
//! and invalid requests.

use crate::front::{CONNECTED, Front, Link, Outcome, text, within};
use crate::pages::{Offered, PAGES};
use shmem::Span;
use xen::netif::control::{ControlStatus, SLOTS, kind};

/// Page of the connection that holds the ring, and the page that its requests name.
const RING: usize = PAGES - 1;
const TABLE: usize = PAGES - 2;

struct Control<'a> {
    link: &'a Link,
    channel: Offered,
}

impl Control<'_> {
    fn ring(&self) -> Span {
        self.link.page(RING)
    }

    fn word(&self, at: usize) -> Outcome<u32> {
        self.ring().load_u32(at).map_err(text)
    }

    fn set_made(&self, made: u32) -> Outcome {
        self.ring().store_u32(0, made).map_err(text)?;
        self.channel.notify();
        Ok(())
    }

    /// Sends a request; returns the status and the data of the answer.
    fn request(&self, kind: u16, data: [u32; 3]) -> Outcome<(u32, u32)> {
        let made = self.word(0)?;
        let at = 64 + (made % SLOTS) as usize * 16;
        let head = made & 0xffff | u32::from(kind) << 16;
        let [one, two, three] = data;
        let words = [head, one, two, three];
        self.ring().write_words(at, &words).map_err(text)?;
        self.set_made(made.wrapping_add(1))?;
        if !within(|| Ok(self.word(8)? == made.wrapping_add(1)))? {
            return Err(format!("request {kind} is not answered"));
        }
        let mut answer = [0; 3];
        self.ring().read_words(at, &mut answer).map_err(text)?;
        match answer {
            [same, status, data] if same == head => Ok((status, data)),
            other => Err(format!("request {words:?} is answered with {other:?}")),
        }
    }

    fn expect_answer(&self, kind: u16, data: [u32; 3], wanted: (ControlStatus, u32)) -> Outcome {
        let (status, data) = (wanted.0 as u32, data);
        match self.request(kind, data)? {
            answer if answer == (status, wanted.1) => Ok(()),
            answer => Err(format!(
                "request {kind} {data:?}: {answer:?}, not {wanted:?}"
            )),
        }
    }
}

/// Connects with a control ring.
fn connect(front: &mut Front) -> Outcome<(Link, Offered)> {
    front.begin()?;
    let (link, mut nodes) = front.link()?;
    let channel = Offered::new(front.domain()).map_err(text)?;
    nodes.insert(0, ("ctrl-ring-ref", link.page_gref(RING).to_string()));
    nodes.insert(0, ("event-channel-ctrl", channel.port.to_string()));
    front.set(&nodes)?;
    front.await_state(CONNECTED)?;
    Ok((link, channel))
}

pub(crate) fn control_ring(front: &mut Front) -> Outcome {
    use ControlStatus::{BufferOverflow, InvalidParameter, NotSupported, Success};
    let (link, channel) = connect(front)?;
    let table = link.page_gref(TABLE);
    let control = Control {
        link: &link,
        channel,
    };
    for (kind, data, wanted) in [
        (kind::GET_HASH_FLAGS, [0; 3], (NotSupported, 0)),
        (kind::SET_HASH_ALGORITHM, [1, 0, 0], (Success, 0)),
        (kind::GET_HASH_FLAGS, [0; 3], (Success, 15)),
        (kind::SET_HASH_FLAGS, [15, 0, 0], (Success, 0)),
        (kind::SET_HASH_KEY, [table, 40, 0], (Success, 0)),
        (kind::SET_HASH_KEY, [60_000, 40, 0], (InvalidParameter, 0)),
        (kind::SET_HASH_KEY, [table, 4097, 0], (BufferOverflow, 0)),
        (kind::SET_HASH_MAPPING_SIZE, [8, 0, 0], (Success, 0)),
        (kind::SET_HASH_MAPPING, [table, 8, 0], (Success, 0)),
        (
            kind::SET_HASH_MAPPING,
            [table, 8, u32::MAX],
            (BufferOverflow, 0),
        ),
        (9, [0, table, 1], (NotSupported, 0)),
    ] {
        control.expect_answer(kind, data, wanted)?;
    }
    // The interface has one queue.
    link.page(TABLE).store_u32(0, 1).map_err(text)?;
    let bad = [table, 1, 0];
    control.expect_answer(kind::SET_HASH_MAPPING, bad, (InvalidParameter, 0))?;
    // More requests than slots make the driver close only the control ring.
    control.set_made(control.word(0)?.wrapping_add(SLOTS + 1))?;
    link.post(1);
    if !within(|| Ok(link.rx.rsp_prod() == 1))? {
        return Err("packets no longer arrive".into());
    }
    // The next connection has no control ring.
    let none = ["ctrl-ring-ref", "event-channel-ctrl"];
    front.set(&none.map(|name| (name, String::new())))
}
