//! Whether hosts have an ssh server, at which address, and with which key.

use std::io;
use std::net::ToSocketAddrs;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::found::Found;

/// How long all hosts together may take to answer.
pub(super) const LIMIT: Duration = Duration::from_secs(10);
/// How many hosts are asked, and how many addresses of each: anybody on the link may announce more.
const MOST_HOSTS: usize = 256;
const MOST_ADDRESSES: usize = 8;

/// What a host has answered.
struct Answer {
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
        std::thread::spawn(move || sender.send((number, ask_one(name.as_deref(), &addresses))));
    }
    drop(sender);
    let deadline = Instant::now() + LIMIT;
    let mut silent = found.len();
    while let Ok((number, answer)) =
        answers.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        let answer = answer?;
        silent -= 1;
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

fn ask_one(name: Option<&str>, addresses: &[String]) -> io::Result<Answer> {
    let text = keys(addresses)?;
    let server = addresses.iter().find_map(|address| {
        let key = key(&text, address)?;
        Some((address.clone(), key))
    });
    Ok(Answer {
        server,
        name_resolves: name.is_some_and(|name| (name, 22).to_socket_addrs().is_ok()),
    })
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

/// The key of the server at an address: of several kinds, always the same.
fn key(text: &str, address: &str) -> Option<String> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let keys = lines.filter(|(host, _)| *host == address);
    keys.map(|(_, key)| key.trim().to_owned()).min()
}
