//! A frontend that selects multicast groups (NETIF-28), which Linux's netfront does not do.
//! Meanwhile dom0 continuously sends to [`GROUP`] and to all stations.

use crate::front::{Front, Link, Outcome, text, within};
use vif::netif::{RxResponse, TxRequest, TxResponse, extra, rsp, txf};

/// 239.1.2.3.
const GROUP: [u8; 6] = [1, 0, 0x5e, 1, 2, 3];
/// Number of consecutive frames for other addresses that show that the driver filters the group.
const FRAMES_MIN: usize = 12;

/// The node that enables the filter. The frontend may write it at any time.
const FILTER_NODE: &str = "request-multicast-control";

pub(crate) fn groups(front: &mut Front) -> Outcome {
    let link = front.connect()?;
    until_received(&link)?;
    front.set(&[(FILTER_NODE, "1".to_owned())])?;
    until_silent(&link).map_err(|why| format!("it has joined no group: {why}"))?;
    change(&link, extra::TYPE_MCAST_ADD)?;
    until_received(&link).map_err(|why| format!("it has joined the group: {why}"))?;
    change(&link, extra::TYPE_MCAST_DEL)?;
    until_silent(&link).map_err(|why| format!("it has left the group: {why}"))?;
    front.set(&[(FILTER_NODE, "0".to_owned())])?;
    until_received(&link).map_err(|why| format!("the filter is disabled: {why}"))
}

/// Joins or leaves the group.
fn change(link: &Link, kind: u8) -> Outcome {
    let from = link.tx.rsp_prod();
    let dummy = TxRequest {
        flags: txf::EXTRA_INFO,
        id: 7,
        ..TxRequest::default()
    };
    let [a, b, c, d, e, f] = GROUP;
    let (one, two) = ([kind, 0, a, b], [c, d, e, f]);
    let info = [u32::from_le_bytes(one), u32::from_le_bytes(two), 0];
    link.send(&[dummy.encode(), info]);
    match link.answers(from, 2)?.as_slice() {
        [
            TxResponse {
                id: 7,
                status: rsp::OKAY,
            },
            TxResponse {
                status: rsp::NULL, ..
            },
        ] => Ok(()),
        other => Err(format!("extra info {kind} is answered with {other:?}")),
    }
}

/// Returns the destination of the next frame.
fn next(link: &Link) -> Outcome<[u8; 6]> {
    let from = link.rx.rsp_prod();
    link.post(1);
    if !within(|| Ok(link.rx.rsp_prod() != from))? {
        return Err("no packet arrives".into());
    }
    let mut answers = link.rx.responses(from).into_iter().map(RxResponse::decode);
    let answer = answers.next_back().ok_or("no answer")?;
    let mut to = [0; 6];
    let header = link.buffer(0).sub(answer.offset.into(), to.len());
    header.ok_or("no place")?.read(&mut to).map_err(text)?;
    Ok(to)
}

fn until_received(link: &Link) -> Outcome {
    match within(|| Ok(next(link)? == GROUP))? {
        true => Ok(()),
        false => Err("no frame for the group arrives".into()),
    }
}

fn until_silent(link: &Link) -> Outcome {
    let mut others = 0;
    let silent = within(|| {
        others = if next(link)? == GROUP { 0 } else { others + 1 };
        Ok(others == FRAMES_MIN)
    })?;
    match silent {
        true => Ok(()),
        false => Err("frames for the group still arrive".into()),
    }
}
