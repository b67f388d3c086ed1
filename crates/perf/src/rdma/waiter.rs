//! Waits for completions, with a deadline.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use spark_ccl::Communicator;
use spark_ccl_verbs::PollRoom;

use super::args::{Common, Wait};
use super::endpoint::Endpoint;
use crate::error::Error;

/// The pause after which a waiting rank checks that the other is alive.
const CHECK: Duration = Duration::from_millis(100);

/// Waits for completions on endpoints until a timeout.
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
            timeout: args.pair.timeout(),
            room: PollRoom::default(),
        }
    }

    /// Waits until something has completed or arrived.
    pub(super) fn progress(&mut self, endpoints: &mut [Endpoint]) -> Result<(), Error> {
        // Most waits end here, and reading the clock is slow on some machines.
        if self.poll(endpoints)? || self.pause(endpoints)? {
            return Ok(());
        }
        let start = Instant::now();
        let mut checked = start;
        while !self.pause(endpoints)? {
            let now = Instant::now();
            if now - checked >= CHECK {
                self.comm.check()?;
                checked = now;
            }
            if now - start >= self.timeout {
                return Err(self.stalled(endpoints));
            }
        }
        Ok(())
    }

    /// Yields or sleeps for a moment; returns whether something has completed or arrived.
    fn pause(&mut self, endpoints: &mut [Endpoint]) -> Result<bool, Error> {
        match self.how {
            // Costs little if no other thread is ready to run on this processor.
            Wait::Poll => std::thread::yield_now(),
            Wait::Events => {
                for endpoint in &*endpoints {
                    endpoint.arm()?;
                }
                // Earlier completions cause no event.
                if self.poll(endpoints)? {
                    return Ok(true);
                }
                sleep(endpoints)?;
            }
        }
        self.poll(endpoints)
    }

    fn poll(&mut self, endpoints: &mut [Endpoint]) -> Result<bool, Error> {
        let mut any = false;
        for endpoint in endpoints {
            let polled = endpoint.poll(&mut self.room);
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

    fn stalled(&self, endpoints: &[Endpoint]) -> Error {
        let of = |endpoint: &Endpoint| {
            let Endpoint {
                rail,
                posted,
                received,
                ..
            } = endpoint;
            let ended = posted - endpoint.in_flight();
            let name = rail.name();
            format!("{name}: {ended} of {posted} have ended, {received} messages have arrived")
        };
        let states: Vec<_> = endpoints.iter().map(of).collect();
        Error::Stalled {
            seconds: self.timeout.as_secs(),
            state: states.join("; "),
        }
    }
}

/// Sleeps until a completion event, or until the next check.
fn sleep(endpoints: &[Endpoint]) -> Result<(), Error> {
    let event_fds: Vec<_> = endpoints.iter().map(Endpoint::event_fd).collect();
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
        Err(error) => return Err(Error::system("waiting for completions")(error)),
    }
    for (endpoint, fd) in endpoints.iter().zip(&fds) {
        if !fd.revents().is_empty() {
            endpoint.take_event()?;
        }
    }
    Ok(())
}
