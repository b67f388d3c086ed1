//! A non-blocking dial to another process: connects over the first route that leads there,
//! authenticates, and retries.

mod attempt;

use std::io;
use std::time::{Duration, Instant};

use attempt::{Attempt, Step};
use rustix::event::PollFd;

use crate::dial::{ATTEMPT, FIRST_PAUSE, LAST_PAUSE, Route, describe};
use crate::handshake::{EnterError, Entered, Intent};
use crate::{Error, Secret, net};

/// The pause before the next attempt if the listener's backlog is full.
const FULL: Duration = Duration::from_millis(2);
/// How long a refusal means only that the peer does not listen yet.
const REFUSED: Duration = Duration::from_secs(2);

/// A dial. Begins with the best route. Tries the next one beside it as soon as one has failed, or
/// has not connected for a moment ([`Route::patience`]). Waits longer, up to [`ATTEMPT`], once a
/// connection is established. Only one connection at a time gets the proof of the secret, so the
/// peer takes no other for the stream; the others are closed.
///
/// Routes that have failed are retried in rounds until the deadline, unless the answers show that
/// this is pointless. An unanswered connection is kept meanwhile: its other end may be a stranger,
/// or the peer, if that is stopped. A dial with unanswered connections continues: others decide how
/// long a peer may be stopped.
pub(crate) struct Connector {
    /// The other end, for errors.
    name: String,
    routes: Vec<Route>,
    intent: Intent,
    deadline: Instant,
    since: Instant,
    /// Until when a refusal may mean that the peer does not listen yet.
    refusal: Instant,
    attempts: Vec<Attempt>,
    /// How the last attempt of each route has failed.
    failures: Vec<Option<Failure>>,
    /// The next route of this round, and when it may begin.
    next: usize,
    next_at: Instant,
    pause: Duration,
    /// The time that a route has to connect before the next one is tried beside it.
    stagger: fn(&Route) -> Duration,
    /// No further round begins: only the current attempts are left.
    is_last_round: bool,
    /// The route that led to the peer.
    used: Option<usize>,
    /// By when a route must have led to a connection; the deadline if `None`.
    patience: Option<Instant>,
    /// Whether any route has.
    is_connected: bool,
    /// The number of routes given at first, if more may be added.
    given: Option<usize>,
    /// Whether the last round has shown that more are needed.
    is_at_a_loss: bool,
}

/// Why an attempt has failed.
enum Failure {
    Refused(String),
    /// Retrying the route is pointless. A stranger may have answered if addresses are not unique.
    Final(Error),
    /// The other end dials this process itself.
    Crossed,
    Broken(String),
}

impl Connector {
    /// Begins a dial at `begin`. The peer may refuse connections for `refusal`.
    pub(crate) fn new(
        name: String,
        routes: Vec<Route>,
        intent: Intent,
        refusal: Duration,
        (begin, deadline): (Instant, Instant),
    ) -> Self {
        Self {
            name,
            intent,
            deadline,
            since: begin,
            refusal: net::deadline_after(begin, refusal),
            attempts: Vec::new(),
            failures: routes.iter().map(|_| None).collect(),
            routes,
            next: 0,
            next_at: begin,
            pause: FIRST_PAUSE,
            stagger: Route::patience,
            is_last_round: false,
            used: None,
            patience: None,
            is_connected: false,
            given: None,
            is_at_a_loss: false,
        }
    }

    /// Expects more routes to be added when it [is at a loss](Self::is_at_a_loss).
    pub(crate) fn with_more(self) -> Self {
        let given = Some(self.routes.len());
        Self { given, ..self }
    }

    /// Whether a round over all routes has not led to the peer's host.
    pub(crate) fn is_at_a_loss(&self) -> bool {
        self.is_at_a_loss
    }

    /// Replaces the routes that were added earlier.
    pub(crate) fn add(&mut self, more: Vec<Route>) {
        self.is_at_a_loss = false;
        self.next = 0;
        self.routes
            .truncate(self.given.unwrap_or(self.routes.len()));
        self.routes.extend(more);
        self.attempts.clear();
        self.failures = self.routes.iter().map(|_| None).collect();
    }

    /// Tries all routes at once, since hardly any leads to the peer.
    pub(crate) fn at_once(self) -> Self {
        Self {
            stagger: |_| Duration::ZERO,
            ..self
        }
    }

    /// Gives up if no route has led to a connection by `until`: others may pass the dial on.
    pub(crate) fn with_patience(self, until: Instant) -> Self {
        let patience = Some(until);
        Self { patience, ..self }
    }

    /// The routes whose connections are not answered, in words.
    pub(crate) fn silence(&self, now: Instant) -> Option<String> {
        let silent = self.attempts.iter().filter(|one| one.is_silent(now));
        let names: Vec<_> = silent.map(|one| self.routes[one.route].name()).collect();
        (!names.is_empty())
            .then(|| format!("{} took the connection and is silent", names.join(", and ")))
    }

