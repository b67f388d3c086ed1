//! Why nothing could be run on a host, and what to do.

use std::io;
use std::time::Duration;

use super::hosts::Host;
use crate::error;

/// Why nothing could be run on a host.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The arguments name no hosts, or no way to them.
    #[error("{0}")]
    Usage(String),
    /// The ssh client, or this program itself, cannot be started.
    #[error("{host}: starting {program}: {source}; is it installed?")]
    Start {
        host: String,
        program: String,
        source: io::Error,
    },
    /// ssh has failed.
    #[error("{host}: ssh: {said}; {advice}")]
    Ssh {
        host: String,
        /// The last line of ssh.
        said: String,
        advice: String,
    },
    /// The other host does not have this program.
    #[error(
        "{host}: spark-perf is not there: copy it (scp {here} {host}:), and say where it is with \
         --remote-program; below ~/.cargo/bin and on the PATH it is found without that"
    )]
    Missing { host: String, here: String },
    /// The program took too long, and is stopped.
    #[error("{host}: no end within {seconds:.1} s; {advice}")]
    Late {
        host: String,
        seconds: f64,
        advice: String,
    },
    /// The process cannot be waited for.
    #[error("{host}: waiting for the command: {source}")]
    Wait { host: String, source: io::Error },
    /// A thread panicked: a bug.
    #[error("{host}: spark-perf panicked; this is a defect, please report it")]
    Panicked { host: String },
}

impl From<Error> for error::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Usage(why) => Self::usage(why),
            other => Self::Remote(other.to_string()),
        }
    }
}

impl Error {
    pub(super) fn start(host: &Host, program: &str, source: io::Error) -> Self {
        Self::Start {
            host: host.name.clone(),
            program: program.to_owned(),
            source,
        }
    }

    /// An error that names the last line that ssh has printed.
    pub(super) fn ssh(host: &Host, said: &[u8]) -> Self {
        let said = String::from_utf8_lossy(said);
        let mut lines = said.lines().map(str::trim);
        let last = lines.rfind(|line| !line.is_empty());
        Self::Ssh {
            host: host.name.clone(),
            advice: advice(&host.name, &said),
            // The client begins its own lines so, and the error does, too.
            said: last
                .map_or("it said nothing", |line| {
                    line.strip_prefix("ssh: ").unwrap_or(line)
                })
                .to_owned(),
        }
    }

    pub(super) fn missing(host: &Host) -> Self {
        let here = std::env::current_exe();
        Self::Missing {
            host: host.name.clone(),
            here: here.map_or_else(
                |_| "spark-perf".to_owned(),
                |path| path.display().to_string(),
            ),
        }
    }

    pub(super) fn late(host: &Host, after: Duration) -> Self {
        let name = &host.name;
        Self::Late {
            host: name.clone(),
            seconds: after.as_secs_f64(),
            advice: if host.is_here {
                "run it by hand to see how far it comes".to_owned()
            } else {
                format!("does the host still answer (ssh {name} true)?")
            },
        }
    }

    pub(super) fn wait(host: &Host, source: io::Error) -> Self {
        Self::Wait {
            host: host.name.clone(),
            source,
        }
    }

    pub(super) fn panicked(host: &Host) -> Self {
        Self::Panicked {
            host: host.name.clone(),
        }
    }
}

/// Advice by the words of OpenSSH's client, which has one exit code for all failures.
fn advice(host: &str, said: &str) -> String {
    let known = ADVICE.iter().find(|(words, _)| said.contains(words));
    let advice = known.map_or("try: ssh HOST true", |(_, advice)| advice);
    advice.replace("HOST", host)
}

/// The more special words come first.
const ADVICE: [(&str, &str); 12] = [
    (
        "Could not resolve",
        "no name server and no line of /etc/hosts knows the name: check it, try HOST.local, or \
         give the address",
    ),
    (
        "IDENTIFICATION HAS CHANGED",
        "if the host was installed anew, forget its old key: ssh-keygen -R HOST",
    ),
    (
        "Host key verification failed",
        "its key is not known here yet: accept it once by ssh HOST true",
    ),
    (
        "Permission denied",
        "it accepts no key of yours: ssh-copy-id HOST",
    ),
    (
        "Too many authentication failures",
        "the agent offers too many keys: set IdentityFile and IdentitiesOnly for HOST in \
         ~/.ssh/config",
    ),
    (
        "Connection refused",
        "the host is up, but no ssh server listens there: sudo systemctl enable --now ssh",
    ),
    (
        "No route to host",
        "nothing answers at that address: is the host on, and its cable plugged in?",
    ),
    (
        "Network is unreachable",
        "this host has no address in that network: check ip route get HOST",
    ),
    (
        "not responding",
        "the host has vanished: is it on, and its cable plugged in?",
    ),
    (
        "timed out",
        "the host does not answer: is it on, the address right, and port 22 open in its firewall?",
    ),
    (
        "onnection reset",
        "the server has ended the connection: see its log (journalctl -u ssh)",
    ),
    (
        "onnection closed",
        "the server has ended the connection: see its log (journalctl -u ssh)",
    ),
];

#[cfg(test)]
mod tests {
    use spark_ccl_console::{Failure, exit};

    use super::*;
    use crate::remote::parse_list;

    #[test]
    fn errors_name_the_host_and_what_to_do() {
        let host = &parse_list("spark-b").unwrap()[0];
        let cases = [
            (
                "ssh: Could not resolve hostname spark-b: Name or service not known\r\n",
                "try spark-b.local",
            ),
            (
                "Warning: Permanently added 'spark-b'\r\nme@spark-b: Permission denied \
                 (publickey).\r\n",
                "ssh-copy-id spark-b",
            ),
            (
                "ssh: connect to host spark-b port 22: Connection refused",
                "systemctl",
            ),
            ("", "ssh spark-b true"),
        ];
        for (said, todo) in cases {
            let text = Error::ssh(host, said.as_bytes()).to_string();
            assert!(
                text.starts_with("spark-b: ssh: ")
                    && !text.contains("ssh: ssh: ")
                    && text.contains(todo),
                "{text}"
            );
        }
        let late = |host: &Host| Error::late(host, Duration::from_secs(2)).to_string();
        assert!(late(host).contains("ssh spark-b true"), "{}", late(host));
        let here = late(&Host::here());
        assert!(here.contains("by hand") && !here.contains("ssh"), "{here}");
        let text = Error::ssh(host, b"one\ntwo\n\n").to_string();
        assert!(text.contains("ssh: two; "), "{text}");
    }

    #[test]
    fn commands_end_with_the_code_of_the_cause() {
        let ended = |error: Error| {
            let text = error.to_string();
            let error = error::Error::from(error);
            assert_eq!(error.to_string(), text);
            error.exit_code()
        };
        assert_eq!(ended(Error::Usage("no hosts".to_owned())), exit::USAGE);
        let host = "a".to_owned();
        assert_eq!(ended(Error::Panicked { host }), exit::SYSTEM);
    }
}
