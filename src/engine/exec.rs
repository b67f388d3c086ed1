//! Executes the steps of one operation, slice by slice, as far as links and reductions allow.

use super::request::Request;
use spark_ccl_compute::{Compute, Job, Operand, Scale, Started, Ticket};
use spark_ccl_sched::{Buf, Kind, Rank, Span, Step};
use spark_ccl_transport::{LinkError, LinkRx, LinkTx};
use std::ops::Range;

/// Slices after which a channel lets the others (and the fault check) have a turn.
const TURN: usize = 32;

/// What all operations of a communicator work with.
pub(crate) struct Wires {
    pub(crate) rank: Rank,
    pub(crate) size: u32,
    pub(crate) slot_bytes: usize,
    pub(crate) tx: Vec<Box<dyn LinkTx>>,
    pub(crate) rx: Vec<Box<dyn LinkRx>>,
    pub(crate) compute: Box<dyn Compute>,
    scratch: Vec<u8>,
    /// Start of `scratch`.
    scratch_base: *mut u8,
    /// Peers whose links hold committed bytes back.
    pub(crate) unflushed: Vec<Rank>,
    operands: Vec<Operand>,
    targets: Vec<*mut u8>,
}

// SAFETY: the raw pointers in `operands` and `targets` are only meaningful within one call, and
// `scratch_base` points into `scratch`, which moves along.
unsafe impl Send for Wires {}

/// Why an operation does not advance.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// It waits for that peer (its message, its credits), or for a reduction.
    Waiting(Option<Rank>),
    /// The peer's message belongs to another operation.
    Foreign { peer: Rank, tag: u64 },
    /// The link to the peer ended.
    Link { peer: Rank, error: LinkError },
}

/// Outcome of a turn of a channel.
#[derive(Debug)]
pub(crate) enum Turn {
    Finished,
    Moved,
    Blocked(Obstacle),
}

/// How far one half of a step is.
#[derive(Debug, Default, Clone, Copy)]
struct Half {
    elements: u64,
    /// The reduction of the current slice, when it was not done at once.
    pending: Option<Ticket>,
}

/// How far a channel of an operation is.
#[derive(Debug, Default, Clone)]
pub(crate) struct Cursor {
    index: u64,
    step: Option<Step>,
    halves: [Half; 2],
}

/// The part of a step that one message stream in and one out can do.
#[derive(Debug, Clone, Copy)]
struct Flow {
    from: Option<Rank>,
    to: Option<Rank>,
    src: Option<Span>,
    dst: Option<Span>,
    elements: u64,
}

impl Wires {
    pub(crate) fn new(
        rank: Rank,
        slot_bytes: usize,
        tx: Vec<Box<dyn LinkTx>>,
        rx: Vec<Box<dyn LinkRx>>,
        compute: Box<dyn Compute>,
    ) -> Self {
        Self {
            rank,
            size: tx.len() as u32,
            slot_bytes,
            tx,
            rx,
            compute,
            scratch: Vec::new(),
            scratch_base: std::ptr::null_mut(),
            unflushed: Vec::new(),
            operands: Vec::new(),
            targets: Vec::new(),
        }
    }

    /// Pushes held-back bytes on. A link that fails here fails again for whoever uses it.
    pub(crate) fn flush(&mut self) {
        let tx = &mut self.tx;
        self.unflushed
            .retain(|&peer| !matches!(tx[peer as usize].flush(), Ok(true)));
    }

    /// A peer to which bytes on these channels are still held back, if there is one.
    pub(crate) fn held_back(&mut self, channels: Range<usize>) -> Result<Option<Rank>, Obstacle> {
        for &peer in &self.unflushed {
            let tx = &mut self.tx[peer as usize];
            if channels.clone().any(|channel| tx.holds_back(channel)) {
                return match tx.flush() {
                    Ok(_) => Ok(Some(peer)),
                    Err(error) => Err(Obstacle::Link { peer, error }),
                };
            }
        }
        Ok(None)
    }

    /// Memory for intermediate results.
    pub(crate) fn provide_scratch(&mut self, bytes: usize) {
        if self.scratch.len() < bytes {
            self.scratch.resize(bytes, 0);
        }
        self.scratch_base = self.scratch.as_mut_ptr();
    }
}

/// One operation together with what it works with, for one turn.
pub(crate) struct Run<'a> {
    pub(crate) request: &'a Request,
    pub(crate) tag: u64,
    /// The link channel of the operation's channel 0.
    pub(crate) base: usize,
    pub(crate) wires: &'a mut Wires,
}

