//! Executes the steps of one operation, slice by slice, as far as links and reductions allow. Knows
//! a program's steps and the links; knows neither the queue nor deadlines.

use spark_ccl_compute::{Compute, Job, Operand, Started, Streaming, Ticket};
use spark_ccl_sched::{Buf, Kind, Span, Step};
use spark_ccl_transport::LinkError;
use spark_ccl_types::Scale;

use super::loans::Loans;
use super::transfer::Transfer;
use super::wires::{Obstacle, Wires};
use crate::plan::Program;
use crate::task::Task;

/// Results of at least this many bytes have left the caches before anyone reads them. (In place
/// they are in the caches already when they are written.)
const STREAMING_BYTES: usize = 16 << 20;
/// Shorter slices always take a slot of the link.
pub(super) const ASK_SLOTLESS_BYTES: usize = 4 << 10;
/// The number of slices after which a channel yields to the others (and to the fault check).
const TURN: usize = 32;

/// How far one half of a step is.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Half {
    pub(super) elements: u64,
    /// The reduction of the current slice, if it was not done at once.
    pub(super) pending: Option<Ticket>,
}

/// How far a channel of an operation is.
#[derive(Debug, Clone)]
pub(crate) struct Cursor {
    pub(super) index: u64,
    pub(super) halves: [Half; 2],
}

impl Default for Cursor {
    /// Written out for calls of a few bytes, each of which makes one: the array's own default is a
    /// function of its own.
    #[inline]
    fn default() -> Self {
        let half = Half {
            elements: 0,
            pending: None,
        };
        Self {
            index: 0,
            halves: [half; 2],
        }
    }
}

impl Cursor {
    /// Moves to the next step.
    pub(super) fn advance(&mut self) {
        self.index += 1;
        // Field by field: a new value would be written in parts and read as a whole (see `turn`).
        for half in &mut self.halves {
            half.elements = 0;
            half.pending = None;
        }
    }
}

/// One operation and the resources that it uses, for one turn.
pub(crate) struct Run<'a> {
    pub(crate) task: &'a Task,
    pub(crate) program: &'a Program,
    pub(crate) tag: u64,
    /// The lane of the schedule's channel 0; channel 1 has the next one.
    pub(crate) first_lane: usize,
    pub(crate) wires: &'a mut Wires,
    pub(crate) loans: &'a mut Loans,
}

