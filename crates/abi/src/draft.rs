//! Assembles an untyped call from the arguments of C. Runs nothing.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use spark_ccl::{Communicator, DType, Extent, Operation, ReduceOp, Registered, Side, UntypedCall};

use crate::arguments::{natural, slice};
use crate::failure::Failure;

/// The buffers of a call, as C passes them.
#[derive(Debug, Clone, Copy)]
pub struct Buffers {
    /// The elements to send.
    pub send: *const c_void,
    /// Where to receive.
    pub recv: *mut c_void,
    /// The `count` argument, in elements.
    pub count: usize,
}

/// A buffer that a draft has.
#[derive(Debug, Clone, Copy)]
pub struct CallMemory {
    /// Its name in messages: `send`, `receive`, or `in-place`.
    pub name: &'static str,
    /// Where it begins.
    pub start: *const u8,
    /// Its length; `None` if that is more than memory can have.
    pub bytes: Option<usize>,
}

/// A call that is being put together.
#[derive(Debug)]
pub struct Draft<'a> {
    comm: &'a Communicator,
    operation: Operation,
    dtype: DType,
    call: UntypedCall,
    /// By side. A buffer for both sides is the first.
    memory: [Option<CallMemory>; 2],
}

impl<'a> Draft<'a> {
    /// A draft without buffers.
    pub fn new(comm: &'a Communicator, operation: Operation, dtype: DType) -> Self {
        Self {
            comm,
            operation,
            dtype,
            call: UntypedCall::new(operation, dtype),
            memory: [None; 2],
        }
    }

    /// The communicator that makes the call.
    pub fn comm(&self) -> &'a Communicator {
        self.comm
    }

    /// The call's operation.
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The buffers so far.
    pub fn memory(&self) -> impl Iterator<Item = CallMemory> + use<> {
        self.memory.into_iter().flatten()
    }

    /// The call so far.
    pub fn done(self) -> UntypedCall {
        self.call
    }

    /// Changes something of the call that is no buffer.
    pub fn change(&mut self, change: impl FnOnce(UntypedCall) -> UntypedCall) {
        let none = UntypedCall::new(Operation::Barrier, self.dtype);
        self.call = change(std::mem::replace(&mut self.call, none));
    }

    /// Takes buffers in this memory as registered.
    pub fn within(&mut self, memory: &Arc<Registered<u8>>) {
        self.change(|call| call.within(memory));
    }

    /// Sets the reduction.
    ///
    /// # Safety
    /// `factor` is null, or points to an element of the call's type, which nobody writes until this
    /// returns. If `op` has no factor, any pointer will do.
    ///
    /// # Errors
    /// `op` needs a factor, and there is none.
    pub unsafe fn reduces(&mut self, op: ReduceOp, factor: *const c_void) -> Result<(), Failure> {
        if let Some(op) = op.without_factor() {
            self.change(|call| call.reduction(op));
            return Ok(());
        }
        // SAFETY: the operation multiplies, so the caller passes null, or an element of `dtype`,
        // which has `dtype.size()` initialised bytes, and lets nobody write it until this returns.
        // `own` is copied before that.
        let own = unsafe { slice(factor.cast::<u8>(), self.dtype.size(), "factor") }?;
        let mut factor = [0; 8];
        factor[..own.len()].copy_from_slice(own);
        self.change(|call| call.pre_mul_sum(factor));
        Ok(())
    }

    /// Sets a sum with a factor that is in memory of the communicator's GPU: an element of the
    /// call's type, which nobody writes until the call has run.
    pub fn reduces_at(&mut self, factor: *const c_void) {
        self.change(|call| call.pre_mul_sum_at(factor.cast()));
    }

    /// Sets the buffers of a collective, or the one that both are in, and its root, if it has one.
    /// On ranks other than the root, the buffer that only the root has is ignored.
    ///
    /// # Errors
    /// A negative root, and a count that no memory can hold.
    pub fn collective(&mut self, buffers: Buffers, root: Option<c_int>) -> Result<(), Failure> {
        let Buffers { send, recv, count } = buffers;
        let root = root.map(|root| natural(root, "root")).transpose()?;
        if let Some(root) = root {
            self.change(|call| call.root(root));
        }
        let has = |side| self.operation.at_root() != Some(side) || root == Some(self.comm.rank());
        let (input, output) = (self.times(Side::Input), self.times(Side::Output));
        let len = |side, times| {
            let times = if has(side) { times } else { 0 };
            let len = count.checked_mul(times);
            len.filter(|&len| len <= isize::MAX as usize / self.dtype.size())
                .ok_or_else(|| {
                    Failure::invalid(format!("count is {count}, which no memory can hold"))
                })
        };
        let (sent, received) = (len(Side::Input, input)?, len(Side::Output, output)?);
        let (whole, part) = if output >= input {
            (recv.cast::<u8>(), send.cast::<u8>().cast_mut())
        } else {
            (send.cast::<u8>().cast_mut(), recv.cast::<u8>())
        };
        // Where both sides have elements, all blocks together are no longer than memory can be. In
        // place, the shorter buffer is this rank's block of the longer one.
        let is_in_place = sent > 0 && received > 0 && !whole.is_null() && {
            let block = if input == output { 0 } else { self.comm.rank() };
            part == whole.wrapping_add(block * count * self.dtype.size())
        };
        if is_in_place {
            let len = sent.max(received);
            self.note(Side::Input, "in-place", whole, len);
            self.change(|call| call.in_place(whole, len));
        } else {
            self.send(send, sent);
            self.recv(recv, received);
        }
        Ok(())
    }

    /// Sets the buffer to send from.
    pub fn send(&mut self, start: *const c_void, len: usize) {
        self.note(Side::Input, "send", start.cast(), len);
        self.change(|call| call.send(start.cast(), len));
    }

    /// Sets the buffer to receive into.
    pub fn recv(&mut self, start: *mut c_void, len: usize) {
        self.note(Side::Output, "receive", start.cast(), len);
        self.change(|call| call.recv(start.cast(), len));
    }

    /// The length of a collective's buffer, as a multiple of the `count` argument.
    fn times(&self, side: Side) -> usize {
        match self.operation.extent(side) {
            Extent::Nothing => 0,
            Extent::Blocks => self.comm.size(),
            Extent::Count | Extent::Any => 1,
        }
    }

    fn note(&mut self, side: Side, name: &'static str, start: *const u8, len: usize) {
        let bytes = len.checked_mul(self.dtype.size());
        let place = usize::from(side == Side::Output);
        self.memory[place] = Some(CallMemory { name, start, bytes });
    }
}
