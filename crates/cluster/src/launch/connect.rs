//! Reaches all hosts of a job, before any rank starts.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use spark_ccl_console::print_error;
use spark_ccl_fork::lookup;

use super::Plan;
use super::link::{Event, Link, Senders};
use super::wire::Hello;
use crate::error::Error;
use crate::remote::{Host, Remote};

/// How often to name the hosts that have not answered.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long one look-up of a name may take.
const LOOKUP: Duration = Duration::from_secs(10);

/// Connects to the agent of each host, and waits until all have greeted. Otherwise returns what is
/// wrong, host by host.
pub(super) fn connect_all(
    remote: &Remote,
    plan: &Plan,
    (senders, events): (&Senders, &Receiver<Event>),
    beat: Duration,
    limit: Duration,
) -> Result<(Vec<Link>, Vec<Hello>), Vec<String>> {
    let mut links = Vec::new();
    let hosts = plan.started().iter().zip(plan.first_ranks());
    for (number, (host, first)) in hosts.enumerate() {
        let link = Link::open(remote, host, (number, first), senders, beat);
        links.push(link.map_err(|error| vec![error.to_string()])?);
    }
    let mut waiting = Waiting {
        hellos: links.iter().map(|_| Greeting::Awaited).collect(),
        links,
        problems: Vec::new(),
    };
    waiting.wait(events, limit);
    let Waiting {
        mut links,
        hellos,
        problems,
        ..
    } = waiting;
    let hellos: Vec<Hello> = hellos.into_iter().filter_map(Greeting::hello).collect();
    if problems.is_empty() {
        return Ok((links, hellos));
    }
    links.iter_mut().for_each(Link::cut);
    Err(problems)
}

/// Waits until a name is known here, as that of a pod that is about to start, while no link is
/// open. Returns the signal that ends the wait, if one does.
pub(super) fn wait_for_name(
    name: &str,
    limit: Duration,
    events: &Receiver<Event>,
) -> Result<Option<i32>, Error> {
    let start = Instant::now();
    let mut next = start + PATIENCE;
    // A name server that is silent must not keep a signal waiting for long.
    while let Err(source) = lookup(name, 0, Instant::now() + LOOKUP.min(limit)) {
        if start.elapsed() >= limit {
            let what = format!(
                "looking up {name} for {} s (is it in /etc/hosts or DNS? --master-addr names \
                 another)",
                limit.as_secs_f64()
            );
            return Err(Error::system(what)(source));
        }
        if Instant::now() >= next {
            print_error(format_args!("waiting for the name {name}"));
            next = Instant::now() + PATIENCE;
        }
        if let Ok(Event::Signalled(signal)) = events.recv_timeout(Duration::from_millis(200)) {
            return Ok(Some(signal));
        }
    }
    Ok(None)
}

/// The state of a host's greeting.
enum Greeting {
    Awaited,
    Heard(Box<Hello>),
    /// There will be none.
    Missed,
}

impl Greeting {
    fn hello(self) -> Option<Hello> {
        match self {
            Self::Heard(hello) => Some(*hello),
            Self::Awaited | Self::Missed => None,
        }
    }
}

struct Waiting {
    links: Vec<Link>,
    hellos: Vec<Greeting>,
    problems: Vec<String>,
}

impl Waiting {
    fn wait(&mut self, events: &Receiver<Event>, limit: Duration) {
        let start = Instant::now();
        let (end, mut next) = (start + limit, start + PATIENCE);
        while self.silent().next().is_some() {
            let until = end.min(next);
            match events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(event) => self.take(event),
                Err(RecvTimeoutError::Timeout) if Instant::now() >= end => self.give_up(limit),
                Err(RecvTimeoutError::Timeout) => {
                    let names: Vec<_> = self.silent().map(|host| host.name.as_str()).collect();
                    let seconds = start.elapsed().as_secs();
                    print_error(format_args!(
                        "waiting for {} ({seconds} s)",
                        names.join(", ")
                    ));
                    next = Instant::now() + PATIENCE;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn silent(&self) -> impl Iterator<Item = &Host> {
        let all = self.links.iter().zip(&self.hellos);
        all.filter(|(_, hello)| matches!(hello, Greeting::Awaited))
            .map(|(link, _)| &link.host)
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Hello(number, mut hello) => {
                let host = &self.links[number].host;
                let name = &host.name;
                if host.is_here {
                    // The connection by which a user is logged in here.
                    hello.connection = None;
                }
                if hello.version != spark_ccl::VERSION {
                    self.problems.push(format!(
                        "{name}: spark-perf there is version {}, here {}: copy this one there, or \
                         name another with --remote-program",
                        hello.version,
                        spark_ccl::VERSION
                    ));
                }
                self.hellos[number] = Greeting::Heard(hello);
            }
            Event::Closed(number, said) => self.closed(number, &said),
            Event::RankReport(number, _) | Event::Nonsense(number) => {
                let name = &self.links[number].host.name;
                self.problems
                    .push(format!("{name}: its agent speaks out of turn"));
                self.hellos[number] = Greeting::Missed;
            }
            Event::Signalled(signal) => {
                self.problems.push(format!("ended by signal {signal}"));
                self.miss_all();
            }
            // No rank runs yet.
            Event::NotPrinted(_) | Event::Printed => {}
        }
    }

    /// An agent has ended, or ssh has.
    fn closed(&mut self, number: usize, said: &[u8]) {
        let link = &mut self.links[number];
        let problem = match link.close() {
            Ok(status) => Remote::failure(&link.host, status, said).map_or_else(
                || {
                    let said = String::from_utf8_lossy(said);
                    let name = &link.host.name;
                    format!("{name}: spark-perf launch-agent: {status}: {}", said.trim())
                },
                |error| error.to_string(),
            ),
            Err(error) => format!("{}: waiting for its agent: {error}", link.host.name),
        };
        self.problems.push(problem);
        self.hellos[number] = Greeting::Missed;
    }

    fn give_up(&mut self, limit: Duration) {
        let late: Vec<String> = self.silent().map(|host| host.name.clone()).collect();
        self.problems.extend(late.into_iter().map(|name| {
            format!(
                "{name}: no answer within {} s; does ssh {name} true work without a question? \
                 --connect-timeout waits longer",
                limit.as_secs_f64()
            )
        }));
        self.miss_all();
    }

    /// Stops waiting for all hosts.
    fn miss_all(&mut self) {
        for hello in &mut self.hellos {
            if matches!(hello, Greeting::Awaited) {
                *hello = Greeting::Missed;
            }
        }
    }
}