impl Run<'_> {
    /// Makes room for the program's intermediate results.
    #[inline]
    pub(crate) fn provide_scratch(&mut self) {
        let elements = self.program.scratch() as usize;
        let bytes = elements * self.task.signature.dtype.size();
        self.wires.provide_scratch(bytes);
    }

    /// Asks for all links that the program needs.
    #[cold]
    pub(super) fn ask(&mut self) {
        for channel in 0..self.program.channels() {
            let lane = self.first_lane + channel as usize;
            let steps = (0..).map_while(|index| self.program.step(channel, index));
            for step in steps.filter(|step| !step.is_empty()) {
                if step.kind.sends() {
                    self.wires.ask(step.send_to, lane);
                }
                if step.kind.receives() {
                    self.wires.ask(step.recv_from, lane);
                }
            }
        }
    }

    /// Advances one channel until it is blocked, finished, or had its turn; `true` when it is
    /// finished.
    pub(crate) fn turn(&mut self, channel: u32, cursor: &mut Cursor) -> Result<bool, Obstacle> {
        let mut moved = false;
        for _ in 0..TURN {
            // Computed for each slice, as schedules of any length are. It is used in place: a copy
            // would have to wait for the smaller stores that have just written it.
            let made = self.program.step(channel, cursor.index);
            let Some(step) = &made else {
                return Ok(true);
            };
            let outcome = if step.is_empty() && !self.program.is_message() {
                Ok(true)
            } else {
                self.slice(channel, step, &mut cursor.halves)
            };
            match outcome {
                Ok(false) => moved = true,
                Ok(true) => {
                    cursor.advance();
                    moved = true;
                }
                Err(obstacle) if moved && obstacle.is_wait() => return Ok(false),
                Err(obstacle) => return Err(obstacle),
            }
        }
        Ok(false)
    }

    /// One slice of a step; `true` when the step is complete.
    fn slice(
        &mut self,
        channel: u32,
        step: &Step,
        halves: &mut [Half; 2],
    ) -> Result<bool, Obstacle> {
        match step.kind {
            Kind::SendRecv => {
                let (sending, mut receiving) = (Transfer::sending(step), Transfer::receiving(step));
                let sent = halves[0].elements;
                // In place, what is received replaces what was sent.
                if !self.program.may_lend() && sent < sending.elements {
                    receiving.ready = sent;
                }
                self.both(channel, [sending, receiving], halves)
            }
            // Received data stays in memory, and can be sent on from there without another copy.
            Kind::RecvCopySend | Kind::RecvReduceCopySend
                if self.lends_on(self.first_lane + channel as usize, step) =>
            {
                let forwarding = Transfer::forwarding(step, halves[0].elements);
                self.both(channel, [Transfer::receiving(step), forwarding], halves)
            }
            Kind::Signal => self.signal(channel, step.send_to),
            Kind::Wait => self.await_signal(channel, step.recv_from),
            Kind::ReduceLocal => self.reduce_local(step, &mut halves[0]),
            Kind::Get | Kind::GetReduce | Kind::GetReducePut => {
                self.one_sided(step, &mut halves[0])
            }
            _ => self.message(channel, &Transfer::of(step), &mut halves[0]),
        }
    }

    /// Two flows at once; the second stays behind the first.
    fn both(
        &mut self,
        channel: u32,
        transfers: [Transfer; 2],
        halves: &mut [Half; 2],
    ) -> Result<bool, Obstacle> {
        let mut moved = false;
        let mut waiting = Obstacle::Reduction;
        for (index, transfer) in transfers.iter().enumerate() {
            let first = halves[0].elements;
            let ahead = index == 1 && first < transfers[0].elements && halves[1].elements >= first;
            if halves[index].elements == transfer.elements || ahead {
                continue;
            }
            match self.message(channel, transfer, &mut halves[index]) {
                Ok(_) => moved = true,
                Err(Obstacle::Reduction | Obstacle::OtherHalf) => {}
                Err(obstacle) if obstacle.is_wait() => waiting = obstacle,
                Err(obstacle) => return Err(obstacle),
            }
        }
        if (0..2).all(|index| halves[index].elements == transfers[index].elements) {
            Ok(true)
        } else if moved {
            Ok(false)
        } else {
            Err(waiting)
        }
    }

    /// One message in, out, or through.
    fn message(
        &mut self,
        channel: u32,
        transfer: &Transfer,
        half: &mut Half,
    ) -> Result<bool, Obstacle> {
        let size = self.task.signature.dtype.size();
        let limit = (self.wires.slot_bytes / size) as u64;
        let count = limit.min(transfer.elements - half.elements) as usize;
        let lane = self.first_lane + channel as usize;
        if let Some(ticket) = half.pending {
            if !self.wires.compute.poll(ticket) {
                return Err(Obstacle::Reduction);
            }
            half.pending = None;
        } else if let Some(count) = self.single_copy(lane, transfer, half.elements)? {
            half.elements += count;
            return Ok(half.elements == transfer.elements);
        } else if half.elements + count as u64 > transfer.ready {
            return Err(Obstacle::OtherHalf);
        } else if let Some(count) = self.direct(lane, transfer, half.elements, count)? {
            half.elements += count;
            return Ok(half.elements == transfer.elements);
        } else {
            let incoming = self.incoming(lane, transfer, count * size)?;
            let outgoing = self.outgoing(lane, transfer, count * size)?;
            if count > 0 {
                half.pending =
                    self.combine(lane, transfer, half.elements, count, incoming, outgoing);
                if half.pending.is_some() {
                    return Err(Obstacle::Reduction);
                }
            }
        }
        self.finish(lane, transfer, count * size)?;
        half.elements += count as u64;
        Ok(half.elements == transfer.elements)
    }

    /// The payload of the awaited message; null where nothing is received.
    fn incoming(
        &mut self,
        lane: usize,
        transfer: &Transfer,
        bytes: usize,
    ) -> Result<*const u8, Obstacle> {
        let Some(peer) = transfer.from else {
            return Ok(std::ptr::null());
        };
        match self.wires.rx(peer, lane)?.peek() {
            Ok(Some(arrival)) if arrival.tag != self.tag => Err(Obstacle::TagMismatch {
                peer,
                tag: arrival.tag,
            }),
            Ok(Some(arrival)) if arrival.payload.len() != bytes => Err(Obstacle::Link {
                peer,
                error: LinkError::Protocol(format!(
                    "a message of {bytes} bytes was expected and one of {} came",
                    arrival.payload.len()
                )),
            }),
            Ok(Some(arrival)) => Ok(arrival.payload.as_ptr()),
            Ok(None) => Err(Obstacle::Message { peer, lane }),
            Err(error) => Err(Obstacle::Link { peer, error }),
        }
    }

    /// The slot to fill; null where nothing is sent.
    #[inline]
    pub(super) fn outgoing(
        &mut self,
        lane: usize,
        transfer: &Transfer,
        bytes: usize,
    ) -> Result<*mut u8, Obstacle> {
        let Some(peer) = transfer.to else {
            return Ok(std::ptr::null_mut());
        };
        match self.wires.tx(peer, lane)?.reserve(bytes) {
            Ok(Some(slot)) => Ok(slot.as_mut_ptr()),
            Ok(None) => Err(self.wires.busy(peer, lane)),
            Err(error) => Err(Obstacle::Link { peer, error }),
        }
    }

    /// Starts `dst, outgoing = incoming op src` for one slice.
    pub(super) fn combine(
        &mut self,
        lane: usize,
        transfer: &Transfer,
        done: u64,
        count: usize,
        incoming: *const u8,
        outgoing: *mut u8,
    ) -> Option<Ticket> {
        let place = transfer.dst.map(|span| self.address(&span, done));
        let targets = [place.unwrap_or(outgoing), outgoing];
        let dsts = if place.is_some() && transfer.to.is_some() {
            &targets[..]
        } else {
            &targets[..1]
        };
        let arrived = |scale| Operand {
            ptr: incoming,
            scale,
        };
        // Each list is written where it is read. A copy of an operand would have to wait for the
        // smaller stores that have just written it, and these for the stores before them to the
        // peer's memory.
        let own = |span| self.operand(span, done);
        let streaming = match transfer.to {
            Some(peer) => {
                let bytes = count * self.task.signature.dtype.size();
                self.wires.slot_stores(peer, lane, bytes)
            }
            None => self.result_stores(),
        };
        let (Some(span), Some(from)) = (&transfer.src, transfer.from) else {
            let moved = match &transfer.src {
                None => arrived(Scale::One),
                Some(span) => Operand {
                    ptr: self.address(span, done),
                    scale: self.scale_of_sent(span.buf),
                },
            };
            return self.start(count, streaming, &[moved], dsts);
        };
        let scale = if transfer.receives_contribution {
            self.task.reduction.scale_of_received()
        } else {
            Scale::One
        };
        if from < self.wires.rank {
            self.start(count, streaming, &[arrived(scale), own(span)], dsts)
        } else {
            self.start(count, streaming, &[own(span), arrived(scale)], dsts)
        }
    }

    /// Sends the filled slot and gives the read one back.
    #[inline]
    pub(super) fn finish(
        &mut self,
        lane: usize,
        transfer: &Transfer,
        bytes: usize,
    ) -> Result<(), Obstacle> {
        if let Some(peer) = transfer.to {
            self.wires.commit(peer, lane, bytes, self.tag)?;
        }
        if let Some(peer) = transfer.from {
            self.wires.rx(peer, lane)?.release();
        }
        Ok(())
    }

    /// Starts a reduction over `count` elements; its ticket, if it is not done at once.
    #[inline]
    pub(super) fn start(
        &mut self,
        count: usize,
        streaming: Streaming,
        srcs: &[Operand],
        dsts: &[*mut u8],
    ) -> Option<Ticket> {
        let job = Job {
            dtype: self.task.signature.dtype,
            op: self.task.reduction.combine,
            srcs,
            dsts,
            count,
            streaming,
            divides: self.divides(),
        };
        // SAFETY: own operands and targets lie within the task's regions or the scratch: the
        // program was made for their lengths. The operation holds both until it is done. Slots stay
        // lent until `finish`, which runs after the job. Peers' memory is mapped here for as long
        // as the task holds its segment. The program's signals order these accesses against the
        // peers' own, until an operation fails. Then a peer may write to memory that is read here:
        // any bytes are valid elements, and `confirm` keeps them from becoming a result. Writes
        // here do not reach the peer's memory any more (`RunningOp::give_up`).
        match unsafe { self.wires.compute.start(&job) } {
            Started::Done => None,
            Started::Pending(ticket) => {
                self.wires.reduces_later = true;
                Some(ticket)
            }
        }
    }

    /// Whether helpers do their part: they take a moment to wake up, which long calls alone make up
    /// for.
    #[inline]
    pub(super) fn divides(&self) -> bool {
        self.task.is_long() && self.wires.helpers.count() > 0
    }

    /// Which results should go past the caches.
    #[inline]
    pub(super) fn result_stores(&self) -> Streaming {
        let Task { input, output, .. } = self.task;
        let bytes = output.len * self.task.signature.dtype.size();
        if bytes >= STREAMING_BYTES && input.ptr != output.ptr {
            Streaming::Everything
        } else {
            Streaming::Nothing
        }
    }

    /// This rank's operand of a reduction.
    #[inline]
    pub(super) fn operand(&self, span: &Span, done: u64) -> Operand {
        let scale = match span.buf {
            Buf::Input => self.task.reduction.scale,
            Buf::Output | Buf::Scratch => Scale::One,
        };
        Operand {
            ptr: self.address(span, done),
            scale,
        }
    }

    /// The factor of what is passed on or copied without being reduced.
    #[inline]
    pub(super) fn scale_of_sent(&self, buf: Buf) -> Scale {
        match buf {
            Buf::Input => self.task.reduction.scale_of_sent(),
            Buf::Output | Buf::Scratch => Scale::One,
        }
    }

    #[inline]
    pub(super) fn address(&self, span: &Span, done: u64) -> *mut u8 {
        let base = match span.buf {
            Buf::Input => self.task.input.ptr,
            Buf::Output => self.task.output.ptr,
            Buf::Scratch => self.wires.scratch_base,
        };
        base.wrapping_add((span.offset + done) as usize * self.task.signature.dtype.size())
    }
}

impl Cursor {
    /// Goes on at the step of that index.
    pub(crate) fn skip(&mut self, index: u64) {
        self.index = index;
    }

    /// Waits until no reduction touches the operation's memory any more.
    pub(crate) fn drain(&mut self, compute: &mut dyn Compute) {
        for half in &mut self.halves {
            if let Some(ticket) = half.pending.take() {
                while !compute.poll(ticket) {
                    std::thread::yield_now();
                }
            }
        }
    }
}
