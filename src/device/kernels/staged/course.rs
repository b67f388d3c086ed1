//! The pieces of one communicator, from the stage to the host engine and back.

use super::channel::{Channel, Use};
use crate::buffer::Region;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::host::Ids;
use crate::names::remember;
use crate::task::{Spec, Task, check};
use spark_ccl_control::{DEVICE_MARK, Fault, Watch};
use spark_ccl_gpu::{Cut, Rung, Stage};
use spark_ccl_types::{Extent, ReduceOp, Reduction, Side, Signature};
use std::collections::VecDeque;
use std::sync::Arc;

/// How many pieces the host engine has at a time: one, and the next one.
const AT_A_TIME: usize = 2;
/// Of how many calls it is known which pieces they had. A rank that leaves is not more calls behind than that, or else those
/// count as done.
const KNOWN: usize = 1024;

/// The pieces of one communicator.
pub(super) struct Course {
    stage: Arc<Stage>,
    /// Carries the pieces, and nothing else. Its calls are in the order of the pieces, which all ranks have alike.
    carrier: Communicator,
    /// Of the communicator that the user holds.
    parent: Arc<Watch>,
    /// How many pieces of each CTA have been begun.
    begun: Vec<u64>,
    operation: Option<Operation>,
    /// In the order in which they were begun.
    flights: VecDeque<Flight>,
    /// Operations that were begun, and that are done.
    number: u64,
    done: u64,
    /// The number of all pieces that were begun, and what it was after the last piece of each of the last operations.
    pieces: u64,
    ends: VecDeque<u64>,
    has_failed: bool,
    /// Dropped last.
    channel: Seat,
}

/// A place at a channel. Nothing is used on its account any more when this is dropped.
struct Seat(Arc<Channel>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.end_use(Use::Over);
    }
}

/// An operation of which not all pieces have been begun.
struct Operation {
    signature: Signature,
    reduction: Reduction,
    cut: Cut,
    next: u64,
}

/// A piece that the host engine has.
struct Flight {
    ids: Ids,
    cta: u64,
    number: u64,
    is_last: bool,
}

impl Course {
    pub(super) fn new(
        stage: Arc<Stage>,
        channel: Arc<Channel>,
        carrier: Communicator,
        parent: Arc<Watch>,
    ) -> Self {
        let ctas = stage.ctas(u64::MAX) as usize;
        Self {
            stage,
            carrier,
            parent,
            begun: vec![0; ctas],
            operation: None,
            flights: VecDeque::new(),
            number: 0,
            done: 0,
            pieces: 0,
            ends: VecDeque::new(),
            has_failed: false,
            channel: Seat(channel),
        }
    }

    /// Moves pieces on; whether there was anything to do.
    pub(super) fn advance(&mut self) -> bool {
        if self.has_failed {
            return self.land_failed();
        }
        let advanced = self.land().and_then(|landed| Ok(landed | self.begin()?));
        advanced.unwrap_or_else(|error| {
            self.fail(error);
            true
        })
    }

    /// Whether it is over: nothing uses the stage on its account any more.
    pub(super) fn is_over(&mut self) -> bool {
        if !self.channel.0.is_closed() {
            return false;
        }
        if !self.flights.is_empty() && !self.carrier.inner.watch.failed() {
            let left = || Fault::Aborted {
                by: self.carrier.inner.watch.member(self.stage.rank() as u32),
                reason: "it left the communicator while calls of device memory were in a stream"
                    .to_owned(),
            };
            let fault = self
                .parent
                .fault()
                .map_or_else(left, |fault| (*fault).clone());
            self.carrier.inner.watch.raise(fault);
        }
        self.has_failed = true;
        self.land_failed();
        self.flights.is_empty()
    }

    /// Leaves everything as it is, for a process that exits.
    pub(super) fn abandon(self) {
        self.channel.0.end_use(Use::Abandoned);
        std::mem::forget(self);
    }

    /// Whether pieces may be there soon.
    pub(super) fn expects(&self) -> bool {
        let may_come = self.operation.is_some() || self.channel.0.expects(self.done);
        !self.flights.is_empty() || !self.has_failed && may_come
    }

    /// Answers for the pieces that are done.
    fn land(&mut self) -> Result<bool, Error> {
        let engine = self.carrier.inner.membership.engine();
        let mut landed = false;
        while let Some(flight) = self.flights.front() {
            let Some(result) = flight.ids.take(engine) else {
                break;
            };
            result?;
            self.stage.answer(flight.cta, flight.number);
            self.done += u64::from(flight.is_last);
            self.flights.pop_front();
            landed = true;
        }
        if self.flights.is_empty()
            && let Some(fault) = self.carrier.inner.watch.fault()
        {
            return Err(Error::Failed(fault));
        }
        Ok(landed)
    }

