//! Handles of communicators and requests: numbers in tables, so that one that is no longer valid is an error.
//!
//! Each process has tables of its own: what a forked child inherits is no handle there.

use crate::status::Failure;
use parking_lot::RwLock;
use slotmap::{DefaultKey, Key, KeyData, SlotMap};
use spark_ccl_fork::PerProcess;
use std::sync::Arc;

/// The objects of one kind, by handle.
pub(crate) struct Table<T: 'static> {
    what: &'static str,
    objects: PerProcess<RwLock<SlotMap<DefaultKey, Arc<T>>>>,
}

impl<T> Table<T> {
    pub(crate) const fn new(what: &'static str) -> Self {
        Self {
            what,
            objects: PerProcess::new(),
        }
    }

    /// A handle of the object, which is not 0.
    pub(crate) fn insert(&self, object: T) -> u64 {
        let key = self.objects.get().write().insert(Arc::new(object));
        key.data().as_ffi()
    }

    /// The object, which stays until its last user is done with it.
    pub(crate) fn get(&self, handle: u64) -> Result<Arc<T>, Failure> {
        let objects = self.objects.get().read();
        let object = objects.get(key(handle)).cloned();
        object.ok_or_else(|| self.unknown(handle))
    }

    /// The object, whose handle is none from now on.
    pub(crate) fn remove(&self, handle: u64) -> Result<Arc<T>, Failure> {
        let removed = self.objects.get().write().remove(key(handle));
        removed.ok_or_else(|| self.unknown(handle))
    }

    fn unknown(&self, handle: u64) -> Failure {
        let what = self.what;
        Failure::invalid(if handle == 0 {
            format!("the {what} is null")
        } else {
            format!(
                "there is no such {what}: it has ended, or belongs to the process that this one was forked from"
            )
        })
    }
}

fn key(handle: u64) -> DefaultKey {
    KeyData::from_ffi(handle).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_end_with_their_objects() {
        static TABLE: Table<u32> = Table::new("number");
        let (first, second) = (TABLE.insert(1), TABLE.insert(2));
        assert!(first != 0 && first != second);
        let held = TABLE.get(first).unwrap();
        assert_eq!(*TABLE.remove(first).unwrap(), 1);
        assert_eq!(*held, 1);
        let third = TABLE.insert(3);
        for stale in [first, 0, 7, u64::MAX] {
            assert!(TABLE.get(stale).is_err());
            assert!(TABLE.remove(stale).is_err());
        }
        assert_eq!(
            (*TABLE.get(second).unwrap(), *TABLE.get(third).unwrap()),
            (2, 3)
        );
    }
}
