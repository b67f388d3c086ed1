//! From C's pointers and numbers to a typed call.

use spark_ccl::{Communicator, DType, Element, RecvBuf, RedOp, ReduceOp, Region, SendBuf};
use spark_ccl::{F8E4M3, F8E5M2, bf16, f16};
use std::ffi::{c_int, c_void};

use crate::status::Failure;

/// The buffers of a call.
pub(crate) struct Arguments {
    pub(crate) send: *const c_void,
    pub(crate) recv: *mut c_void,
    pub(crate) count: usize,
}

/// Runs an all-reduce; in place where both pointers are the same.
///
/// # Safety
/// Both pointers point to `count` elements, the second one's writable, that nobody else uses
/// meanwhile, or `count` is 0.
pub(crate) unsafe fn reduce_all(
    comm: &Communicator,
    arguments: &Arguments,
    dtype: c_int,
    op: c_int,
) -> Result<(), Failure> {
    let code = u8::try_from(dtype).ok().and_then(DType::from_code);
    let dtype = code.ok_or_else(|| {
        Failure::invalid(format!("{dtype} is no spark_ccl_dtype (expected 0 to 11)"))
    })?;
    // SAFETY: this function's contract.
    unsafe {
        match dtype {
            DType::I8 => typed::<i8>(comm, arguments, op),
            DType::U8 => typed::<u8>(comm, arguments, op),
            DType::I32 => typed::<i32>(comm, arguments, op),
            DType::U32 => typed::<u32>(comm, arguments, op),
            DType::I64 => typed::<i64>(comm, arguments, op),
            DType::U64 => typed::<u64>(comm, arguments, op),
            DType::F16 => typed::<f16>(comm, arguments, op),
            DType::F32 => typed::<f32>(comm, arguments, op),
            DType::F64 => typed::<f64>(comm, arguments, op),
            DType::Bf16 => typed::<bf16>(comm, arguments, op),
            DType::F8E4M3 => typed::<F8E4M3>(comm, arguments, op),
            DType::F8E5M2 => typed::<F8E5M2>(comm, arguments, op),
        }
    }
}

/// # Safety
/// As for [`reduce_all`].
unsafe fn typed<T: Element>(
    comm: &Communicator,
    arguments: &Arguments,
    op: c_int,
) -> Result<(), Failure> {
    let op = operator::<T>(op)?;
    let memory = |pointer: *mut T, name| Memory::new(pointer, arguments.count, name);
    let recv = memory(arguments.recv.cast(), "recv")?;
    if std::ptr::eq(arguments.send, arguments.recv) {
        comm.all_reduce_in_place(recv, op).run()?;
    } else {
        let send = memory(arguments.send.cast_mut().cast(), "send")?;
        comm.all_reduce(send, recv, op).run()?;
    }
    Ok(())
}

fn operator<T: Element>(code: c_int) -> Result<RedOp<T>, Failure> {
    u8::try_from(code)
        .ok()
        .and_then(ReduceOp::from_code)
        .and_then(RedOp::without_factor)
        .ok_or_else(|| Failure::invalid(format!("{code} is no spark_ccl_op (expected 0 to 4)")))
}

/// Memory of the caller. Not a slice: two of them may overlap until the library has refused that.
struct Memory<T> {
    pointer: *const T,
    count: usize,
}

impl<T: Element> Memory<T> {
    fn new(pointer: *const T, count: usize, name: &str) -> Result<Self, Failure> {
        if count > isize::MAX as usize / size_of::<T>() {
            let message = format!("count is {count}, which no memory can hold");
            return Err(Failure::invalid(message));
        }
        if pointer.is_null() && count > 0 {
            let message = format!("{name} is a null pointer, and count is {count}");
            return Err(Failure::invalid(message));
        }
        if !pointer.is_aligned() {
            return Err(Failure::invalid(format!(
                "{name} must be aligned to its elements of {} bytes",
                align_of::<T>()
            )));
        }
        Ok(Self { pointer, count })
    }
}

// SAFETY: by the contract of `reduce_all` the memory is readable and nobody else uses it during the
// call, which is as long as this value lives.
unsafe impl<T: Element> SendBuf<T> for Memory<T> {
    fn region(&self) -> Region {
        Region::host(self.pointer, self.count)
    }
}

// SAFETY: by the contract of `reduce_all` the memory is writable and nobody else uses it during the call, which is as
// long as this value lives.
unsafe impl<T: Element> RecvBuf<T> for Memory<T> {
    fn region_mut(&mut self) -> Region {
        Region::host(self.pointer, self.count)
    }
}
