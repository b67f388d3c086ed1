//! One connected queue pair of a link: what was posted, what has completed, and how long it may be
//! silent. Which message it carries is decided in `core.rs`.

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

/// The id of all receives; the ids of writes are smaller.
pub(super) const RECEIVE: u64 = 1 << 62;
/// One in this many writes is signalled; its completion also covers those before it.
const TOLD_EVERY: u64 = 16;
/// How often a rail is probed.
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// The least number of checks before a silent rail is dropped.
pub(super) const LOOKS: u32 = 16;

/// One connected queue pair of a link, and the memory that it writes from and to.
#[derive(Debug)]
pub(super) struct Rail {
    /// The ports that it joins, for messages.
    pub(super) name: String,
    pub(super) pair: QueuePair<Rts>,
    /// The completion queue of writes and receives.
    pub(super) queue: CompletionQueue,
    /// The channel for the queue's notifications.
    pub(super) events: Arc<CompletionChannel>,
    /// The local keys of the slots to send from, and of those to receive in.
    pub(super) lkeys: [u32; 2],
    /// The start of the peer's slots.
    pub(super) remote: Remote,
    /// The last request posted, and the last ones known to have ended.
    pub(super) posted: u64,
    pub(super) ended: Ended,
    /// Bytes in flight.
    pub(super) load: u64,
    pub(super) reads: Reads,
    /// The notices of loans that it has read.
    pub(super) returns: Returns,
    /// The last probe, and when it was posted.
    pub(super) probe: (u64, Instant),
    pub(super) silence: Silence,
    /// How long the device itself may take to find out that nothing is delivered.
    pub(super) retry_time: Duration,
    /// How soon it is tried again if it fails.
    pub(super) pace: Pace,
    /// The plan of its next queue pair.
    pub(super) plan: Arc<Plan>,
}

/// One write of a put.
#[derive(Debug, Clone, Copy)]
pub(super) struct PutRequest {
    pub(super) piece: Piece,
    pub(super) to: Remote,
    /// Whether the processor reads the piece, as it must for an inline request.
    pub(super) may_be_inline: bool,
}

/// The last request that succeeded, and the last that ended in any way; 0 for none.
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

/// How long no request has succeeded, as far as this rank has checked.
///
/// The time between two checks counts only up to a limit. If the process or the whole machine was
/// stopped, so was soft-RoCE, and the rail gets the rest of its time to resume.
#[derive(Debug, Clone, Copy)]
pub(super) struct Silence {
    /// The last request that had succeeded.
    ended: u64,
    looked: Instant,
    length: Duration,
}

/// The reads in flight.
#[derive(Debug)]
pub(super) struct Reads {
    /// The most at a time: devices delay all requests that are posted after more reads than that.
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

    /// Notes that a read of this many bytes has ended.
    pub(super) fn end(&mut self, bytes: u32) {
        self.count -= 1;
        self.bytes -= u64::from(bytes);
    }
}

impl Rail {
    /// Whether this many more writes can be posted.
    pub(super) fn has_room(&self, writes: u64) -> bool {
        self.posted - self.ended.well + writes <= u64::from(self.pair.send_depth())
    }

    /// Sends `what` by a send without data. An empty write would do as well, but soft-RoCE (Linux
    /// 6.12) mishandles it: when it repeats its answer to a read, it uses the length of the last
    /// write, and then fails the queue pair.
    pub(super) fn say(&mut self, what: Immediate) -> Result<(), Error> {
        let request = self.next(what);
        let mut batch = self.pair.batch();
        // SAFETY: the send has no pieces, so the device accesses no memory.
        unsafe { batch.send_with_imm(request, &[], what.to_bits())? };
        batch.post().map_err(|post| post.error)?;
        self.posted += 1;
        Ok(())
    }

    /// The next request, which carries `what`.
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

