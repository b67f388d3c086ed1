//! The steps shared by all calls of a communicator: checks of state and arguments, and the result.

use std::ffi::c_int;

use spark_ccl_types::DType;

use super::{Communicator, State, group};
use crate::raw::{self, Api, ncclComm_t};
use crate::{ArgumentError, DeviceSlice, Error, RedOp, Stream};

/// A call in preparation: the communicator's part of it, and the checks of its arguments.
pub(super) struct Operation<'a> {
    pub(super) comm: &'a Communicator,
    name: &'static str,
    pub(super) raw: ncclComm_t,
    pub(super) grouped: bool,
}

impl Communicator {
    /// Begins a call that needs a communicator without errors.
    pub(super) fn begin(&self, name: &'static str) -> Result<Operation<'_>, Error> {
        self.begin_up_to(State::Ready, name)
    }

    /// Begins a call that also works in a worse state.
    pub(super) fn begin_up_to(
        &self,
        worst: State,
        name: &'static str,
    ) -> Result<Operation<'_>, Error> {
        let state = self.inner.state();
        if state > worst {
            return Err(Error::Unusable {
                operation: name,
                rank: self.inner.rank(),
                revoked: state == State::Revoked,
            });
        }
        let grouped = group::join(&self.inner, name)?;
        Ok(Operation {
            comm: self,
            name,
            raw: self.inner.handle(name)?,
            grouped,
        })
    }
}

impl Operation<'_> {
    pub(super) fn api(&self) -> &'static Api {
        self.comm.inner.library.api
    }

    /// Turns NCCL's result into the call's.
    pub(super) fn finish(self, code: raw::Code) -> Result<(), Error> {
        self.comm.inner.settle(self.name, code, self.grouped)
    }

    /// Like [`finish`](Self::finish), for calls whose success only means that NCCL has started
    /// them.
    pub(super) fn finish_begun(self, code: raw::Code) -> Result<(), Error> {
        let inner = &self.comm.inner;
        inner.settle_begun(self.name, code, self.grouped)
    }

    /// Refuses a call in a group: its result would be known only when the group ends.
    pub(super) fn refuse_in_group(&self) -> Result<(), Error> {
        let error = Error::Grouped {
            operation: self.name,
            in_other_thread: false,
        };
        if self.grouped { Err(error) } else { Ok(()) }
    }

    pub(super) fn refuse<T>(&self, error: ArgumentError) -> Result<T, Error> {
        Err(Error::Argument {
            operation: self.name,
            rank: self.comm.inner.rank(),
            error,
        })
    }

    /// Checks that the buffers and the stream belong to the communicator's device, and that the
    /// buffers have one element type.
    pub(super) fn check_buffers(
        &self,
        buffers: &[(&'static str, Option<DeviceSlice>)],
        stream: Option<Stream>,
    ) -> Result<(), Error> {
        let given = buffers
            .iter()
            .filter_map(|(what, buffer)| Some((*what, (*buffer)?)));
        let expected = self.comm.device()?;
        let on_devices = given.clone().map(|(what, buffer)| (what, buffer.device()));
        for (what, seen) in on_devices.chain(stream.map(|stream| ("stream", stream.device()))) {
            if seen != expected {
                return self.refuse(ArgumentError::Device {
                    what,
                    expected,
                    seen,
                });
            }
        }
        let Some((_, first)) = given.clone().next() else {
            return Ok(());
        };
        let expected = first.dtype();
        for (what, buffer) in given {
            let seen = buffer.dtype();
            if seen != expected {
                return self.refuse(ArgumentError::DType {
                    what,
                    expected,
                    seen,
                });
            }
        }
        Ok(())
    }

    /// Checks the number of elements of a buffer.
    pub(super) fn check_len(
        &self,
        buffer: &'static str,
        slice: DeviceSlice,
        expected: usize,
    ) -> Result<(), Error> {
        let seen = slice.len();
        if seen != expected {
            return self.refuse(ArgumentError::Length {
                buffer,
                expected,
                seen,
            });
        }
        Ok(())
    }

    /// The number of elements for each rank, in a buffer with an equal part for each.
    pub(super) fn per_rank(
        &self,
        buffer: &'static str,
        slice: DeviceSlice,
    ) -> Result<usize, Error> {
        let (seen, ranks) = (slice.len(), self.comm.size()?);
        if !seen.is_multiple_of(ranks) {
            return self.refuse(ArgumentError::Shares {
                buffer,
                seen,
                ranks,
            });
        }
        Ok(seen / ranks)
    }

    /// Checks that two buffers do not overlap, or that `inner` starts in `outer` where a call in
    /// place requires.
    pub(super) fn check_overlap(
        &self,
        outer: DeviceSlice,
        inner: DeviceSlice,
        in_place: Option<(usize, &'static str)>,
    ) -> Result<(), Error> {
        let at = |(offset, _)| {
            outer
                .start()
                .wrapping_byte_add(offset * outer.dtype().size())
        };
        if !outer.overlaps(inner) || in_place.map(at) == Some(inner.start()) {
            return Ok(());
        }
        let in_place = in_place.map(|(_, words)| words);
        self.refuse(ArgumentError::Overlap { in_place })
    }

    /// Checks a rank, and converts it to NCCL's type.
    pub(super) fn rank(&self, what: &'static str, seen: usize) -> Result<c_int, Error> {
        let ranks = self.comm.size()?;
        if seen >= ranks {
            return self.refuse(ArgumentError::Rank { what, seen, ranks });
        }
        Ok(seen as c_int)
    }

    /// The buffer that the root must pass; `None` on other ranks.
    pub(super) fn root_buffer(
        &self,
        root: usize,
        buffer: &'static str,
        slice: Option<DeviceSlice>,
    ) -> Result<Option<DeviceSlice>, Error> {
        match slice {
            _ if self.comm.rank()? != root => Ok(None),
            None => self.refuse(ArgumentError::Missing { buffer, root }),
            there => Ok(there),
        }
    }

    /// NCCL's number of a reduction for elements of this type, which the library must support.
    pub(super) fn reduction(&self, op: RedOp<'_>, expected: DType) -> Result<raw::RedOp, Error> {
        self.comm.inner.library.reduces(expected)?;
        let made = match op {
            RedOp::PreMulSum(made) => made,
            // The same result; NCCL has no kernel that scales the 8-bit floats of a single rank.
            RedOp::Avg if self.comm.size()? == 1 => return Ok(RedOp::Sum.code()),
            plain => return Ok(plain.code()),
        };
        let (what, seen) = ("reduction", made.dtype);
        self.check_owner(what, made.communicator)?;
        if seen != expected {
            return self.refuse(ArgumentError::DType {
                what,
                expected,
                seen,
            });
        }
        Ok(op.code())
    }

    /// Checks that an object was made with this communicator.
    pub(super) fn check_owner(&self, what: &'static str, communicator: u64) -> Result<(), Error> {
        if communicator != self.comm.inner.number {
            return self.refuse(ArgumentError::OtherCommunicator { what });
        }
        Ok(())
    }
}
