//! The pieces of operations, which all ranks have in one order.

use std::collections::VecDeque;

use spark_ccl_gpu::{Buffers, Cut, Lane, Rung, Slots, Stage};
use spark_ccl_types::{ReduceOp, Reduction, Signature};

use super::pending_pieces::{PendingPiece, PendingPieces};
use super::piece_memory::{PieceMemory, buffer};
use crate::api::communicator::Communicator;
use crate::device::kernels::staged::exchange::Others;
use crate::device::kernels::staged::pool::lens;
use crate::error::Error;
use crate::memory::buffer::Region;
use crate::task::Spec;
use crate::task::names::remember_made_up;

/// How many pieces the host engine has at a time: one, and the one after it.
const AT_A_TIME: usize = 2;
/// The number of last operations whose numbers of pieces are kept. If a rank that leaves lags by
/// more operations, the older ones count as done.
const KNOWN: usize = 1024;

/// The operations of a communicator.
#[derive(Default)]
pub(super) struct Operations {
    /// How many pieces each CTA has begun.
    begun: Vec<u64>,
    operation: Option<Operation>,
    pending: PendingPieces,
    /// The numbers of operations that have begun, and that are done.
    number: u64,
    done: u64,
    /// What the kernel has said of the last operation.
    last: Option<Rung>,
    /// How many calls by slots had ended before it.
    before: u64,
    /// The number of pieces that have begun, and what it was after the last piece of each of the
    /// last operations.
    pieces: u64,
    ends: VecDeque<u64>,
}

/// An operation with pieces that have not begun.
struct Operation {
    signature: Signature,
    reduction: Reduction,
    cut: Cut,
    /// The buffers on which the operation is done, if not in slots.
    buffers: Option<Buffers>,
    next: u64,
}

impl Operations {
    pub(super) fn new(stage: &Stage) -> Self {
        Self {
            begun: vec![0; stage.ctas(u64::MAX) as usize],
            ..Self::default()
        }
    }

    /// The number of operations that are done.
    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// How many pieces have begun.
    pub(super) fn pieces(&self) -> u64 {
        self.pieces
    }

    /// How many operations have begun, and the last of them.
    pub(super) fn begun(&self) -> Others {
        Others {
            begun: self.number,
            before: self.before,
            last: self.last,
            is_done: self.done == self.number,
        }
    }

    /// The number of the operation under way, or else of the last one; at least 1.
    pub(super) fn current(&self) -> u64 {
        (self.done + 1).min(self.number.max(1))
    }

