//! Checks the arguments of a call, and makes it a request.

use crate::buffer::Region;
use crate::communicator::Communicator;
use crate::engine::{Program, Programs, Request, Task};
use crate::error::Error;
use crate::plan::Place;
use crate::redop::Reduction;
use crate::signature::{Operation, Signature};
use spark_ccl_compute::{DType, Element};
use spark_ccl_sched::{Steps, all_to_all_v};
use std::sync::Arc;

/// A call without its buffers.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) operation: Operation,
    pub(crate) reduction: Reduction,
    /// The root, or the peer that is sent to.
    pub(crate) root: usize,
    /// The peer that is received from.
    pub(crate) from: usize,
    pub(crate) in_place: bool,
    /// What is said about all calls' paths does not concern it.
    pub(crate) by_any_path: bool,
    /// Elements of an allocation.
    pub(crate) elements: usize,
    pub(crate) tables: Option<Box<Tables>>,
}

/// Counts and displacements of an `all_to_all_v`, in elements.
#[derive(Debug, Clone)]
pub(crate) struct Tables {
    pub(crate) send_counts: Vec<usize>,
    pub(crate) send_displs: Vec<usize>,
    pub(crate) recv_counts: Vec<usize>,
    pub(crate) recv_displs: Vec<usize>,
}

impl Spec {
    pub(crate) fn new(operation: Operation) -> Self {
        Self {
            operation,
            reduction: Reduction::NONE,
            root: 0,
            from: 0,
            in_place: false,
            by_any_path: false,
            elements: 0,
            tables: None,
        }
    }

    pub(crate) fn reducing(operation: Operation, reduction: Reduction) -> Self {
        Self {
            reduction,
            ..Self::new(operation)
        }
    }

    pub(crate) fn root(self, root: usize) -> Self {
        Self { root, ..self }
    }

    pub(crate) fn from(self, from: usize) -> Self {
        Self { from, ..self }
    }

    pub(crate) fn in_place(self) -> Self {
        Self {
            in_place: true,
            ..self
        }
    }
}

/// What a collective that has a schedule asks for, and the program for it.
pub(super) fn collective<'p, T: Element>(
    comm: &Communicator,
    spec: &Spec,
    input: Region,
    output: Region,
    programs: &'p mut Programs,
) -> Result<(Task, &'p Program), Error> {
    let dtype = T::DTYPE;
    Checked { comm, spec, dtype }.collective(input, output, programs)
}

/// The requests of a call: two for a `send_recv`, else one.
pub(super) fn requests<T: Element>(
    comm: &Communicator,
    spec: &Spec,
    input: Region,
    output: Region,
    programs: &mut Programs,
) -> Result<(Request, Option<Request>), Error> {
    let dtype = T::DTYPE;
    let call = Checked { comm, spec, dtype };
    let request = match spec.operation {
        Operation::SendRecv => return Ok((call.send(input)?, Some(call.recv(output)?))),
        Operation::Send => call.send(input)?,
        Operation::Recv => call.recv(output)?,
        Operation::AllToAllV => call.all_to_all_v(input, output)?,
        _ => {
            let (task, program) = call.collective(input, output, programs)?;
            Request {
                task,
                program: program.clone(),
            }
        }
    };
    Ok((request, None))
}

/// Checks the buffers of a call of device memory; its signature.
#[cfg(feature = "cuda")]
pub(crate) fn signature<T: Element>(
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
        _ => call.shaped(input.clone(), output.clone())?.count,
    };
    Ok(call.signature(count, 0))
}

/// A call under examination.
struct Checked<'a> {
    comm: &'a Communicator,
    spec: &'a Spec,
    dtype: DType,
}

/// The buffers of a collective as its schedule sees them.
struct Shaped {
    count: usize,
    input: Region,
    output: Region,
    input_block: Option<u64>,
}

