//! `spark-perf discover`: finds hosts on the link, and prints them as a hostfile.
//!
//! Hosts announce their ssh server by multicast DNS, and answer an echo request to all nodes of a
//! link (`ICMPv6`), also where no addresses are configured yet. Some announce themselves by LLDP.
//! Each is then asked for its ssh server. Runs nothing on the hosts, except that it copies keys on
//! request.

mod args;
mod found;
mod keys;
mod lldp;
mod mdns;
mod names;
mod neighbour_table;
mod neighbours;
mod ssh;

use std::fmt::Write;
use std::io;
use std::time::Duration;

pub(crate) use args::DiscoverArgs;
use found::{Found, merge, same_keys};
#[cfg(test)]
pub(crate) use lldp::{any_frame_is_heard, testing::some_frames};
use serde::Serialize;
use spark_ccl_console::{exit, json, print, print_error};

use crate::error::Error;
use crate::long::tell_if_long;
use crate::remote::{Host, Remote, parse_one, run_on_all, settled};

/// The time for which `launch --hosts discovered` looks.
const BRIEF: Duration = Duration::from_secs(3);
/// The time limit for the hosts that were found to run spark-perf.
const ANSWER: Duration = Duration::from_secs(20);
/// This host, in a hostfile.
const HERE: &str = "localhost";

/// Finds hosts, and prints them.
pub(crate) fn run(args: &DiscoverArgs) -> Result<u8, Error> {
    let (found, notes) = find(args.time());
    print(&if args.json {
        json(&Report {
            hosts: &found,
            notes: &notes,
        })?
    } else {
        hostfile(&found, &notes)
    })?;
    let reachable: Vec<&Found> = found.iter().filter(|one| one.has_ssh()).collect();
    if reachable.is_empty() {
        print_error(format_args!(
            "no host with an ssh server answers: is the cable plugged in, the interface up, the \
             other host on?"
        ));
        return Ok(exit::LIBRARY);
    }
    if args.copy_keys {
        return keys::copy(args, &reachable);
    }
    Ok(0)
}

/// This host, and the found hosts that have spark-perf and that ssh reaches without a question.
pub(crate) fn hosts(remote: &Remote) -> Result<Vec<Host>, Error> {
    let (found, notes) = find(BRIEF);
    for note in &notes {
        print_error(format_args!("{note}"));
    }
    let mut hosts = settled(vec![parse_one(HERE).map_err(Error::usage)?]);
    let reachable = found.iter().filter(|one| one.has_ssh());
    let candidates: Result<_, _> = reachable.map(|one| parse_one(&one.target())).collect();
    let candidates = settled(candidates.map_err(Error::usage)?);
    let answers = run_on_all(
        remote,
        &candidates,
        &["gids", "--help"],
        |_| Vec::new(),
        ANSWER,
    );
    for (host, answer) in candidates.into_iter().zip(answers) {
        match answer {
            Ok(answer) if answer.status.success() => hosts.push(host),
            Ok(answer) => {
                print_error(format_args!("left out: {}: {}", host.name, answer.status));
            }
            Err(error) => print_error(format_args!("left out: {error}")),
        }
    }
    Ok(hosts)
}

/// The hosts that are found within this time, and the ways that could not be tried.
fn find(time: Duration) -> (Vec<Found>, Vec<String>) {
    let what = format!(
        "looking for hosts for {} s; those that are found are then asked for their ssh servers ({} \
         s at most)",
        time.as_secs(),
        ssh::LIMIT.as_secs()
    );
    tell_if_long(|| Some(what), || look(time))
}

/// Looks in all ways at once, and then asks for ssh servers.
fn look(time: Duration) -> (Vec<Found>, Vec<String>) {
    let (by_lldp, by_name, by_echo) = std::thread::scope(|scope| {
        let by_lldp = scope.spawn(|| lldp::listen(time));
        let by_name = scope.spawn(|| mdns::listen(time));
        let by_echo = neighbours::ask(time);
        let panicked = |_| Err("it panicked; this is a defect of spark-perf".to_owned());
        let [by_lldp, by_name] = [by_lldp, by_name].map(|it| it.join().unwrap_or_else(panicked));
        (by_lldp, by_name, by_echo)
    });
    // Few hosts speak it, and most users lack the right to listen: the hostfile does not mention
    // it.
    let by_lldp = by_lldp.unwrap_or_else(|why| {
        print_error(format_args!("LLDP was not listened to: {why}"));
        Vec::new()
    });
    // Names of multicast DNS come later, since they replace others: ssh is more likely to resolve
    // them.
    let mut sightings = by_lldp;
    let mut notes = Vec::new();
    for (what, outcome) in [
        ("multicast DNS", by_name),
        ("neighbours by ICMPv6", by_echo),
    ] {
        match outcome {
            Ok(some) => sightings.extend(some),
            Err(why) => notes.push(format!("{what} was not tried: {why}")),
        }
    }
    let mut found = merge(sightings);
    match ssh::ask(&mut found) {
        Ok(0) => {}
        Ok(silent) => notes.push(format!(
            "{silent} of these have not said within {} s whether they have an ssh server",
            ssh::LIMIT.as_secs()
        )),
        Err(error) => notes.push(format!(
            "ssh servers were not asked: ssh-keyscan, of OpenSSH's client: {error}"
        )),
    }
    notes.extend(same_keys(&found));
    // A host may have been seen by several addresses, but it has one key.
    (merge(found), notes)
}

/// Whether a socket just has nothing to read yet.
fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

fn hostfile(found: &[Found], notes: &[String]) -> String {
    let mut text = format!("# Found by spark-perf discover; for --hostfile.\n{HERE} # this host\n");
    for one in found {
        let target = one.target();
        let about = one.about();
        let _ = if one.has_ssh() {
            writeln!(text, "{target} # {about}")
        } else {
            writeln!(text, "# {target}: no ssh server answers; {about}")
        };
    }
    for note in notes {
        let _ = writeln!(text, "# {note}");
    }
    text
}

/// The JSON of what was found.
#[derive(Serialize)]
struct Report<'a> {
    hosts: &'a [Found],
    notes: &'a [String],
}
