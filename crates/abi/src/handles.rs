//! Handles of communicators and requests: numbers in tables. So an invalid one is an error, not
//! undefined behaviour.
//!
//! Each number is used for one handle only, even in different tables. Handles that a library
//! chooses itself are its own affair. Each process has its own tables. A forked child counts on
//! from its parent's last number, so a handle that it has inherited never becomes valid in the
//! child.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use spark_ccl_fork::PerProcess;
use spark_ccl_log::RwLock;

use crate::failure::Failure;

/// The handle after the last one; 0 is none. Not per process: a child must not start anew.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The objects of one kind, by handle.
pub struct Table<T: 'static> {
    what: &'static str,
    objects: PerProcess<RwLock<BTreeMap<u64, Arc<T>>>>,
}

impl<T> Table<T> {
    /// An empty table. `what` names its objects in messages.
    pub const fn new(what: &'static str) -> Self {
        Self {
            what,
            objects: PerProcess::new(),
        }
    }

    /// A handle of the object, which is not 0.
    pub fn insert(&self, object: T) -> u64 {
        // Pairs with nothing: only the number counts.
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        self.insert_at(handle, object);
        handle
    }

    /// Gives the object a handle that the library chooses: not 0, and no other object's.
    pub fn insert_at(&self, handle: u64, object: T) -> Arc<T> {
        let object = Arc::new(object);
        let objects = self.objects.get();
        objects.write().insert(handle, Arc::clone(&object));
        object
    }

    /// The object, which stays until its last user is done with it.
    ///
    /// # Errors
    /// The handle was never one of this table, or has ended.
    pub fn get(&self, handle: u64) -> Result<Arc<T>, Failure> {
        let object = self.objects.get().read().get(&handle).cloned();
        object.ok_or_else(|| self.unknown(handle))
    }

    /// The object. Its handle ends.
    ///
    /// # Errors
    /// Those of [`get`](Self::get).
    pub fn remove(&self, handle: u64) -> Result<Arc<T>, Failure> {
        let removed = self.objects.get().write().remove(&handle);
        removed.ok_or_else(|| self.unknown(handle))
    }

    fn unknown(&self, handle: u64) -> Failure {
        let what = self.what;
        Failure::invalid(if handle == 0 {
            format!("the {what} is null")
        } else {
            format!(
                "there is no such {what}: it has ended, or belongs to the process that this one \
                 was forked from"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_end_with_their_objects() {
        static TABLE: Table<u32> = Table::new("number");
        static OTHERS: Table<u32> = Table::new("other number");
        let (first, second) = (TABLE.insert(1), TABLE.insert(2));
        assert!(first != 0 && first != second);
        let held = TABLE.get(first).unwrap();
        assert_eq!(*TABLE.remove(first).unwrap(), 1);
        assert_eq!(*held, 1);
        let third = TABLE.insert(3);
        // Not even in the table of another kind.
        let other = OTHERS.insert(4);
        for stale in [first, 0, other, u64::MAX] {
            assert!(TABLE.get(stale).is_err());
            assert!(TABLE.remove(stale).is_err());
        }
        assert_eq!(
            (*TABLE.get(second).unwrap(), *TABLE.get(third).unwrap()),
            (2, 3)
        );
    }
}
