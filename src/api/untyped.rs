//! Calls as other languages make them: element types and reductions are values, and buffers are
//! addresses.
//!
//! Typed and untyped calls both end in `task`. Types prove some things of a typed call that are
//! checked here: alignment, lengths that memory can have, pointers that are not null, and that an
//! operation has all that a call sets.

mod prepare;

use std::sync::Arc;
use std::time::Duration;

use spark_ccl_types::{DType, Extent, Operation, RedOp, ReduceOp, Side};

use super::call::{Operands, Pending, sealed};
use super::communicator::Communicator;
use crate::error::Error;
use crate::memory::blocks::Blocks;
use crate::memory::buffer::Region;
use crate::memory::registered::{Registered, Segment};
use crate::task::{Spec, Tables, names};

/// A call without types.
///
/// ```
/// use spark_ccl::{Communicator, DType, Operation, RedOp, UntypedCall};
///
/// let comm = Communicator::local(1)?.remove(0);
/// let mut values = [1.5_f32, -2.0];
/// let memory = values.as_mut_ptr().cast();
/// let call = UntypedCall::new(Operation::AllReduce, DType::F32)
///     .reduction(RedOp::Sum)
///     .in_place(memory, values.len());
/// // SAFETY: the memory is that of two floats, which nothing else uses meanwhile.
/// unsafe { comm.run_untyped(&call)? };
/// assert_eq!(values, [1.5, -2.0]);
/// # Ok::<(), spark_ccl::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a call does nothing until `run_untyped` or `start_untyped`"]
pub struct UntypedCall {
    spec: Spec,
    op: Option<ReduceOp>,
    /// The factor of a [`ReduceOp::PreMulSum`]; zeros otherwise.
    factor: [u8; 8],
    input: Memory,
    output: Memory,
    registered: Vec<Kept>,
}

/// Registered memory that buffers may lie in.
#[derive(Debug, Clone)]
struct Kept {
    segment: Arc<Segment>,
    bytes: usize,
}

/// Elements from an address on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Memory {
    start: *mut u8,
    len: usize,
}

// SAFETY: a call has addresses, a factor and a spec, and reads or writes nothing by itself. Only
// unsafe functions that are given it use the memory, and their callers must leave that to the
// threads that use it.
unsafe impl Send for UntypedCall {}
// SAFETY: methods of a shared call read its own fields, never the memory at its addresses.
unsafe impl Sync for UntypedCall {}

impl UntypedCall {
    /// A call of this operation, with elements of this type, and no buffers yet.
    pub fn new(operation: Operation, dtype: DType) -> Self {
        let none = Memory {
            start: std::ptr::null_mut(),
            len: 0,
        };
        Self {
            spec: Spec::new(operation, dtype),
            op: None,
            factor: [0; 8],
            input: none,
            output: none,
            registered: Vec::new(),
        }
    }

    /// Combines elements by `op`; with a factor, see [`pre_mul_sum`](Self::pre_mul_sum).
    pub fn reduction(mut self, op: RedOp) -> Self {
        self.op = Some(op.into());
        self
    }

    /// Sums each rank's elements times its factor: the bytes of one element, and zeros behind them.
    pub fn pre_mul_sum(mut self, factor: [u8; 8]) -> Self {
        self.op = Some(ReduceOp::PreMulSum);
        self.factor = factor;
        self
    }

    /// Sums each rank's elements times its factor: an element in memory of this rank's GPU, which
    /// is read when the call runs there. For calls on device memory, by our own kernels.
    #[cfg(feature = "cuda")]
    pub fn pre_mul_sum_at(mut self, factor: *const u8) -> Self {
        self.op = Some(ReduceOp::PreMulSum);
        self.spec.factor_at = Some(factor.addr() as u64);
        self
    }

    /// The root, of operations that have one.
    pub fn root(mut self, root: usize) -> Self {
        self.spec.root = root;
        self
    }

    /// The rank that a message goes to.
    pub fn to(mut self, to: usize) -> Self {
        self.spec.to = to;
        self
    }

    /// The rank that a message comes from.
    pub fn from(mut self, from: usize) -> Self {
        self.spec.from = from;
        self
    }

    /// Where the blocks of an `all_to_all_v` are.
    pub fn blocks(mut self, send: Blocks, recv: Blocks) -> Self {
        self.spec.tables = Some(Arc::new(Tables { send, recv }));
        self
    }

    /// A name for the call: see [`Call::named`](crate::Call::named).
    pub fn named(mut self, name: &str) -> Self {
        self.spec.name = names::remember(name);
        self
    }

