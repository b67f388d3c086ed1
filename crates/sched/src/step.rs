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
    /// Memory that the executor provides, [`Schedule::scratch`](crate::Schedule::scratch) elements.
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
/// [`Kind::SendRecv`], whose halves are independent, and [`Kind::ReduceLocal`].
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
