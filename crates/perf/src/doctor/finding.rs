//! What a check has found.

use std::fmt;

use serde::Serialize;

/// The outcome of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// The check, such as `net.mtu`.
    pub(crate) id: &'static str,
    /// The hosts that it is about: one, two, or all of several.
    pub(crate) hosts: Vec<String>,
    pub(crate) status: Status,
    /// What is there.
    pub(crate) seen: String,
    /// What should be there; `None` if all is well.
    pub(crate) wanted: Option<String>,
    /// Why it matters.
    pub(crate) why: Option<String>,
    /// The command that puts it right, and where to run it.
    pub(crate) fix: Option<String>,
}

/// How bad it is; the worst comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Status {
    /// As it should be.
    Ok,
    /// It works, but slowly or not for long.
    Warn,
    /// It does not work.
    Fail,
}

/// What is wrong.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    pub(super) seen: String,
    pub(super) wanted: String,
    pub(super) why: String,
    pub(super) fix: String,
}

impl Finding {
    /// All is well.
    pub(super) fn ok(id: &'static str, hosts: &[&str], seen: impl Into<String>) -> Self {
        Self {
            id,
            hosts: hosts.iter().map(|&host| host.to_owned()).collect(),
            status: Status::Ok,
            seen: seen.into(),
            wanted: None,
            why: None,
            fix: None,
        }
    }

    /// It works, but slowly or not for long.
    pub(super) fn warn(id: &'static str, hosts: &[&str], problem: Problem) -> Self {
        Self {
            status: Status::Warn,
            wanted: Some(problem.wanted),
            why: Some(problem.why),
            fix: Some(problem.fix),
            ..Self::ok(id, hosts, problem.seen)
        }
    }

    /// It does not work.
    pub(super) fn fail(id: &'static str, hosts: &[&str], problem: Problem) -> Self {
        Self {
            status: Status::Fail,
            ..Self::warn(id, hosts, problem)
        }
    }
}

impl fmt::Display for Finding {
    /// One line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts = self.hosts.join(" - ");
        write!(f, "{:<4}  {hosts}  {}: {}", self.status, self.id, self.seen)?;
        if let Some(wanted) = &self.wanted {
            write!(f, "; wanted: {wanted}")?;
        }
        if let Some(why) = &self.why {
            write!(f, "; {why}")?;
        }
        if let Some(fix) = &self.fix {
            write!(f, "; fix: {fix}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
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
        let ok = Finding::ok("a.b", &["x"], "fine");
        assert_eq!(ok.to_string(), "ok    x  a.b: fine");
        let problem = Problem {
            seen: "1500".to_owned(),
            wanted: "9000".to_owned(),
            why: "packets are small".to_owned(),
            fix: "set it".to_owned(),
        };
        let bad = Finding::fail("net.mtu", &["x", "y"], problem);
        let line = "FAIL  x - y  net.mtu: 1500; wanted: 9000; packets are small; fix: set it";
        assert_eq!(bad.to_string(), line);
        assert!(Status::Fail > Status::Warn && Status::Warn > Status::Ok);
    }
}
