//! Sets of ports.

use std::rc::Rc;

/// Maximum number of ports of a bridge.
pub const MAX_PORTS: usize = 1 << 12;

/// A set of port numbers: a shared list without one port. Cheap to clone, whatever the number of
/// ports.
#[derive(Clone, Debug)]
pub struct PortSet {
    /// Ascending.
    members: Rc<[u16]>,
    /// The excluded port; [`u16::MAX`]: none.
    except: u16,
}

impl PortSet {
    /// Returns all members of the list except `port`.
    #[must_use]
    pub fn without(&self, port: usize) -> Self {
        Self {
            members: Rc::clone(&self.members),
            except: number(port),
        }
    }

    /// Returns whether `port` is a member.
    #[must_use]
    pub fn contains(&self, port: usize) -> bool {
        self.iter().any(|member| member == port)
    }

    /// Returns the members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let members = self.members.iter().filter(|port| **port != self.except);
        members.map(|port| usize::from(*port))
    }
}

/// Converts a port number; numbers of [`MAX_PORTS`] and above match no port.
fn number(port: usize) -> u16 {
    u16::try_from(port).unwrap_or(u16::MAX)
}

impl FromIterator<usize> for PortSet {
    /// Collects these port numbers, except those of [`MAX_PORTS`] and above.
    fn from_iter<T: IntoIterator<Item = usize>>(ports: T) -> Self {
        let ports = ports.into_iter().filter(|port| *port < MAX_PORTS);
        let mut members: Vec<u16> = ports.map(number).collect();
        members.sort_unstable();
        members.dedup();
        Self {
            members: members.into(),
            except: u16::MAX,
        }
    }
}

impl PartialEq for PortSet {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for PortSet {}
