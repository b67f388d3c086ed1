//! The buffers of measured calls, in ordinary or registered memory.

use std::ops::{DerefMut, Range};

use spark_ccl::{Communicator, Element, RecvBuf, Registered, SendBuf};

use crate::error::Error;

/// A kind of memory, parts of which can be passed to calls.
pub(crate) trait Buffer<T: Element>: DerefMut<Target = [T]> + Sized {
    /// A part to send from.
    type Part<'a>: SendBuf<T>
    where
        Self: 'a;
    /// A part to receive into.
    type PartMut<'a>: RecvBuf<T>
    where
        Self: 'a;

    /// Allocates `len` elements; a collective call.
    fn allocate(comm: &Communicator, len: usize) -> Result<Self, Error>;

    /// A part to send from.
    fn part(&self, range: Range<usize>) -> Result<Self::Part<'_>, Error>;

    /// A part to receive into.
    fn part_mut(&mut self, range: Range<usize>) -> Result<Self::PartMut<'_>, Error>;
}

impl<T: Element> Buffer<T> for Vec<T> {
    type Part<'a> = &'a [T];
    type PartMut<'a> = &'a mut [T];

    fn allocate(_: &Communicator, len: usize) -> Result<Self, Error> {
        let mut memory = Self::new();
        memory
            .try_reserve_exact(len)
            .map_err(|error| Error::usage(format!("no memory for {len} elements: {error}")))?;
        memory.resize(len, T::default());
        Ok(memory)
    }

    fn part(&self, range: Range<usize>) -> Result<&[T], Error> {
        Ok(&self[range])
    }

    fn part_mut(&mut self, range: Range<usize>) -> Result<&mut [T], Error> {
        Ok(&mut self[range])
    }
}

impl<T: Element> Buffer<T> for Registered<T> {
    type Part<'a> = spark_ccl::RegisteredView<'a, T>;
    type PartMut<'a> = spark_ccl::RegisteredViewMut<'a, T>;

    fn allocate(comm: &Communicator, len: usize) -> Result<Self, Error> {
        Ok(comm.alloc(len)?)
    }

    fn part(&self, range: Range<usize>) -> Result<Self::Part<'_>, Error> {
        Ok(self.view(range)?)
    }

    fn part_mut(&mut self, range: Range<usize>) -> Result<Self::PartMut<'_>, Error> {
        Ok(self.view_mut(range)?)
    }
}