    /// Begins the next piece, if the kernel has rung for it.
    fn begin(&mut self) -> Result<bool, Error> {
        if self.flights.len() >= AT_A_TIME {
            return Ok(false);
        }
        let (piece, ctas) = match &self.operation {
            None => (0, 1),
            Some(operation) => (operation.next, self.stage.ctas(operation.cut.pieces())),
        };
        let cta = piece % ctas;
        let number = self.begun[cta as usize] + 1;
        let Some(rung) = self.stage.rung(cta, number) else {
            return Ok(false);
        };
        let mut operation = match self.operation.take() {
            Some(operation) => operation,
            None => self.operation_of(rung)?,
        };
        self.begun[cta as usize] = number;
        operation.next += 1;
        let is_last = operation.next == operation.cut.pieces();
        let spec = operation.spec();
        let mut task = self.task(&spec, &operation, piece, self.stage.slot(cta, number))?;
        self.count(is_last);
        if !is_last {
            self.operation = Some(operation);
        }
        match self.carrier.inner.membership.engine().begin(&mut task)? {
            None => {
                self.stage.answer(cta, number);
                self.done += u64::from(is_last);
            }
            Some(ids) => self.flights.push_back(Flight {
                ids,
                cta,
                number,
                is_last,
            }),
        }
        Ok(true)
    }

    /// Counts a piece as begun.
    fn count(&mut self, is_last: bool) {
        self.pieces += 1;
        if is_last {
            if self.ends.len() == KNOWN {
                self.ends.pop_front();
            }
            self.ends.push_back(self.pieces);
        }
    }

    /// How many operations a rank has done that has done this many pieces.
    fn operations_in(&self, pieces: u64) -> u64 {
        let later = self.ends.iter().filter(|&&end| end > pieces).count() as u64;
        self.number - u64::from(self.operation.is_some()) - later
    }

    /// What a kernel has begun.
    fn operation_of(&mut self, rung: Rung) -> Result<Operation, Error> {
        self.number += 1;
        let unknown = || Error::Invalid {
            operation: "device memory",
            problem: format!("a kernel rings for what is no operation: {:x?}", rung.words),
        };
        let mut signature = Signature::from_words(rung.words).ok_or_else(unknown)?;
        let (dtype, ranks) = (signature.dtype, self.stage.ranks());
        let cut = Cut::new(signature.operation, dtype.size(), signature.count, ranks);
        let cut = cut.ok_or_else(unknown)?;
        if cut.pieces() > 1 {
            // Pieces of the same length may be of different operations. Ranks compare this name, so it follows from
            // the call's words alone: what a process knows of names may differ.
            let whole = spark_ccl_types::describe(rung.words);
            let name = spark_ccl_types::name_of(rung.words);
            signature.name = remember(&format!("a part of {whole}, name {name:x}"));
        }
        let op = ReduceOp::from_code(signature.op).filter(|_| signature.operation.reduces());
        let factor = rung.factor.to_ne_bytes();
        let reduction = op.map_or(Reduction::NONE, |op| {
            Reduction::of(dtype, op, factor, ranks as u32)
        });
        Ok(Operation {
            signature,
            reduction,
            cut,
            next: 0,
        })
    }

    /// A piece, as a task on the memory of its slot.
    fn task(
        &self,
        spec: &Spec,
        operation: &Operation,
        piece: u64,
        slot: *mut u8,
    ) -> Result<Task, Error> {
        let elements = operation.cut.elements(piece);
        let len = (elements.end - elements.start) as usize;
        let held = |side| match spec.operation.extent(side) {
            _ if !spec.operation.uses(side, spec.root == self.stage.rank()) => 0,
            Extent::Blocks => len * self.stage.ranks(),
            _ => len,
        };
        let regions = if operation.cut.is_shared() {
            [Region::host(slot, len), Region::host(slot, len)]
        } else {
            let input = held(Side::Input);
            let output = operation.cut.output_at(input * spec.dtype.size());
            let output = slot.wrapping_add(output);
            [
                Region::host(slot, input),
                Region::host(output, held(Side::Output)),
            ]
        };
        let mut task = spec.task(regions.into());
        check(spec, &mut task, self.carrier.planner().ranks())?;
        Ok(task)
    }

    /// Ends the kernel's waits, and tells all ranks. Results that come later are not used.
    fn fail(&mut self, error: Error) {
        self.has_failed = true;
        let fault = match error {
            Error::Failed(fault) => self.of_device((*fault).clone()),
            error => Fault::Aborted {
                by: self.parent.member(self.stage.rank() as u32),
                reason: error.to_string(),
            },
        };
        self.parent.raise(fault);
        self.stage.abort();
    }

    /// The fault of the carrier as that of the operation of which the pieces are.
    fn of_device(&self, mut fault: Fault) -> Fault {
        let number = DEVICE_MARK | (self.done + 1).min(self.number.max(1));
        match &mut fault {
            Fault::Left {
                sequence,
                last_sequence,
                ..
            } => {
                *sequence = number;
                *last_sequence = match self.operations_in(*last_sequence) {
                    0 => 0,
                    last => DEVICE_MARK | last,
                };
            }
            Fault::Mismatch { sequence, .. } | Fault::TimedOut { sequence, .. } => {
                *sequence = number;
            }
            _ => {}
        }
        fault
    }

    /// Takes what has ended of the pieces that have failed.
    fn land_failed(&mut self) -> bool {
        let engine = self.carrier.inner.membership.engine();
        let before = self.flights.len();
        self.flights
            .retain(|flight| flight.ids.take(engine).is_none());
        self.flights.len() < before
    }
}

impl Operation {
    fn spec(&self) -> Spec {
        let Signature {
            operation,
            dtype,
            root,
            name,
            ..
        } = self.signature;
        let spec = Spec {
            reduction: self.reduction,
            name,
            by_any_path: true,
            ..Spec::new(operation, dtype)
        };
        let spec = spec.root(root as usize);
        if self.cut.is_shared() {
            spec.in_place()
        } else {
            spec
        }
    }
}
