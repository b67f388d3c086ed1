//! Waiting for completions.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use spark_ccl::Communicator;
use spark_ccl_verbs::PollRoom;

use super::args::{Common, Wait};
use super::lane::Lane;
use crate::error::Error;

/// So often a rank that waits asks whether the other is alive.
const CHECK: Duration = Duration::from_millis(100);

/// Waits for completions of lanes, but not for ever.
pub(super) struct Waiter<'a> {
    comm: &'a Communicator,
    how: Wait,
    timeout: Duration,
    room: PollRoom,
}

impl<'a> Waiter<'a> {
    pub(super) fn new(comm: &'a Communicator, args: &Common) -> Self {
        Self {
            comm,
            how: args.wait,
            timeout: args.timeout(),
            room: PollRoom::default(),
        }
    }

    /// Waits until anything has ended or arrived.
    pub(super) fn progress(&mut self, lanes: &mut [Lane]) -> Result<(), Error> {
        // Most waits end here, and some machines are slow to tell the time.
        if self.poll(lanes)? || self.rest(lanes)? {
            return Ok(());
        }
        let start = Instant::now();
        let mut checked = start;
        while !self.rest(lanes)? {
            let now = Instant::now();
            if now - checked >= CHECK {
                self.comm.check()?;
                checked = now;
            }
            if now - start >= self.timeout {
                return Err(self.silent(lanes));
            }
        }
        Ok(())
    }

    /// Lets others run for a moment; whether there is anything then.
    fn rest(&mut self, lanes: &mut [Lane]) -> Result<bool, Error> {
        match self.how {
            // On a processor of their own, nobody else wants to run.
            Wait::Poll => std::thread::yield_now(),
            Wait::Events => {
                for lane in &*lanes {
                    lane.arm()?;
                }
                // What came before that is not announced.
                if self.poll(lanes)? {
                    return Ok(true);
                }
                sleep(lanes)?;
            }
        }
        self.poll(lanes)
    }

    fn poll(&mut self, lanes: &mut [Lane]) -> Result<bool, Error> {
        let mut any = false;
        for lane in lanes {
            let polled = lane.poll(&mut self.room);
            any |= polled.map_err(|problem| self.cause(problem))?;
        }
        Ok(any)
    }

    /// Why a request failed: the end of a rank is known a moment later than that of its queue pairs.
    fn cause(&self, problem: String) -> Error {
        std::thread::sleep(CHECK);
        match self.comm.check() {
            Err(error) => error.into(),
            Ok(()) => Error::Rdma(problem),
        }
    }

    fn silent(&self, lanes: &[Lane]) -> Error {
        let of = |lane: &Lane| {
            let Lane {
                name,
                posted,
                received,
                ..
            } = lane;
            let ended = posted - lane.in_flight();
            format!("{name}: {ended} of {posted} have ended, {received} messages have arrived")
        };
        let states: Vec<_> = lanes.iter().map(of).collect();
        Error::Silent {
            seconds: self.timeout.as_secs(),
            state: states.join("; "),
        }
    }
}

/// Sleeps until a completion is announced, or until it is time for a check.
fn sleep(lanes: &[Lane]) -> Result<(), Error> {
    let announcements: Vec<_> = lanes.iter().map(Lane::announcements).collect();
    let mut fds: Vec<_> = announcements
        .iter()
        .map(|fd| PollFd::new(fd, PollFlags::IN))
        .collect();
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: CHECK.as_nanos() as i64,
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(Error::system("waiting for completions")(error.into())),
    }
    for (lane, fd) in lanes.iter().zip(&fds) {
        if !fd.revents().is_empty() {
            lane.take_announcement()?;
        }
    }
    Ok(())
}
