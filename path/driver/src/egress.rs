//! Groups the frames of a batch by egress port. Ports without frames cost no time.

/// The frames of one batch by egress port. Batches reuse its memory.
#[derive(Debug, Default)]
pub struct EgressBatch {
    /// Indices into the batch, by port.
    frames: Vec<Vec<u32>>,
    /// Ports with frames, without duplicates.
    ports: Vec<usize>,
}

impl EgressBatch {
    /// Adds `port`. Frames for ports that were not added are dropped.
    pub fn make_room(&mut self, port: usize) {
        if self.frames.len() <= port {
            self.frames.resize(port + 1, Vec::new());
        }
    }

    /// Adds frames of the batch, by index, for egress port `port`.
    #[inline]
    pub fn add(&mut self, port: usize, frames: impl IntoIterator<Item = u32>) {
        if let Some(pick) = self.frames.get_mut(port) {
            let was_empty = pick.is_empty();
            pick.extend(frames);
            if was_empty && !pick.is_empty() {
                self.ports.push(port);
            }
        }
    }

    /// Iterates over the ports with frames, and the frames of each.
    pub fn all(&self) -> impl Iterator<Item = (usize, &[u32])> {
        self.ports
            .iter()
            .map(|port| (*port, self.frames.get(*port).map_or(&[][..], Vec::as_slice)))
    }

    /// Ends the batch.
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
    fn each_port_is_listed_once_with_its_frames() {
        let mut egress = EgressBatch::default();
        egress.make_room(2);
        egress.make_room(1);
        for (port, frame) in [(2, 0), (0, 1), (2, 1), (9, 2)] {
            egress.add(port, [frame]);
        }
        let all: Vec<_> = egress.all().collect();
        assert_eq!(all, [(2, &[0, 1][..]), (0, &[1][..])]);
        egress.clear();
        assert_eq!(egress.all().count(), 0);
        egress.add(1, []);
        egress.add(0, 0..3);
        let all: Vec<_> = egress.all().collect();
        assert_eq!(
            all,
            [(0, &[0, 1, 2][..])],
            "nothing remains of the previous batch"
        );
    }
}
