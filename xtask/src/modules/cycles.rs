//! Finds cycles in a graph of files: computes Tarjan's strongly connected components, and the
//! shortest cycle through each file of a component.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Edges by node.
pub(super) type Graph = BTreeMap<usize, BTreeSet<usize>>;

/// Returns the groups of two or more nodes that reach each other.
pub(super) fn groups(graph: &Graph) -> Vec<BTreeSet<usize>> {
    let mut search = Search {
        graph,
        reached: BTreeMap::new(),
        back: BTreeMap::new(),
        stack: Vec::new(),
        groups: Vec::new(),
    };
    for &node in graph.keys() {
        if !search.reached.contains_key(&node) {
            search.visit(node);
        }
    }
    search.groups
}

/// Tarjan's search.
struct Search<'a> {
    graph: &'a Graph,
    /// The order in which nodes were first reached.
    reached: BTreeMap<usize, usize>,
    /// For each node, the earliest node that it reaches again.
    back: BTreeMap<usize, usize>,
    stack: Vec<usize>,
    groups: Vec<BTreeSet<usize>>,
}

impl Search<'_> {
    fn visit(&mut self, node: usize) {
        let order = self.reached.len();
        self.reached.insert(node, order);
        self.stack.push(node);
        let mut back = order;
        for &next in self.graph.get(&node).into_iter().flatten() {
            if !self.reached.contains_key(&next) {
                self.visit(next);
                back = back.min(self.back[&next]);
            } else if self.stack.contains(&next) {
                back = back.min(self.reached[&next]);
            }
        }
        self.back.insert(node, back);
        if back == order {
            let at = self.stack.iter().rposition(|&other| other == node);
            let group: BTreeSet<usize> = self.stack.drain(at.unwrap_or(0)..).collect();
            if group.len() > 1 {
                self.groups.push(group);
            }
        }
    }
}

/// Returns the shortest cycles through the nodes of a group, each cycle once.
pub(super) fn shortest(graph: &Graph, group: &BTreeSet<usize>) -> Vec<Vec<usize>> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for &node in group {
        let circle = around(graph, group, node);
        let nodes: BTreeSet<usize> = circle.iter().copied().collect();
        if !circle.is_empty() && seen.insert(nodes) {
            found.push(circle);
        }
    }
    found.sort_by_key(Vec::len);
    found
}

/// Returns the shortest cycle through `start`, starting at `start`.
fn around(graph: &Graph, group: &BTreeSet<usize>, start: usize) -> Vec<usize> {
    let mut came_from = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(node) = next.pop_front() {
        for &to in graph.get(&node).into_iter().flatten() {
            if to == start {
                return back_to(start, node, &came_from);
            }
            if group.contains(&to) && !came_from.contains_key(&to) {
                came_from.insert(to, node);
                next.push_back(to);
            }
        }
    }
    Vec::new()
}

fn back_to(start: usize, end: usize, came_from: &BTreeMap<usize, usize>) -> Vec<usize> {
    let mut way = vec![end];
    let mut node = end;
    while node != start {
        node = came_from[&node];
        way.push(node);
    }
    way.reverse();
    way
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(arrows: &[(usize, usize)]) -> Graph {
        let mut graph = Graph::new();
        for &(from, to) in arrows {
            graph.entry(from).or_default().insert(to);
        }
        graph
    }

    #[test]
    fn cycles_are_found_with_their_direction() {
        let graph = graph(&[(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 3), (4, 5)]);
        let found = groups(&graph);
        assert_eq!(found, [BTreeSet::from([3, 4]), BTreeSet::from([0, 1, 2])]);
        assert_eq!(shortest(&graph, &found[1]), [[0, 1, 2]]);
    }

    #[test]
    fn a_tree_has_no_cycle() {
        assert!(groups(&graph(&[(0, 1), (0, 2), (1, 3), (2, 3)])).is_empty());
    }
}
