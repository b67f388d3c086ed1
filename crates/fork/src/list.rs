//! A lock-free list with static storage, which the fork handler can walk in a child.

use std::array::from_fn;

use once_cell::race::OnceBox;

const ENTRIES: usize = 64;

/// A list that only grows, so that a child may walk it whenever its parent forked.
pub(crate) struct List<E: 'static> {
    entries: [E; ENTRIES],
    next: OnceBox<List<E>>,
}

impl<E: Default> List<E> {
    /// A list that starts with these entries, all free.
    pub(crate) const fn new(entries: [E; ENTRIES]) -> Self {
        Self {
            entries,
            next: OnceBox::new(),
        }
    }

    /// Returns the first entry for which `take` returns true. `take` atomically claims an entry if
    /// it is free.
    pub(crate) fn enlist(&'static self, take: impl Fn(&E) -> bool) -> &'static E {
        let mut list = self;
        loop {
            if let Some(entry) = list.entries.iter().find(|entry| take(entry)) {
                return entry;
            }
            let longer = || Box::new(Self::new(from_fn(|_| E::default())));
            list = list.next.get_or_init(longer);
        }
    }

    /// Calls `work` with every entry. Neither allocates nor waits.
    pub(crate) fn for_each(&self, mut work: impl FnMut(&E)) {
        let mut list = Some(self);
        while let Some(Self { entries, next }) = list {
            entries.iter().for_each(&mut work);
            list = next.get();
        }
    }
}
