//! How memory enters a call: host slices, owned vectors, registered memory. Device memory is in
//! `device`. Knows regions and where they are registered; knows no call and no engine.

use std::sync::Arc;

use spark_ccl_types::Element;

#[cfg(feature = "cuda")]
use super::device::site::Site;
use super::registered::{Registered, RegisteredView, RegisteredViewMut, Segment};

/// Consecutive elements in memory, and where they are registered.
#[derive(Debug, Clone)]
pub struct Region {
    pub(crate) ptr: *mut u8,
    pub(crate) len: usize,
    /// The registered memory that it lies in; `None` for ordinary memory.
    pub(crate) home: Option<Home>,
    /// The device that has it, if it is not host memory. Boxed, since regions are moved about in
    /// small calls.
    pub(crate) site: Option<Box<Site>>,
}

/// This build knows no devices.
#[cfg(not(feature = "cuda"))]
#[derive(Debug, Clone)]
pub(crate) enum Site {}

/// The registered segment that a region lies in.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    pub(crate) segment: Arc<Segment>,
    /// Bytes from the segment's start.
    pub(crate) offset: usize,
}

// SAFETY: a region only describes memory, whose elements are `Send + Sync`. The engine uses it on
// any thread, but only while the call has the buffer that made the region, or is an untyped one.
// `SendBuf` or `RecvBuf`, or the untyped call's caller, keeps the memory at its address, and others
// away.
unsafe impl Send for Region {}

impl Region {
    /// Ordinary host memory: `len` elements from `ptr`.
    pub fn host<T: Element>(ptr: *const T, len: usize) -> Self {
        Self {
            ptr: ptr.cast_mut().cast(),
            len,
            home: None,
            site: None,
        }
    }

    /// No memory, for ranks that send or receive nothing.
    pub(crate) fn empty() -> Self {
        Self {
            ptr: std::ptr::NonNull::<u64>::dangling().as_ptr().cast(),
            len: 0,
            home: None,
            site: None,
        }
    }

    pub(crate) fn registered(segment: &Arc<Segment>, offset: usize, len: usize) -> Self {
        Self {
            ptr: segment.own_base().wrapping_add(offset),
            len,
            home: Some(Home {
                segment: Arc::clone(segment),
                offset,
            }),
            site: None,
        }
    }

    /// The part of `len` elements of `size` bytes, from the element `elements` on.
    pub(crate) fn part(&self, elements: usize, len: usize, size: usize) -> Self {
        Self {
            ptr: self.ptr.wrapping_add(elements * size),
            len,
            home: self.home.as_ref().map(|home| Home {
                segment: Arc::clone(&home.segment),
                offset: home.offset + elements * size,
            }),
            site: self.site.clone(),
        }
    }
}

/// Memory that a call may read.
///
/// # Safety
/// [`region`](Self::region) must describe initialised memory, readable for its whole length. Until
/// the value is dropped, nobody writes the memory, and it stays at its address, even when the value
/// itself is moved. Device memory is at its address for CUDA, and these hold in the order of the
/// stream that the region names.
#[diagnostic::on_unimplemented(
    message = "a call cannot send `{Self}`",
    label = "not a buffer of elements of the call's type",
    note = "elements are i8, u8, i32, u32, i64, u64, f16, bf16, f32, f64, F8E4M3 or F8E5M2, of one \
            type in all buffers of a call",
    note = "buffers are `&[T]`, `&Vec<T>`, `&[T; N]`, `&T`, `&Registered<T>`, and owners such as \
            `Vec<T>`",
    note = "structs: derive `bytemuck::Pod`, and `send_pod`, or send `bytemuck::cast_slice(..)`"
)]
pub unsafe trait SendBuf<T: Element> {
    /// What a call gives back: the memory's owner, or `()` if the memory is borrowed.
    type Back: GivenBack;

    /// The memory.
    fn region(&self) -> Region;

    /// Gives it back.
    fn back(self) -> Self::Back;
}

