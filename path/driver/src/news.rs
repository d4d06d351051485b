//! Which guests something was done for since they were last shown it: the others are not looked at.

/// Ports of guests, each once.
#[derive(Debug, Default)]
pub struct News {
    ports: Vec<usize>,
    /// By port.
    marked: Vec<bool>,
}

impl News {
    /// Something was done for the guest at `port`.
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

    /// The ports, in the order in which they were marked.
    #[must_use]
    pub fn ports(&self) -> &[usize] {
        &self.ports
    }

    /// All of them were shown everything, and told.
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
    fn a_port_is_named_once_until_it_was_told() {
        let mut news = News::default();
        for port in [7, 2, 7, 7, 2] {
            news.mark(port);
        }
        assert_eq!(news.ports(), [7, 2]);
        news.clear();
        assert!(news.ports().is_empty());
        news.mark(2);
        assert_eq!(news.ports(), [2]);
    }
}
