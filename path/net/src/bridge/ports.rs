//! Sets of ports.

use std::rc::Rc;

/// Ports that a bridge can have.
pub const MAX_PORTS: usize = 1 << 12;

/// A set of port numbers: a list that many sets share, and one port that is left out of it. It is
/// cheap to hand on, however many ports there are.
#[derive(Clone, Debug)]
pub struct PortSet {
    /// Ascending.
    members: Rc<[usize]>,
    except: Option<usize>,
}

impl PortSet {
    /// All members of the list but `port`.
    #[must_use]
    pub fn without(&self, port: usize) -> Self {
        Self {
            members: Rc::clone(&self.members),
            except: Some(port),
        }
    }

    /// Whether `port` is a member.
    #[must_use]
    pub fn contains(&self, port: usize) -> bool {
        self.except != Some(port) && self.members.binary_search(&port).is_ok()
    }

    /// The members, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let except = self.except;
        self.members
            .iter()
            .copied()
            .filter(move |port| Some(*port) != except)
    }
}

impl FromIterator<usize> for PortSet {
    fn from_iter<T: IntoIterator<Item = usize>>(ports: T) -> Self {
        let mut members: Vec<usize> = ports.into_iter().collect();
        members.sort_unstable();
        members.dedup();
        Self {
            members: members.into(),
            except: None,
        }
    }
}

impl PartialEq for PortSet {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for PortSet {}
