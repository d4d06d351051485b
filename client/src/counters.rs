//! The counters of a domain: one reply, or several if a driver domain has many ports.

use abi::mailbox::{MailboxRequest, STAT_REPLIES_MAX};
use serde_json::Value;

/// Queries all counters of a domain by `send_request`. Fails with `endless` if the replies do not
/// end.
pub(crate) fn query_all_counters<E>(
    mut ask: impl FnMut(&MailboxRequest) -> Result<Value, E>,
    endless: E,
) -> Result<Value, E> {
    let mut stat = ask(&MailboxRequest::Stat)?;
    for _ in 1..STAT_REPLIES_MAX {
        let Some(first) = next(&mut stat) else {
            return Ok(stat);
        };
        let page = ask(&MailboxRequest::Ports { first })?;
        append(&mut stat, page);
    }
    match next(&mut stat) {
        None => Ok(stat),
        Some(_) => Err(endless),
    }
}

/// Removes and returns the number of the port with which the next reply begins.
fn next(stat: &mut Value) -> Option<u32> {
    let next = stat.as_object_mut()?.remove("next")?;
    u32::try_from(next.as_u64()?).ok()
}

/// Appends the ports of a further reply.
fn append(stat: &mut Value, mut page: Value) {
    let Some(stat) = stat.as_object_mut() else {
        return;
    };
    if let Some(next) = page.get_mut("next") {
        stat.insert("next".to_owned(), next.take());
    }
    let ports = stat.get_mut("ports").and_then(Value::as_object_mut);
    let more = page.get_mut("ports").and_then(Value::as_object_mut);
    if let (Some(ports), Some(more)) = (ports, more) {
        ports.append(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ports_of_all_replies_are_collected() {
        let reply = |request: &MailboxRequest| {
            Ok::<_, &str>(match request {
                MailboxRequest::Stat => json!({ "drops": 7, "ports": { "a": 1 }, "next": 3 }),
                MailboxRequest::Ports { first: 3 } => json!({ "ports": { "b": 2 }, "next": 9 }),
                MailboxRequest::Ports { first: 9 } => json!({ "ports": { "c": 3 }, "next": null }),
                other => panic!("{other:?}"),
            })
        };
        let expected = json!({ "drops": 7, "ports": { "a": 1, "b": 2, "c": 3 } });
        assert_eq!(query_all_counters(reply, "endless"), Ok(expected));
        // The counters of a guest have one reply.
        let guest = json!({ "vifs": {} });
        assert_eq!(
            query_all_counters(|_| Ok(guest.clone()), "endless"),
            Ok(guest.clone())
        );
    }

    #[test]
    fn hostile_replies_end() {
        let mut count = 0;
        let endless = |_: &MailboxRequest| {
            count += 1;
            Ok(json!({ "next": 0 }))
        };
        assert_eq!(query_all_counters(endless, "endless"), Err("endless"));
        assert_eq!(count, STAT_REPLIES_MAX);
        for junk in [json!(7), json!({ "ports": [], "next": "x" }), json!([])] {
            let mut first = Some(json!({ "ports": 1, "next": 2 }));
            let reply = |_: &MailboxRequest| Ok(first.take().unwrap_or_else(|| junk.clone()));
            assert!(query_all_counters(reply, "endless").is_ok(), "{junk}");
        }
    }
}
