//! A running job: waits for its ranks, and ends all of them when one has failed.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use spark_ccl_console::{exit, print_error};

use super::exit_code;
use super::link::{Event, Link};
use super::printer::Printer;
use super::wire::{RankEnd, RankReport};
use crate::remote::Remote;

/// How long agents may take to end their ranks beyond the grace time: they kill for a while, and
/// then give up.
pub(super) const LAST: Duration = Duration::from_secs(10);

/// The hosts of a job, and the state of its ranks.
pub(super) struct Job {
    pub(super) links: Vec<Link>,
    /// The first rank of each host.
    pub(super) first: Vec<usize>,
    pub(super) printer: Printer,
    pub(super) grace: Duration,
    pub(super) lost_after: Duration,
}

impl Job {
    /// Waits until all ranks have ended, and all is printed; returns the exit code for all.
    pub(super) fn watch(&mut self, events: &Receiver<Event>) -> u8 {
        let mut state = State {
            code: None,
            deadline: None,
            running: self.links.iter().map(|link| link.host.slots).collect(),
            is_printed: false,
        };
        while !state.is_printed {
            let event = match state.deadline {
                None => events.recv().map_err(RecvTimeoutError::from),
                Some(deadline) => {
                    events.recv_timeout(deadline.saturating_duration_since(Instant::now()))
                }
            };
            match event {
                Ok(event) => self.take(event, &mut state),
                // The hosts also wait until someone reads the output.
                Err(_) if self.printer.is_writing() => state.deadline = Some(Instant::now() + LAST),
                Err(_) => {
                    self.abandon(&mut state);
                    break;
                }
            }
        }
        state.code.unwrap_or(0)
    }

    fn take(&mut self, event: Event, state: &mut State) {
        match event {
            Event::RankReport(host, RankReport::Ended(local, end)) => {
                state.running[host] = state.running[host].saturating_sub(1);
                self.ended(state, host, local, end);
            }
            Event::RankReport(host, RankReport::NotStarted(local, why)) => {
                state.running[host] = state.running[host].saturating_sub(1);
                let what = format!("{}: {why}", self.named(host, local));
                self.fail(state, 127, &what);
            }
            Event::NotPrinted(error) => {
                let why = format!("writing what the ranks print: {error}");
                self.fail(state, exit::SYSTEM, &why);
            }
            Event::Printed => state.is_printed = true,
            Event::Hello(host, _)
            | Event::RankReport(host, RankReport::Line(..))
            | Event::Nonsense(host) => {
                let name = &self.links[host].host.name;
                let what = format!("{name}: its agent says what it should not");
                self.fail(state, exit::SYSTEM, &what);
            }
            Event::Closed(host, said) => self.closed(state, host, &said),
            Event::Signalled(signal) => {
                let what = format!("ended by signal {signal}");
                self.fail(state, exit_code(signal), &what);
            }
        }
    }

    /// A rank and its host.
    fn named(&self, host: usize, local: usize) -> String {
        let name = &self.links[host].host.name;
        format!("rank {} on {name}", self.first[host] + local)
    }

    fn ended(&mut self, state: &mut State, host: usize, local: usize, end: RankEnd) {
        let named = self.named(host, local);
        match end {
            RankEnd::Code(0) => {}
            RankEnd::Code(code) => {
                self.fail(state, code, &format!("{named} ended with exit code {code}"));
            }
            RankEnd::Signal(signal) => {
                let code = 128_u8.saturating_add(signal);
                self.fail(
                    state,
                    code,
                    &format!("{named} was killed by signal {signal}"),
                );
            }
        }
    }

    /// A host will report nothing more: all its ranks have ended, or it is lost.
    fn closed(&mut self, state: &mut State, host: usize, said: &[u8]) {
        let link = &mut self.links[host];
        link.stop();
        let status = link.close();
        let name = &link.host.name;
        let failure = status.as_ref().ok().and_then(|status| {
            let ssh = Remote::failure(&link.host, *status, said);
            ssh.map(|error| error.to_string())
        });
        let what = match (failure, status) {
            (Some(failure), _) => failure,
            (None, Ok(status)) if status.success() && state.running[host] == 0 => return,
            (None, Ok(status)) => {
                let said = String::from_utf8_lossy(said);
                format!("{name}: its agent ended early: {status}: {}", said.trim())
            }
            (None, Err(error)) => format!("{name}: waiting for its agent: {error}"),
        };
        let what = format!(
            "{what}. What still runs there ends by itself, {} s after it has heard of the launcher \
             last",
            self.lost_after.as_secs_f64()
        );
        self.fail(state, exit::SYSTEM, &what);
    }

    /// Reports the first failure, and ends all ranks. Failures that follow from it are not
    /// reported.
    fn fail(&mut self, state: &mut State, code: u8, what: &str) {
        if state.code.is_some() {
            return;
        }
        // First of all, since writing the report may block: perhaps nobody reads it.
        self.links.iter_mut().for_each(Link::stop);
        state.code = Some(code);
        state.deadline = Some(Instant::now() + self.grace + LAST);
        print_error(format_args!("{what}"));
    }

    /// Gives up on hosts that do not report the ends of their ranks.
    fn abandon(&mut self, state: &mut State) {
        for (link, running) in self.links.iter_mut().zip(&state.running) {
            if *running > 0 {
                let name = &link.host.name;
                print_error(format_args!(
                    "{name}: has not said that its {running} ranks have ended. If it is alive, \
                     they end within {} s",
                    self.lost_after.as_secs_f64()
                ));
            }
            link.cut();
        }
    }
}

struct State {
    /// The exit code, once something has failed.
    code: Option<u8>,
    /// When to give up on silent hosts.
    deadline: Option<Instant>,
    /// How many ranks of each host have not been reported as ended.
    running: Vec<usize>,
    /// Whether all has been printed, which also means that all links are closed.
    is_printed: bool,
}
