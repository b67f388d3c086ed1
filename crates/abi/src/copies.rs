//! Copies of messages that a receive of the same group writes over: a message may arrive before
//! another one that is read from the same memory has left.

use std::ops::Range;

use spark_ccl::Operation;
use spark_ccl_types::overwritten;

use crate::failure::{Failure, Kind};
use crate::started::Held;

/// Copies of messages, which stay until their calls are done. In words, so that elements of any
/// type are aligned.
pub(crate) type Copies = Vec<Vec<u64>>;

/// Redirects messages whose source another message of the group overwrites: they are sent from
/// copies, which are returned.
///
/// # Errors
/// Two messages are received into the same memory, or there is no memory for a copy.
pub(crate) fn copy_messages<'a>(
    held: impl Iterator<Item = &'a mut Held>,
) -> Result<Copies, Failure> {
    let (mut sends, mut written) = (Vec::new(), Vec::new());
    for held in held {
        match held.call().operation() {
            Operation::Send => sends.push(held),
            Operation::Recv => written.push(addresses(held.call().received())),
            _ => {}
        }
    }
    let read: Vec<_> = sends
        .iter()
        .map(|held| addresses(held.call().sent()))
        .collect();
    let overwritten = overwritten(&read, &written).map_err(|pair| {
        let [one, other] = pair.map(|place| {
            let part = &written[place];
            format!("({} bytes at {:#x})", part.len(), part.start)
        });
        Failure::invalid(format!(
            "the receive buffers of two messages of the group overlap, {one} and {other}: each \
             message needs a place of its own (send buffers may overlap)"
        ))
    })?;
    let copies = overwritten.into_iter().map(|place| copy(sends[place]));
    copies.collect()
}

fn addresses(memory: *const [u8]) -> Range<usize> {
    let start = memory.cast::<u8>().addr();
    start..start.saturating_add(memory.len())
}

fn copy(held: &mut Held) -> Result<Vec<u64>, Failure> {
    let bytes = held.call().sent().len();
    let words = bytes.div_ceil(size_of::<u64>());
    let mut copy = Vec::new();
    copy.try_reserve_exact(words).map_err(|error| {
        let text = format!("no memory for a copy of a message of {bytes} bytes: {error}");
        Failure::new(Kind::System, text)
    })?;
    copy.resize(words, 0_u64);
    // SAFETY: `copy` has `words` words, so at least `bytes` bytes, and nothing else has their
    // address. Its owner only moves the `Vec`, which leaves them where they are. It drops it after
    // the call, or, where another copy fails, without starting any held call of the group.
    unsafe { held.send_from(copy.as_mut_ptr().cast()) };
    Ok(copy)
}