impl Run<'_> {
    /// Advances one channel until it is blocked, finished, or had its turn.
    pub(crate) fn turn(&mut self, channel: u32, cursor: &mut Cursor) -> Turn {
        let mut moved = false;
        for _ in 0..TURN {
            let step = match cursor.step {
                Some(step) => step,
                None => match self.request.program.step(channel, cursor.index) {
                    Some(step) => *cursor.step.insert(step),
                    None => return Turn::Finished,
                },
            };
            let outcome = if step.is_empty() {
                Ok(true)
            } else {
                self.slice(channel, &step, &mut cursor.halves)
            };
            match outcome {
                Ok(false) => moved = true,
                Ok(true) => {
                    cursor.index += 1;
                    cursor.step = None;
                    cursor.halves = Default::default();
                    moved = true;
                }
                Err(Obstacle::Waiting(_)) if moved => return Turn::Moved,
                Err(obstacle) => return Turn::Blocked(obstacle),
            }
        }
        Turn::Moved
    }

    /// One slice of a step; `true` when the step is complete.
    fn slice(
        &mut self,
        channel: u32,
        step: &Step,
        halves: &mut [Half; 2],
    ) -> Result<bool, Obstacle> {
        match step.kind {
            Kind::SendRecv => self.send_recv(channel, step, halves),
            Kind::ReduceLocal => self.reduce_local(step, &mut halves[0]),
            Kind::Get | Kind::GetReduce | Kind::GetReducePut => {
                self.one_sided(step, &mut halves[0])
            }
            _ => self.message(channel, &Flow::of(step), &mut halves[0]),
        }
    }

    /// Both halves of a [`Kind::SendRecv`]; the receiving one stays behind the sending one.
    fn send_recv(
        &mut self,
        channel: u32,
        step: &Step,
        halves: &mut [Half; 2],
    ) -> Result<bool, Obstacle> {
        let flows = [Flow::sending(step), Flow::receiving(step)];
        let mut moved = false;
        let mut waiting = None;
        for (index, flow) in flows.iter().enumerate() {
            let sent = halves[0].elements;
            let ahead = index == 1 && sent < flows[0].elements && halves[1].elements >= sent;
            if halves[index].elements == flow.elements || ahead {
                continue;
            }
            match self.message(channel, flow, &mut halves[index]) {
                Ok(_) => moved = true,
                Err(Obstacle::Waiting(peer)) => waiting = peer,
                Err(obstacle) => return Err(obstacle),
            }
        }
        if (0..2).all(|index| halves[index].elements == flows[index].elements) {
            Ok(true)
        } else if moved {
            Ok(false)
        } else {
            Err(Obstacle::Waiting(waiting))
        }
    }

    /// One message in, out, or through.
    fn message(&mut self, channel: u32, flow: &Flow, half: &mut Half) -> Result<bool, Obstacle> {
        let size = self.request.signature.dtype.size();
        let limit = (self.wires.slot_bytes / size) as u64;
        let count = limit.min(flow.elements - half.elements) as usize;
        let lane = self.base + channel as usize;
        if let Some(ticket) = half.pending {
            if !self.wires.compute.poll(ticket) {
                return Err(Obstacle::Waiting(None));
            }
            half.pending = None;
        } else {
            let incoming = self.incoming(lane, flow, count * size)?;
            let outgoing = self.outgoing(lane, flow, count * size)?;
            if count > 0 {
                half.pending = self.combine(flow, half.elements, count, incoming, outgoing)?;
                if half.pending.is_some() {
                    return Err(Obstacle::Waiting(None));
                }
            }
        }
        self.finish(lane, flow, count * size)?;
        half.elements += count as u64;
        Ok(half.elements == flow.elements)
    }

    /// The payload of the awaited message; null where nothing is received.
    fn incoming(&mut self, lane: usize, flow: &Flow, bytes: usize) -> Result<*const u8, Obstacle> {
        let Some(peer) = flow.from else {
            return Ok(std::ptr::null());
        };
        match self.wires.rx[peer as usize].peek(lane) {
            Ok(Some(arrival)) if arrival.tag != self.tag => Err(Obstacle::Foreign {
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
            Ok(None) => Err(Obstacle::Waiting(Some(peer))),
            Err(error) => Err(Obstacle::Link { peer, error }),
        }
    }

    /// The slot to fill; null where nothing is sent.
    fn outgoing(&mut self, lane: usize, flow: &Flow, bytes: usize) -> Result<*mut u8, Obstacle> {
        let Some(peer) = flow.to else {
            return Ok(std::ptr::null_mut());
        };
        match self.wires.tx[peer as usize].reserve(lane, bytes) {
            Ok(Some(slot)) => Ok(slot.as_mut_ptr()),
            Ok(None) => Err(Obstacle::Waiting(Some(peer))),
            Err(error) => Err(Obstacle::Link { peer, error }),
        }
    }

    /// Starts `dst, outgoing = incoming op src` for one slice.
    fn combine(
        &mut self,
        flow: &Flow,
        done: u64,
        count: usize,
        incoming: *const u8,
        outgoing: *mut u8,
    ) -> Result<Option<Ticket>, Obstacle> {
        self.submit(count, |run, operands, targets| {
            operands.extend(flow.src.map(|span| run.operand(&span, done)));
            if let Some(from) = flow.from {
                let arrived = Operand {
                    ptr: incoming,
                    scale: Scale::One,
                };
                let place = if from < run.wires.rank {
                    0
                } else {
                    operands.len()
                };
                operands.insert(place, arrived);
            }
            targets.extend(flow.dst.map(|span| run.address(&span, done)));
            targets.extend(flow.to.map(|_| outgoing));
            Ok(())
        })
    }

    /// Sends the filled slot and gives the read one back.
    fn finish(&mut self, lane: usize, flow: &Flow, bytes: usize) -> Result<(), Obstacle> {
        if let Some(peer) = flow.to {
            let tx = &mut self.wires.tx[peer as usize];
            tx.commit(lane, bytes, self.tag)
                .map_err(|error| Obstacle::Link { peer, error })?;
            if tx.holds_back(lane) && !self.wires.unflushed.contains(&peer) {
                self.wires.unflushed.push(peer);
            }
        }
        if let Some(peer) = flow.from {
            self.wires.rx[peer as usize].release(lane);
        }
        Ok(())
    }

    /// [`Kind::ReduceLocal`], all of it at once: it is for small counts.
    fn reduce_local(&mut self, step: &Step, half: &mut Half) -> Result<bool, Obstacle> {
        if half.pending.is_none() {
            half.pending = self.submit(step.src.len as usize, |run, operands, targets| {
                let block = |rank| Span {
                    buf: Buf::Scratch,
                    offset: u64::from(rank) * step.src.len,
                    len: step.src.len,
                };
                operands.extend((0..run.wires.size).map(|rank| {
                    let own = rank == run.wires.rank;
                    let span = if own { step.src } else { block(rank) };
                    run.operand(&span, 0)
                }));
                targets.push(run.address(&step.dst, 0));
                Ok(())
            })?;
        }
        self.settle(half, step.src.len)
            .map(|()| half.elements == step.src.len)
    }

    /// The kinds that read, and may write, the peers' registered memory.
    fn one_sided(&mut self, step: &Step, half: &mut Half) -> Result<bool, Obstacle> {
        let size = self.request.signature.dtype.size();
        let limit = (self.wires.slot_bytes / size) as u64;
        let count = limit.min(step.src.len - half.elements);
        if half.pending.is_none() {
            let done = half.elements;
            half.pending = self.submit(count as usize, |run, operands, targets| {
                let ranks = 0..run.wires.size;
                let sources = match step.kind {
                    Kind::Get => step.recv_from..step.recv_from + 1,
                    _ => ranks.clone(),
                };
                let scale = run.scale(step.src.buf);
                for rank in sources {
                    let ptr = run.remote(rank, &step.src, done)?;
                    operands.push(Operand { ptr, scale });
                }
                if step.kind != Kind::GetReducePut {
                    targets.push(run.address(&step.dst, done));
                    return Ok(());
                }
                for rank in ranks {
                    targets.push(run.remote(rank, &step.dst, done)?);
                }
                Ok(())
            })?;
        }
        self.settle(half, count)
            .map(|()| half.elements == step.src.len)
    }

    /// Starts a reduction over `count` elements of the operands and into the targets that `fill`
    /// lists.
    fn submit(
        &mut self,
        count: usize,
        fill: impl FnOnce(&Self, &mut Vec<Operand>, &mut Vec<*mut u8>) -> Result<(), Obstacle>,
    ) -> Result<Option<Ticket>, Obstacle> {
        // Taken out for the time being, so that nothing is allocated for each slice.
        let mut operands = std::mem::take(&mut self.wires.operands);
        let mut targets = std::mem::take(&mut self.wires.targets);
        operands.clear();
        targets.clear();
        let filled = fill(self, &mut operands, &mut targets);
        let started = filled.map(|()| {
            let job = Job {
                dtype: self.request.signature.dtype,
                op: self.request.reduction.op,
                srcs: &operands,
                dsts: &targets,
                count,
            };
            // SAFETY: own operands and targets lie within the request's regions or the scratch (the
            // plan was made for their lengths), which the operation holds until it is done; slots
            // stay lent until `finish`, which runs after the job. Peers' memory is mapped for as
            // long as the request holds its segment, and the schedule's signals order these
            // accesses against the peers' own.
            match unsafe { self.wires.compute.start(&job) } {
                Started::Done => None,
                Started::Pending(ticket) => Some(ticket),
            }
        });
        self.wires.operands = operands;
        self.wires.targets = targets;
        started
    }

    /// Ends a slice once its job is done.
    fn settle(&mut self, half: &mut Half, count: u64) -> Result<(), Obstacle> {
        if let Some(ticket) = half.pending {
            if !self.wires.compute.poll(ticket) {
                return Err(Obstacle::Waiting(None));
            }
            half.pending = None;
        }
        half.elements += count;
        Ok(())
    }

    fn operand(&self, span: &Span, done: u64) -> Operand {
        Operand {
            ptr: self.address(span, done),
            scale: self.scale(span.buf),
        }
    }

    /// Own contributions are scaled when they are read; everything else was already.
    fn scale(&self, buf: Buf) -> Scale {
        match buf {
            Buf::Input => self.request.reduction.scale,
            Buf::Output | Buf::Scratch => Scale::One,
        }
    }

    fn address(&self, span: &Span, done: u64) -> *mut u8 {
        let base = match span.buf {
            Buf::Input => self.request.input.ptr,
            Buf::Output => self.request.output.ptr,
            Buf::Scratch => self.wires.scratch_base,
        };
        base.wrapping_add((span.offset + done) as usize * self.request.signature.dtype.size())
    }

    /// The same place in `rank`'s registered memory.
    fn remote(&self, rank: Rank, span: &Span, done: u64) -> Result<*mut u8, Obstacle> {
        let size = self.request.signature.dtype.size();
        let in_output = self.request.input_block.filter(|_| span.buf == Buf::Input);
        let region = match (span.buf, in_output) {
            (Buf::Input, None) => &self.request.input,
            _ => &self.request.output,
        };
        let block = in_output.unwrap_or(0) * u64::from(rank);
        let elements = (block + span.offset + done) as usize;
        let mapped = region.home.as_ref().and_then(|home| {
            let base = home.segment.base(rank as usize)?;
            Some(base.wrapping_add(home.offset + elements * size))
        });
        // The plan chooses one-sided schedules only where every rank's segment is mapped.
        mapped.ok_or_else(|| Obstacle::Link {
            peer: rank,
            error: LinkError::Misuse("registered memory that is not mapped here".to_owned()),
        })
    }
}

impl Cursor {
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

impl Flow {
    fn of(step: &Step) -> Self {
        let (from, to) = (Some(step.recv_from), Some(step.send_to));
        let (src, dst) = (Some(step.src), Some(step.dst));
        let (elements, src_len) = (step.dst.len, step.src.len);
        let flow = |from, to, src, dst, elements| Self {
            from,
            to,
            src,
            dst,
            elements,
        };
        match step.kind {
            Kind::Send => flow(None, to, src, None, src_len),
            Kind::Recv => flow(from, None, None, dst, elements),
            Kind::RecvReduce => flow(from, None, src, dst, elements),
            Kind::RecvReduceSend => flow(from, to, src, None, src_len),
            Kind::RecvReduceCopySend => flow(from, to, src, dst, elements),
            Kind::RecvCopySend => flow(from, to, None, dst, elements),
            Kind::Copy => flow(None, None, src, dst, elements),
            Kind::Signal => flow(None, to, None, None, 0),
            Kind::Wait => flow(from, None, None, None, 0),
            Kind::SendRecv
            | Kind::ReduceLocal
            | Kind::Get
            | Kind::GetReduce
            | Kind::GetReducePut => flow(None, None, None, None, 0),
        }
    }

    fn sending(step: &Step) -> Self {
        Self {
            from: None,
            to: Some(step.send_to),
            src: Some(step.src),
            dst: None,
            elements: step.src.len,
        }
    }

    fn receiving(step: &Step) -> Self {
        Self {
            from: Some(step.recv_from),
            to: None,
            src: None,
            dst: Some(step.dst),
            elements: step.dst.len,
        }
    }
}
