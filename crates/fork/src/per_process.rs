//! What all of a process share, and its children do not.

use once_cell::race::OnceBox;

use crate::Process;

/// A static of which each process has its own, empty at first. What a child inherits may be locked by a thread that it
/// has not got. For the same reason nobody waits for who fills it first: several may try, and one of them does.
pub struct PerProcess<T> {
    first: OnceBox<Age<T>>,
}

/// The value of one process, and those of the children forked from it on the way to this one.
struct Age<T> {
    process: Process,
    value: T,
    next: OnceBox<Age<T>>,
}

impl<T: Default> PerProcess<T> {
    /// Nothing yet.
    #[expect(clippy::new_without_default, reason = "for statics")]
    pub const fn new() -> Self {
        Self {
            first: OnceBox::new(),
        }
    }

    /// That of this process.
    pub fn get(&self) -> &T {
        let mut age = self.first.get_or_init(|| Box::new(Age::new()));
        while !age.process.is_here() {
            age = age.next.get_or_init(|| Box::new(Age::new()));
        }
        &age.value
    }
}

impl<T: Default> Age<T> {
    fn new() -> Self {
        Self {
            process: Process::here(),
            value: T::default(),
            next: OnceBox::new(),
        }
    }
}