/// Memory that a call may write (and read).
///
/// # Safety
/// [`region_mut`](Self::region_mut) must describe initialised memory, readable and writable for its
/// whole length. Until the value is dropped, nothing else reaches the memory, and it stays at its
/// address, even when the value itself is moved. Device memory is at its address for CUDA, and
/// these hold in the order of the stream that the region names.
#[diagnostic::on_unimplemented(
    message = "a call cannot write to `{Self}`",
    label = "not a unique buffer of elements of the call's type",
    note = "elements are i8, u8, i32, u32, i64, u64, f16, bf16, f32, f64, F8E4M3 or F8E5M2, of one \
            type in all buffers of a call",
    note = "buffers are `&mut [T]`, `&mut Vec<T>`, `&mut [T; N]`, `&mut T`, `&mut Registered<T>`, \
            and owners such as `Vec<T>`",
    note = "structs: derive `bytemuck::Pod`, and `recv_pod`, or pass `bytemuck::cast_slice_mut(..)`"
)]
pub unsafe trait RecvBuf<T: Element> {
    /// What a call gives back: the memory's owner, or `()` if the memory is borrowed.
    type Back: GivenBack;

    /// The memory.
    fn region_mut(&mut self) -> Region;

    /// Gives it back.
    fn back(self) -> Self::Back;
}

/// A call gives this back for one buffer: its owner, or `()` for a borrowed one.
pub trait GivenBack: Sized {
    /// A call gives this back for two: both owners in a tuple, the owner of one, or `()`.
    type With<R: GivenBack>;

    /// The same, after an owner of the other buffer.
    #[doc(hidden)]
    type After<S>;

    #[doc(hidden)]
    fn with<R: GivenBack>(self, received: R) -> Self::With<R>;

    #[doc(hidden)]
    fn after<S>(self, sent: S) -> Self::After<S>;
}

impl GivenBack for () {
    type With<R: GivenBack> = R;
    type After<S> = S;

    fn with<R: GivenBack>(self, received: R) -> R {
        received
    }

    fn after<S>(self, sent: S) -> S {
        sent
    }
}

macro_rules! gives_back_owners {
    ($([$($generic:tt)*] $owner:ty),+ $(,)?) => {$(
        impl<$($generic)*> $crate::memory::buffer::GivenBack for $owner {
            type With<R: $crate::memory::buffer::GivenBack> = R::After<Self>;
            type After<S> = (S, Self);

            fn with<R: $crate::memory::buffer::GivenBack>(self, received: R) -> R::After<Self> {
                received.after(self)
            }

            fn after<S>(self, sent: S) -> (S, Self) {
                (sent, self)
            }
        }
    )+};
}

gives_back_owners!([B: OwnedBuf] B);

#[cfg(feature = "cuda")]
pub(crate) use gives_back_owners;

/// What an implementation of [`SendBuf`] or [`RecvBuf`] gives back.
macro_rules! gives_back {
    (nothing) => {
        type Back = ();

        fn back(self) {}
    };
    (itself) => {
        type Back = Self;

        fn back(self) -> Self {
            self
        }
    };
}

#[cfg(feature = "cuda")]
pub(crate) use gives_back;

/// Memory that an operation can keep until it is done: not borrowed.
#[diagnostic::on_unimplemented(
    message = "an operation that is started cannot keep `{Self}`",
    label = "borrowed, or not memory that a call takes",
    note = "pass `Vec<T>`, `Box<[T]>`, `Arc<[T]>` or `Registered<T>`, which `wait` gives back",
    note = "borrowed memory: `start_in` within `Communicator::scope`, or `run`"
)]
pub trait OwnedBuf: Send + 'static {}

impl<T: Element> OwnedBuf for Vec<T> {}
impl<T: Element> OwnedBuf for Box<[T]> {}
impl<T: Element> OwnedBuf for Arc<[T]> {}
impl<T: Element> OwnedBuf for Registered<T> {}

macro_rules! slices {
    ($([$($generic:tt)*] $type:ty => $back:ident),+ $(,)?) => {$(
        // SAFETY: the type borrows or owns its elements, which are not within the value, so moving
        // the value does not move them. While a call has the value, Rust's borrow rules keep others
        // from using the elements, and from freeing them.
        unsafe impl<T: Element, $($generic)*> SendBuf<T> for $type {
            fn region(&self) -> Region {
                let slice: &[T] = &self[..];
                Region::host(slice.as_ptr(), slice.len())
            }

            gives_back!($back);
        }
    )+};
}

