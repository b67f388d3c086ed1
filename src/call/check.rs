//! Checks the arguments of a call, and makes it a request.

use super::spec::{Spec, Tables};
use crate::buffer::Region;
use crate::communicator::Communicator;
use crate::engine::{Blocks, Program, Programs, Request, Task};
use crate::error::Error;
use crate::plan::Place;
use spark_ccl_sched::{Steps, all_to_all_v};
use spark_ccl_types::{DType, Extent, Operation, Reduction, Side, Signature};
use std::sync::Arc;

/// Completes the task of a collective that has a schedule, whose buffers are still those that the caller passed.
///
/// In place, and by reference: a task is several cache lines that were written a moment ago, and to copy them
/// waits for those stores.
pub(super) fn collective(
    comm: &Communicator,
    spec: &Spec,
    task: &mut Task,
) -> Result<Place, Error> {
    let dtype = task.signature.dtype;
    Checked { comm, spec, dtype }.collective(task)
}

/// The program of a checked collective.
pub(super) fn program<'p>(
    comm: &Communicator,
    spec: &Spec,
    task: &Task,
    place: &Place,
    programs: &'p mut Programs,
) -> Result<&'p Program, Error> {
    let (signature, in_place) = (task.signature, spec.in_place);
    programs.get(signature, in_place, || {
        let schedule = comm.planner().schedule(signature, in_place, place)?;
        Ok(Program::Schedule(Arc::new(schedule)))
    })
}

/// The requests of a call: two for a `send_recv`, else one.
pub(super) fn requests(
    comm: &Communicator,
    spec: &Spec,
    mut task: Task,
    programs: &mut Programs,
) -> Result<(Request, Option<Request>), Error> {
    let dtype = task.signature.dtype;
    let call = Checked { comm, spec, dtype };
    let request = match spec.operation {
        Operation::SendRecv => {
            let Task { input, output, .. } = task;
            return Ok((call.send(input)?, Some(call.recv(output)?)));
        }
        Operation::Send => call.send(task.input)?,
        Operation::Recv => call.recv(task.output)?,
        Operation::AllToAllV => call.all_to_all_v(task.input, task.output)?,
        _ => {
            let place = call.collective(&mut task)?;
            let program = program(comm, spec, &task, &place, programs)?.clone();
            Request { task, program }
        }
    };
    Ok((request, None))
}

/// Checks the buffers of a call of device memory; its signature.
#[cfg(feature = "cuda")]
pub(crate) fn signature<T: spark_ccl_types::Element>(
    comm: &Communicator,
    spec: &Spec,
    [input, output]: [&Region; 2],
) -> Result<Signature, Error> {
    let dtype = T::DTYPE;
    let call = Checked { comm, spec, dtype };
    let count = match spec.operation {
        Operation::Send | Operation::Recv | Operation::SendRecv => {
            if spec.operation != Operation::Recv {
                call.peer("destination", spec.root)?;
            }
            if spec.operation != Operation::Send {
                call.peer("source", spec.from)?;
            }
            call.disjoint(input, output)?;
            input.len + output.len
        }
        Operation::AllToAllV => call.tables(input, output).map(|_| 0)?,
        Operation::AllToAll if spec.in_place => {
            return Err(call.invalid("device memory is not exchanged in place".to_owned()));
        }
        _ => call.count(input, output)?,
    };
    Ok(call.signature(count))
}

/// A call under examination.
struct Checked<'a> {
    comm: &'a Communicator,
    spec: &'a Spec,
    dtype: DType,
}