    /// Whether the host engine has pieces of any.
    pub(super) fn are_in_flight(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Whether an operation has pieces that have not begun.
    pub(super) fn are_under_way(&self) -> bool {
        self.operation.is_some()
    }

    /// Answers for the pieces that are done. Returns whether there were any.
    pub(super) fn complete(
        &mut self,
        stage: &Stage,
        carrier: &Communicator,
    ) -> Result<bool, Error> {
        self.pending.complete(stage, carrier, &mut self.done)
    }

    /// Drops failed pieces that have ended. Returns whether there were any.
    pub(super) fn drop_failed(&mut self, carrier: &Communicator) -> bool {
        self.pending.drop_failed(carrier)
    }

    /// Begins the next piece, if the kernel has rung for it, and no kernel of `slots` has failed
    /// before it.
    pub(super) fn begin(
        &mut self,
        stage: &Stage,
        carrier: &Communicator,
        memory: &PieceMemory,
        slots: Option<&Slots>,
    ) -> Result<bool, Error> {
        if self.pending.len() >= AT_A_TIME {
            return Ok(false);
        }
        let (piece, ctas) = match &self.operation {
            None => (0, 1),
            Some(operation) => (operation.next, stage.ctas(operation.cut.pieces())),
        };
        let cta = piece % ctas;
        let (lane, number) = (Lane::of_cta(cta), self.begun[cta as usize] + 1);
        let Some(rung) = stage.rung(lane, number).filter(|_| are_sound(slots)) else {
            return Ok(false);
        };
        let mut operation = if let Some(operation) = self.operation.take() {
            operation
        } else {
            self.number += 1;
            self.last = Some(rung);
            // Its kernel waits for an answer, so none behind it has begun.
            self.before = slots.map_or(0, |slots| slots.calls().ended);
            Operation::of(rung, stage.ranks())?
        };
        self.begun[cta as usize] = number;
        operation.next += 1;
        let is_last = operation.next == operation.cut.pieces();
        let spec = operation.spec();
        let regions = match operation.buffers {
            None => operation.in_slot(&spec, piece, stage, |at: usize, len| {
                memory.slot(stage.slot(lane, number).wrapping_add(at), len)
            }),
            Some(buffers) => operation.on_buffers(&spec, buffers, stage)?,
        };
        let mut task = spec.checked(regions.into(), carrier.planner().ranks())?;
        self.count(is_last);
        if !is_last {
            self.operation = Some(operation);
        }
        match carrier.inner.membership.engine().begin(&mut task)? {
            None => {
                // The task holds the user's memory, which may be freed from the answer on, but not
                // by this thread.
                drop(task);
                stage.answer(lane, number);
                self.done += u64::from(is_last);
            }
            Some(ids) => self.pending.push(PendingPiece {
                ids,
                lane,
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

    /// How many operations a rank has done once it has done this number of pieces.
    pub(super) fn operations_in(&self, pieces: u64) -> u64 {
        let later = self.ends.iter().filter(|&&end| end > pieces).count() as u64;
        self.number - u64::from(self.operation.is_some()) - later
    }
}

/// Whether no kernel of slots has failed. After a failure, the input of later kernels may be a
/// result that is missing.
pub(super) fn are_sound(slots: Option<&Slots>) -> bool {
    slots.is_none_or(|slots| slots.check().is_ok())
}

impl Operation {
    /// The operation for whose first piece a kernel has rung.
    fn of(rung: Rung, ranks: usize) -> Result<Self, Error> {
        let unknown = || Error::Invalid {
            operation: "device memory",
            problem: format!("a kernel rings for what is no operation: {:x?}", rung.words),
        };
        let mut signature = Signature::from_words(rung.words).ok_or_else(unknown)?;
        let dtype = signature.dtype;
        let cut = Cut::new(signature.operation, dtype.size(), signature.count, ranks);
        let mut cut = cut.ok_or_else(unknown)?;
        if cut.pieces() > 1 {
            // Pieces of the same length may be of different operations. Ranks compare this name, so
            // it follows from the call's words alone: what a process knows of names may differ.
            let whole = spark_ccl_types::describe(rung.words);
            let name = spark_ccl_types::name_of(rung.words);
            signature.name = remember_made_up(&match rung.buffers {
                None => format!("a part of {whole}, name {name:x}"),
                Some(_) => format!("{whole} with memory from alloc_device, name {name:x}"),
            });
        }
        if rung.buffers.is_some() {
            cut = Cut::whole(signature.count);
        }
        let op = ReduceOp::from_code(signature.op).filter(|_| signature.operation.reduces());
        let factor = rung.factor.to_ne_bytes();
        let reduction = op.map_or(Reduction::NONE, |op| {
            Reduction::of(dtype, op, factor, ranks as u32)
        });
        Ok(Self {
            signature,
            reduction,
            cut,
            buffers: rung.buffers,
            next: 0,
        })
    }

    /// The input and the output of a piece in its slot: `region(at, len)` has `len` elements from
    /// the byte `at` on.
    fn in_slot(
        &self,
        spec: &Spec,
        piece: u64,
        stage: &Stage,
        region: impl Fn(usize, usize) -> Region,
    ) -> [Region; 2] {
        let elements = self.cut.elements(piece);
        let len = (elements.end - elements.start) as usize;
        if self.cut.is_shared() {
            return [region(0, len), region(0, len)];
        }
        let [input, output] = self.lens(len, stage);
        let behind = self.cut.output_at(input * spec.dtype.size());
        [region(0, input), region(behind, output)]
    }

    /// The input and the output of an operation on buffers.
    fn on_buffers(
        &self,
        spec: &Spec,
        buffers: Buffers,
        stage: &Stage,
    ) -> Result<[Region; 2], Error> {
        let Buffers { input, output, .. } = buffers;
        let (len, size) = (self.signature.count as usize, spec.dtype.size());
        let [inputs, outputs] = self.lens(len, stage);
        let regions = if spec.in_place {
            // In place, the longer buffer begins first, since the other one is a block of it.
            let all = if spec.operation.is_divided() {
                len * stage.ranks()
            } else {
                len
            };
            let region = buffer(input.min(output), all, size);
            [region.clone(), region]
        } else {
            [(input, inputs), (output, outputs)].map(|(start, len)| buffer(start, len, size))
        };
        match regions {
            [Some(input), Some(output)] => Ok([input, output]),
            _ => Err(Error::Invalid {
                operation: spec.operation.name(),
                problem: format!(
                    "rank {} finds none of its pinned memory at {input:#x} and {output:#x}: it was \
                     freed before a graph that uses it was launched",
                    stage.rank()
                ),
            }),
        }
    }

    /// How many elements this rank's input and output have, if a block has `len`.
    fn lens(&self, len: usize, stage: &Stage) -> [usize; 2] {
        let Signature {
            operation, root, ..
        } = self.signature;
        let is_root = root as usize == stage.rank();
        lens(operation, len, is_root, stage.ranks())
    }

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
        let in_place = self
            .buffers
            .map_or(self.cut.is_shared(), |buffers| buffers.in_place);
        if in_place { spec.in_place() } else { spec }
    }
}
