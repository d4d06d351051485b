//! Guest ports whose rings need publishing. The driver does not touch the rings of other guests.

/// Guest ports whose rings need publishing, without duplicates.
#[derive(Debug, Default)]
pub struct DirtyPorts {
    ports: Vec<usize>,
    /// By port.
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

    /// Clears the list, after all rings have been published and their guests notified.
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
    fn a_port_is_named_once_until_it_was_notified() {
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
