//! Doubly linked lists of slot numbers, in one vector.

/// Several lists. Every slot is in at most one of them.
#[derive(Clone, Debug)]
pub(super) struct SlotLists {
    /// `(previous, next)` of every node in a ring: first the heads, then the slots.
    nodes: Vec<(u32, u32)>,
    heads: u32,
}

impl SlotLists {
    pub(super) fn new(heads: u32) -> Self {
        Self {
            nodes: (0..heads).map(|head| (head, head)).collect(),
            heads,
        }
    }

    #[inline]
    fn set_next(&mut self, node: u32, next: u32) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.1 = next;
        }
    }

    #[inline]
    fn set_previous(&mut self, node: u32, previous: u32) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.0 = previous;
        }
    }

    /// Appends a slot that is in no list.
    #[inline]
    pub(super) fn push(&mut self, head: u32, slot: u32) {
        let node = slot + self.heads;
        while self.nodes.len() <= node as usize {
            let alone = self.nodes.len() as u32;
            self.nodes.push((alone, alone));
        }
        let last = self.nodes.get(head as usize).map_or(head, |head| head.0);
        self.set_next(last, node);
        self.set_previous(node, last);
        self.set_next(node, head);
        self.set_previous(head, node);
    }

    /// Removes a slot from its list, if it is in one.
    #[inline]
    pub(super) fn remove(&mut self, slot: u32) {
        let node = slot + self.heads;
        let Some(&(previous, next)) = self.nodes.get(node as usize) else {
            return;
        };
        self.set_next(previous, next);
        self.set_previous(next, previous);
        self.set_next(node, node);
        self.set_previous(node, node);
    }

    /// Returns the first slot of a list.
    #[inline]
    pub(super) fn first(&self, head: u32) -> Option<u32> {
        self.nodes.get(head as usize)?.1.checked_sub(self.heads)
    }
}
