//! Assembles an untyped call from the arguments of C. Runs nothing.

use std::ffi::{c_int, c_void};

use spark_ccl::{DType, InPlaceRule, Operation, UntypedCall};

use crate::arguments::{natural, reduction, slice};
use crate::comm::Comm;
use crate::options::Options;
use crate::status::Failure;

/// The buffers of a call, as C passes them.
#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    pub(crate) send: *const c_void,
    pub(crate) recv: *mut c_void,
    /// The `count` argument, in elements.
    pub(crate) count: usize,
}

/// Which buffers a rank has, and their lengths as multiples of `count`.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) send: usize,
    pub(crate) recv: usize,
    /// In place, where the shorter buffer begins in the longer one, in units of `count` elements.
    pub(crate) own_block: usize,
}

/// A call that is being put together.
pub(crate) struct Draft<'a> {
    pub(crate) comm: &'a Comm,
    operation: Operation,
    dtype: DType,
    factor: *const c_void,
    /// All buffers must lie in memory of the communicator's.
    is_registered: bool,
    call: UntypedCall,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(
        comm: &'a Comm,
        operation: Operation,
        dtype: DType,
        options: &Options,
    ) -> Self {
        let call = UntypedCall::new(operation, dtype);
        Self {
            comm,
            operation,
            dtype,
            factor: options.factor,
            is_registered: options.registered != 0,
            call: match options.limit() {
                None => call,
                Some(limit) => call.timeout(limit),
            },
        }
    }

    /// The call so far.
    pub(crate) fn done(self) -> UntypedCall {
        self.call
    }

    pub(crate) fn change(&mut self, change: impl FnOnce(UntypedCall) -> UntypedCall) {
        let none = UntypedCall::new(Operation::Barrier, self.dtype);
        self.call = change(std::mem::replace(&mut self.call, none));
    }

    /// Sets the reduction, whose factor is the options'.
    ///
    /// # Safety
    /// The options' factor is null, or points to an element of the call's type, which nobody writes
    /// until this returns. Any other will do where `op` is not `SPARK_CCL_PRE_MUL_SUM`.
    pub(crate) unsafe fn reduces(&mut self, op: c_int) -> Result<(), Failure> {
        if let Some(op) = reduction(op)?.without_factor() {
            self.change(|call| call.reduction(op));
            return Ok(());
        }
        // SAFETY: the operation multiplies, so `factor` is null or points to an element of `dtype`,
        // which has `dtype.size()` bytes and is not written until this returns (this function's
        // contract). Its bytes are copied before that.
        let own = unsafe { slice(self.factor.cast::<u8>(), self.dtype.size(), "factor") }?;
        let mut factor = [0; 8];
        factor[..own.len()].copy_from_slice(own);
        self.change(|call| call.pre_mul_sum(factor));
        Ok(())
    }

    /// Sets the root; returns whether this rank is the root.
    pub(crate) fn is_root(&mut self, root: c_int) -> Result<bool, Failure> {
        let root = natural(root, "root")?;
        self.change(|call| call.root(root));
        Ok(root == self.comm.inner.rank())
    }

    pub(crate) fn gathering(&self) -> Shape {
        Shape {
            send: 1,
            recv: self.comm.inner.size(),
            own_block: self.comm.inner.rank(),
        }
    }

    pub(crate) fn scattering(&self) -> Shape {
        Shape {
            send: self.comm.inner.size(),
            recv: 1,
            own_block: self.comm.inner.rank(),
        }
    }

    /// Sets the buffers, or the one that both are in.
    pub(crate) fn buffers(&mut self, buffers: Buffers, shape: Shape) -> Result<(), Failure> {
        let Buffers { send, recv, count } = buffers;
        let len = |times: usize| {
            let len = count.checked_mul(times);
            len.filter(|&len| len <= isize::MAX as usize / self.dtype.size())
                .ok_or_else(|| {
                    Failure::invalid(format!("count is {count}, which no memory can hold"))
                })
        };
        let (sent, received) = (len(shape.send)?, len(shape.recv)?);
        let gathers = shape.recv >= shape.send;
        let (whole, part) = if gathers {
            (recv.cast::<u8>(), send.cast::<u8>().cast_mut())
        } else {
            (send.cast::<u8>().cast_mut(), recv.cast::<u8>())
        };
        // Where both sides have elements, all blocks together are no longer than memory can be.
        let is_in_place = sent > 0 && received > 0 && !whole.is_null() && {
            let offset = shape.own_block * count * self.dtype.size();
            part == whole.wrapping_add(offset)
        };
        if is_in_place {
            return self.in_place(whole, sent.max(received));
        }
        self.send(send, sent)?;
        self.recv(recv, received)
    }

    /// Sets the buffer to send from.
    pub(crate) fn send(&mut self, start: *const c_void, len: usize) -> Result<(), Failure> {
        self.place("send", start.cast(), len)?;
        self.change(|call| call.send(start.cast(), len));
        Ok(())
    }

    /// Sets the buffer to receive into.
    pub(crate) fn recv(&mut self, start: *mut c_void, len: usize) -> Result<(), Failure> {
        self.place("receive", start.cast(), len)?;
        self.change(|call| call.recv(start.cast(), len));
        Ok(())
    }

    fn in_place(&mut self, start: *mut u8, len: usize) -> Result<(), Failure> {
        // Ranks other than the root have one buffer only, so their blocks would be at other places
        // than the root's.
        let is_alone =
            self.operation.is_rooted() && self.operation.in_place() == InPlaceRule::AlikeIfShared;
        if self.is_registered && is_alone {
            return Err(Failure::invalid(format!(
                "{} of registered buffers cannot be in place, and is at root {}: pass another \
                 buffer there, or leave `registered` 0 on all ranks",
                self.operation,
                self.comm.inner.rank()
            )));
        }
        self.place("in-place", start, len)?;
        self.change(|call| call.in_place(start, len));
        Ok(())
    }

    /// Finds the registered memory that a buffer lies in, if the options say that it does.
    fn place(&mut self, side: &str, start: *const u8, len: usize) -> Result<(), Failure> {
        // Null pointers and lengths that cannot be are refused later, with a better reason.
        let bytes = len.checked_mul(self.dtype.size());
        let (false, Some(bytes)) = (start.is_null() || len == 0, bytes) else {
            return Ok(());
        };
        if !self.is_registered {
            return Ok(());
        }
        let memory = self.comm.memory.lock();
        let home = memory.iter().find(|one| {
            let offset = (start as usize).wrapping_sub(one.as_mut_ptr() as usize);
            offset
                .checked_add(bytes)
                .is_some_and(|end| end <= one.len())
        });
        let Some(home) = home.cloned() else {
            let rank = self.comm.inner.rank();
            return Err(Failure::invalid(format!(
                "the options of rank {rank} say that buffers are registered, and its {side} buffer \
                 of {bytes} bytes lies in no memory that spark_ccl_alloc made for this \
                 communicator: pass such memory on all ranks, at the same offsets, or leave \
                 `registered` 0 on all of them"
            )));
        };
        drop(memory);
        self.change(|call| call.within(&home));
        Ok(())
    }
}

impl Shape {
    /// Both have `count` elements.
    pub(crate) fn alike() -> Self {
        Self {
            send: 1,
            recv: 1,
            own_block: 0,
        }
    }
}