    /// Writes `bytes` bytes from `start` on to the peer, `offset` bytes into its slots, with the
    /// immediate value `what`.
    ///
    /// # Safety
    /// The bytes lie in the local slots, and stay unchanged until the peer has acknowledged them,
    /// or the queue pair is destroyed.
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
        // SAFETY: the bytes lie in the local slots, of which `lkeys[0]` is the key, and stay
        // unchanged until the peer has acknowledged them, by when the device has sent them, or
        // until the queue pair is destroyed: this function requires that.
        unsafe { batch.write_with_imm(request, &pieces, to, what.to_bits())? };
        batch.post().map_err(|post| post.error)?;
        self.posted += 1;
        Ok(())
    }

    /// Reads `bytes` bytes of the peer's memory into `to`, which has the local key `lkey`. Returns
    /// the id of the request, which completes when the bytes have arrived.
    ///
    /// # Safety
    /// The memory is left to the device until then, or until it is deregistered or the queue pair
    /// is destroyed.
    pub(super) unsafe fn read(
        &mut self,
        to: u64,
        bytes: u32,
        lkey: u32,
        from: Remote,
    ) -> Result<u64, Error> {
        let id = self.posted + 1;
        let mut batch = self.pair.batch();
        // SAFETY: the memory is left to the device until the request completes, the memory is
        // deregistered, or the queue pair is destroyed: this function requires that. The device
        // checks by `lkey` that it is registered.
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

    /// Writes each piece to its place, in this order.
    ///
    /// # Safety
    /// The pieces stay unchanged until the last request has ended, or the queue pair is destroyed.
    pub(super) unsafe fn put(&mut self, requests: &[PutRequest]) -> Result<(), Error> {
        let last = self.posted + requests.len() as u64;
        let most_inline = self.pair.most_inline();
        let mut batch = self.pair.batch();
        for (id, put) in (self.posted + 1..).zip(requests) {
            let mut request = Request::new(id);
            if put.may_be_inline && put.piece.bytes() as usize <= most_inline {
                request = request.inline();
            }
            if id == last {
                request = request.signalled();
            }
            // SAFETY: the piece stays unchanged until the last request has ended, by when this one
            // has, or the queue pair is destroyed: this function requires that. The device checks
            // by the piece's key that it is registered.
            unsafe { batch.write(request, &[put.piece], put.to)? };
        }
        let posted = batch.post();
        self.posted += match &posted {
            Ok(()) => requests.len(),
            Err(error) => error.posted,
        } as u64;
        posted.map_err(|post| post.error)
    }

    /// Probes the rail: devices do not always report the loss of a request, and without a posted
    /// request no device reports that the peer is gone. Returns whether the rail works as far as is
    /// known. Completions must have been polled just before.
    ///
    /// A probe writes one byte of the greeting, which nothing reads. It is not an empty write, for
    /// the reason given at [`say`](Self::say).
    pub(super) fn probe(&mut self, may_be_gone: bool, slots: &Slots) -> Result<bool, Error> {
        let (id, since) = self.probe;
        let longest = self.retry_time / LOOKS;
        let silence = self.silence.look(self.ended.well, Instant::now(), longest);
        if self.ended.well < id {
            // The requests before the probe may take longer than that in total.
            return Ok(silence < self.retry_time);
        }
        let is_in_doubt = may_be_gone || self.ended.well < self.posted;
        if is_in_doubt && self.has_room(1) && since.elapsed() > PROBE_EVERY {
            let id = self.posted + 1;
            let mut batch = self.pair.batch();
            let (start, offset) = slots.greeting();
            let pieces = [Piece::new(start as u64, 1, self.lkeys[0])];
            let to = self.remote.offset(offset as u64);
            // SAFETY: nothing ever writes to the greeting, and the slots are unmapped only after
            // they are deregistered.
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

    /// Starts the measurement.
    fn begin(&mut self, now: Instant) {
        self.looked = now;
        self.length = Duration::ZERO;
    }

    /// How long `ended` has been the last request that succeeded. The time since the last check
    /// counts up to `longest`.
    pub(super) fn look(&mut self, ended: u64, now: Instant, longest: Duration) -> Duration {
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

    /// Makes the last check this much longer ago.
    #[cfg(test)]
    pub(super) fn pass(&mut self, time: Duration) {
        self.looked -= time;
    }
}

/// Posts `count` receives for immediate values.
pub(super) fn post_receives<S: CanReceive>(
    pair: &mut QueuePair<S>,
    mut count: usize,
) -> Result<(), Error> {
    while count > 0 {
        let mut batch = pair.receives();
        while count > 0 && !batch.is_full() {
            // SAFETY: the receive has no pieces, so the device accesses no memory.
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
