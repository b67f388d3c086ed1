//! Links through shared memory: between processes of one host, between threads, and from a rank to
//! itself.
//!
//! One segment per pair of ranks holds a ring of cells for each direction. A cell is a header of
//! two cache lines and a body of 8 KiB. The header holds the number of the message in the cell, its
//! tag and length, and a payload of at most [`INLINE_BYTES`]. So a small message costs the transfer
//! of one cache line (up to 40 bytes), or of two neighbours, which processors fetch together. The
//! receiver polls only the next header. How far it has read is on a separate line, which the sender
//! reads only when it has filled every cell that it knew to be free.
//!
//! A payload longer than a body is in a slot. There are fewer slots than cells: a long message is
//! one of at most `slots` in flight; short ones may be many more. (If a rank has many
//! links, there are also fewer bodies than cells; see [`Size`].)
//!
//! Memory for the headers is allocated when the link is made. The sender allocates memory for a
//! body or slot just before the first payload is written there. A link therefore takes only as much
//! memory as it uses, and a lack of memory is an error of the sender and not a signal. If a link
//! goes on, a thread allocates what it is about to use (`ahead.rs`).
//!
//! A longer payload may be lent instead: the header holds its address, and the receiver has the
//! kernel copy it directly from the sender's memory ([`Tx::allow_lending`]). If the kernel starts
//! to refuse this during a run, the sender copies what is lent through the bodies of its cells.
//!
//! An end that has spun for a while blocks. The other end wakes it, if it has its bell
//! ([`send_bell`], [`take_bell`]).
//!
//! # Trust
//! The peer may write anything into the segment at any time. Lengths are read once and checked, so
//! the worst that a peer can do is to send wrong bytes. It may also ring without need, or not at
//! all, so an end never blocks for long without checking again.

mod ahead;
mod beacon;
mod cost;
mod detour;
mod doorbell;
mod layout;
mod near;
mod pieces;
mod reach;
mod ring;
mod rx;
mod segment;
mod tx;

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

pub use cost::single_copies_pay;
pub use doorbell::Chime;
use doorbell::Doorbell;
use layout::{Direction, Layout};
pub use layout::{INLINE_BYTES, Size};
pub use rx::Rx;
use segment::Segment;
use socket2::Socket;
pub use tx::Tx;

use crate::memory::{MemoryError, SharedMemory, recv_fd, send_fd};
use crate::wait::Bell;

/// One end of a link.
pub type LinkEnd = (Tx, Rx);

/// Payloads shorter than this are copied twice in less time than the kernel needs to find their
/// pages.
const LEND_LEAST: usize = 16 << 10;

/// Identifies a segment among other memory that is passed over the same stream.
const SEGMENT_ID: u64 = u64::from_le_bytes(*b"shm link");

/// Identifies a bell that is passed over the stream.
const BELL_ID: u64 = u64::from_le_bytes(*b"shm bell");

/// Makes a link and passes it to the peer at the other end of `stream` (a Unix stream socket),
/// which must [`accept`] it with the same size.
///
/// # Errors
/// When the size is invalid, there is not enough memory, or the peer does not answer by the
/// deadline.
pub fn offer(
    stream: &Socket,
    size: impl Into<Size>,
    deadline: Instant,
) -> Result<LinkEnd, MemoryError> {
    let layout = Layout::new(size.into())?;
    let (memory, fd) = SharedMemory::create(layout.bytes(), layout.at_once())?;
    let segment = Segment::create(memory, layout);
    send_fd(
        stream,
        fd.as_fd(),
        SEGMENT_ID,
        layout.bytes() as u64,
        deadline,
    )?;
    Ok(ends(&Arc::new(segment), Direction::Forth))
}

/// Takes the link that the peer [`offer`]s.
///
/// # Errors
/// When the peer does not answer by the deadline, or offers anything but a link of this size.
pub fn accept(
    stream: &Socket,
    size: impl Into<Size>,
    deadline: Instant,
) -> Result<LinkEnd, MemoryError> {
    let layout = Layout::new(size.into())?;
    let passed = recv_fd(stream, deadline)?;
    if passed.id != SEGMENT_ID {
        return Err(MemoryError::Refused(format!(
            "expected a link ({SEGMENT_ID:#018x}), saw memory of another kind ({:#018x})",
            passed.id
        )));
    }
    if passed.len != layout.bytes() as u64 {
        return Err(MemoryError::Refused(format!(
            "expected a link of {} bytes ({:?}), saw one of {}; set the same slot sizes \
             on all ranks",
            layout.bytes(),
            layout.size(),
            passed.len
        )));
    }
    let memory = SharedMemory::from_fd(&passed.fd, layout.bytes(), layout.at_once())?;
    let segment = Segment::open(memory, layout)?;
    Ok(ends(&Arc::new(segment), Direction::Back))
}

/// Passes this rank's bell to the peer at the other end of `stream`, which must
/// [take](take_bell) it.
///
/// # Errors
/// When the peer does not answer by the deadline.
pub fn send_bell(stream: &Socket, bell: &Bell, deadline: Instant) -> Result<(), MemoryError> {
    send_fd(stream, bell.as_fd(), BELL_ID, bell.number(), deadline)
}

/// Receives the bell that the peer [sends](send_bell), for links that are [given](Chime::set) it
/// later.
///
/// # Errors
/// When the peer does not answer by the deadline, or sends anything but a bell.
pub fn take_bell(stream: &Socket, deadline: Instant) -> Result<Arc<Bell>, MemoryError> {
    let passed = recv_fd(stream, deadline)?;
    let bell = (passed.id == BELL_ID).then(|| Bell::of_peer(passed.fd, passed.len));
    bell.flatten().ok_or_else(|| {
        MemoryError::Refused(format!(
            "expected a bell ({BELL_ID:#018x}), saw something else ({:#018x})",
            passed.id
        ))
    })
}

/// Makes both ends of a link within this process.
///
/// # Errors
/// When the size is invalid, or there is not enough memory.
pub fn pair(size: impl Into<Size>) -> Result<(LinkEnd, LinkEnd), MemoryError> {
    let layout = Layout::new(size.into())?;
    let (memory, _fd) = SharedMemory::create(layout.bytes(), layout.at_once())?;
    let segment = Arc::new(Segment::create(memory, layout));
    Ok((
        ends(&segment, Direction::Forth),
        ends(&segment, Direction::Back),
    ))
}

/// The halves of the end that sends in `direction`.
fn ends(segment: &Arc<Segment>, direction: Direction) -> LinkEnd {
    let doorbell = Doorbell::new(segment, direction);
    (
        Tx::new(segment, direction, doorbell.clone()),
        Rx::new(segment, direction.reverse(), doorbell),
    )
}

#[cfg(test)]
mod tests;