slices! {
    [] &[T] => nothing,
    [] &Vec<T> => nothing,
    [const N: usize] &[T; N] => nothing,
    [] &mut [T] => nothing,
    [] &mut Vec<T> => nothing,
    [const N: usize] &mut [T; N] => nothing,
    [] Vec<T> => itself,
    [] Box<[T]> => itself,
    [] Arc<[T]> => itself,
}

macro_rules! slices_mut {
    ($([$($generic:tt)*] $type:ty => $back:ident),+ $(,)?) => {$(
        // SAFETY: the type borrows its elements uniquely, or owns them on the heap, so that moving
        // the value does not move them. The pointer comes from a unique borrow, so it may be
        // written through.
        unsafe impl<T: Element, $($generic)*> RecvBuf<T> for $type {
            fn region_mut(&mut self) -> Region {
                let slice: &mut [T] = &mut self[..];
                Region::host(slice.as_mut_ptr(), slice.len())
            }

            gives_back!($back);
        }
    )+};
}

slices_mut! {
    [] &mut [T] => nothing,
    [] &mut Vec<T> => nothing,
    [const N: usize] &mut [T; N] => nothing,
    [] Vec<T> => itself,
    [] Box<[T]> => itself,
}

// SAFETY: the value is a borrow of its element, which stays where it is. While a call has the
// borrow, Rust's borrow rules keep others from using the element, and from freeing it.
unsafe impl<T: Element> SendBuf<T> for &T {
    fn region(&self) -> Region {
        Region::host(*self, 1)
    }

    gives_back!(nothing);
}

// SAFETY: it borrows its element uniquely, which stays where it is and is not written meanwhile.
unsafe impl<T: Element> SendBuf<T> for &mut T {
    fn region(&self) -> Region {
        Region::host(&raw const **self, 1)
    }

    gives_back!(nothing);
}

// SAFETY: it borrows its element uniquely, which stays where it is. The pointer comes from that
// borrow, so it may be written through.
unsafe impl<T: Element> RecvBuf<T> for &mut T {
    fn region_mut(&mut self) -> Region {
        Region::host(&raw mut **self, 1)
    }

    gives_back!(nothing);
}

// SAFETY: a `Registered` owns its mapping, which stays where it is until the last handle is gone.
unsafe impl<T: Element> SendBuf<T> for Registered<T> {
    fn region(&self) -> Region {
        Region::registered(self.segment(), 0, self.len())
    }

    gives_back!(itself);
}

// SAFETY: it borrows a `Registered`, whose mapping stays where it is meanwhile.
unsafe impl<T: Element> SendBuf<T> for &Registered<T> {
    fn region(&self) -> Region {
        Region::registered(self.segment(), 0, self.len())
    }

    gives_back!(nothing);
}

// SAFETY: a `Registered` owns its mapping, and is the only handle of this rank to its memory.
unsafe impl<T: Element> RecvBuf<T> for Registered<T> {
    fn region_mut(&mut self) -> Region {
        Region::registered(self.segment(), 0, self.len())
    }

    gives_back!(itself);
}

// SAFETY: it borrows uniquely the only handle of this rank to its memory, whose mapping stays where
// it is meanwhile.
unsafe impl<T: Element> RecvBuf<T> for &mut Registered<T> {
    fn region_mut(&mut self) -> Region {
        Region::registered(self.segment(), 0, self.len())
    }

    gives_back!(nothing);
}

// SAFETY: a view borrows its `Registered`, whose mapping stays where it is meanwhile, and which
// nobody can borrow uniquely to write to it. `Registered::view` has checked that the part lies
// within it.
unsafe impl<T: Element> SendBuf<T> for RegisteredView<'_, T> {
    fn region(&self) -> Region {
        Region::registered(self.segment, self.start * size_of::<T>(), self.len)
    }

    gives_back!(nothing);
}

// SAFETY: a mutable view borrows its `Registered` uniquely, which is the only handle of this rank
// to its memory, and whose mapping stays where it is meanwhile. `Registered::view_mut` has checked
// that the part lies within it.
unsafe impl<T: Element> RecvBuf<T> for RegisteredViewMut<'_, T> {
    fn region_mut(&mut self) -> Region {
        Region::registered(self.segment, self.start * size_of::<T>(), self.len)
    }

    gives_back!(nothing);
}
