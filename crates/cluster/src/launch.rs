//! `spark-perf launch`: starts a program as ranks on several hosts, and leaves nothing behind.
//!
//! An agent on each host ([`agent`]) starts the ranks there. The launcher reaches it over the ssh
//! client, or, on its own host, over pipes; both use the protocol in [`wire`].
//!
//! Knows how programs learn their ranks. Must not know what they do.

pub(crate) mod agent;
mod args;
mod connect;
mod job;
mod kubernetes;
mod link;
mod orders;
mod place;
mod pods;
mod printer;
mod wire;

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

pub(crate) use args::LaunchArgs;
use job::{Job, LAST};
use link::{Event, Senders};
use printer::Printer;
use spark_ccl_console::{exit, print, print_error, signals};

use crate::error::Error;
use crate::hex;
use crate::remote::Host;

/// Which hosts have which ranks, and which of them this launcher starts.
struct Plan {
    /// All hosts, in the order of ranks.
    hosts: Vec<Host>,
    /// This launcher's only node, if others start the rest.
    only: Option<usize>,
}

/// Runs the command as ranks; returns the exit code for all.
pub(crate) fn run(args: &LaunchArgs) -> Result<u8, Error> {
    if args.kubernetes.kubernetes {
        let manifest = pods::manifest(args, &hex::random()?)?;
        print(&manifest)?;
        return Ok(0);
    }
    let plan = Plan::new(args)?;
    let common = orders::Common::new(args)?;
    let remote = args.hosts.ssh.remote()?;
    let grace = Duration::from_secs_f64(args.grace);
    let (sender, events) = channel();
    heed_signals(sender.clone(), grace + 2 * LAST)?;
    let printed = sender.clone();
    let (printer, lines) = Printer::start(!args.no_prefix, move |error| {
        // If the receiver is gone, the job is over.
        let _ = printed.send(error.map_or(Event::Printed, Event::NotPrinted));
    });
    let senders = Senders {
        events: sender,
        lines,
    };
    let limit = args.connect_timeout();
    if plan.only.is_some() {
        let name = orders::first_node(args, &plan);
        if let Some(signal) = connect::wait_for_name(&name, limit, &events)? {
            return Ok(exit_code(signal));
        }
    }
    let connected = connect::connect_all(&remote, &plan, (&senders, &events), args.beat(), limit);
    // The printer waits for the links only.
    drop(senders);
    let (links, hellos) = match connected {
        Ok(met) => met,
        Err(problems) => {
            for problem in problems {
                print_error(format_args!("{problem}"));
            }
            return Ok(exit::SYSTEM);
        }
    };
    let rendezvous = orders::rendezvous(args, &plan, &hellos)?;
    for (link, order) in links.iter().zip(common.orders(&plan, &rendezvous, &hellos)) {
        link.order(order);
    }
    let mut job = Job {
        links,
        first: plan.first_ranks(),
        printer,
        grace,
        lost_after: Duration::from_secs_f64(args.lost_after),
    };
    Ok(job.watch(&events))
}

/// The first signal makes the job end. At the second, or after a time limit, this process exits at
/// once, since the job's thread may be blocked by a reader that does not read. Hosts without a
/// launcher end their ranks.
fn heed_signals(events: Sender<Event>, limit: Duration) -> Result<(), Error> {
    let mut is_asked = false;
    let heed = move |signal| {
        let end = move || std::process::exit(exit_code(signal).into());
        if is_asked {
            end();
        }
        is_asked = true;
        std::thread::spawn(move || {
            std::thread::sleep(limit);
            end();
        });
        events.send(Event::Signalled(signal)).is_ok()
    };
    Ok(signals::forward(heed)?)
}

/// The exit code that shells give a program that was killed by this signal.
fn exit_code(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(exit::SYSTEM)
}

impl Plan {
    fn new(args: &LaunchArgs) -> Result<Self, Error> {
        let hosts = args.all_hosts()?;
        let only = match &args.node_of {
            Some(list) => Some(own_node(list, &hosts)?),
            None => None,
        };
        Ok(Self { hosts, only })
    }

    /// The numbers of the hosts whose ranks this launcher starts.
    fn nodes(&self) -> std::ops::Range<usize> {
        match self.only {
            Some(node) => node..node + 1,
            None => 0..self.hosts.len(),
        }
    }

    fn started(&self) -> &[Host] {
        &self.hosts[self.nodes()]
    }

    /// The numbers of ranks of all hosts.
    fn slots(&self) -> Vec<usize> {
        self.hosts.iter().map(|host| host.slots).collect()
    }

    /// The first rank of each host whose ranks this launcher starts.
    fn first_ranks(&self) -> Vec<usize> {
        let slots = self.slots();
        let first = |node| slots[..node].iter().sum();
        self.nodes().map(first).collect()
    }
}

/// Which of the hosts this one is.
fn own_node(list: &str, hosts: &[Host]) -> Result<usize, Error> {
    let mut here = hosts.iter().enumerate().filter(|(_, host)| host.is_here);
    match (here.next(), here.next()) {
        (Some((node, _)), None) => Ok(node),
        (None, _) => Err(Error::usage(format!(
            "--node-of {list}: none of these is a name or an address of this host ({})",
            rustix::system::uname().nodename().to_string_lossy()
        ))),
        (Some((_, one)), Some((_, other))) => Err(Error::usage(format!(
            "--node-of {list}: {} and {} are both this host; name each host once",
            one.name, other.name
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::parse_list;

    fn hosts(list: &str, here: &[usize]) -> Vec<Host> {
        let mut hosts = parse_list(list).unwrap();
        for &one in here {
            hosts[one].is_here = true;
        }
        hosts
    }

    #[test]
    fn a_node_finds_itself_in_the_list() {
        let list = "a:2,b,c:3";
        let plan = Plan {
            only: Some(own_node(list, &hosts(list, &[2])).unwrap()),
            hosts: hosts(list, &[2]),
        };
        assert_eq!(plan.started()[0].name, "c");
        assert_eq!(plan.first_ranks(), [3]);
        let all = Plan { only: None, ..plan };
        assert_eq!(all.first_ranks(), [0, 2, 3]);
        for (here, words) in [(&[][..], "none of these"), (&[0, 1], "a and b are both")] {
            let text = own_node(list, &hosts(list, here)).unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        }
    }
}
