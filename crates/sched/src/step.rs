//! The vocabulary of schedules.

/// A rank of the communicator, `0..size`.
pub type Rank = u32;

/// Which of an operation's buffers a [`Span`] lies in.
///
/// `Input` and `Output` may be the same memory (in place); they stay different roles: data read
/// from `Input` is this rank's own, not yet scaled contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Buf {
    /// The caller's send buffer.
    Input,
    /// The caller's receive buffer.
    Output,
    /// Memory that the executor provides, [`Steps::scratch`](crate::Steps::scratch) elements.
    Scratch,
}

/// A run of elements in one buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The buffer.
    pub buf: Buf,
    /// First element.
    pub offset: u64,
    /// Number of elements.
    pub len: u64,
}

/// What a step does. "link" is the message stream to or from a peer on the step's channel.
///
/// A step with a `src` and a `dst` covers the same number of elements in both, but for
/// [`Kind::SendRecv`], whose halves are independent. Spans that a kind does not use are
/// [`Span::EMPTY`]. A span is cut into slices, each one message; so a step (or half) of no
/// elements moves no message, on either side.
///
/// Where two operands are reduced, the left one is that of the lower rank, so that partners that
/// reduce the same two operands get the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `src` to the link of `send_to`.
    Send,
    /// The link of `recv_from` to `dst`.
    Recv,
    /// Both at once, each at its own pace: `src` to `send_to`, and `recv_from` to `dst`.
    ///
    /// Slice *i* is received only after slice *i* was sent, so that `src` and `dst` may be the
    /// same memory when both peers are the same rank.
    SendRecv,
    /// Received, reduced with `src`, kept in `dst`.
    RecvReduce,
    /// Received, reduced with `src`, sent on, not kept.
    RecvReduceSend,
    /// Received, reduced with `src`, kept in `dst` and sent on.
    RecvReduceCopySend,
    /// Received, kept in `dst` and sent on.
    RecvCopySend,
    /// `src` to `dst`, both local.
    Copy,
    /// Local reduction in rank order: operand *r* is `src` for this rank itself, and elements
    /// `r * src.len ..` of `Scratch` for every other rank. The result goes to `dst`.
    ReduceLocal,
    /// An empty message to `send_to`: "what I wrote before this is yours to read".
    Signal,
    /// Waits for the empty message of `recv_from`.
    Wait,
    /// Registered memory: `src` of `recv_from`'s buffer to the own `dst`.
    Get,
    /// Registered memory: `src` of every rank's buffer, reduced in rank order, to the own `dst`.
    GetReduce,
    /// Registered memory: like [`Kind::GetReduce`], with the result in `dst` of *every* rank.
    GetReducePut,
}

impl Kind {
    /// Whether it puts messages on the link of `send_to`.
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
    /// What to do.
    pub kind: Kind,
    /// The peer of the sending half; this rank itself where nothing is sent.
    pub send_to: Rank,
    /// The peer of the receiving half; this rank itself where nothing is received.
    pub recv_from: Rank,
    /// What is read locally (or remotely, for the `Get` kinds).
    pub src: Span,
    /// What is written.
    pub dst: Span,
}

impl Span {
    /// No elements.
    pub const EMPTY: Self = Self {
        buf: Buf::Input,
        offset: 0,
        len: 0,
    };

    /// `len` elements of the input, from `offset`.
    pub const fn input(offset: u64, len: u64) -> Self {
        Self {
            buf: Buf::Input,
            offset,
            len,
        }
    }

    /// `len` elements of the output, from `offset`.
    pub const fn output(offset: u64, len: u64) -> Self {
        Self {
            buf: Buf::Output,
            offset,
            len,
        }
    }

    /// `len` elements of the scratch memory, from `offset`.
    pub const fn scratch(offset: u64, len: u64) -> Self {
        Self {
            buf: Buf::Scratch,
            offset,
            len,
        }
    }
}

impl Step {
    /// Elements sent to `send_to`, as data messages.
    pub const fn send_len(&self) -> u64 {
        match self.kind {
            Kind::Send | Kind::SendRecv | Kind::RecvReduceSend | Kind::RecvReduceCopySend => {
                self.src.len
            }
            Kind::RecvCopySend => self.dst.len,
            _ => 0,
        }
    }

    /// Elements received from `recv_from`, as data messages.
    pub const fn recv_len(&self) -> u64 {
        match self.kind {
            Kind::Recv | Kind::SendRecv | Kind::RecvReduceCopySend | Kind::RecvCopySend => {
                self.dst.len
            }
            Kind::RecvReduce | Kind::RecvReduceSend => self.src.len,
            _ => 0,
        }
    }

    /// Whether there is nothing to do: no element to move and nobody to signal or wait for.
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
        }
    }

    pub(crate) const fn recv(rank: Rank, from: Rank, dst: Span) -> Self {
        Self {
            kind: Kind::Recv,
            send_to: rank,
            recv_from: from,
            src: Span::EMPTY,
            dst,
        }
    }

    pub(crate) const fn recv_reduce(rank: Rank, from: Rank, src: Span, dst: Span) -> Self {
        Self {
            kind: Kind::RecvReduce,
            send_to: rank,
            recv_from: from,
            src,
            dst,
        }
    }

    pub(crate) const fn recv_reduce_send(from: Rank, to: Rank, src: Span) -> Self {
        Self {
            kind: Kind::RecvReduceSend,
            send_to: to,
            recv_from: from,
            src,
            dst: Span::EMPTY,
        }
    }

    pub(crate) const fn recv_reduce_copy_send(from: Rank, to: Rank, src: Span, dst: Span) -> Self {
        Self {
            kind: Kind::RecvReduceCopySend,
            send_to: to,
            recv_from: from,
            src,
            dst,
        }
    }

    pub(crate) const fn recv_copy_send(from: Rank, to: Rank, dst: Span) -> Self {
        Self {
            kind: Kind::RecvCopySend,
            send_to: to,
            recv_from: from,
            src: Span::EMPTY,
            dst,
        }
    }

    pub(crate) const fn send_recv(to: Rank, src: Span, from: Rank, dst: Span) -> Self {
        Self {
            kind: Kind::SendRecv,
            send_to: to,
            recv_from: from,
            src,
            dst,
        }
    }

    pub(crate) const fn signal(rank: Rank, to: Rank) -> Self {
        Self {
            kind: Kind::Signal,
            send_to: to,
            recv_from: rank,
            src: Span::EMPTY,
            dst: Span::EMPTY,
        }
    }

    pub(crate) const fn wait(rank: Rank, from: Rank) -> Self {
        Self {
            kind: Kind::Wait,
            send_to: rank,
            recv_from: from,
            src: Span::EMPTY,
            dst: Span::EMPTY,
        }
    }

    pub(crate) const fn get(rank: Rank, from: Rank, src: Span, dst: Span) -> Self {
        Self {
            kind: Kind::Get,
            send_to: rank,
            recv_from: from,
            src,
            dst,
        }
    }
}
