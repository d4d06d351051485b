//! Who may speak to the manager, and ask for what: by the user and the group that the kernel says
//! a client had when it connected.

use abi::machine::{Access, Control, Group};
use abi::mailbox::Request;
use nix::sys::socket::{getsockopt, sockopt};
use std::os::fd::AsFd;

/// What a client may do, or what a request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Right {
    /// Ask what there is.
    Look,
    /// Also change it.
    Change,
}

/// User and group of a client when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    uid: u32,
    gid: u32,
}

impl Peer {
    /// Its user.
    pub(crate) fn user(self) -> u32 {
        self.uid
    }

    /// Of the other end of a socket; none: the kernel does not say. A client in a PID namespace
    /// that we do not see into has a user and a group all the same, and the process id 0, which
    /// `rustix` takes for a mistake.
    pub(crate) fn of(socket: impl AsFd) -> Option<Self> {
        let peer = getsockopt(&socket, sockopt::PeerCredentials).ok()?;
        let (uid, gid) = (peer.uid(), peer.gid());
        Some(Self { uid, gid })
    }
}

/// What a client may do; none: nothing. Root may do everything, and so may `user`, whose machine
/// it is.
pub(crate) fn of_client(access: &Access, user: u32, client: Peer) -> Option<Right> {
    let Peer { uid, gid } = client;
    let belongs = |group: &Option<Group>| {
        let group = group.as_ref();
        group.is_some_and(|group| group.id == gid || group.members.contains(&uid))
    };
    if uid == 0 || uid == user || belongs(&access.change) {
        return Some(Right::Change);
    }
    belongs(&access.look).then_some(Right::Look)
}

/// What a request takes.
pub(crate) fn of_request(request: &Control) -> Right {
    match request {
        Control::Status | Control::Grants => Right::Look,
        // What a domain is asked it answers by itself, and it does not know who asks.
        Control::Relay { request, .. } => match serde_json::from_str::<Request>(request) {
            Ok(Request::Stat | Request::Trace) => Right::Look,
            _ => Right::Change,
        },
        _ => Right::Change,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(uid: u32, gid: u32) -> Peer {
        Peer { uid, gid }
    }

    fn group(id: u32, members: &[u32]) -> Option<Group> {
        let members = members.to_vec();
        Some(Group { id, members })
    }

    #[test]
    fn without_groups_root_and_the_machines_user_alone_are_heard() {
        let right = |uid| of_client(&Access::default(), 1000, client(uid, 0));
        assert_eq!(right(0), Some(Right::Change));
        assert_eq!(right(1000), Some(Right::Change));
        assert_eq!(right(1001), None, "root's group is not root");
    }

    #[test]
    fn members_of_a_group_have_its_right_and_the_higher_of_two() {
        let access = Access {
            look: group(50, &[7, 8]),
            change: group(60, &[8]),
        };
        let right = |uid, gid| of_client(&access, 1000, client(uid, gid));
        assert_eq!(right(7, 7), Some(Right::Look));
        assert_eq!(right(9, 50), Some(Right::Look));
        assert_eq!(right(8, 8), Some(Right::Change));
        assert_eq!(right(9, 60), Some(Right::Change));
        assert_eq!(right(9, 9), None);
    }

    #[test]
    fn what_changes_nothing_is_told_from_what_does() {
        let relay = |request: &str| Control::Relay {
            domain: "driver".into(),
            request: request.into(),
        };
        for request in [
            Control::Status,
            Control::Grants,
            relay(r#"{"op":"stat"}"#),
            relay(r#"{"op":"trace"}"#),
        ] {
            assert_eq!(of_request(&request), Right::Look, "{request:?}");
        }
        for request in [
            Control::Down,
            Control::Restart {
                domain: "web".into(),
            },
            Control::Reload {
                files: Vec::new(),
                dry_run: true,
            },
            relay(r#"{"op":"set","key":"k","value":"v"}"#),
            relay(r#"{"op":"stat","op":"set","key":"k","value":"v"}"#),
            relay("nonsense"),
        ] {
            assert_eq!(of_request(&request), Right::Change, "{request:?}");
        }
    }
}
