//! Which frames of a batch go out by which port: of many ports most get none, and are not looked at.

/// For one batch; its room is used again.
#[derive(Debug)]
pub struct Picks {
    /// By port, indices into the batch.
    frames: Vec<Vec<u32>>,
    /// Ports that get any, each once.
    ports: Vec<usize>,
}

impl Picks {
    /// Nothing goes out by any of so many ports.
    #[must_use]
    pub fn new(ports: usize) -> Self {
        Self {
            frames: vec![Vec::new(); ports],
            ports: Vec::new(),
        }
    }

    /// These frames of the batch go out by `port` as well.
    #[inline]
    pub fn add(&mut self, port: usize, frames: impl IntoIterator<Item = u32>) {
        if let Some(pick) = self.frames.get_mut(port) {
            let got_none = pick.is_empty();
            pick.extend(frames);
            if got_none && !pick.is_empty() {
                self.ports.push(port);
            }
        }
    }

    /// Every port that gets frames, and which.
    pub fn all(&self) -> impl Iterator<Item = (usize, &[u32])> {
        self.ports
            .iter()
            .map(|port| (*port, self.frames.get(*port).map_or(&[][..], Vec::as_slice)))
    }

    /// The batch is over.
    pub fn clear(&mut self) {
        for port in self.ports.drain(..) {
            if let Some(pick) = self.frames.get_mut(port) {
                pick.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_named_once_with_all_of_its_frames() {
        let mut picks = Picks::new(3);
        for (port, frame) in [(2, 0), (0, 1), (2, 1), (9, 2)] {
            picks.add(port, [frame]);
        }
        let all: Vec<_> = picks.all().collect();
        assert_eq!(all, [(2, &[0, 1][..]), (0, &[1][..])]);
        picks.clear();
        assert_eq!(picks.all().count(), 0);
        picks.add(1, []);
        picks.add(0, 0..3);
        let all: Vec<_> = picks.all().collect();
        assert_eq!(
            all,
            [(0, &[0, 1, 2][..])],
            "nothing is left of the batch before"
        );
    }
}