    /// Adds the descriptors that wake [`step`](Self::step).
    pub(crate) fn watch<'a>(&'a self, now: Instant, fds: &mut Vec<PollFd<'a>>) {
        let prover = self.prover(now);
        let may_go_on = |one: &&Attempt| !one.is_connected() || may_prove(prover, one.route);
        fds.extend(self.attempts.iter().filter(may_go_on).map(Attempt::watch));
    }

    /// When [`step`](Self::step) is due even if no descriptor is ready.
    pub(crate) fn next_wake(&self, now: Instant) -> Option<Instant> {
        let next = (self.next < self.routes.len()).then(|| self.next_begin(now));
        let attempts = self.attempts.iter().filter_map(|one| one.wake(now));
        attempts.chain(next).min()
    }

    /// Advances as far as possible without blocking. Once that is decided, returns the connection,
    /// or why there is none.
    pub(crate) fn step(&mut self, key: &Secret, now: Instant) -> Option<Result<Entered, Error>> {
        loop {
            if let Some(entered) = self.advance(key, now) {
                return Some(Ok(entered));
            }
            if self.is_cut_off(now) {
                return Some(Err(self.unreachable()));
            }
            while self.attempts.iter().any(|one| one.route == self.next) {
                self.next += 1;
            }
            if self.next < self.routes.len() {
                if self.next_begin(now) > now {
                    return None;
                }
                self.begin(now);
            } else if self.is_last_round
                || self.attempts.iter().any(|one| one.awaited(now).is_some())
            {
                return None;
            } else if let Some(error) = self.end_round(now) {
                return Some(Err(error));
            }
        }
    }

    /// Names the chosen routes that do not lead to the peer, and the one that does. `None` if no
    /// chosen one was given up, or only for another address behind the same interface.
    pub(crate) fn unchosen_route(&self) -> Option<String> {
        let used = self.used?;
        let is_lost =
            |route: &Route| route.is_chosen() && route.source() != self.routes[used].source();
        let given_up = (0..used).filter(|&route| is_lost(&self.routes[route]));
        let texts =
            given_up.map(|route| format!("{}: {}", self.routes[route].name(), self.failure(route)));
        let texts: Vec<_> = texts.collect();
        let used = self.routes[used].name();
        let peer = &self.name;
        (!texts.is_empty())
            .then(|| format!("data for {peer} go to {used}, since {}", texts.join(", ")))
    }

    /// The error of a dial that ends now.
    pub(crate) fn unreachable(&self) -> Error {
        let routes = 0..self.routes.len();
        let attempt = |route: usize| (self.routes[route].name(), self.failure(route));
        Error::Unreachable {
            peer: self.name.clone(),
            attempts: routes.map(attempt).collect(),
            refused: self.is_refused(),
        }
    }

    /// Advances the attempts. Returns the first connection that is authenticated, and closes the
    /// others.
    fn advance(&mut self, key: &Secret, now: Instant) -> Option<Entered> {
        let mut prover = self.prover(now);
        for attempt in std::mem::take(&mut self.attempts) {
            let route = attempt.route;
            let may_prove = may_prove(prover, route);
            match attempt.step(self.intent, (key, &self.name), may_prove, now) {
                Ok(Step::Done(entered)) => {
                    self.used = Some(route);
                    return Some(entered);
                }
                Ok(Step::Wait(attempt)) => {
                    if attempt.is_proving(now) {
                        prover = Some(route);
                    }
                    self.is_connected |= attempt.is_connected();
                    self.attempts.push(attempt);
                }
                Err(error) => self.fail(route, error, now),
            }
        }
        None
    }

    /// The route whose connection has sent the proof and awaits the answer.
    fn prover(&self, now: Instant) -> Option<usize> {
        let proving = self.attempts.iter().find(|one| one.is_proving(now));
        proving.map(|one| one.route)
    }

    /// When the next route may be tried.
    fn next_begin(&self, now: Instant) -> Instant {
        let awaited = self.attempts.iter().filter_map(|one| one.awaited(now));
        awaited.chain([self.next_at]).max().unwrap_or(now)
    }

    /// Tries the next route.
    fn begin(&mut self, now: Instant) {
        let index = self.next;
        let limit = match self.routes.len() {
            1 if self.given.is_none() => self.deadline,
            _ => self.deadline.min(now + ATTEMPT),
        };
        let limit = match self.patience {
            Some(until) if until > now => limit.min(until),
            _ => limit,
        };
        let route = &self.routes[index];
        let stagger = (self.stagger)(route);
        match Attempt::begin((index, route), self.intent, limit, now) {
            Ok(attempt) => {
                self.attempts.push(attempt);
                self.next_at = now + stagger;
            }
            Err(EnterError::Broken(error))
                if error.kind() == io::ErrorKind::WouldBlock && self.deadline > now =>
            {
                self.next_at = now + FULL;
                return;
            }
            Err(error) => self.fail(index, error, now),
        }
        self.next += 1;
    }

    /// Notes why an attempt has failed. Another route may begin at once.
    fn fail(&mut self, route: usize, error: EnterError, now: Instant) {
        self.failures[route] = Some(match error {
            // A relay's refusal is not the peer's.
            EnterError::Final(error) if self.given.is_some_and(|given| route >= given) => {
                Failure::Broken(error.to_string())
            }
            EnterError::Final(error) => Failure::Final(error),
            EnterError::Crossed => Failure::Crossed,
            EnterError::Broken(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Failure::Refused(describe(&error))
            }
            EnterError::Broken(error) => Failure::Broken(describe(&error)),
        });
        if self.is_last_round {
            // Whether another round follows is decided again.
            self.is_last_round = false;
        } else if self.next > 0 {
            self.next_at = now;
        }
    }

    /// Ends a round. Returns the error if another round is pointless; otherwise pauses before the
    /// next one.
    fn end_round(&mut self, now: Instant) -> Option<Error> {
        if let Some(error) = self.final_error(now) {
            return Some(error);
        }
        let (is_late, is_idle) = (now + self.pause >= self.deadline, self.attempts.is_empty());
        if self.has_failed() {
            let is_refused = self.is_refused() && now >= self.refusal;
            if is_late && is_idle || is_refused {
                return Some(self.unreachable());
            }
            self.is_at_a_loss = self.given.is_some() && !self.is_heard(now);
        }
        if !is_idle && (is_late || self.attempts.len() == self.routes.len()) {
            self.is_last_round = true;
        } else {
            self.begin_round(now);
        }
        None
    }

    /// Whether no route has led to a connection within the allowed time.
    fn is_cut_off(&self, now: Instant) -> bool {
        let is_over = self.patience.is_some_and(|until| now >= until);
        is_over && !self.is_connected && self.has_failed()
    }

    /// Whether every route has failed and no connection is left. Some may be tried again.
    fn has_failed(&self) -> bool {
        !self.attempts.iter().any(Attempt::is_connected)
            && self.failures.iter().all(Option::is_some)
    }

    fn begin_round(&mut self, now: Instant) {
        self.is_last_round = false;
        self.next = 0;
        self.next_at = now + self.pause;
        self.pause = (self.pause * 2).min(LAST_PAUSE);
    }

    /// The error that makes retrying pointless. `None` if it may be a stranger's: between ranks,
    /// another route may lead to the peer, even one that is silent.
    fn final_error(&self, now: Instant) -> Option<Error> {
        let is_stream = matches!(self.intent, Intent::Stream { .. });
        let may_answer = |one: &Attempt| {
            if one.is_connected() {
                is_stream || !one.is_silent(now)
            } else {
                // A retry would only repeat the route's first answer.
                self.failures[one.route].is_none()
            }
        };
        if self.attempts.iter().any(may_answer) {
            return None;
        }
        let may_recover = |failure: &Failure| match failure {
            Failure::Crossed => true,
            Failure::Refused(_) | Failure::Broken(_) => is_stream,
            Failure::Final(_) => false,
        };
        let mut failures = self.failures.iter().flatten();
        if failures.clone().any(may_recover) {
            return None;
        }
        failures.find_map(|failure| match failure {
            Failure::Final(error) => Some(error.clone()),
            _ => None,
        })
    }

    /// Whether the dial may have reached the peer's host, which may have refused it. A router on
    /// the way may refuse it as well, for ever.
    fn is_heard(&self, now: Instant) -> bool {
        let is_early = now < self.since + REFUSED;
        let mut routes = self.routes.iter().zip(&self.failures);
        routes.any(|(route, failure)| {
            let is_answer = match failure {
                Some(Failure::Final(_) | Failure::Crossed) => true,
                Some(Failure::Refused(_)) => is_early,
                Some(Failure::Broken(_)) | None => false,
            };
            is_answer && route.relays().is_empty() && !route.leads_here()
        })
    }

    /// Whether all routes were refused.
    fn is_refused(&self) -> bool {
        let mut failures = self.failures.iter();
        failures.all(|failure| matches!(failure, Some(Failure::Refused(_))))
    }

    /// Why a route has failed, or what is known of it so far.
    fn failure(&self, route: usize) -> String {
        match &self.failures[route] {
            Some(Failure::Final(error)) => error.to_string(),
            Some(Failure::Crossed) => "it calls this process itself".to_owned(),
            Some(Failure::Refused(text) | Failure::Broken(text)) => text.clone(),
            None => describe(&io::ErrorKind::TimedOut.into()),
        }
    }
}

fn may_prove(prover: Option<usize>, route: usize) -> bool {
    prover.is_none_or(|prover| prover == route)
}

#[cfg(test)]
mod tests;
