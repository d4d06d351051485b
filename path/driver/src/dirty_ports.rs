//! List of the guest ports whose rings must be published. The driver does not access the rings of
//! other guests.

/// Guest ports whose rings must be published, without duplicates.
#[derive(Debug, Default)]
pub struct DirtyPorts {
    ports: Vec<usize>,
    /// Whether each port is in the list, by port.
    marked: Vec<bool>,
}

impl DirtyPorts {
    /// Marks the guest at `port`.
    #[inline]
    pub fn mark(&mut self, port: usize) {
        if self.marked.len() <= port {
            self.marked.resize(port + 1, false);
        }
        if let Some(marked) = self.marked.get_mut(port)
            && !std::mem::replace(marked, true)
        {
            self.ports.push(port);
        }
    }

    /// Returns the ports in marking order.
    #[must_use]
    pub fn ports(&self) -> &[usize] {
        &self.ports
    }

    /// Clears the list. The caller has published all rings and notified their guests.
    pub fn clear(&mut self) {
        for port in self.ports.drain(..) {
            if let Some(marked) = self.marked.get_mut(port) {
                *marked = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_listed_once_until_cleared() {
        let mut dirty = DirtyPorts::default();
        for port in [7, 2, 7, 7, 2] {
            dirty.mark(port);
        }
        assert_eq!(dirty.ports(), [7, 2]);
        dirty.clear();
        assert!(dirty.ports().is_empty());
        dirty.mark(2);
        assert_eq!(dirty.ports(), [2]);
    }
}
