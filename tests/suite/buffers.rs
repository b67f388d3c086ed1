//! The kinds of memory that calls accept.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use spark_ccl::{Communicator, Error, Registered};

use super::types::Number;

#[derive(Debug, Clone, Copy)]
pub(crate) enum Memory {
    Ordinary,
    /// Allocated by the communicator, which shares it.
    Registered,
    /// The rank's own, registered by it alone.
    Own,
    /// The rank's own, as a dma-buf.
    DmaBuf,
}

pub(crate) enum Buffer<T> {
    Ordinary(Vec<T>),
    Registered(Registered<T>),
}

impl<T: Number> Buffer<T> {
    /// These elements in memory of a kind. With [`Memory::Registered`], a call of all ranks.
    pub(crate) fn new(
        comm: &Communicator,
        memory: Memory,
        elements: Vec<T>,
    ) -> Result<Self, Error> {
        Ok(match memory {
            Memory::Ordinary => Self::Ordinary(elements),
            Memory::Registered => {
                let mut shared = comm.alloc(elements.len())?;
                shared.copy_from_slice(&elements);
                Self::Registered(shared)
            }
            Memory::Own => Self::Registered(comm.register(elements)),
            Memory::DmaBuf => Self::Registered(dmabuf(comm, &elements)),
        })
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::Ordinary(memory) => memory,
            Self::Registered(memory) => memory,
        }
    }
}

/// The elements in a dma-buf that is mapped as long as the process lives.
fn dmabuf<T: Number>(comm: &Communicator, elements: &[T]) -> Registered<T> {
    let (fd, start) = crate::dmabuf::mapped(size_of_val(elements));
    let start = start.cast::<T>();
    // SAFETY: `mapped` made the mapping, at least as long as `elements`, aligned to a page, and
    // never unmapped. It is new, so `elements` does not overlap it, and only the registered memory
    // refers to it.
    unsafe {
        start.copy_from_nonoverlapping(NonNull::from(elements).cast(), elements.len());
        comm.register_dmabuf(fd.as_fd(), 0, start, elements.len())
    }
}
