//! Buffers that an operation in flight holds, without their types: an engine keeps them, and the
//! caller's handle gets them back with their types.

use std::any::Any;
use std::marker::PhantomData;

use spark_ccl_types::Element;

use super::Operands;

/// Buffers on their way back to the caller as `B`.
pub(super) trait Held<B> {
    /// Gives them back.
    fn back(self: Box<Self>) -> B;

    /// Returns all that has to stay while the operation uses the buffers, if nobody takes them
    /// back.
    fn keep(self: Box<Self>) -> Box<dyn Any + Send>
    where
        Self: Send + 'static;
}

/// The buffers of a call.
pub(super) struct Typed<T, O>(O, PhantomData<fn(T)>);

impl<T: Element, O: Operands<T>> Typed<T, O> {
    pub(super) fn new(operands: O) -> Self {
        Self(operands, PhantomData)
    }

    pub(super) fn operands(&mut self) -> &mut O {
        &mut self.0
    }
}

impl<T: Element, O: Operands<T>> Held<O::Back> for Typed<T, O> {
    fn back(self: Box<Self>) -> O::Back {
        self.0.back()
    }

    fn keep(self: Box<Self>) -> Box<dyn Any + Send>
    where
        Self: Send + 'static,
    {
        self
    }
}

/// Buffers that come back as something else.
pub(super) struct Mapped<A, F> {
    pub(super) held: Box<dyn Held<A> + Send>,
    pub(super) map: F,
}

impl<A, B, F: FnOnce(A) -> B> Held<B> for Mapped<A, F> {
    fn back(self: Box<Self>) -> B {
        (self.map)(self.held.back())
    }

    /// Not the closure: it may own what waits for the operation, such as the communicator.
    fn keep(self: Box<Self>) -> Box<dyn Any + Send>
    where
        Self: Send + 'static,
    {
        self.held.keep()
    }
}
