//! The steps of schedules, and the buffers to which they refer. Knows spans of elements; knows
//! neither memory nor links.

/// A rank of the communicator, `0..size`.
pub type Rank = u32;

/// The buffer in which a [`Span`] lies.
///
/// `Input` and `Output` may be the same memory (in place), but they remain different roles: data
/// that is read from `Input` is this rank's own contribution, not reduced yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Buf {
    /// The caller's send buffer.
    Input,
    /// The caller's receive buffer.
    Output,
    /// Memory of the executor, with [`Steps::scratch`](crate::Steps::scratch) elements.
    Scratch,
}

/// A range of elements in one buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The buffer.
    pub buf: Buf,
    /// The first element.
    pub offset: u64,
    /// The number of elements.
    pub len: u64,
}

/// The kind of a step. A link is the message stream to or from a peer on the step's channel.
///
/// A step with a `src` and a `dst` covers the same number of elements in both, except for
/// [`Kind::SendRecv`], whose halves are independent. Spans that a kind does not use are
/// [`Span::EMPTY`]. A span is divided into slices, and each slice is one message. So a step (or
/// half) without elements moves no message, in either direction.
///
/// When two operands are reduced, the left one is that of the lower rank, so that partners that
/// reduce the same two operands get the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Sends `src` on the link to `send_to`.
    Send,
    /// Receives `dst` from the link of `recv_from`.
    Recv,
    /// Sends `src` to `send_to`, and receives `dst` from `recv_from`, independently of each other.
    ///
    /// Slice *i* is only received after slice *i* has been sent, so `src` and `dst` may be the same
    /// memory if both peers are the same rank.
    SendRecv,
    /// Receives, reduces with `src`, and stores in `dst`.
    RecvReduce,
    /// Receives, reduces with `src`, and forwards without storing.
    RecvReduceSend,
    /// Receives, reduces with `src`, stores in `dst`, and forwards.
    RecvReduceCopySend,
    /// Receives, stores in `dst`, and forwards.
    RecvCopySend,
    /// Copies `src` to `dst`, both local.
    Copy,
    /// Reduces locally in rank order. The operand of rank *r* is at elements `r * src.len ..` of
    /// `Scratch`; this rank's own is `src`. The result is stored in `dst`.
    ReduceLocal,
    /// Sends an empty message to `send_to`, which may then read what this rank wrote before.
    Signal,
    /// Waits for the empty message from `recv_from`.
    Wait,
    /// Registered memory: copies `src` of `recv_from`'s buffer to this rank's `dst`.
    Get,
    /// Registered memory: reduces `src` of every rank's buffer, in rank order, to this rank's
    /// `dst`.
    GetReduce,
    /// Registered memory: like [`Kind::GetReduce`], but the result is stored in `dst` of *every*
    /// rank.
    GetReducePut,
}

impl Kind {
    /// Whether it puts messages on the link to `send_to`.
    pub const fn sends(self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::SendRecv
                | Self::RecvReduceSend
                | Self::RecvReduceCopySend
                | Self::RecvCopySend
                | Self::Signal
        )
    }

    /// Whether it takes messages from the link of `recv_from`.
    pub const fn receives(self) -> bool {
        matches!(
            self,
            Self::Recv
                | Self::SendRecv
                | Self::RecvReduce
                | Self::RecvReduceSend
                | Self::RecvReduceCopySend
                | Self::RecvCopySend
                | Self::Wait
        )
    }
}

/// One entry of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Step {
    /// The kind.
    pub kind: Kind,
    /// The peer of the sending half; this rank itself if nothing is sent.
    pub send_to: Rank,
    /// The peer of the receiving half; this rank itself if nothing is received.
    pub recv_from: Rank,
    /// The span that is read locally (or remotely, for the `Get` kinds).
    pub src: Span,
    /// The span that is written.
    pub dst: Span,
    /// Of [`Kind::RecvReduce`] and the like: the received data is one rank's contribution, not
    /// reduced yet. An executor multiplies it by a factor that all ranks share, as it does with
    /// what it reads from [`Buf::Input`]; reduced data is multiplied already.
    ///
    /// [`Kind::ReduceLocal`], [`Kind::GetReduce`] and [`Kind::GetReducePut`] reduce contributions
    /// only.
    pub receives_contribution: bool,
}

impl Span {
    /// No elements.
    pub const EMPTY: Self = Self {
        buf: Buf::Input,
        offset: 0,
        len: 0,
    };

    /// `len` elements of the input from `offset` on.
    pub const fn input(offset: u64, len: u64) -> Self {
        Self {
            buf: Buf::Input,
            offset,
            len,
        }
    }

    /// `len` elements of the output from `offset` on.
    pub const fn output(offset: u64, len: u64) -> Self {
        Self {
            buf: Buf::Output,
            offset,
            len,
        }
    }

