//! A call on its way from C's arguments to the library's untyped call.

use crate::arguments::{dtype, natural, reduction, slice, text};
use crate::comm::{Comm, Handle, find};
use crate::requests::{Request, begin};
use crate::status::{Failure, Status, guarded};
use spark_ccl::{Blocks, DType, Operation, ReduceOp, UntypedCall};
use std::ffi::{c_char, c_int, c_void};

/// `spark_ccl_options`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Options {
    struct_size: usize,
    request: *mut u64,
    name: *const c_char,
    factor: *const c_void,
}

/// The buffers of a call, as C passes them.
#[derive(Clone, Copy)]
pub(crate) struct Buffers {
    pub(crate) send: *const c_void,
    pub(crate) recv: *mut c_void,
    /// Elements that go from a rank to another.
    pub(crate) count: usize,
}

/// Which buffers a rank has, and how many times `count` they are long.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) send: usize,
    pub(crate) recv: usize,
    /// In place, one buffer begins so many times `count` behind the other.
    pub(crate) own_block: usize,
}

/// Puts a call together, and runs it, or starts it where the options or a group say so.
///
/// # Safety
/// As of [`spark_ccl_all_reduce`](crate::collectives::spark_ccl_all_reduce), for the buffers that `fill` sets.
pub(crate) unsafe fn run(
    comm: *mut Handle,
    operation: Operation,
    code: c_int,
    options: *const Options,
    fill: impl FnOnce(&mut Draft<'_>) -> Result<(), Failure>,
) -> Status {
    guarded(|| {
        let comm = find(comm)?;
        // SAFETY: this function's contract.
        let options = unsafe { read(options) }?;
        let dtype = dtype(code)?;
        let mut draft = Draft {
            comm: &comm,
            dtype,
            factor: options.factor,
            call: UntypedCall::new(operation, dtype),
        };
        // SAFETY: this function's contract.
        if let Some(name) = unsafe { text(options.name) } {
            draft.change(|call| call.named(&name));
        }
        for memory in comm.memory.lock().iter() {
            draft.change(|call| call.within(memory));
        }
        fill(&mut draft)?;
        let call = draft.call;
        // SAFETY: this function's contract: the buffers are the call's until it is done.
        unsafe { begin(&comm, &call, Request::at(options.request)) }
    })
}

/// A call that is being put together.
pub(crate) struct Draft<'a> {
    pub(crate) comm: &'a Comm,
    dtype: DType,
    factor: *const c_void,
    call: UntypedCall,
}

impl Draft<'_> {
    pub(crate) fn change(&mut self, change: impl FnOnce(UntypedCall) -> UntypedCall) {
        let none = UntypedCall::new(Operation::Barrier, self.dtype);
        self.call = change(std::mem::replace(&mut self.call, none));
    }

    /// Sets the reduction, whose factor is the options'.
    ///
    /// # Safety
    /// The factor is null, or points to an element.
    pub(crate) unsafe fn reduces(&mut self, op: c_int) -> Result<(), Failure> {
        let op = reduction(op)?;
        if op != ReduceOp::PreMulSum {
            self.change(|call| call.reduction(op));
            return Ok(());
        }
        // SAFETY: this function's contract.
        let own = unsafe { slice(self.factor.cast::<u8>(), self.dtype.size(), "factor") }?;
        let mut factor = [0; 8];
        factor[..own.len()].copy_from_slice(own);
        self.change(|call| call.pre_mul_sum(factor));
        Ok(())
    }

    /// Sets the root; whether this rank is it.
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
            self.change(|call| call.in_place(whole, sent.max(received)));
        } else {
            self.change(|call| call.send(send.cast(), sent).recv(recv.cast(), received));
        }
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

/// The caller's options, as many as it knows; the others are null.
///
/// # Safety
/// They are null, or point to as many bytes as they say.
unsafe fn read(options: *const Options) -> Result<Options, Failure> {
    let mut own = Options {
        struct_size: size_of::<Options>(),
        request: std::ptr::null_mut(),
        name: std::ptr::null(),
        factor: std::ptr::null(),
    };
    if options.is_null() {
        return Ok(own);
    }
    // SAFETY: not null, and then the first field is there by this function's contract.
    let known = unsafe { options.cast::<usize>().read_unaligned() };
    if known < size_of::<usize>() {
        return Err(Failure::invalid(format!(
            "struct_size of the options is {known}; begin with SPARK_CCL_OPTIONS_INIT"
        )));
    }
    let bytes = known.min(size_of::<Options>());
    // SAFETY: so many bytes are there, and there is room for them; any bytes are pointers.
    unsafe {
        std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut own).cast(), bytes);
    }
    Ok(own)
}

/// Blocks for all ranks, and the elements of the buffer that they are in.
///
/// # Safety
/// Both pointers are null or point to `size` numbers.
pub(crate) unsafe fn blocks(
    counts: *const usize,
    begins: *const usize,
    size: usize,
    side: &str,
) -> Result<(Blocks, usize), Failure> {
    // SAFETY: this function's contract.
    let counts = unsafe { slice(counts, size, &format!("{side}_counts")) }?;
    let blocks = if begins.is_null() {
        Blocks::packed(counts)
    } else {
        // SAFETY: this function's contract.
        let begins = unsafe { slice(begins, size, &format!("{side}_begins")) }?;
        // Where nothing begins does not matter.
        let begins = begins.iter().zip(counts);
        let begins = begins.map(|(&begin, &count)| if count == 0 { 0 } else { begin });
        Blocks::at(counts, &begins.collect::<Vec<_>>())
    };
    let ends = blocks.counts().iter().zip(blocks.begins());
    let ends = ends.map(|(&count, &begin)| begin.saturating_add(count));
    let len = ends.max().unwrap_or(0);
    Ok((blocks, len))
}
