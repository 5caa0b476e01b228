//! Finding sockets that only sockets in flight lead to.
//!
//! A socket can be sent over itself, or two over each other; closed then by all processes, they
//! keep one another alive. The local sockets in flight are the nodes of a graph; a node has an edge
//! to each socket in its queue. A node whose open file has more handles than it is often in flight
//! is held from outside. So is one that is in flight in the queue of a socket that is no node.
//! Nodes that cannot be reached from those are garbage: their queues are emptied.
//!
//! The list of sockets in flight stays locked meanwhile, so no socket arrives anywhere; and one
//! that is not held from outside can't come to be except by arriving. A handle that comes or goes
//! elsewhere makes a node look held at worst. A thread that closes a chain of sockets locks that
//! list for each of them before it closes them: the collector's own handles, gone by then, delay no
//! close. Where the last handle from outside was a call's, the next regular search finds the node.

use alloc::{boxed::Box, sync::Arc, vec::Vec};

use nucleus::{
    OutOfMemory,
    task::{self, Priority, Spawn},
    try_vec,
};

use super::{
    UnixSocket,
    end::End,
    rights::{self, Rights},
};
use crate::process::files::{self, Collector, OpenFile};

/// Has the close of a descriptor look for garbage where its file is a socket in flight.
pub fn register() {
    files::set_collector(Collector {
        may_leave_garbage: rights::is_in_flight,
        collect: rights::suspect,
    });
}

/// Starts the task that closes files that have not arrived, and looks for garbage.
///
/// # Errors
/// No memory.
pub fn start() -> Result<(), OutOfMemory> {
    let spawn = Spawn {
        priority: Priority::KERNEL,
        ..Spawn::kernel("rights")
    };
    task::spawn(spawn, Box::new(|| rights::serve(collect))).map(drop)
}

/// A graph of sockets by number.
#[derive(Default)]
pub struct Graph {
    nodes: Vec<Node>,
    /// From, to.
    edges: Vec<(usize, usize)>,
}

#[derive(Default)]
struct Node {
    /// Handles of it that are not in the queue of a node.
    outside: usize,
    is_live: bool,
}

impl Graph {
    /// Adds a node that has so many handles in all; nodes are numbered from 0 on.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn add(&mut self, handles: usize) -> Result<(), OutOfMemory> {
        self.nodes.try_reserve(1).map_err(|_| OutOfMemory)?;
        self.nodes.push(Node {
            outside: handles,
            is_live: false,
        });
        Ok(())
    }

    /// One of the handles of `to` is in the queue of `from`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn holds(&mut self, from: usize, to: usize) -> Result<(), OutOfMemory> {
        self.edges.try_reserve(1).map_err(|_| OutOfMemory)?;
        self.nodes[to].outside = self.nodes[to].outside.saturating_sub(1);
        self.edges.push((from, to));
        Ok(())
    }

    /// The nodes that none with a handle outside leads to.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn garbage(mut self) -> Result<Vec<usize>, OutOfMemory> {
        self.edges.sort_unstable();
        // Each node enters the list once.
        let mut next = try_vec(self.nodes.len())?;
        for (number, node) in self.nodes.iter_mut().enumerate() {
            node.is_live = node.outside > 0;
            if node.is_live {
                next.push(number);
            }
        }
        while let Some(from) = next.pop() {
            let first = self.edges.partition_point(|edge| edge.0 < from);
            for &(_, to) in self.edges[first..].iter().take_while(|edge| edge.0 == from) {
                if !self.nodes[to].is_live {
                    self.nodes[to].is_live = true;
                    next.push(to);
                }
            }
        }
        next.extend((0..self.nodes.len()).filter(|&number| !self.nodes[number].is_live));
        Ok(next)
    }
}

/// Looks for garbage and empties its queues. Without memory for that it stays, until the next
/// close.
fn collect() {
    let _ = try_collect();
}

fn try_collect() -> Result<(), OutOfMemory> {
    if !rights::any_sockets() {
        return Ok(());
    }
    let mut garbage: Vec<Rights> = Vec::new();
    {
        let sockets = rights::sockets();
        // These handles go before the list is unlocked, and none is a file's last: each file has
        // one in flight, which is not dropped before the file is taken off the list.
        let mut files: Vec<Arc<OpenFile>> = try_vec(sockets.len())?;
        let mut ends: Vec<Arc<End>> = try_vec(sockets.len())?;
        let mut keys = try_vec(sockets.len())?;
        for (&key, socket) in sockets.iter() {
            let Some(file) = socket.file.upgrade() else {
                continue;
            };
            let Some(unix) = UnixSocket::of(&file) else {
                continue;
            };
            ends.push(unix.end.clone());
            files.push(file);
            keys.push(key);
        }
        let mut graph = Graph::default();
        for file in &files {
            // Without the handle that `files` has.
            graph.add(Arc::strong_count(file) - 1)?;
        }
        for (from, end) in ends.iter().enumerate() {
            let mut added = Ok(());
            end.visit_rights(&mut |rights| {
                for file in rights.files() {
                    if let Ok(to) = keys.binary_search(&Arc::as_ptr(file).addr()) {
                        added = added.and_then(|()| graph.holds(from, to));
                    }
                }
            });
            added?;
        }
        for number in graph.garbage()? {
            ends[number].take_rights(&mut garbage);
        }
    }
    drop(garbage);
    Ok(())
}

#[cfg(test)]
mod tests {
    extern crate std;

    use nucleus::sim::Random;
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_socket_sent_over_itself_is_garbage() {
        let mut graph = Graph::default();
        graph.add(1).unwrap();
        graph.holds(0, 0).unwrap();
        assert_eq!(graph.garbage().unwrap(), [0]);
    }

    #[test]
    fn what_a_live_one_leads_to_is_not() {
        let mut graph = Graph::default();
        // 0 is held outside and holds 1, which holds 2; 3 and 4 hold each other, and 4 holds 2 too.
        for handles in [1, 1, 2, 1, 1] {
            graph.add(handles).unwrap();
        }
        for (from, to) in [(0, 1), (1, 2), (3, 4), (4, 3), (4, 2)] {
            graph.holds(from, to).unwrap();
        }
        assert_eq!(graph.garbage().unwrap(), [3, 4]);
    }

    /// Against reachability computed by repeated steps over a set.
    #[test]
    fn random_graphs() {
        let mut numbers = Random::new(7);
        for _ in 0..2000 {
            let count = 1 + numbers.below(12);
            let edges: std::vec::Vec<(usize, usize)> = (0..numbers.below(24))
                .map(|_| (numbers.below(count), numbers.below(count)))
                .collect();
            let outside: std::vec::Vec<usize> = (0..count)
                .map(|_| numbers.below(4).saturating_sub(2))
                .collect();
            let mut graph = Graph::default();
            for (node, outside) in outside.iter().enumerate() {
                graph
                    .add(outside + edges.iter().filter(|edge| edge.1 == node).count())
                    .unwrap();
            }
            for &(from, to) in &edges {
                graph.holds(from, to).unwrap();
            }
            let mut live: BTreeSet<usize> = (0..count).filter(|&n| outside[n] > 0).collect();
            loop {
                let more: BTreeSet<usize> = edges
                    .iter()
                    .filter(|edge| live.contains(&edge.0) && !live.contains(&edge.1))
                    .map(|edge| edge.1)
                    .collect();
                if more.is_empty() {
                    break;
                }
                live.extend(more);
            }
            let expected: std::vec::Vec<usize> =
                (0..count).filter(|node| !live.contains(node)).collect();
            assert_eq!(graph.garbage().unwrap(), expected);
        }
    }
}
