//! Whether hosts have an ssh server, at which address, and with which key.

use std::io;
use std::net::ToSocketAddrs;
use std::process::{Command, Stdio};

use super::found::Found;

/// Asks all hosts at once, each at its addresses in turn.
pub(super) fn ask(found: &mut [Found]) -> io::Result<()> {
    std::thread::scope(|scope| {
        let start = |host| scope.spawn(move || ask_one(host));
        let threads: Vec<_> = found.iter_mut().map(start).collect();
        let mut outcomes = threads.into_iter().filter_map(|thread| thread.join().ok());
        outcomes.find(Result::is_err).unwrap_or(Ok(()))
    })
}

fn ask_one(host: &mut Found) -> io::Result<()> {
    let named = host.name.as_deref();
    host.name_resolves = named.is_some_and(|name| (name, 22).to_socket_addrs().is_ok());
    // Those of IPv4 come first, as they mean the same on all hosts.
    let (new, old): (Vec<_>, Vec<_>) = host.addresses.iter().partition(|one| one.contains(':'));
    for address in old.into_iter().chain(new) {
        if let Some(key) = key(address)? {
            host.ssh_address = Some(address.clone());
            host.ssh_key = Some(key);
            break;
        }
    }
    Ok(())
}

/// The public key of the server at an address: of several kinds, always the same.
fn key(address: &str) -> io::Result<Option<String>> {
    let mut command = Command::new("ssh-keyscan");
    command.args(["-T", "2", "-t", "ed25519,ecdsa,rsa", address]);
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let keys = lines.filter_map(|line| line.split_once(' '));
    Ok(keys.map(|(_, key)| key.trim().to_owned()).min())
}
