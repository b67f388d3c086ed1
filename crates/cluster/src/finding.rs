//! Findings: the results of checks, and the fixes. Knows no check.

use std::fmt;

use serde::Serialize;
use spark_ccl_console::plain;

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The check, such as `net.mtu`.
    pub(crate) id: &'static str,
    /// The hosts that it is about: one, two, or all of several.
    pub(crate) hosts: Vec<String>,
    pub(crate) status: Status,
    /// What was found.
    pub(crate) seen: String,
    /// What was expected; `None` if all is well.
    pub(crate) wanted: Option<String>,
    /// Why it matters.
    pub(crate) why: Option<String>,
    /// How to fix it.
    pub(crate) fix: Option<Fix>,
}

/// How bad it is; the worst comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// As it should be.
    Ok,
    /// The facts that were read do not decide it.
    Unknown,
    /// It works, but slowly or not for long.
    Warn,
    /// It does not work.
    Fail,
}

/// A problem that a check has found.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) seen: String,
    pub(crate) wanted: String,
    pub(crate) why: String,
    pub(crate) fix: Fix,
}

/// The fix of a problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Fix {
    /// The host on which to run the command.
    #[serde(rename = "where")]
    pub(crate) place: Option<String>,
    /// The command; `None` if the facts that were read do not prove one right.
    pub(crate) command: Option<String>,
    /// What to look at, or to do by hand.
    pub(crate) look: Option<String>,
}

impl Fix {
    /// A command for a host.
    pub(crate) fn run(host: &str, command: impl Into<String>) -> Self {
        Self {
            place: Some(host.to_owned()),
            command: Some(command.into()),
            look: None,
        }
    }

    /// What to look at, or to do by hand.
    pub(crate) fn look(what: impl Into<String>) -> Self {
        Self {
            place: None,
            command: None,
            look: Some(what.into()),
        }
    }

    /// A command, and what to do then.
    pub(crate) fn then(self, what: impl Into<String>) -> Self {
        Self {
            look: Some(what.into()),
            ..self
        }
    }
}

impl Problem {
    pub(crate) fn new(
        seen: impl Into<String>,
        wanted: impl Into<String>,
        why: impl Into<String>,
        fix: Fix,
    ) -> Self {
        Self {
            seen: seen.into(),
            wanted: wanted.into(),
            why: why.into(),
            fix,
        }
    }
}

impl Finding {
    /// All is well.
    pub(crate) fn ok(id: &'static str, hosts: &[&str], seen: impl Into<String>) -> Self {
        Self {
            id,
            hosts: hosts.iter().map(|&host| plain(host)).collect(),
            status: Status::Ok,
            seen: plain(&seen.into()),
            wanted: None,
            why: None,
            fix: None,
        }
    }

    /// The facts that were read do not decide it; `look` says what to look at.
    pub(crate) fn unknown(
        id: &'static str,
        hosts: &[&str],
        seen: impl Into<String>,
        look: impl Into<String>,
    ) -> Self {
        Self {
            status: Status::Unknown,
            fix: Some(Fix::look(look)),
            ..Self::ok(id, hosts, seen)
        }
    }

    /// It works, but slowly or not for long.
    pub(crate) fn warn(id: &'static str, hosts: &[&str], problem: Problem) -> Self {
        Self {
            status: Status::Warn,
            wanted: Some(problem.wanted),
            why: Some(problem.why),
            fix: Some(problem.fix),
            ..Self::ok(id, hosts, problem.seen)
        }
    }

    /// It does not work.
    pub(crate) fn fail(id: &'static str, hosts: &[&str], problem: Problem) -> Self {
        Self {
            status: Status::Fail,
            ..Self::warn(id, hosts, problem)
        }
    }

    /// The command that fixes it.
    pub(crate) fn command(&self) -> Option<&str> {
        self.fix.as_ref()?.command.as_deref()
    }
}

impl fmt::Display for Finding {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.hosts.join(" - ");
        write!(f, "{:<7}  {hosts}  {}: {}", self.status, self.id, self.seen)?;
        if let Some(wanted) = &self.wanted {
            write!(f, "; wanted: {wanted}")?;
        }
        if let Some(why) = &self.why {
            write!(f, "; {why}")?;
        }
        if let Some(fix) = &self.fix {
            write!(f, "; {fix}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Fix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(command) = &self.command {
            let place = self.place.as_deref().unwrap_or("there");
            write!(f, "fix on {place}: {command}")?;
        }
        match &self.look {
            Some(look) if self.command.is_some() => write!(f, "; then: {look}"),
            Some(look) => write!(f, "look: {look}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warn => "warn",
            Self::Fail => "FAIL",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line() {
        let ok = Finding::ok("a.b", &["x"], "fine\u{1b}[2J\n");
        assert_eq!(ok.to_string(), "ok       x  a.b: fine[2J");
        let problem = |fix| Problem::new("1500", "9000", "packets are small", fix);
        let fix = Fix::run("y", "set it").then("log in");
        let bad = Finding::fail("net.mtu", &["x", "y"], problem(fix));
        let line = "FAIL     x - y  net.mtu: 1500; wanted: 9000; packets are small; fix on y: set it; then: log in";
        assert_eq!(bad.to_string(), line);
        let bad = Finding::warn("net.mtu", &["x"], problem(Fix::look("the switch")));
        let line = "warn     x  net.mtu: 1500; wanted: 9000; packets are small; look: the switch";
        assert_eq!(bad.to_string(), line);
        assert!(Status::Fail > Status::Warn && Status::Warn > Status::Unknown);
        assert!(Status::Unknown > Status::Ok);
    }
}
