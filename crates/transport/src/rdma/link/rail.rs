//! One queue pair of a link.

use std::sync::Arc;
use std::time::{Duration, Instant};

use spark_ccl_verbs::{
    CanReceive, CompletionChannel, CompletionQueue, Error, Piece, QueuePair, Remote, Request, Rts,
};

use super::immediate::Immediate;
use super::pace::Pace;
use super::plan::Plan;
use super::returns::Returns;
use super::slots::Slots;

/// The number of all receives; those of writes are less.
pub(super) const RECEIVE: u64 = 1 << 62;
/// Every so many writes, one is told when it has ended, and all before it.
const TOLD_EVERY: u64 = 16;
/// Every so often a rail is asked whether it still carries.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// A rail that carries nothing is dropped after so many looks, at the least.
const LOOKS: u32 = 16;

/// One queue pair of a link, connected, and what it writes out of and to.
#[derive(Debug)]
pub(super) struct Rail {
    /// The ports that it joins, for people.
    pub(super) name: String,
    pub(super) pair: QueuePair<Rts>,
    /// Of writes and receives.
    pub(super) queue: CompletionQueue,
    /// Where the queue announces completions.
    pub(super) events: Arc<CompletionChannel>,
    /// The key of the slots to send from, and that of those to receive in.
    pub(super) lkeys: [u32; 2],
    /// The begin of the peer's slots.
    pub(super) remote: Remote,
    /// Requests posted, and those of them that are known to have ended.
    pub(super) posted: u64,
    pub(super) ended: Ended,
    /// Bytes on their way.
    pub(super) load: u64,
    pub(super) reads: Reads,
    /// What it says about what it has read.
    pub(super) returns: Returns,
    /// The last write that was posted to see it end, and when.
    pub(super) probe: (u64, Instant),
    pub(super) silence: Silence,
    /// For so long the device itself may take to find out that nothing is carried.
    pub(super) patience: Duration,
    /// How soon it is tried again, should it fail.
    pub(super) pace: Pace,
    /// What its next queue pair is made from.
    pub(super) plan: Arc<Plan>,
}

/// Which requests have ended: the last that went well, and the last of all; 0 for none.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ended {
    pub(super) well: u64,
    pub(super) last: u64,
}

impl Ended {
    pub(super) fn note(&mut self, request: u64, went_well: bool) {
        self.last = request;
        if went_well {
            self.well = request;
        }
    }
}

/// How long no request has ended well, as far as this rank has looked.
///
/// The time between two looks counts in part only. Where the process, or the whole machine, has stood still,
/// soft-RoCE has stood still with it, and the rail is given the rest of its time to go on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Silence {
    /// The last request that had gone well.
    ended: u64,
    looked: Instant,
    length: Duration,
}

/// What is being read from the peer.
#[derive(Debug)]
pub(super) struct Reads {
    /// So many at a time: devices put all that is posted behind more of them off.
    pub(super) most: u32,
    pub(super) count: u32,
    pub(super) bytes: u64,
}

impl Reads {
    pub(super) fn new(most: u8) -> Self {
        Self {
            most: most.into(),
            count: 0,
            bytes: 0,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.count < self.most
    }

    /// One of so many bytes is over.
    pub(super) fn end(&mut self, bytes: u32) {
        self.count -= 1;
        self.bytes -= u64::from(bytes);
    }
}

impl Rail {
    /// Whether so many more writes can be posted.
    pub(super) fn has_room(&self, writes: u64) -> bool {
        self.posted - self.ended.well + writes <= u64::from(self.pair.send_depth())
    }

    /// Says `what`, by a send. A write of nothing would do as well, but soft-RoCE (Linux 6.12) takes the
    /// length of the last write for that of a read that it is to answer again, and then fails the queue pair.
    pub(super) fn say(&mut self, what: Immediate) -> Result<(), Error> {
        let request = self.next(what);
        let mut batch = self.pair.batch();
        // SAFETY: there are no bytes.
        unsafe { batch.send_with_imm(request, &[], what.to_bits())? };
        batch.post().map_err(|post| post.error)?;
        self.posted += 1;
        Ok(())
    }

    /// The next request, which says `what`.
    fn next(&self, what: Immediate) -> Request {
        let id = self.posted + 1;
        let request = Request::new(id);
        match what {
            Immediate::Message { .. } | Immediate::Released { .. } | Immediate::Returned { .. }
                if !id.is_multiple_of(TOLD_EVERY) =>
            {
                request
            }
            _ => request.signalled(),
        }
    }

