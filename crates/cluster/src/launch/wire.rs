//! The protocol between the launcher and its agents, in lines over an agent's standard input and
//! output.
//!
//! The agent sends a [`Hello`], and gets one [`Order`]. From then on, each line that it sends is a
//! [`RankReport`], and the launcher sends an empty line now and then as a sign of life. When its
//! input ends, the agent ends the ranks.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The beginning of the greeting's line. Whatever the host's shell prints before it is ignored.
const HELLO: &[u8] = b"spark-perf-launch-agent ";

/// The first message of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) version: String,
    /// Ports that are free there, and held until the ranks start.
    pub(super) ports: [u16; 2],
    /// The network interfaces that are up, with their addresses.
    pub(super) interfaces: Vec<(String, IpAddr)>,
    /// The launcher's address and the agent's, as the ssh server there sees them; not on the
    /// launcher's own host.
    pub(super) connection: Option<[IpAddr; 2]>,
}

/// The launcher's request to an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) directory: PathBuf,
    pub(super) command: Vec<String>,
    /// Seconds from the request to end until ranks are killed.
    pub(super) grace: f64,
    /// Seconds without a sign of life of the launcher after which it is gone.
    pub(super) lost_after: f64,
    /// The variables of each rank.
    pub(super) ranks: Vec<Vec<Variable>>,
}

/// The name of a variable, and its value, which may be empty; one without a value is removed.
pub(super) type Variable = (String, Option<String>);

/// Where a rank has written a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Output,
    Error,
}

/// How a rank has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RankEnd {
    Code(u8),
    Signal(u8),
}

/// An agent's report on a rank, by the number of the rank on its host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RankReport {
    /// It has written this line, which is without its end.
    Line(usize, Stream, Vec<u8>),
    Ended(usize, RankEnd),
    /// It could not be started, and why.
    NotStarted(usize, String),
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let text = serde_json::to_vec(self).unwrap_or_default();
        [HELLO, &text, b"\n"].concat()
    }

    /// `None` for any other line.
    pub(super) fn decode(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line.strip_prefix(HELLO)?).ok()
    }
}

impl Order {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }

    pub(super) fn decode(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}

impl RankReport {
    pub(super) fn encode(&self) -> Vec<u8> {
        let with = |kind: &str, local: &usize, rest: &[u8]| {
            [format!("{kind} {local} ").as_bytes(), rest, b"\n"].concat()
        };
        match self {
            Self::Line(local, Stream::Output, line) => with("out", local, line),
            Self::Line(local, Stream::Error, line) => with("err", local, line),
            Self::Ended(local, RankEnd::Code(code)) => {
                with("code", local, code.to_string().as_bytes())
            }
            Self::Ended(local, RankEnd::Signal(signal)) => {
                with("signal", local, signal.to_string().as_bytes())
            }
            Self::NotStarted(local, why) => {
                with("failed", local, why.replace('\n', " ").as_bytes())
            }
        }
    }

    /// `None` for any other line.
    pub(super) fn decode(line: &[u8]) -> Option<Self> {
        let mut words = line.splitn(3, |&byte| byte == b' ');
        let kind = words.next()?;
        let local = str::from_utf8(words.next()?).ok()?.parse().ok()?;
        let rest = words.next()?;
        let number = || str::from_utf8(rest).ok()?.parse().ok();
        Some(match kind {
            b"out" => Self::Line(local, Stream::Output, rest.to_vec()),
            b"err" => Self::Line(local, Stream::Error, rest.to_vec()),
            b"code" => Self::Ended(local, RankEnd::Code(number()?)),
            b"signal" => Self::Ended(local, RankEnd::Signal(number()?)),
            b"failed" => Self::NotStarted(local, String::from_utf8_lossy(rest).into_owned()),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_reports() -> Vec<RankReport> {
        vec![
            RankReport::Line(0, Stream::Output, b"out 3 [\xff] ".to_vec()),
            RankReport::Line(11, Stream::Error, Vec::new()),
            RankReport::Ended(2, RankEnd::Code(255)),
            RankReport::Ended(0, RankEnd::Signal(9)),
            RankReport::NotStarted(1, "no such file".to_owned()),
        ]
    }

    fn hello() -> Hello {
        Hello {
            version: "1 (abc)".to_owned(),
            ports: [20_001, 20_002],
            interfaces: vec![("en0".to_owned(), "10.0.0.2".parse().unwrap())],
            connection: Some(["10.0.0.1".parse().unwrap(), "fd00::2".parse().unwrap()]),
        }
    }

    #[test]
    fn what_is_said_is_heard() {
        for report in some_reports() {
            let line = report.encode();
            let (end, line) = line.split_last().unwrap();
            assert_eq!(*end, b'\n');
            assert!(!line.contains(&b'\n'));
            assert_eq!(RankReport::decode(line), Some(report));
        }
        let line = hello().encode();
        assert_eq!(Hello::decode(&line[..line.len() - 1]), Some(hello()));
        assert_eq!(Hello::decode(b"Welcome to Ubuntu"), None);
        let order = Order {
            directory: "/tmp/a b".into(),
            command: vec!["echo".to_owned(), "\n\"".to_owned()],
            grace: 0.5,
            lost_after: 60.0,
            ranks: vec![vec![
                ("RANK".to_owned(), Some("0".to_owned())),
                ("EMPTY".to_owned(), Some(String::new())),
                ("GONE".to_owned(), None),
            ]],
        };
        let line = order.encode();
        assert_eq!(line.split(|&byte| byte == b'\n').count(), 2);
        assert_eq!(Order::decode(&line), Some(order));
    }

    #[test]
    fn any_bytes_are_understood_or_refused() {
        spark_ccl_testing::fuzz(&[
            ("launch-reports", reports, || {
                some_reports().iter().map(RankReport::encode).collect()
            }),
            (
                "launch-hello",
                |bytes| drop(Hello::decode(bytes)),
                || vec![hello().encode()],
            ),
        ]);
    }

    fn reports(bytes: &[u8]) {
        for line in bytes.split(|&byte| byte == b'\n') {
            if let Some(report) = RankReport::decode(line) {
                let again = report.encode();
                assert_eq!(RankReport::decode(&again[..again.len() - 1]), Some(report));
            }
        }
    }
}