impl Checked<'_> {
    fn collective(&self, task: &mut Task) -> Result<Place, Error> {
        let count = self.count(&task.input, &task.output)?;
        self.narrow(task, count);
        let place = Place::of(self.spec, &task.input, &task.output, self.comm.planner())?;
        let signature = &mut task.signature;
        signature.in_place = self.spec.in_place && self.agrees_on_that(&place);
        signature.count = count as u64;
        signature.place = place.code();
        Ok(place)
    }

    /// Whether all ranks must be in place, or none.
    fn agrees_on_that(&self, place: &Place) -> bool {
        let rule = self.spec.operation.in_place();
        rule.binds(self.comm.size(), place.is_registered())
    }

    /// The elements that the operation counts, if the buffers fit it and each other.
    fn count(&self, input: &Region, output: &Region) -> Result<usize, Error> {
        let operation = self.spec.operation;
        if operation.is_rooted() {
            self.peer("root", self.spec.root)?;
        }
        if !operation.moves_data() {
            return Ok(self.spec.elements);
        }
        if self.spec.in_place {
            return self.share(output.len, operation.is_divided());
        }
        let uses_both = self.uses(Side::Input) && self.uses(Side::Output);
        let counted = operation.counted();
        let (seen, other) = match counted {
            Side::Input => (input.len, output.len),
            Side::Output => (output.len, input.len),
        };
        if uses_both {
            self.fits(seen, other)?;
        }
        let count = self.share(seen, operation.extent(counted) == Extent::Blocks)?;
        if uses_both {
            self.disjoint(input, output)?;
        }
        Ok(count)
    }

    /// Checks the length of one buffer by that of the one that says the count.
    fn fits(&self, counted: usize, seen: usize) -> Result<(), Error> {
        let operation = self.spec.operation;
        let what = match operation.counted() {
            Side::Input => "receive buffer",
            Side::Output => "send buffer",
        };
        // Where one buffer is a block, the other has one for each rank.
        let expected = match operation.own_block() {
            Some(_) => counted.saturating_mul(self.comm.size()),
            None => counted,
        };
        self.equal(what, expected, seen)
    }

    /// A rank's share of a buffer, or all of it where it is not divided.
    fn share(&self, len: usize, is_divided: bool) -> Result<usize, Error> {
        if !is_divided {
            return Ok(len);
        }
        self.divisible(len)?;
        Ok(len / self.comm.size())
    }

    /// Whether this rank takes part with a buffer.
    fn uses(&self, side: Side) -> bool {
        let is_root = self.comm.rank() == self.spec.root;
        self.spec.operation.uses(side, is_root)
    }

    /// Leaves of the caller's buffers what the schedule reads and writes.
    fn narrow(&self, task: &mut Task, count: usize) {
        let Spec {
            operation,
            in_place,
            ..
        } = *self.spec;
        let block = |all: &Region| all.part(self.comm.rank() * count, count, self.dtype.size());
        match operation.own_block() {
            Some(Side::Input) if in_place => {
                task.input = block(&task.output);
                task.input_block = Some(count as u64);
                return;
            }
            Some(Side::Output) if in_place => {
                task.output = block(&task.output);
                return;
            }
            _ => {}
        }
        // In place, what is read is what the rank has as its output in any case.
        if !in_place && !self.uses(Side::Input) {
            task.input = Region::empty();
        }
        if !self.uses(Side::Output) {
            task.output = Region::empty();
        }
    }

    fn all_to_all_v(&self, input: Region, output: Region) -> Result<Request, Error> {
        let tables = self.tables(&input, &output)?;
        let own = self.comm.rank();
        let wide = |table: &[usize]| table.iter().map(|&x| x as u64).collect::<Vec<_>>();
        let table = [
            wide(&tables.send_counts),
            wide(&tables.send_displs),
            wide(&tables.recv_counts),
            wide(&tables.recv_displs),
        ];
        let steps = all_to_all_v(own as u32, &table[0], &table[1], &table[2], &table[3])
            .map_err(|unsupported| self.invalid(unsupported.to_string()))?;
        let steps = [0, 1].map(|channel| steps.walk(channel).collect());
        let [sent, _, expected, _] = table;
        Ok(Request {
            task: self.moving(0, input, output),
            program: Program::Blocks(Arc::new(Blocks {
                steps,
                sent,
                expected,
            })),
        })
    }

    /// The counts and displacements of an `all_to_all_v`, which fit its buffers.
    fn tables(&self, input: &Region, output: &Region) -> Result<&Tables, Error> {
        let Some(tables) = self.spec.tables.as_deref() else {
            return Err(self.invalid("no tables of counts".to_owned()));
        };
        self.table("send", &tables.send_counts, &tables.send_displs, input.len)?;
        self.table(
            "receive",
            &tables.recv_counts,
            &tables.recv_displs,
            output.len,
        )?;
        let own = self.comm.rank();
        let (give, take) = (tables.send_counts[own], tables.recv_counts[own]);
        if give != take {
            return Err(self.invalid(format!(
                "rank {own} sends itself {give} elements and receives {take} from itself"
            )));
        }
        self.disjoint(input, output)?;
        Ok(tables)
    }

    fn send(&self, input: Region) -> Result<Request, Error> {
        self.peer("destination", self.spec.root)?;
        let (rank, to) = (self.comm.rank() as u32, self.spec.root as u32);
        let program = Program::send(rank, to, input.len as u64);
        Ok(self.point_to_point(program, input, Region::empty()))
    }

    fn recv(&self, output: Region) -> Result<Request, Error> {
        self.peer("source", self.spec.from)?;
        let (rank, from) = (self.comm.rank() as u32, self.spec.from as u32);
        let program = Program::recv(rank, from, output.len as u64);
        Ok(self.point_to_point(program, Region::empty(), output))
    }

    fn point_to_point(&self, program: Program, input: Region, output: Region) -> Request {
        Request {
            task: self.moving(input.len + output.len, input, output),
            program,
        }
    }

    /// What an operation asks for that has no schedule, and only moves data.
    fn moving(&self, count: usize, input: Region, output: Region) -> Task {
        Task {
            signature: self.signature(count),
            input,
            output,
            reduction: Reduction::NONE,
            input_block: None,
        }
    }

    fn signature(&self, count: usize) -> Signature {
        self.spec.signature(self.dtype, count)
    }

    fn table(
        &self,
        side: &str,
        counts: &[usize],
        displs: &[usize],
        len: usize,
    ) -> Result<(), Error> {
        let size = self.comm.size();
        if counts.len() != size || displs.len() != size {
            return Err(self.invalid(format!(
                "{} {side} counts and {} displacements for {size} ranks",
                counts.len(),
                displs.len()
            )));
        }
        for (rank, (&count, &displ)) in counts.iter().zip(displs).enumerate() {
            if displ.checked_add(count).is_none_or(|end| end > len) {
                return Err(self.invalid(format!(
                    "the {side} block of rank {rank} ({count} elements from {displ}) exceeds the \
                     buffer of {len} elements"
                )));
            }
        }
        Ok(())
    }

    fn peer(&self, what: &str, rank: usize) -> Result<(), Error> {
        let size = self.comm.size();
        if rank < size {
            return Ok(());
        }
        Err(self.invalid(format!(
            "{what} is rank {rank}, and the communicator has ranks 0 to {}",
            size - 1
        )))
    }

    fn equal(&self, what: &str, expected: usize, seen: usize) -> Result<(), Error> {
        if expected == seen {
            return Ok(());
        }
        Err(self.invalid(format!(
            "the {what} must have {expected} elements and has {seen}"
        )))
    }

    fn divisible(&self, len: usize) -> Result<(), Error> {
        let size = self.comm.size();
        if len.is_multiple_of(size) {
            return Ok(());
        }
        Err(self.invalid(format!(
            "{len} elements cannot be divided among {size} ranks"
        )))
    }

    fn disjoint(&self, input: &Region, output: &Region) -> Result<(), Error> {
        let bytes = self.dtype.size();
        let (a, b) = (input.ptr as usize, output.ptr as usize);
        let apart = a + input.len * bytes <= b || b + output.len * bytes <= a;
        if apart || input.len == 0 || output.len == 0 {
            return Ok(());
        }
        Err(self.invalid("send and receive buffers overlap; use the in-place variant".to_owned()))
    }

    fn invalid(&self, problem: String) -> Error {
        Error::Invalid {
            operation: self.spec.operation.name(),
            problem,
        }
    }
}