    /// How long this call may take: see [`Call::timeout`](crate::Call::timeout).
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.spec.limit = Some(limit);
        self
    }

    /// `len` elements to send.
    pub fn send(mut self, start: *const u8, len: usize) -> Self {
        let start = start.cast_mut();
        self.input = Memory { start, len };
        self
    }

    /// `len` elements to receive.
    pub fn recv(mut self, start: *mut u8, len: usize) -> Self {
        self.output = Memory { start, len };
        self
    }

    /// One buffer of `len` elements for both, as in the in-place calls of [`Communicator`].
    pub fn in_place(mut self, start: *mut u8, len: usize) -> Self {
        self.spec.in_place = true;
        self.input = Memory { start, len };
        self.output = self.input;
        self
    }

    /// Its operation.
    pub fn operation(&self) -> Operation {
        self.spec.operation
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.spec.dtype
    }

    /// The memory that it sends, as bytes.
    pub fn sent(&self) -> *const [u8] {
        self.bytes(self.input)
    }

    /// The memory that it receives into, as bytes.
    pub fn received(&self) -> *mut [u8] {
        self.bytes(self.output)
    }

    fn bytes(&self, memory: Memory) -> *mut [u8] {
        let bytes = memory.len.saturating_mul(self.dtype().size());
        std::ptr::slice_from_raw_parts_mut(memory.start, bytes)
    }

    /// The elements of its vector or message, among this many ranks; where a buffer has a block for
    /// each rank, those of a block.
    ///
    /// ```
    /// # use spark_ccl::{DType, Operation, UntypedCall};
    /// let mut all = [0_u8; 12];
    /// let call = UntypedCall::new(Operation::Gather, DType::U8).send(all.as_ptr(), 4);
    /// assert_eq!(call.count(3), 4);
    /// // The root has a buffer for the blocks of all ranks.
    /// assert_eq!(call.recv(all.as_mut_ptr(), 12).count(3), 4);
    /// ```
    pub fn count(&self, ranks: usize) -> usize {
        let sides = [(Side::Input, self.input), (Side::Output, self.output)];
        let is_of_blocks = |side| self.spec.operation.extent(side) == Extent::Blocks;
        let mut blocks = sides.iter().filter(|(side, _)| is_of_blocks(*side));
        match blocks.find(|(_, memory)| memory.len > 0) {
            Some((_, memory)) => memory.len / ranks.max(1),
            None => self.input.len.max(self.output.len),
        }
    }

    /// Treats buffers that lie in this memory as registered. This rank must have allocated it by
    /// the communicator that runs the call, or registered it; what another communicator has
    /// allocated is ordinary memory, and an error here.
    pub fn within(mut self, memory: &Registered<u8>) -> Self {
        self.registered.push(Kept {
            segment: Arc::clone(memory.segment()),
            bytes: memory.len(),
        });
        self
    }
}

#[cfg(feature = "cuda")]
impl UntypedCall {
    /// Whether buffers are to be looked for in registered memory.
    pub(crate) fn is_registered(&self) -> bool {
        !self.registered.is_empty()
    }
}

/// The buffers of a call in flight, for which its caller answers.
struct Addresses(Option<(Region, Region)>);

impl sealed::Sealed for Addresses {}

impl Operands<u8> for Addresses {
    type Back = ();

    fn regions(&mut self) -> (Region, Region) {
        self.0.take().unwrap_or((Region::empty(), Region::empty()))
    }

    fn back(self) {}
}

impl Communicator {
    /// Runs a call to its end.
    ///
    /// # Safety
    /// The memory to send has all elements that the call names, initialised, and nothing writes it
    /// meanwhile. The memory to receive into may be written, and nothing else uses it meanwhile.
    ///
    /// # Errors
    /// Those of [`Call::run`](crate::Call::run). Besides, [`Error::Invalid`] for null pointers, and
    /// for buffers that are not aligned or lie in registered memory of another communicator. It is
    /// returned, too, for buffers, reductions, roots and blocks that the operation does not have.
    pub unsafe fn run_untyped(&self, call: &UntypedCall) -> Result<(), Error> {
        let (spec, regions) = call.prepare(self)?;
        self.run(&spec, &mut spec.task(regions))
    }

    /// Checks a call, and begins nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`], as [`run_untyped`](Self::run_untyped).
    pub fn check_untyped(&self, call: &UntypedCall) -> Result<(), Error> {
        let (spec, regions) = call.prepare(self)?;
        spec.checked(regions, self.planner().ranks()).map(drop)
    }

    /// Starts a call.
    ///
    /// # Safety
    /// Until the call is done, the memory that it sends has as many initialised elements, which
    /// nothing writes. The memory that it receives may be written, and nothing else uses it.
    ///
    /// # Errors
    /// Those of [`run_untyped`](Self::run_untyped).
    pub unsafe fn start_untyped(&self, call: &UntypedCall) -> Result<Pending<()>, Error> {
        let (spec, regions) = call.prepare(self)?;
        Ok(Pending::start::<u8, _>(
            self.membership(),
            &spec,
            Addresses(Some(regions)),
        )?)
    }
}
