//! One connection of a dial: connects, and authenticates both ends.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags};
use socket2::Socket;
use spark_ccl_fork::Unshared;

use crate::dial::{ATTEMPT, LONGEST_ATTEMPT, Route};
use crate::handshake::{EnterError, Entered, Intent};
use crate::handshake_chain::HandshakeChain;
use crate::{Secret, net};

pub(super) struct Attempt {
    /// The index of its route.
    pub(super) route: usize,
    stage: Stage,
    /// When it fails, if it has not connected; else when other routes stop waiting for it.
    until: Instant,
}

enum Stage {
    Connecting {
        socket: Unshared<Socket>,
        /// The requests to the ranks that pass the connection on.
        relays: Vec<Intent>,
    },
    Entering(HandshakeChain),
}

pub(super) enum Step {
    Done(Entered),
    Wait(Attempt),
}

impl Attempt {
    /// Begins to connect, for at most until `limit`.
    pub(super) fn begin(
        (index, route): (usize, &Route),
        intent: Intent,
        limit: Instant,
        now: Instant,
    ) -> Result<Self, EnterError> {
        let (socket, is_complete) = route.begin().map_err(EnterError::from_connect)?;
        let relays = route.relays().to_vec();
        let (stage, until) = if is_complete {
            let chain = HandshakeChain::begin(socket, &relays, intent)?;
            (Stage::Entering(chain), now + ATTEMPT)
        } else {
            (Stage::Connecting { socket, relays }, limit)
        };
        Ok(Self {
            route: index,
            stage,
            until,
        })
    }

    /// Advances without blocking. Goes beyond the first message only if it may send the proof.
    pub(super) fn step(
        mut self,
        intent: Intent,
        (key, peer): (&Secret, &str),
        may_prove: bool,
        now: Instant,
    ) -> Result<Step, EnterError> {
        let mut chain = match self.stage {
            Stage::Connecting { socket, relays } => {
                if !is_writable(&socket)? {
                    if self.until <= now {
                        return Err(EnterError::Broken(io::ErrorKind::TimedOut.into()));
                    }
                    self.stage = Stage::Connecting { socket, relays };
                    return Ok(Step::Wait(self));
                }
                net::end_tcp(&socket).map_err(EnterError::Broken)?;
                self.until = now + ATTEMPT;
                HandshakeChain::begin(socket, &relays, intent)?
            }
            Stage::Entering(chain) => chain,
        };
        if may_prove {
            let has_proved = chain.has_proved();
            if chain.step(key, peer)? {
                return Ok(Step::Done(chain.into_entered(key)));
            }
            if !has_proved && chain.has_proved() {
                self.until = now + LONGEST_ATTEMPT;
            }
        }
        self.stage = Stage::Entering(chain);
        Ok(Step::Wait(self))
    }

    /// Whether other routes wait for its answer, and until when.
    pub(super) fn awaited(&self, now: Instant) -> Option<Instant> {
        (self.is_connected() && self.until > now).then_some(self.until)
    }

    /// Whether the peer may take it for the stream. Until it answers, no other connection may send
    /// the proof.
    pub(super) fn is_proving(&self, now: Instant) -> bool {
        matches!(&self.stage, Stage::Entering(chain) if chain.has_proved()) && self.until > now
    }

    /// Whether it is connected, and other routes need not wait for it any longer.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        self.is_connected() && self.until <= now
    }

    pub(super) fn is_connected(&self) -> bool {
        matches!(self.stage, Stage::Entering(_))
    }

    pub(super) fn watch(&self) -> PollFd<'_> {
        match &self.stage {
            Stage::Connecting { socket, .. } => PollFd::new(socket, PollFlags::OUT),
            Stage::Entering(chain) => PollFd::new(&chain.socket, PollFlags::IN),
        }
    }

    /// When a step is due even if its socket is not ready.
    pub(super) fn wake(&self, now: Instant) -> Option<Instant> {
        (!self.is_silent(now)).then_some(self.until)
    }
}

fn is_writable(socket: &Socket) -> Result<bool, EnterError> {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)];
    net::poll(&mut fds, Some(Instant::now())).map_err(EnterError::Broken)?;
    Ok(!fds[0].revents().is_empty())
}
