//! Sets of ports.

use std::rc::Rc;

/// Ports that a bridge can have.
pub const MAX_PORTS: usize = 1 << 12;

/// A set of port numbers: a list that many sets share, and one port that is left out of it. It is
/// cheap to hand on, however many ports there are.
#[derive(Clone, Debug)]
pub struct PortSet {
    /// Ascending.
    members: Rc<[u16]>,
    /// [`u16::MAX`]: none.
    except: u16,
}

impl PortSet {
    /// All members of the list but `port`.
    #[must_use]
    pub fn without(&self, port: usize) -> Self {
        Self {
            members: Rc::clone(&self.members),
            except: number(port),
        }
    }

    /// Whether `port` is a member.
    #[must_use]
    pub fn contains(&self, port: usize) -> bool {
        self.iter().any(|member| member == port)
    }

    /// The members, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let members = self.members.iter().filter(|port| **port != self.except);
        members.map(|port| usize::from(*port))
    }
}

/// A port's number as it is kept here; numbers beyond [`MAX_PORTS`] are none of a port.
fn number(port: usize) -> u16 {
    u16::try_from(port).unwrap_or(u16::MAX)
}

impl FromIterator<usize> for PortSet {
    /// The set of these ports; numbers from [`MAX_PORTS`] on are left out.
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
