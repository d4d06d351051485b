//! Rights at the control socket, by the user and the group that the kernel reports for a client.

use abi::machine::{Access, ControlRequest, Group};
use abi::mailbox::MailboxRequest;
use nix::sys::socket::{getsockopt, sockopt};
use std::os::fd::AsFd;

/// The right of a client, or the right that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Right {
    /// Read the machine's state.
    Query,
    /// Change the machine as well.
    Change,
}

/// User and group of a client when it connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientIdentity {
    uid: u32,
    gid: u32,
}

impl ClientIdentity {
    /// Returns the client's user id.
    pub(crate) fn user(self) -> u32 {
        self.uid
    }

    /// Returns the user and the group at the other end of a socket, or `None` if the kernel does
    /// not report them. Uses `nix` because `rustix` rejects process id 0, which the kernel reports
    /// for a client in a PID namespace that is not visible here.
    pub(crate) fn of(socket: impl AsFd) -> Option<Self> {
        let peer = getsockopt(&socket, sockopt::PeerCredentials).ok()?;
        let (uid, gid) = (peer.uid(), peer.gid());
        Some(Self { uid, gid })
    }
}

/// Returns the right of a client, or `None` if it has none. Root and `user`, the machine's user,
/// have every right.
pub(crate) fn right_of_client(access: &Access, user: u32, client: ClientIdentity) -> Option<Right> {
    let ClientIdentity { uid, gid } = client;
    let belongs = |group: &Option<Group>| {
        let group = group.as_ref();
        group.is_some_and(|group| group.id == gid || group.members.contains(&uid))
    };
    if uid == 0 || uid == user || belongs(&access.change) {
        return Some(Right::Change);
    }
    belongs(&access.query).then_some(Right::Query)
}

/// Returns the right that a request needs.
pub(crate) fn required_right(request: &ControlRequest) -> Right {
    match request {
        ControlRequest::Status | ControlRequest::Grants => Right::Query,
        // The domain cannot check the client's rights, so the manager checks them here.
        ControlRequest::Relay { request, .. } => {
            match serde_json::from_str::<MailboxRequest>(request) {
                Ok(
                    MailboxRequest::Stat
                    | MailboxRequest::Ports { .. }
                    | MailboxRequest::Trace
                    | MailboxRequest::Flows { .. },
                ) => Right::Query,
                _ => Right::Change,
            }
        }
        _ => Right::Change,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(uid: u32, gid: u32) -> ClientIdentity {
        ClientIdentity { uid, gid }
    }

    fn group(id: u32, members: &[u32]) -> Option<Group> {
        let members = members.to_vec();
        Some(Group { id, members })
    }

    #[test]
    fn without_groups_only_root_and_the_user_have_rights() {
        let right = |uid| right_of_client(&Access::default(), 1000, client(uid, 0));
        assert_eq!(right(0), Some(Right::Change));
        assert_eq!(right(1000), Some(Right::Change));
        assert_eq!(right(1001), None, "root's group is not root");
    }

    #[test]
    fn group_members_have_the_higher_of_two_rights() {
        let access = Access {
            query: group(50, &[7, 8]),
            change: group(60, &[8]),
        };
        let right = |uid, gid| right_of_client(&access, 1000, client(uid, gid));
        assert_eq!(right(7, 7), Some(Right::Query));
        assert_eq!(right(9, 50), Some(Right::Query));
        assert_eq!(right(8, 8), Some(Right::Change));
        assert_eq!(right(9, 60), Some(Right::Change));
        assert_eq!(right(9, 9), None);
    }

    #[test]
    fn requests_that_only_read_need_the_lower_right() {
        let relay = |request: &str| ControlRequest::Relay {
            domain: "driver".into(),
            request: request.into(),
        };
        for request in [
            ControlRequest::Status,
            ControlRequest::Grants,
            relay(r#"{"op":"stat"}"#),
            relay(r#"{"op":"trace"}"#),
            relay(r#"{"op":"flows","of":"web","first":0}"#),
        ] {
            assert_eq!(required_right(&request), Right::Query, "{request:?}");
        }
        for request in [
            ControlRequest::Down,
            ControlRequest::Restart {
                domain: "web".into(),
            },
            ControlRequest::Reload {
                files: Vec::new(),
                dry_run: true,
            },
            ControlRequest::Rules {
                guest: abi::machine::ConfigValue::Flag(true),
            },
            relay(r#"{"op":"set","key":"k","value":"v"}"#),
            relay(r#"{"op":"stat","op":"set","key":"k","value":"v"}"#),
            relay("nonsense"),
        ] {
            assert_eq!(required_right(&request), Right::Change, "{request:?}");
        }
    }
}
