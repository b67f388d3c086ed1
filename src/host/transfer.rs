//! A transfer: what a step, or half of one, moves between links and memory. A pure function of the
//! step; the links and the memory are in `run.rs`.

use spark_ccl_sched::{Kind, Rank, Span, Step};

/// A flow of elements: those of `from` and of `src`, reduced if both are there, go to `dst` and to
/// the peer `to`, or to one of these.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transfer {
    pub(super) from: Option<Rank>,
    pub(super) to: Option<Rank>,
    pub(super) src: Option<Span>,
    pub(super) dst: Option<Span>,
    pub(super) elements: u64,
    /// The elements from `from` are its contribution, not yet reduced with others.
    pub(super) receives_contribution: bool,
    /// How many of the elements may be moved so far: one half of a step can be held back by the
    /// other.
    pub(super) ready: u64,
    /// Half of a step: the rank does the other half meanwhile.
    pub(super) is_half: bool,
}

impl Transfer {
    #[inline]
    pub(super) fn of(step: &Step) -> Self {
        let (from, to) = (Some(step.recv_from), Some(step.send_to));
        let (src, dst) = (Some(step.src), Some(step.dst));
        let (elements, src_len) = (step.dst.len, step.src.len);
        let transfer = |from, to, src, dst, elements| Self {
            from,
            to,
            src,
            dst,
            elements,
            receives_contribution: step.receives_contribution,
            ready: elements,
            is_half: false,
        };
        match step.kind {
            Kind::Send => transfer(None, to, src, None, src_len),
            Kind::Recv => transfer(from, None, None, dst, elements),
            Kind::RecvReduce => transfer(from, None, src, dst, elements),
            Kind::RecvReduceSend => transfer(from, to, src, None, src_len),
            Kind::RecvReduceCopySend => transfer(from, to, src, dst, elements),
            Kind::RecvCopySend => transfer(from, to, None, dst, elements),
            Kind::Copy => transfer(None, None, src, dst, elements),
            Kind::Signal
            | Kind::Wait
            | Kind::SendRecv
            | Kind::ReduceLocal
            | Kind::Get
            | Kind::GetReduce
            | Kind::GetReducePut => transfer(None, None, None, None, 0),
        }
    }

    pub(super) fn sending(step: &Step) -> Self {
        Self {
            from: None,
            to: Some(step.send_to),
            src: Some(step.src),
            dst: None,
            elements: step.src.len,
            receives_contribution: false,
            ready: step.src.len,
            is_half: true,
        }
    }

    pub(super) fn receiving(step: &Step) -> Self {
        Self {
            from: Some(step.recv_from),
            to: None,
            src: (step.kind == Kind::RecvReduceCopySend).then_some(step.src),
            dst: Some(step.dst),
            elements: step.dst.len,
            receives_contribution: step.receives_contribution,
            ready: step.dst.len,
            is_half: true,
        }
    }

    /// A transfer that sends on what was received, from where it is kept.
    pub(super) fn forwarding(step: &Step, received: u64) -> Self {
        Self {
            from: None,
            to: Some(step.send_to),
            src: Some(step.dst),
            dst: None,
            elements: step.dst.len,
            receives_contribution: false,
            ready: received,
            is_half: true,
        }
    }
}
