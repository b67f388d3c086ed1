//! A non-blocking call to another rank: connects, authenticates, and retries.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use socket2::Socket;
use spark_ccl_fork::Unshared;
use spark_ccl_seal::Stream;

use crate::approach::Approach;
use crate::dial::{ATTEMPT, FIRST_PAUSE, LAST_PAUSE, Route, describe};
use crate::handshake::{EnterError, Intent};
use crate::{Error, Secret, net};

/// How long a rank's listener may refuse connections. That is short: it exists before other ranks get its address.
const REFUSAL: Duration = Duration::from_millis(500);
/// How soon to try again if the backlog is full.
const FULL: Duration = Duration::from_millis(2);

/// A call to another rank. It tries all routes in rounds until the deadline, unless the answers
/// show that retrying is pointless. A connection that is not answered within [`ATTEMPT`] is kept,
/// and the other routes are tried, too: its end may be a stranger, or the peer, which is stopped.
/// How long that may take is not for the bootstrap to decide, so a call that has such connections
/// goes on.
pub(crate) struct Caller {
    /// The other end, for errors.
    name: String,
    routes: Vec<Route>,
    intent: Intent,
    deadline: Instant,
    since: Instant,
    stage: Stage,
    /// The route that is being tried, or is next.
    route: usize,
    pause: Duration,
    round: Round,
    unanswered: Vec<Unanswered>,
    /// After how long without any connection it gives up; at the deadline if `None`.
    patience: Option<Duration>,
}

/// A connection that was taken, and not answered yet.
struct Unanswered {
    route: usize,
    approach: Approach,
}

enum Stage {
    Pausing {
        until: Instant,
    },
    Connecting {
        socket: Unshared<Socket>,
        until: Instant,
    },
    Entering {
        approach: Approach,
        until: Instant,
    },
    /// No route is being tried: only the unanswered connections are left.
    Listening,
}

/// The outcomes of one round over all routes.
#[derive(Default)]
struct Round {
    attempts: Vec<(String, String)>,
    /// Whether there was any other outcome than a refused connection.
    answered: bool,
    /// Whether any route led to a connection.
    is_connected: bool,
    /// An error after which retrying its route is pointless. It may come from a stranger if addresses are not unique.
    final_error: Option<Error>,
    /// Whether retrying may help on some route.
    may_recover: bool,
}

impl Caller {
    /// A call that starts at `begin`.
    pub(crate) fn new(
        name: String,
        routes: Vec<Route>,
        intent: Intent,
        begin: Instant,
        deadline: Instant,
    ) -> Self {
        Self {
            name,
            routes,
            intent,
            deadline,
            since: begin,
            stage: Stage::Pausing { until: begin },
            route: 0,
            pause: FIRST_PAUSE,
            round: Round::default(),
            unanswered: Vec::new(),
            patience: None,
        }
    }

    /// Gives up when no route has led to a connection for that long: others may pass it on.
    pub(crate) fn with_patience(self, patience: Duration) -> Self {
        let patience = Some(patience);
        Self { patience, ..self }
    }

    /// The routes that lead to a connection that is not answered, in words.
    pub(crate) fn silence(&self) -> Option<String> {
        let names = self.unanswered.iter().map(|one| self.route_name(one.route));
        let names: Vec<_> = names.collect();
        (!names.is_empty())
            .then(|| format!("{} took the connection and is silent", names.join(", and ")))
    }

    fn route_name(&self, route: usize) -> String {
        self.routes.get(route).map(Route::name).unwrap_or_default()
    }