impl Checked<'_> {
    fn collective<'p>(
        &self,
        input: Region,
        output: Region,
        programs: &'p mut Programs,
    ) -> Result<(Task, &'p Program), Error> {
        let shaped = self.shaped(input, output)?;
        let in_place = self.spec.in_place;
        let planner = self.comm.planner();
        let place = Place::of(self.spec, &shaped.input, &shaped.output, planner)?;
        let signature = self.signature(shaped.count, place.code());
        let program = programs.get(signature, in_place, || {
            let schedule = planner.schedule(signature, in_place, &place)?;
            Ok(Program::Schedule(Arc::new(schedule)))
        })?;
        let task = Task {
            signature,
            input: shaped.input,
            output: shaped.output,
            reduction: self.spec.reduction,
            input_block: shaped.input_block,
        };
        Ok((task, program))
    }

    /// The buffers, if they fit the operation and each other.
    fn shaped(&self, input: Region, output: Region) -> Result<Shaped, Error> {
        if self.spec.operation.is_rooted() {
            self.peer("root", self.spec.root)?;
        }
        if self.spec.in_place {
            self.shape_in_place(&output)
        } else {
            self.shape(input, output)
        }
    }

    /// Out of place: which lengths belong together.
    fn shape(&self, input: Region, output: Region) -> Result<Shaped, Error> {
        let size = self.comm.size();
        let at_root = self.comm.rank() == self.spec.root;
        let (give, take) = (input.len, output.len);
        // Ranks other than the root leave one side of a rooted operation alone.
        let unused = Region::empty;
        let (count, input, output) = match self.spec.operation {
            Operation::AllReduce => {
                self.equal("receive buffer", give, take)?;
                (give, input, output)
            }
            Operation::AllGather => {
                self.equal("receive buffer", give * size, take)?;
                (give, input, output)
            }
            Operation::ReduceScatter => {
                self.equal("send buffer", take * size, give)?;
                (take, input, output)
            }
            Operation::AllToAll => {
                self.equal("receive buffer", give, take)?;
                self.divisible(give)?;
                (give / size, input, output)
            }
            Operation::Broadcast if at_root => {
                self.equal("send buffer", take, give)?;
                (take, input, output)
            }
            Operation::Reduce if at_root => {
                self.equal("receive buffer", give, take)?;
                (give, input, output)
            }
            Operation::Gather if at_root => {
                self.equal("receive buffer", give * size, take)?;
                (give, input, output)
            }
            Operation::Reduce | Operation::Gather => (give, input, unused()),
            Operation::Scatter if at_root => {
                self.equal("send buffer", take * size, give)?;
                (take, input, output)
            }
            Operation::Broadcast | Operation::Scatter => (take, unused(), output),
            _ => (self.spec.elements, unused(), unused()),
        };
        self.disjoint(&input, &output)?;
        Ok(Shaped {
            count,
            input,
            output,
            input_block: None,
        })
    }

    /// In place: which part of the buffer is input and which is output.
    fn shape_in_place(&self, buffer: &Region) -> Result<Shaped, Error> {
        let size = self.comm.size();
        let bytes = self.dtype.size();
        let whole = |count| Shaped {
            count,
            input: buffer.clone(),
            output: buffer.clone(),
            input_block: None,
        };
        let block = |count: usize| buffer.part(self.comm.rank() * count, count, bytes);
        match self.spec.operation {
            Operation::AllGather | Operation::Gather => {
                self.divisible(buffer.len)?;
                let count = buffer.len / size;
                Ok(Shaped {
                    input: block(count),
                    input_block: Some(count as u64),
                    ..whole(count)
                })
            }
            Operation::ReduceScatter | Operation::Scatter => {
                self.divisible(buffer.len)?;
                let count = buffer.len / size;
                Ok(Shaped {
                    output: block(count),
                    ..whole(count)
                })
            }
            Operation::AllToAll => {
                self.divisible(buffer.len)?;
                Ok(whole(buffer.len / size))
            }
            Operation::Reduce if self.comm.rank() != self.spec.root => Ok(Shaped {
                output: Region::empty(),
                ..whole(buffer.len)
            }),
            _ => Ok(whole(buffer.len)),
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
        Ok(Request {
            task: self.moving(0, input, output),
            program: Program::List(steps.walk(0).collect()),
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
            signature: self.signature(count, 0),
            input,
            output,
            reduction: Reduction::NONE,
            input_block: None,
        }
    }

    fn signature(&self, count: usize, place: u64) -> Signature {
        let rooted = self.spec.operation.is_rooted();
        Signature {
            operation: self.spec.operation,
            dtype: self.dtype,
            op: self.spec.reduction.code,
            root: if rooted { self.spec.root as u32 } else { 0 },
            count: count as u64,
            place,
        }
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
