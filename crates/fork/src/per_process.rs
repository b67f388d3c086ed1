//! Statics that each process, also each forked child, has for itself.

use once_cell::race::OnceBox;

use crate::Process;

/// A static value that each process has for itself, initially the default. A child must not use
/// what it inherits: it may be locked by a thread that does not exist in the child. For the same
/// reason initialisation does not block: several threads may try at once, and one of the values is
/// kept.
pub struct PerProcess<T> {
    first: OnceBox<Node<T>>,
}

/// The value of one process. `next` is that of a child that was forked from it.
struct Node<T> {
    process: Process,
    value: T,
    next: OnceBox<Node<T>>,
}

impl<T: Default> PerProcess<T> {
    /// An empty static.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self {
            first: OnceBox::new(),
        }
    }

    /// This process's value.
    pub fn get(&self) -> &T {
        let mut node = self.first.get_or_init(|| Box::new(Node::new()));
        while !node.process.is_here() {
            node = node.next.get_or_init(|| Box::new(Node::new()));
        }
        &node.value
    }
}

impl<T: Default> Node<T> {
    fn new() -> Self {
        Self {
            process: Process::here(),
            value: T::default(),
            next: OnceBox::new(),
        }
    }
}
