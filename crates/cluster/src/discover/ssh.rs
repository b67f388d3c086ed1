//! Whether hosts have an ssh server, at which address, and with which key.

use std::io;
use std::net::{IpAddr, ToSocketAddrs};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use spark_ccl_fork::within;

use super::found::Found;
use super::names;

/// The time limit for all hosts together to answer.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// The most hosts that are asked, and the most addresses of each: the link may announce more.
const MOST_HOSTS: usize = 256;
const MOST_ADDRESSES: usize = 8;
/// The time limit for this system to find the name of an address.
const LOOKUP: Duration = Duration::from_secs(3);
/// The kinds of keys.
const KINDS: [&str; 3] = ["ssh-ed25519", "ecdsa-", "ssh-rsa"];

/// The answer of a host.
struct Answer {
    /// Its name: the one that it has said, or else this system's name for its addresses.
    name: Option<String>,
    name_resolves: bool,
    /// An address, and the server's key there.
    server: Option<(String, String)>,
}

/// Asks all hosts at once; returns how many have not answered in time.
pub(super) fn ask(found: &mut [Found]) -> io::Result<usize> {
    let (sender, answers) = channel();
    for (number, host) in found.iter().take(MOST_HOSTS).enumerate() {
        let (name, addresses, sender) = (host.name.clone(), in_order(host), sender.clone());
        // A thread that takes longer is ignored; it ends with this process at the latest.
        std::thread::spawn(move || sender.send((number, ask_one(name, &addresses))));
    }
    drop(sender);
    let deadline = Instant::now() + LIMIT;
    let mut silent = found.len();
    while let Ok((number, answer)) =
        answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        let answer = answer?;
        silent -= 1;
        found[number].name = answer.name;
        found[number].name_resolves = answer.name_resolves;
        (found[number].ssh_address, found[number].ssh_key) = answer.server.unzip();
    }
    Ok(silent)
}

/// The addresses that are asked. Those of IPv4 come first, as they mean the same on all hosts.
fn in_order(host: &Found) -> Vec<String> {
    let (new, old): (Vec<_>, Vec<_>) = host.addresses.iter().partition(|one| one.contains(':'));
    let all = old.into_iter().chain(new).cloned();
    all.take(MOST_ADDRESSES).collect()
}

fn ask_one(name: Option<String>, addresses: &[String]) -> io::Result<Answer> {
    let text = keys(addresses)?;
    let server = addresses.iter().find_map(|address| {
        let key = key(&text, address)?;
        Some((address.clone(), key))
    });
    let name = name.or_else(|| name_of(addresses));
    Ok(Answer {
        server,
        name_resolves: name.as_ref().is_some_and(|name| leads_to(name, addresses)),
        name,
    })
}

/// The name that this system has for one of these addresses: in its file of hosts, or by a server.
fn name_of(addresses: &[String]) -> Option<String> {
    let global = addresses.iter().filter(|address| !address.contains('%'));
    let global: Vec<String> = global.cloned().collect();
    if global.is_empty() {
        return None;
    }
    let ask = move || {
        let mut command = Command::new("getent");
        command.arg("hosts").args(&global).stderr(Stdio::null());
        command.output()
    };
    let output = within(Instant::now() + LOOKUP, ask).ok()?.ok()?;
    names::of_addresses(&String::from_utf8_lossy(&output.stdout))
}

/// Whether this system resolves a name to one of these addresses: any host may claim another one's
/// name.
fn leads_to(name: &str, addresses: &[String]) -> bool {
    let known: Vec<IpAddr> = addresses
        .iter()
        .filter_map(|address| address.split('%').next()?.parse().ok())
        .collect();
    let found = (name, 22).to_socket_addrs();
    found.is_ok_and(|mut found| found.any(|one| known.contains(&one.ip())))
}

/// The public keys of the servers at these addresses, each on a line with its address.
fn keys(addresses: &[String]) -> io::Result<String> {
    let mut command = Command::new("ssh-keyscan");
    command
        .args(["-T", "2", "-t", "ed25519,ecdsa,rsa"])
        .args(addresses)
        .stdin(Stdio::null())
        .stderr(Stdio::null());
    let output = command.output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The key of the server at an address: of several kinds the one that ssh asks about.
fn key(text: &str, address: &str) -> Option<String> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    // ssh-keyscan prints an address in lower case, with the name of an interface in it.
    let keys = lines.filter(|(host, _)| host.eq_ignore_ascii_case(address));
    let keys = keys.map(|(_, key)| key.trim());
    // By default, ssh prefers them in this order, if it knows none of the host's.
    let place = |key: &&str| KINDS.iter().position(|kind| key.starts_with(kind));
    keys.min_by_key(|key| (place(key).unwrap_or(KINDS.len()), *key))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_must_lead_to_the_host_that_says_it() {
        let at = |addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|&one| one.to_owned()).collect();
            leads_to("localhost", &addresses)
        };
        assert!(at(&["10.0.0.2", "127.0.0.1", "::1"]) && at(&["127.0.0.1", "::1%lo"]));
        // Another host that calls itself so.
        assert!(!at(&["10.0.0.2", "fe80::2%eth0"]));
    }

    #[test]
    fn the_key_is_the_one_that_ssh_asks_about() {
        let text = "h ssh-rsa R\nh ecdsa-sha2-nistp256 E\nh ssh-ed25519 D\nother ssh-ed25519 X\n";
        assert_eq!(key(text, "h").as_deref(), Some("ssh-ed25519 D"));
        let text = "h ssh-rsa R\nh ecdsa-sha2-nistp256 E\n";
        assert_eq!(key(text, "h").as_deref(), Some("ecdsa-sha2-nistp256 E"));
        assert_eq!(key(text, "x"), None);
        let found = key("fe80::1%enp2p1s0f0np0 ssh-rsa R\n", "fe80::1%enP2p1s0f0np0");
        assert_eq!(found.as_deref(), Some("ssh-rsa R"));
    }
}
