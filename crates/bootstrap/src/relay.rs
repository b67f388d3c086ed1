//! Passes connections on, for ranks that do not reach each other by themselves. A relay copies
//! bytes both ways. The two ends prove the secret to each other as over any connection, and decide
//! what is said and by whom.
//!
//! A rank that asks for a relay has proved that it holds the secret. It names only the next rank,
//! and asks that one for the one after. So relays choose no ways, and others cannot lead them in
//! circles.

mod draining;
mod flow;

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

pub(crate) use draining::Draining;
use draining::{LONGEST, QUIET};
use flow::Flow;
use rustix::event::{PollFd, PollFlags};
use socket2::Socket;
use spark_ccl_fork::Unshared;

use crate::dial::Route;
use crate::handshake::Rejection;
use crate::net;

/// How long the next rank may take to accept a connection.
const DIALLING: Duration = Duration::from_secs(5);

/// The connections that this process passes on.
#[derive(Default)]
pub(crate) struct Relays {
    dialling: Vec<Dialling>,
    joined: Vec<Joined>,
}

/// A connection to the next rank in the making, over all routes at once.
struct Dialling {
    near: Unshared<Socket>,
    attempts: Vec<Unshared<Socket>>,
    until: Instant,
}

struct Joined {
    near: Unshared<Socket>,
    far: Unshared<Socket>,
    outward: Flow,
    back: Flow,
}

impl Relays {
    /// Passes a connection on over the first of these routes that connects.
    pub(crate) fn begin(&mut self, near: Unshared<Socket>, routes: &[Route], now: Instant) {
        let attempts = routes.iter().filter_map(|route| route.begin().ok());
        self.dialling.push(Dialling {
            near,
            attempts: attempts.map(|(socket, _)| socket).collect(),
            until: now + DIALLING,
        });
    }

    /// Whether nothing is passed on.
    pub(crate) fn is_idle(&self) -> bool {
        self.dialling.is_empty() && self.joined.is_empty()
    }

    /// Passes on the bytes on their way, until all connections are over or no more bytes come.
    pub(crate) fn drain(mut self) {
        let (until, mut active) = (Instant::now() + LONGEST, Instant::now());
        while !self.is_idle() {
            let now = Instant::now();
            // Bytes that a reader has yet to take are on their way, too.
            if self.serve(now) || self.joined.iter().any(Joined::holds_bytes) {
                active = now;
            }
            let quiet = until.min(active + QUIET);
            if now >= quiet {
                return;
            }
            let mut fds = Vec::new();
            self.watch(&mut fds);
            let wake = self.next_wake().map_or(quiet, |wake| wake.min(quiet));
            if net::poll(&mut fds, Some(wake)).is_err() {
                return;
            }
        }
    }

    /// Advances all connections without blocking, and drops the ones that are over. Returns whether
    /// any has made progress.
    pub(crate) fn serve(&mut self, now: Instant) -> bool {
        let mut has_moved = false;
        for one in std::mem::take(&mut self.dialling) {
            match one.step(now) {
                Dialled::Going(one) => self.dialling.push(one),
                Dialled::Joined(joined) => {
                    has_moved = true;
                    self.joined.push(joined);
                }
                Dialled::Over => {}
            }
        }
        self.joined
            .retain_mut(|joined| joined.goes_on(&mut has_moved));
        has_moved
    }

    /// Adds the descriptors that wake [`serve`](Self::serve).
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let attempts = self.dialling.iter().flat_map(|one| &one.attempts);
        fds.extend(attempts.map(|socket| PollFd::new(socket, PollFlags::OUT)));
        for one in &self.joined {
            let near = one.outward.wants_input() | one.back.wants_output();
            let far = one.back.wants_input() | one.outward.wants_output();
            for (socket, flags) in [(&one.near, near), (&one.far, far)] {
                // Without a flag, the end of a connection would wake the thread again and again.
                if !flags.is_empty() {
                    fds.push(PollFd::new(socket, flags));
                }
            }
        }
    }

    /// When [`serve`](Self::serve) is due even if no descriptor is ready.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        let busy = self.joined.iter().any(Joined::is_busy);
        let dialling = self.dialling.iter().map(|one| one.until);
        dialling.chain(busy.then(Instant::now)).min()
    }
}

enum Dialled {
    Going(Dialling),
    Joined(Joined),
    Over,
}

impl Dialling {
    fn step(mut self, now: Instant) -> Dialled {
        let mut connected = None;
        self.attempts = std::mem::take(&mut self.attempts)
            .into_iter()
            .filter_map(|socket| match outcome(&socket) {
                None => Some(socket),
                Some(Ok(())) => {
                    connected.get_or_insert(socket);
                    None
                }
                Some(Err(_)) => None,
            })
            .collect();
        match connected {
            Some(far) => {
                net::keep_asking(&self.near);
                net::keep_asking(&far);
                Dialled::Joined(Joined {
                    near: self.near,
                    far,
                    outward: Flow::default(),
                    back: Flow::default(),
                })
            }
            None if self.attempts.is_empty() || self.until <= now => {
                turn_away(&self.near);
                Dialled::Over
            }
            None => Dialled::Going(self),
        }
    }
}

impl Joined {
    /// Moves available bytes, and sets `has_moved` if any. Returns whether more may come.
    fn goes_on(&mut self, has_moved: &mut bool) -> bool {
        for (flow, from, to) in [
            (&mut self.outward, &self.near, &self.far),
            (&mut self.back, &self.far, &self.near),
        ] {
            match flow.run(from, to) {
                Ok(moved) => *has_moved |= moved,
                Err(_) => return false,
            }
        }
        !(self.outward.is_over() && self.back.is_over())
    }

    /// Whether it has read bytes that it could not write yet.
    fn holds_bytes(&self) -> bool {
        !self.outward.wants_output().is_empty() || !self.back.wants_output().is_empty()
    }

    /// Whether it has more to do at once.
    fn is_busy(&self) -> bool {
        self.outward.is_busy() || self.back.is_busy()
    }
}

/// The outcome of connecting; `None` while it goes on.
fn outcome(socket: &Socket) -> Option<io::Result<()>> {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)];
    match net::poll(&mut fds, Some(Instant::now())) {
        Ok(()) if fds[0].revents().is_empty() => None,
        Ok(()) => Some(net::end_tcp(socket)),
        Err(error) => Some(Err(error)),
    }
}

/// Reports that the next rank is not reached. Its first message has already arrived here.
fn turn_away(near: &Socket) {
    let _ = net::try_write(near, &Rejection::Unreached.frame());
    let _ = near.shutdown(Shutdown::Write);
    // With this unread, closing would reset the connection, and the answer might be lost.
    let _ = net::try_read(near, &mut [0; 512]);
}

#[cfg(test)]
mod tests;
