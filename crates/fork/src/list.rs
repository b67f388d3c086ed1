//! What the handler in a child goes through.

use std::array::from_fn;

use once_cell::race::OnceBox;

const ENTRIES: usize = 64;

/// A list that only grows: a child may walk it at any moment.
pub(crate) struct List<E: 'static> {
    entries: [E; ENTRIES],
    next: OnceBox<List<E>>,
}

impl<E: Default> List<E> {
    /// One of entries that are free.
    pub(crate) const fn new(entries: [E; ENTRIES]) -> Self {
        Self {
            entries,
            next: OnceBox::new(),
        }
    }

    /// The first entry that `take` takes. It takes one that is free, and that nobody else has taken meanwhile.
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

    /// Without allocating, or waiting for anyone.
    pub(crate) fn for_each(&self, mut work: impl FnMut(&E)) {
        let mut list = Some(self);
        while let Some(Self { entries, next }) = list {
            entries.iter().for_each(&mut work);
            list = next.get();
        }
    }
}
