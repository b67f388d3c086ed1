//! Dialling: the order of the routes to a peer, and what to do if one does not answer.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use socket2::Socket;
use spark_ccl_fork::Unshared;
use spark_ccl_seal::{Seals, Stream};

use crate::handshake::{EnterError, Entered, Intent, Open, enter};
use crate::options::{Address, needs_scope};
use crate::{Error, Secret, net};

/// How long one address may take to connect if there are others, and at first how long to answer.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(3);
/// How long one address may take to answer in the end. A listener may have a whole backlog of strangers to serve first.
const LONGEST_ATTEMPT: Duration = Duration::from_secs(20);
/// The pause after all addresses have failed: the first one, and the longest that backoff reaches.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(10);
pub(crate) const LAST_PAUSE: Duration = Duration::from_millis(400);

/// A route to the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route {
    Unix {
        name: String,
    },
    Tcp {
        source: Option<SocketAddr>,
        target: SocketAddr,
    },
    /// To a rank that passes the connection on.
    Relayed {
        first: Box<Route>,
        /// What that rank and the following ones are asked for.
        relays: Vec<Intent>,
    },
}

impl Route {
    fn connect(&self, deadline: Instant) -> io::Result<Unshared<Socket>> {
        let socket = match self {
            Route::Unix { name } => net::connect_unix(name, deadline),
            Route::Tcp { source, target } => net::connect_tcp(*source, *target, deadline),
            Route::Relayed { first, .. } => return first.connect(deadline),
        };
        socket.map(Unshared::new)
    }

    /// Starts to connect. Returns whether the connection is complete already.
    pub(crate) fn begin(&self) -> io::Result<(Unshared<Socket>, bool)> {
        let (socket, is_complete) = match self {
            Route::Unix { name } => (net::begin_unix(name)?, true),
            Route::Tcp { source, target } => net::begin_tcp(*source, *target)?,
            Route::Relayed { first, .. } => return first.begin(),
        };
        Ok((Unshared::new(socket), is_complete))
    }

    /// Whether it ends on this host.
    pub(crate) fn leads_here(&self) -> bool {
        match self {
            Route::Unix { .. } => true,
            Route::Tcp { target, .. } => net::is_own(target.ip()),
            Route::Relayed { first, .. } => first.leads_here(),
        }
    }

    /// What the ranks are asked for that pass the connection on.
    pub(crate) fn relays(&self) -> &[Intent] {
        match self {
            Route::Relayed { relays, .. } => relays,
            _ => &[],
        }
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Route::Unix { name } => format!("unix socket @{name}"),
            Route::Tcp {
                source: None,
                target,
            } => target.to_string(),
            Route::Tcp {
                source: Some(source),
                target,
            } => {
                format!("{target} from {}", source.ip())
            }
            Route::Relayed { first, relays } => {
                let ranks = if relays.len() == 1 { "rank" } else { "ranks" };
                format!("{}, passed on by {} {ranks}", first.name(), relays.len())
            }
        }
    }
}

/// The routes to `targets`, best first. Targets that share more leading bits with one of our `own` addresses (or with
/// `source`, if given) come first; the order is kept otherwise.
pub(crate) fn routes(
    own: &[Address],
    targets: &[SocketAddr],
    source: Option<IpAddr>,
) -> Vec<Route> {
    let own: Vec<Address> = match source {
        None => own.to_vec(),
        Some(ip) => vec![
            own.iter()
                .copied()
                .find(|o| o.ip == ip)
                .unwrap_or_else(|| ip.into()),
        ],
    };
    let mut ranked = Vec::new();
    for &target in targets {
        let scoped = needs_scope(target.ip());
        if !scoped {
            let best = own
                .iter()
                .map(|o| common_bits(o.ip, target.ip()))
                .max()
                .unwrap_or(0);
            let from = source.and_then(|_| own.first()).map(|o| o.with_port(0));
            ranked.push((
                best,
                Route::Tcp {
                    source: from,
                    target,
                },
            ));
            continue;
        }
        // The scope is an interface index of the peer's host. Here, our own interfaces count.
        for here in own.iter().filter(|here| needs_scope(here.ip)) {
            let target = Address {
                ip: target.ip(),
                scope: here.scope,
            }
            .with_port(target.port());
            let from = source.map(|_| here.with_port(0));
            ranked.push((
                common_bits(here.ip, target.ip()),
                Route::Tcp {
                    source: from,
                    target,
                },
            ));
        }
    }
    if let Some(ip) = source {
        ranked.retain(|(_, route)| {
            matches!(route, Route::Tcp { target, .. } if target.is_ipv4() == ip.is_ipv4())
        });
    }
    ranked.sort_by_key(|(bits, _)| std::cmp::Reverse(*bits));
    ranked.into_iter().map(|(_, route)| route).collect()
}

/// One more than the number of leading bits that two addresses of one family share; 0 across families.
fn common_bits(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => 1 + (a.to_bits() ^ b.to_bits()).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => 1 + (a.to_bits() ^ b.to_bits()).leading_zeros(),
        _ => 0,
    }
}

/// A call to another process.
pub(crate) struct Call<'a> {
    /// The other end, for errors.
    pub(crate) peer: &'a str,
    pub(crate) routes: &'a [Route],
    pub(crate) key: &'a Secret,
    pub(crate) intent: Intent,
    pub(crate) deadline: Instant,
    /// How long the other end may refuse connections on every route, since it may not listen yet.
    pub(crate) refusal: Duration,
    /// Returns an error once something has made the call pointless.
    pub(crate) interrupt: &'a dyn Fn() -> Option<Error>,
}

