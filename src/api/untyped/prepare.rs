//! From a caller's untyped arguments to a spec and its memory: everything that types prove
//! elsewhere is checked here.

use spark_ccl_types::{Extent, InPlaceRule, Operation, Reduction, Side};

use super::{Kept, Memory, UntypedCall};
use crate::api::communicator::Communicator;
use crate::error::Error;
use crate::memory::buffer::Region;
use crate::task::Spec;

impl UntypedCall {
    /// The call with its reduction, and its host memory.
    pub(super) fn prepare(&self, comm: &Communicator) -> Result<(Spec, (Region, Region)), Error> {
        if self.spec.factor_at.is_some() {
            return Err(self.invalid("a factor in memory of a device: pass its bytes".to_owned()));
        }
        self.prepare_in(comm, |side, start, len| self.place(side, start, len, comm))
    }

    /// The same, with memory that `place` finds from an address on. The address is aligned, and may
    /// be null only for 0 elements.
    pub(crate) fn prepare_in(
        &self,
        comm: &Communicator,
        place: impl Fn(&str, *mut u8, usize) -> Result<Region, Error>,
    ) -> Result<(Spec, (Region, Region)), Error> {
        let problem = self.problem_of_parts();
        if let Some(problem) = problem {
            return Err(self.invalid(problem));
        }
        let reduction = self.reduction_among(comm.planner().size);
        let mut spec = self.spec.clone();
        spec.reduction = reduction.map_err(|problem| self.invalid(problem.to_owned()))?;
        let (input, output) = if self.spec.in_place {
            ("in-place", "in-place")
        } else {
            ("send", "receive")
        };
        let first = self.region(input, self.input, &place)?;
        let second = if self.spec.in_place && self.input == self.output {
            first.clone()
        } else {
            self.region(output, self.output, &place)?
        };
        Ok((spec, (first, second)))
    }

    /// Names what was set although the operation does not have it.
    fn problem_of_parts(&self) -> Option<String> {
        let Spec {
            operation,
            root,
            in_place,
            ..
        } = self.spec;
        if operation == Operation::Alloc {
            return Some("memory is allocated by Communicator::alloc".to_owned());
        }
        if in_place && operation.in_place() == InPlaceRule::Never {
            return Some(
                "it has no in-place form: set a buffer to send, or one to receive".to_owned(),
            );
        }
        for (side, name, len) in [
            (Side::Input, "send", self.input.len),
            (Side::Output, "receive", self.output.len),
        ] {
            if len > 0 && operation.extent(side) == Extent::Nothing {
                return Some(format!(
                    "a {name} buffer of {len} elements, which it does not have: set none"
                ));
            }
        }
        if root != 0 && !operation.is_rooted() {
            return Some(format!(
                "a root, rank {root}, which it does not have: set none"
            ));
        }
        if self.spec.tables.is_some() && operation != Operation::AllToAllV {
            return Some("blocks, which only an all_to_all_v has: set none".to_owned());
        }
        None
    }

    fn reduction_among(&self, ranks: u32) -> Result<Reduction, &'static str> {
        match (self.spec.operation.reduces(), self.op) {
            (true, Some(op)) => Ok(Reduction::of(self.spec.dtype, op, self.factor, ranks)),
            (true, None) => Err("no reduction"),
            (false, Some(_)) => Err("a reduction, but it reduces nothing"),
            (false, None) => Ok(Reduction::NONE),
        }
    }

    fn region(
        &self,
        side: &str,
        memory: Memory,
        place: impl Fn(&str, *mut u8, usize) -> Result<Region, Error>,
    ) -> Result<Region, Error> {
        let (Memory { start, len }, size) = (memory, self.spec.dtype.size());
        if len == 0 {
            return place(side, std::ptr::null_mut(), 0);
        }
        let bytes = len
            .checked_mul(size)
            .filter(|&bytes| isize::try_from(bytes).is_ok());
        let problem = if start.is_null() {
            format!("the {side} buffer is a null pointer, and has {len} elements")
        } else if bytes.is_none_or(|bytes| (start as usize).checked_add(bytes).is_none()) {
            format!("the {side} buffer has {len} elements, which no memory can hold")
        } else if !(start as usize).is_multiple_of(size) {
            format!("the {side} buffer must be aligned to its elements of {size} bytes")
        } else {
            return place(side, start, len);
        };
        Err(self.invalid(problem))
    }

    /// The region of host memory that was checked.
    fn place(
        &self,
        side: &str,
        start: *mut u8,
        len: usize,
        comm: &Communicator,
    ) -> Result<Region, Error> {
        if len == 0 {
            return Ok(Region::empty());
        }
        let bytes = len * self.spec.dtype.size();
        for Kept {
            segment,
            bytes: all,
        } in &self.registered
        {
            let offset = (start as usize).wrapping_sub(segment.own_base() as usize);
            if offset.checked_add(bytes).is_none_or(|end| end > *all) {
                continue;
            }
            let allocation = segment.allocation();
            let own = comm.planner().communicator;
            if allocation.is_some_and(|allocation| allocation.communicator != own) {
                return Err(self.invalid(format!(
                    "rank {}'s {side} buffer lies in memory that another communicator, or another \
                     rank, has allocated: pass memory of this one, or leave out `within`",
                    comm.rank()
                )));
            }
            return Ok(Region::registered(segment, offset, len));
        }
        Ok(Region::host(start, len))
    }

    pub(crate) fn invalid(&self, problem: String) -> Error {
        Error::Invalid {
            operation: self.spec.operation.name(),
            problem,
        }
    }
}
