//! Waits for completions, with a deadline.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use spark_ccl::Communicator;
use spark_ccl_verbs::PollRoom;

use super::args::{Common, Wait};
use super::lane::Lane;
use crate::error::Error;

/// How often a waiting rank checks that the other is alive.
const CHECK: Duration = Duration::from_millis(100);

/// Waits for completions on lanes until a timeout.
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

    /// Waits until something has completed or arrived.
    pub(super) fn progress(&mut self, lanes: &mut [Lane]) -> Result<(), Error> {
        // Most waits end here, and reading the clock is slow on some machines.
        if self.poll(lanes)? || self.pause(lanes)? {
            return Ok(());
        }
        let start = Instant::now();
        let mut checked = start;
        while !self.pause(lanes)? {
            let now = Instant::now();
            if now - checked >= CHECK {
                self.comm.check()?;
                checked = now;
            }
            if now - start >= self.timeout {
                return Err(self.stalled(lanes));
            }
        }
        Ok(())
    }

    /// Yields or sleeps for a moment; returns whether something has completed or arrived.
    fn pause(&mut self, lanes: &mut [Lane]) -> Result<bool, Error> {
        match self.how {
            // Costs little if no other thread is ready to run on this processor.
            Wait::Poll => std::thread::yield_now(),
            Wait::Events => {
                for lane in &*lanes {
                    lane.arm()?;
                }
                // Earlier completions cause no event.
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

    /// Returns why a request failed. The end of a rank is noticed slightly later than that of its
    /// queue pairs.
    fn cause(&self, problem: String) -> Error {
        std::thread::sleep(CHECK);
        match self.comm.check() {
            Err(error) => error.into(),
            Ok(()) => Error::Rdma(problem),
        }
    }

    fn stalled(&self, lanes: &[Lane]) -> Error {
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
        Error::Stalled {
            seconds: self.timeout.as_secs(),
            state: states.join("; "),
        }
    }
}

/// Sleeps until a completion event, or until the next check.
fn sleep(lanes: &[Lane]) -> Result<(), Error> {
    let event_fds: Vec<_> = lanes.iter().map(Lane::event_fd).collect();
    let mut fds: Vec<_> = event_fds
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
            lane.take_event()?;
        }
    }
    Ok(())
}