    /// `len` elements of the scratch memory from `offset` on.
    pub const fn scratch(offset: u64, len: u64) -> Self {
        Self {
            buf: Buf::Scratch,
            offset,
            len,
        }
    }
}

impl Step {
    /// The elements sent to `send_to` in data messages.
    pub const fn send_len(&self) -> u64 {
        match self.kind {
            Kind::Send | Kind::SendRecv | Kind::RecvReduceSend | Kind::RecvReduceCopySend => {
                self.src.len
            }
            Kind::RecvCopySend => self.dst.len,
            _ => 0,
        }
    }

    /// The elements received from `recv_from` in data messages.
    pub const fn recv_len(&self) -> u64 {
        match self.kind {
            Kind::Recv | Kind::SendRecv | Kind::RecvReduceCopySend | Kind::RecvCopySend => {
                self.dst.len
            }
            Kind::RecvReduce | Kind::RecvReduceSend => self.src.len,
            _ => 0,
        }
    }

    /// Whether it is empty: without elements to move, signal and wait.
    pub const fn is_empty(&self) -> bool {
        !matches!(self.kind, Kind::Signal | Kind::Wait) && self.src.len == 0 && self.dst.len == 0
    }

    pub(crate) const fn local(rank: Rank, kind: Kind, src: Span, dst: Span) -> Self {
        Self {
            kind,
            send_to: rank,
            recv_from: rank,
            src,
            dst,
            receives_contribution: false,
        }
    }

    /// Sets whether it receives the contribution of one rank.
    pub(crate) const fn of_contribution(self, receives_contribution: bool) -> Self {
        Self {
            receives_contribution,
            ..self
        }
    }

    pub(crate) const fn nothing(rank: Rank) -> Self {
        Self::copy(rank, Span::EMPTY, Span::EMPTY)
    }

    pub(crate) const fn copy(rank: Rank, src: Span, dst: Span) -> Self {
        Self::local(rank, Kind::Copy, src, dst)
    }

    pub(crate) const fn send(rank: Rank, to: Rank, src: Span) -> Self {
        Self {
            kind: Kind::Send,
            send_to: to,
            recv_from: rank,
            src,
            dst: Span::EMPTY,
            receives_contribution: false,
        }
    }

    pub(crate) const fn recv(rank: Rank, from: Rank, dst: Span) -> Self {
        Self {
            kind: Kind::Recv,
            send_to: rank,
            recv_from: from,
            src: Span::EMPTY,
            dst,
            receives_contribution: false,
        }
    }

    pub(crate) const fn recv_reduce(rank: Rank, from: Rank, src: Span, dst: Span) -> Self {
        Self {
            kind: Kind::RecvReduce,
            send_to: rank,
            recv_from: from,
            src,
            dst,
            receives_contribution: false,
        }
    }

    pub(crate) const fn recv_reduce_send(from: Rank, to: Rank, src: Span) -> Self {
        Self {
            kind: Kind::RecvReduceSend,
            send_to: to,
            recv_from: from,
            src,
            dst: Span::EMPTY,
            receives_contribution: false,
        }
    }

    pub(crate) const fn recv_reduce_copy_send(from: Rank, to: Rank, src: Span, dst: Span) -> Self {
        Self {
            kind: Kind::RecvReduceCopySend,
            send_to: to,
            recv_from: from,
            src,
            dst,
            receives_contribution: false,
        }
    }

    pub(crate) const fn recv_copy_send(from: Rank, to: Rank, dst: Span) -> Self {
        Self {
            kind: Kind::RecvCopySend,
            send_to: to,
            recv_from: from,
            src: Span::EMPTY,
            dst,
            receives_contribution: false,
        }
    }

    pub(crate) const fn send_recv(to: Rank, src: Span, from: Rank, dst: Span) -> Self {
        Self {
            kind: Kind::SendRecv,
            send_to: to,
            recv_from: from,
            src,
            dst,
            receives_contribution: false,
        }
    }

    pub(crate) const fn signal(rank: Rank, to: Rank) -> Self {
        Self {
            kind: Kind::Signal,
            send_to: to,
            recv_from: rank,
            src: Span::EMPTY,
            dst: Span::EMPTY,
            receives_contribution: false,
        }
    }

    pub(crate) const fn wait(rank: Rank, from: Rank) -> Self {
        Self {
            kind: Kind::Wait,
            send_to: rank,
            recv_from: from,
            src: Span::EMPTY,
            dst: Span::EMPTY,
            receives_contribution: false,
        }
    }

    pub(crate) const fn get(rank: Rank, from: Rank, src: Span, dst: Span) -> Self {
        Self {
            kind: Kind::Get,
            send_to: rank,
            recv_from: from,
            src,
            dst,
            receives_contribution: false,
        }
    }
}