/// Connects and authenticates. Tries all routes in rounds until the deadline, unless the answers show that retrying is
/// pointless.
pub(crate) fn call(call: &Call<'_>) -> Result<Entered, Error> {
    let start = Instant::now();
    let (mut pause, mut limit) = (FIRST_PAUSE, ATTEMPT);
    loop {
        let mut attempts = Vec::new();
        let mut refused = true;
        let mut final_error = None;
        // If addresses are not unique, a stranger may answer at an address of the rank.
        let mut may_be_strangers = false;
        for route in call.routes {
            match attempt(call, route, limit) {
                Ok(entered) => return Ok(entered),
                Err(EnterError::Final(error)) => {
                    attempts.push((route.name(), error.to_string()));
                    final_error = final_error.or(Some(error));
                }
                Err(EnterError::Broken(error)) => {
                    refused &= error.kind() == io::ErrorKind::ConnectionRefused;
                    may_be_strangers = matches!(call.intent, Intent::Stream { .. });
                    attempts.push((route.name(), describe(&error)));
                }
                Err(EnterError::Crossed) => {
                    may_be_strangers = true;
                    attempts.push((route.name(), "it calls this process itself".to_owned()));
                }
            }
        }
        let final_error = final_error.filter(|_| !may_be_strangers);
        if let Some(error) = (call.interrupt)().or(final_error) {
            return Err(error);
        }
        let now = Instant::now();
        let pointless = refused && now >= start + call.refusal;
        if pointless || now + pause >= call.deadline {
            return Err(Error::Unreachable {
                peer: call.peer.to_owned(),
                attempts,
                refused,
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LAST_PAUSE);
        limit = (limit * 2).min(LONGEST_ATTEMPT);
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
/// `is_own` returns whether an address belongs to this host, too: errors at such an address prove nothing about the
/// peer.
pub(crate) fn redial(
    call: &Call<'_>,
    is_own: impl Fn(IpAddr) -> bool,
) -> Result<Stream, Unreached> {
    let (mut attempts, mut refused, mut is_taken) = (Vec::new(), None, false);
    for (index, route) in call.routes.iter().enumerate() {
        let left = call.deadline.saturating_duration_since(Instant::now());
        let until = Instant::now() + left / (call.routes.len() - index) as u32;
        let is_own = matches!(route, Route::Tcp { target, .. } if is_own(target.ip()));
        let (problem, is_refusal) = match route.connect(until) {
            Ok(socket) => match prove(call, &socket, until, until) {
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
    // Another machine may have one of the addresses. So the first route counts: it is the one in a shared subnet.
    Err(match (is_taken, refused) {
        (true, _) => Unreached::Unresponsive(text),
        (false, Some(true)) => Unreached::Refused(text),
        (false, _) => Unreached::NoAnswer(text),
    })
}

fn prove(
    call: &Call<'_>,
    socket: &Socket,
    answer_by: Instant,
    deadline: Instant,
) -> Result<Seals, EnterError> {
    let open = Open::new(call.intent).map_err(EnterError::Final)?;
    enter(socket, call.key, &open, call.peer, answer_by, deadline)
}

/// Tries one route. If there are others, a stranger at this one that is silent must not hold them
/// up, also where it begins to answer.
fn attempt(call: &Call<'_>, route: &Route, limit: Duration) -> Result<Entered, EnterError> {
    let within = |limit| match call.routes.len() {
        1 => call.deadline,
        _ => call.deadline.min(Instant::now() + limit),
    };
    let socket = route
        .connect(within(ATTEMPT))
        .map_err(EnterError::from_connect)?;
    let seals = prove(call, &socket, within(limit), within(LONGEST_ATTEMPT))?;
    Ok(Entered { socket, seals })
}

pub(crate) fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(texts: &[&str]) -> Vec<Address> {
        texts
            .iter()
            .map(|text| text.parse::<IpAddr>().unwrap().into())
            .collect()
    }

    fn targets(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn names(routes: &[Route]) -> Vec<String> {
        routes.iter().map(Route::name).collect()
    }

    #[test]
    fn addresses_of_our_subnet_come_first() {
        let routes = routes(
            &own(&["192.168.7.2", "10.1.2.3"]),
            &targets(&[
                "[2001:db8::1]:1",
                "172.16.0.1:2",
                "192.168.7.9:3",
                "10.1.2.1:4",
            ]),
            None,
        );
        let names = names(&routes);
        assert_eq!(names[..2], ["10.1.2.1:4", "192.168.7.9:3"]);
        assert_eq!(names[3], "[2001:db8::1]:1");
    }

    #[test]
    fn a_source_chooses_family_and_order() {
        let routes = routes(
            &own(&["192.168.7.2", "10.1.2.3"]),
            &targets(&["[2001:db8::1]:1", "192.168.7.9:3", "10.1.2.9:4"]),
            Some("10.1.2.3".parse().unwrap()),
        );
        assert_eq!(
            names(&routes),
            ["10.1.2.9:4 from 10.1.2.3", "192.168.7.9:3 from 10.1.2.3"]
        );
    }

    #[test]
    fn link_local_targets_get_our_scopes() {
        let mut own = own(&["fe80::5", "fe80::6", "10.0.0.1"]);
        own[0].scope = 3;
        own[1].scope = 4;
        let mut target = Address::from("fe80::9".parse::<IpAddr>().unwrap());
        target.scope = 77;
        let scopes: Vec<u32> = routes(&own, &[target.with_port(1)], None)
            .iter()
            .map(|route| match route {
                Route::Tcp {
                    target: SocketAddr::V6(v6),
                    ..
                } => v6.scope_id(),
                _ => 0,
            })
            .collect();
        assert_eq!(scopes, [3, 4]);
    }
}
