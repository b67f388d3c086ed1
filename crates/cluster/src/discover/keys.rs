//! Copies the user's ssh key to hosts, by ssh-copy-id, which asks for passwords.

use std::io::Write;
use std::process::{Command, Stdio};

use spark_ccl_console::{exit, print_error};

use super::args::DiscoverArgs;
use super::found::Found;
use crate::error::Error;

/// Copies the key to the hosts that are named, or else to each that the user agrees to: anybody on
/// the link may answer. Returns the exit code.
pub(super) fn copy(args: &DiscoverArgs, hosts: &[&Found]) -> Result<u8, Error> {
    let mut code = 0;
    for name in &args.only {
        if !hosts.iter().any(|host| host.is_called(name)) {
            print_error(format_args!(
                "{name}: no ssh server that answers has this name or address; spark-perf discover \
                 lists them"
            ));
            code = exit::SYSTEM;
        }
    }
    for host in hosts {
        let is_meant = if args.only.is_empty() {
            is_agreed(host)?
        } else {
            args.only.iter().any(|name| host.is_called(name))
        };
        if is_meant && !copy_to(args.user.as_deref(), host)? {
            code = exit::SYSTEM;
        }
    }
    Ok(code)
}

/// Asks the user about a host. No answer is a no.
fn is_agreed(host: &Found) -> Result<bool, Error> {
    let key = fingerprint(host.ssh_key.as_deref().unwrap_or_default())?;
    print_error(format_args!(
        "{}: its key is {key}. Copy your ssh key there? [y/N]",
        host.about()
    ));
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.map_err(Error::system("reading the answer"))?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}

/// The fingerprint of a public key, as ssh shows it.
fn fingerprint(key: &str) -> Result<String, Error> {
    let failed = || Error::system("running ssh-keygen, of OpenSSH's client");
    let mut command = Command::new("ssh-keygen");
    command
        .args(["-l", "-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed())?;
    if let Some(mut stdin) = child.stdin.take() {
        // If it does not read its input, its output says why.
        let _ = stdin.write_all(format!("{key}\n").as_bytes());
    }
    let output = child.wait_with_output().map_err(failed())?;
    // The bits, the fingerprint, a comment, the kind.
    let text = String::from_utf8_lossy(&output.stdout);
    let fingerprint = text.split_whitespace().nth(1);
    Ok(fingerprint.unwrap_or("unknown").to_owned())
}

/// Copies the key to the server that has answered; returns whether that has succeeded. ssh will
/// know the server's key by the name, or address, that the hostfile has.
fn copy_to(user: Option<&str>, host: &Found) -> Result<bool, Error> {
    let address = host.ssh_address.clone().unwrap_or_default();
    let target = match user {
        Some(user) => format!("{user}@{address}"),
        None => address,
    };
    print_error(format_args!("copying the key to {target}"));
    let known = format!("HostKeyAlias={}", host.target());
    let mut command = Command::new("ssh-copy-id");
    let status = command.args(["-o", &known, "--", &target]).status();
    let status = status.map_err(Error::system("starting ssh-copy-id, of OpenSSH's client"))?;
    if !status.success() {
        print_error(format_args!("{target}: ssh-copy-id: {status}"));
    }
    Ok(status.success())
}