    /// Has `bytes` from `start` on written to the peer, `offset` bytes into its slots, and says `what`.
    ///
    /// # Safety
    /// The bytes lie in the slots here, and stay as they are until the peer has said that it has read
    /// them, or the queue pair is destroyed.
    pub(super) unsafe fn write(
        &mut self,
        start: *const u8,
        bytes: usize,
        offset: usize,
        what: Immediate,
    ) -> Result<(), Error> {
        let mut request = self.next(what);
        if bytes <= self.pair.most_inline() {
            request = request.inline();
        }
        let pieces = [Piece::new(start as u64, bytes as u32, self.lkeys[0])];
        let to = self.remote.offset(offset as u64);
        let mut batch = self.pair.batch();
        // SAFETY: passed on from the caller: when the peer has said that it has read a message, it has
        // been sent.
        unsafe { batch.write_with_imm(request, &pieces, to, what.to_bits())? };
        batch.post().map_err(|post| post.error)?;
        self.posted += 1;
        Ok(())
    }

    /// Has `bytes` bytes of the peer's read to `to`, which has that key here; the number of the request,
    /// which ends when they are there.
    ///
    /// # Safety
    /// The memory is the device's until then, or until it is deregistered or the queue pair destroyed.
    pub(super) unsafe fn read(
        &mut self,
        to: u64,
        bytes: u32,
        lkey: u32,
        from: Remote,
    ) -> Result<u64, Error> {
        let id = self.posted + 1;
        let mut batch = self.pair.batch();
        // SAFETY: passed on from the caller.
        unsafe {
            let pieces = [Piece::new(to, bytes, lkey)];
            batch.read(Request::new(id).signalled(), &pieces, from)?;
        }
        batch.post().map_err(|post| post.error)?;
        self.posted = id;
        self.reads.count += 1;
        self.reads.bytes += u64::from(bytes);
        Ok(id)
    }

    /// Makes sure that it still carries: devices do not always say so when they lose what was posted, and
    /// where nothing is posted, none says that the peer is gone. Whether it does, as far as is known;
    /// completions were looked for just now.
    ///
    /// What is written is a byte of the greeting, which nobody reads, for the reason that [`say`](Self::say)
    /// gives.
    pub(super) fn probe(&mut self, may_be_gone: bool, slots: &Slots) -> Result<bool, Error> {
        let (id, since) = self.probe;
        let longest = self.patience / LOOKS;
        let silence = self.silence.look(self.ended.well, Instant::now(), longest);
        if self.ended.well < id {
            // What was posted before it may take longer than that all together.
            return Ok(silence < self.patience);
        }
        let is_in_doubt = may_be_gone || self.ended.well < self.posted;
        if is_in_doubt && self.has_room(1) && since.elapsed() > PROBE_EVERY {
            let id = self.posted + 1;
            let mut batch = self.pair.batch();
            let (start, offset) = slots.greeting();
            let pieces = [Piece::new(start as u64, 1, self.lkeys[0])];
            let to = self.remote.offset(offset as u64);
            // SAFETY: nobody writes there, and the memory stays until no device reaches it.
            unsafe { batch.write(Request::new(id).signalled(), &pieces, to)? };
            batch.post().map_err(|post| post.error)?;
            self.posted = id;
            self.probe = (id, Instant::now());
            self.silence.begin(Instant::now());
        }
        Ok(true)
    }
}

impl Silence {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            ended: 0,
            looked: now,
            length: Duration::ZERO,
        }
    }

    /// Nothing is missed yet.
    fn begin(&mut self, now: Instant) {
        self.looked = now;
        self.length = Duration::ZERO;
    }

    /// How long it is now that the last request that has gone well is `ended`. What has passed since the last look
    /// counts up to `longest`.
    fn look(&mut self, ended: u64, now: Instant, longest: Duration) -> Duration {
        let passed = now.saturating_duration_since(self.looked);
        self.looked = now;
        if self.ended == ended {
            self.length += passed.min(longest);
        } else {
            self.ended = ended;
            self.length = Duration::ZERO;
        }
        self.length
    }
}

/// Posts receives for so many numbers.
pub(super) fn post_receives<S: CanReceive>(
    pair: &mut QueuePair<S>,
    mut count: usize,
) -> Result<(), Error> {
    while count > 0 {
        let mut batch = pair.receives();
        while count > 0 && !batch.is_full() {
            // SAFETY: they name no memory.
            unsafe { batch.receive(RECEIVE, &[])? };
            count -= 1;
        }
        batch.post().map_err(|post| post.error)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn silence_ends_when_something_ends() {
        let start = Instant::now();
        let mut silence = Silence::new(start);
        assert_eq!(silence.look(0, start + SECOND, SECOND), SECOND);
        assert_eq!(silence.look(0, start + 2 * SECOND, SECOND), 2 * SECOND);
        assert_eq!(silence.look(1, start + 3 * SECOND, SECOND), Duration::ZERO);
        assert_eq!(silence.look(1, start + 4 * SECOND, SECOND), SECOND);
    }

    #[test]
    fn a_pause_of_the_process_is_no_silence_of_the_rail() {
        let start = Instant::now();
        let mut silence = Silence::new(start);
        assert_eq!(silence.look(0, start + 60 * SECOND, SECOND), SECOND);
        assert_eq!(silence.look(0, start + 61 * SECOND, SECOND), 2 * SECOND);
    }
}
