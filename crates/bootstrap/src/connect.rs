//! Blocking dials: to the rendezvous, to a rank, and again to a rank whose stream has broken.

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use socket2::Socket;
use spark_ccl_seal::{Seals, Stream};

use crate::connector::Connector;
use crate::dial::{LAST_PAUSE, Route, describe};
use crate::handshake::{EnterError, Entered, Intent, Open, enter};
use crate::{Error, Secret, net};

/// A dial to another process.
pub(crate) struct Connect<'a> {
    /// The other end, for errors.
    pub(crate) peer: &'a str,
    pub(crate) routes: &'a [Route],
    pub(crate) key: &'a Secret,
    pub(crate) intent: Intent,
    pub(crate) deadline: Instant,
    /// How long the other end may refuse connections on every route: it may not listen yet.
    pub(crate) refusal: Duration,
    /// Returns an error once something has made the dial pointless.
    pub(crate) interrupt: &'a dyn Fn() -> Option<Error>,
    /// Returns more routes, if none has led to the other end's host. `None` if there are no others.
    pub(crate) more: Option<&'a dyn Fn() -> Vec<Route>>,
}

/// Connects and authenticates, by the deadline.
pub(crate) fn establish(to: &Connect<'_>) -> Result<Entered, Error> {
    let begin = Instant::now();
    let mut connector = Connector::new(
        to.peer.to_owned(),
        to.routes.to_vec(),
        to.intent,
        to.refusal,
        (begin, to.deadline),
    );
    if to.more.is_some() {
        connector = connector.with_more();
    }
    loop {
        let now = Instant::now();
        match connector.step(to.key, now) {
            Some(Ok(entered)) => return Ok(entered),
            Some(Err(error)) => return Err((to.interrupt)().unwrap_or(error)),
            None => {}
        }
        if let Some(error) = (to.interrupt)() {
            return Err(error);
        }
        if now >= to.deadline {
            return Err(connector.unreachable());
        }
        if let Some(find) = to.more.filter(|_| connector.is_at_a_loss()) {
            connector.add(find());
        }
        let mut fds = Vec::new();
        connector.watch(now, &mut fds);
        let soon = to.deadline.min(now + LAST_PAUSE);
        let until = connector.next_wake(now).map_or(soon, |wake| wake.min(soon));
        net::poll(&mut fds, Some(until)).map_err(|error| Error::os("wait for a peer", &error))?;
    }
}

/// Why a process that was connected before could not be reached again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreached {
    /// Its host refuses the connection: the process no longer listens.
    Refused(String),
    /// No route to its host exists, or none answers.
    NoAnswer(String),
    /// Its host accepts the connection, but the process does not answer, or turns it down.
    Unresponsive(String),
}

/// Connects and authenticates again to a process that was connected before. Tries each route once,
/// for its share of the time.
///
/// `is_own` returns whether an address belongs to this host, too: errors at own addresses prove
/// nothing about the peer.
pub(crate) fn redial(
    to: &Connect<'_>,
    is_own: impl Fn(IpAddr) -> bool,
) -> Result<Stream, Unreached> {
    let (mut attempts, mut refused, mut is_taken) = (Vec::new(), None, false);
    for (index, route) in to.routes.iter().enumerate() {
        let left = to.deadline.saturating_duration_since(Instant::now());
        let until = Instant::now() + left / (to.routes.len() - index) as u32;
        let is_own = matches!(route, Route::Tcp { target, .. } if is_own(target.ip()));
        let (problem, is_refusal) = match route.connect(until) {
            Ok(socket) => match prove(to, &socket, until, until) {
                Ok(seals) => return Ok(Entered { socket, seals }.into_stream()),
                Err(EnterError::Final(error)) => {
                    is_taken |= !is_own;
                    (error.to_string(), false)
                }
                Err(EnterError::Broken(error)) if error.kind() == io::ErrorKind::TimedOut => {
                    is_taken |= !is_own;
                    ("it took the connection, and is silent".to_owned(), false)
                }
                Err(EnterError::Broken(error)) => (describe(&error), false),
                Err(EnterError::Crossed) => ("it calls this process itself".to_owned(), false),
            },
            Err(error) => (
                describe(&error),
                error.kind() == io::ErrorKind::ConnectionRefused,
            ),
        };
        if !is_own {
            refused.get_or_insert(is_refusal);
        }
        attempts.push(format!("{}: {problem}", route.name()));
    }
    let text = attempts.join(", ");
    // Another machine may have one of the addresses. So the first route counts: it is in a shared
    // subnet.
    Err(match (is_taken, refused) {
        (true, _) => Unreached::Unresponsive(text),
        (false, Some(true)) => Unreached::Refused(text),
        (false, _) => Unreached::NoAnswer(text),
    })
}

fn prove(
    to: &Connect<'_>,
    socket: &Socket,
    answer_by: Instant,
    deadline: Instant,
) -> Result<Seals, EnterError> {
    let open = Open::new(to.intent).map_err(EnterError::Final)?;
    enter(socket, to.key, &open, to.peer, answer_by, deadline)
}