    /// Adds the descriptors that wake [`step`](Self::step).
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        match &self.stage {
            Stage::Pausing { .. } | Stage::Listening => {}
            Stage::Connecting { socket, .. } => fds.push(PollFd::new(socket, PollFlags::OUT)),
            Stage::Entering { approach, .. } => {
                fds.push(PollFd::new(&approach.socket, PollFlags::IN));
            }
        }
        let unanswered = self.unanswered.iter();
        fds.extend(unanswered.map(|one| PollFd::new(&one.approach.socket, PollFlags::IN)));
    }

    /// When [`step`](Self::step) is due even if no descriptor is ready.
    pub(crate) fn next_wake(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Pausing { until }
            | Stage::Connecting { until, .. }
            | Stage::Entering { until, .. } => Some(*until),
            Stage::Listening => None,
        }
    }

    /// Advances as far as possible without blocking. Returns the stream, or why there is none, once that is decided.
    pub(crate) fn step(&mut self, key: &Secret, now: Instant) -> Option<Result<Stream, Error>> {
        if let Some(stream) = self.hear(key, now) {
            return Some(Ok(stream));
        }
        loop {
            while self.unanswered.iter().any(|one| one.route == self.route) {
                self.route += 1;
            }
            if self.route >= self.routes.len() {
                return self.end_round(now).map(Err);
            }
            let stage = std::mem::replace(&mut self.stage, Stage::Pausing { until: now });
            match self.advance(stage, key, now) {
                Ok(Step::Done(stream)) => return Some(Ok(stream)),
                Ok(Step::Wait(stage)) => {
                    self.stage = stage;
                    return None;
                }
                Ok(Step::Go(stage)) => {
                    self.round.is_connected = true;
                    self.stage = stage;
                }
                Ok(Step::Keep(unanswered)) => self.unanswered.push(unanswered),
                Err(error) => {
                    self.record_failure(self.route, error);
                    self.route += 1;
                }
            }
        }
    }

    /// Advances the connections that were not answered at first. Returns the first that is.
    fn hear(&mut self, key: &Secret, now: Instant) -> Option<Stream> {
        for mut one in std::mem::take(&mut self.unanswered) {
            match one.approach.step(key, &self.name) {
                Ok(true) => return Some(one.approach.into_stream(key)),
                Ok(false) => self.unanswered.push(one),
                Err(error) => {
                    self.record_failure(one.route, error);
                    if matches!(self.stage, Stage::Listening) {
                        self.begin_round(now);
                    }
                }
            }
        }
        None
    }

    fn advance(&self, stage: Stage, key: &Secret, now: Instant) -> Result<Step, EnterError> {
        match stage {
            Stage::Pausing { until } if until > now => Ok(Step::Wait(stage)),
            Stage::Pausing { .. } => self.connect(now),
            Stage::Connecting { socket, until } => {
                if !is_writable(&socket)? {
                    return if until > now {
                        Ok(Step::Wait(Stage::Connecting { socket, until }))
                    } else {
                        Err(EnterError::Broken(io::ErrorKind::TimedOut.into()))
                    };
                }
                net::end_tcp(&socket).map_err(EnterError::Broken)?;
                self.enter(socket, now).map(Step::Go)
            }
            Stage::Entering {
                mut approach,
                until,
            } => {
                if approach.step(key, &self.name)? {
                    return Ok(Step::Done(approach.into_stream(key)));
                }
                if until > now {
                    return Ok(Step::Wait(Stage::Entering { approach, until }));
                }
                let route = self.route;
                Ok(Step::Keep(Unanswered { route, approach }))
            }
            Stage::Listening => Ok(Step::Wait(stage)),
        }
    }

    fn connect(&self, now: Instant) -> Result<Step, EnterError> {
        let Some(route) = self.routes.get(self.route) else {
            return Err(EnterError::Broken(io::ErrorKind::NotFound.into()));
        };
        match route.begin() {
            Ok((socket, true)) => self.enter(socket, now).map(Step::Go),
            Ok((socket, false)) => {
                let until = match self.routes.len() {
                    1 => self.deadline,
                    _ => self.deadline.min(now + ATTEMPT),
                };
                Ok(Step::Wait(Stage::Connecting { socket, until }))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.deadline > now => {
                Ok(Step::Wait(Stage::Pausing { until: now + FULL }))
            }
            Err(error) => Err(EnterError::from_connect(error)),
        }
    }

    fn enter(&self, socket: Unshared<Socket>, now: Instant) -> Result<Stage, EnterError> {
        let relays = self.routes.get(self.route).map_or(&[][..], Route::relays);
        let approach = Approach::begin(socket, relays, self.intent)?;
        let until = now + ATTEMPT;
        Ok(Stage::Entering { approach, until })
    }

    fn record_failure(&mut self, route: usize, error: EnterError) {
        let text = match error {
            EnterError::Final(error) => {
                let text = error.to_string();
                self.round.final_error.get_or_insert(error);
                text
            }
            EnterError::Broken(error) => {
                self.round.may_recover = true;
                self.round.answered |= error.kind() != io::ErrorKind::ConnectionRefused;
                describe(&error)
            }
            EnterError::Crossed => {
                self.round.may_recover = true;
                self.round.answered = true;
                "it calls this rank itself".to_owned()
            }
        };
        self.round.attempts.push((self.route_name(route), text));
    }

    /// Ends a round. Returns the error if another round is pointless; otherwise pauses before the next one.
    fn end_round(&mut self, now: Instant) -> Option<Error> {
        let round = std::mem::take(&mut self.round);
        let is_last = now + self.pause >= self.deadline;
        if !self.unanswered.is_empty() {
            if is_last || self.unanswered.len() == self.routes.len() {
                self.stage = Stage::Listening;
            } else {
                self.begin_round(now);
            }
            return None;
        }
        if let Some(error) = round.final_error
            && !round.may_recover
        {
            return Some(error);
        }
        let lasts = now.saturating_duration_since(self.since);
        let is_refused = !round.answered && lasts >= REFUSAL;
        let is_cut_off = !round.is_connected && self.patience.is_some_and(|most| lasts >= most);
        if is_refused || is_cut_off || is_last {
            return Some(Error::Unreachable {
                peer: self.name.clone(),
                attempts: round.attempts,
                refused: !round.answered,
            });
        }
        self.begin_round(now);
        None
    }

    fn begin_round(&mut self, now: Instant) {
        self.route = 0;
        let until = now + self.pause;
        self.stage = Stage::Pausing { until };
        self.pause = (self.pause * 2).min(LAST_PAUSE);
    }
}

/// What follows a stage.
enum Step {
    Done(Stream),
    Wait(Stage),
    Go(Stage),
    Keep(Unanswered),
}

fn is_writable(socket: &Socket) -> Result<bool, EnterError> {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)];
    net::poll(&mut fds, Some(Instant::now())).map_err(EnterError::Broken)?;
    Ok(!fds[0].revents().is_empty())
}

#[cfg(test)]
mod tests;
