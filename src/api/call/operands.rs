//! The buffers of a call, and how they come back to the caller.

use spark_ccl_types::Element;

use crate::memory::buffer::{GivenBack, OwnedBuf, RecvBuf, Region, SendBuf};

pub(crate) mod sealed {
    pub trait Sealed {}
}

/// The buffers of a [`Call`](crate::Call).
pub trait Operands<T: Element>: sealed::Sealed {
    /// The buffers that the caller gets back, because they were passed by value.
    type Back;

    /// The regions that are read and written.
    #[doc(hidden)]
    fn regions(&mut self) -> (Region, Region);

    /// Gives the buffers back.
    #[doc(hidden)]
    fn back(self) -> Self::Back;
}

/// The buffers of a [`Call`](crate::Call) that can be started: all are [`OwnedBuf`].
pub trait OwnedOperands: sealed::Sealed + Send + 'static {}

impl<S: OwnedBuf, R: OwnedBuf> OwnedOperands for OutOfPlace<S, R> {}
impl<B: OwnedBuf> OwnedOperands for InPlace<B> {}
impl<S: OwnedBuf> OwnedOperands for Sending<S> {}
impl<R: OwnedBuf> OwnedOperands for Receiving<R> {}
impl OwnedOperands for Nothing {}

/// A buffer to send from and one to receive into.
#[derive(Debug)]
pub struct OutOfPlace<S, R>(pub(crate) S, pub(crate) R);

/// One buffer for both.
#[derive(Debug)]
pub struct InPlace<B>(pub(crate) B);

/// A buffer to send from.
#[derive(Debug)]
pub struct Sending<S>(pub(crate) S);

/// A buffer to receive into.
#[derive(Debug)]
pub struct Receiving<R>(pub(crate) R);

/// No buffer.
#[derive(Debug)]
pub struct Nothing;

impl<S, R> sealed::Sealed for OutOfPlace<S, R> {}
impl<B> sealed::Sealed for InPlace<B> {}
impl<S> sealed::Sealed for Sending<S> {}
impl<R> sealed::Sealed for Receiving<R> {}
impl sealed::Sealed for Nothing {}

impl<T: Element, S: SendBuf<T>, R: RecvBuf<T>> Operands<T> for OutOfPlace<S, R> {
    type Back = <S::Back as GivenBack>::With<R::Back>;

    #[inline]
    fn regions(&mut self) -> (Region, Region) {
        (self.0.region(), self.1.region_mut())
    }

    fn back(self) -> Self::Back {
        self.0.back().with(self.1.back())
    }
}

impl<T: Element, B: RecvBuf<T>> Operands<T> for InPlace<B> {
    type Back = B::Back;

    #[inline]
    fn regions(&mut self) -> (Region, Region) {
        let region = self.0.region_mut();
        (region.clone(), region)
    }

    fn back(self) -> B::Back {
        self.0.back()
    }
}

impl<T: Element, S: SendBuf<T>> Operands<T> for Sending<S> {
    type Back = S::Back;

    #[inline]
    fn regions(&mut self) -> (Region, Region) {
        (self.0.region(), Region::empty())
    }

    fn back(self) -> S::Back {
        self.0.back()
    }
}

impl<T: Element, R: RecvBuf<T>> Operands<T> for Receiving<R> {
    type Back = R::Back;

    #[inline]
    fn regions(&mut self) -> (Region, Region) {
        (Region::empty(), self.0.region_mut())
    }

    fn back(self) -> R::Back {
        self.0.back()
    }
}

impl<T: Element> Operands<T> for Nothing {
    type Back = ();

    #[inline]
    fn regions(&mut self) -> (Region, Region) {
        (Region::empty(), Region::empty())
    }

    fn back(self) {}
}
