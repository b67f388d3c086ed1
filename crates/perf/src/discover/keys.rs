//! Copies the user's ssh key to hosts, by ssh-copy-id, which asks for passwords.

use std::process::Command;

use super::found::Found;
use crate::console;
use crate::error::{Error, exit};

/// Copies the key to each host; returns the exit code.
pub(super) fn copy(user: Option<&str>, hosts: &[&Found]) -> Result<u8, Error> {
    let mut code = 0;
    for host in hosts {
        let target = match user {
            Some(user) => format!("{user}@{}", host.target()),
            None => host.target(),
        };
        console::print_error(format_args!("copying the key to {target}"));
        let status = Command::new("ssh-copy-id").args(["--", &target]).status();
        let status = status.map_err(Error::system("starting ssh-copy-id, of OpenSSH's client"))?;
        if !status.success() {
            console::print_error(format_args!("{target}: ssh-copy-id: {status}"));
            code = exit::SYSTEM;
        }
    }
    Ok(code)
}
