//! One line of a RAS client, as a command. Pure function of its text.

use std::time::Duration;

use super::Format;

/// The longest line, with its end: NCCL allows as much.
pub(super) const MAX_LINE: usize = 1024;
/// The protocol version spoken here.
const PROTOCOL: u32 = 2;
/// The longest wait that a client may ask for. It also stands for 0, which means no limit in NCCL.
const MAX_TIMEOUT: Duration = Duration::from_secs(60);

/// The request of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    /// The client states its protocol version.
    Protocol,
    /// How long ranks may take to answer.
    Timeout(Duration),
    /// The format of answers.
    Format(Format),
    /// A report of what runs.
    Status { verbose: bool },
    /// The line's problem.
    Invalid(String),
}

impl Command {
    /// Reads a line without its end.
    pub(super) fn parse(line: &[u8]) -> Self {
        let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
        let lower = line.to_ascii_lowercase();
        if lower.starts_with("client protocol ") {
            return Self::Protocol;
        }
        if let Some(seconds) = lower.strip_prefix("timeout ") {
            return Self::timeout(seconds);
        }
        match &*lower {
            "set format text" => Self::Format(Format::Text),
            "set format json" => Self::Format(Format::Json),
            "status" => Self::Status { verbose: false },
            "verbose status" => Self::Status { verbose: true },
            _ => match lower.strip_prefix("set format ") {
                Some(format) => Self::invalid("Invalid format", format),
                None => Self::invalid("Unknown command", &line),
            },
        }
    }

    fn timeout(seconds: &str) -> Self {
        match seconds.trim().parse() {
            Ok(0_u32) => Self::Timeout(MAX_TIMEOUT),
            Ok(seconds) => Self::Timeout(Duration::from_secs(seconds.into()).min(MAX_TIMEOUT)),
            Err(_) => Self::invalid("Invalid timeout value", seconds),
        }
    }

    /// The client's own words are repeated without control characters that its terminal would obey.
    fn invalid(problem: &str, words: &str) -> Self {
        Self::Invalid(format!("{problem} {}", words.escape_default()))
    }

    /// The immediate answer; `None` if the ranks must be asked.
    pub(super) fn reply(&self) -> Option<String> {
        match self {
            Self::Protocol => Some(format!("SERVER PROTOCOL {PROTOCOL}\n")),
            Self::Timeout(_) | Self::Format(_) => Some("OK\n".to_owned()),
            Self::Invalid(problem) => Some(format!("ERROR: {problem}\n")),
            Self::Status { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ncclras() {
        let replies = |line: &str| Command::parse(line.as_bytes()).reply();
        assert_eq!(
            replies("CLIENT PROTOCOL 2").as_deref(),
            Some("SERVER PROTOCOL 2\n")
        );
        assert_eq!(replies("TIMEOUT 5").as_deref(), Some("OK\n"));
        assert_eq!(replies("SET FORMAT json\r").as_deref(), Some("OK\n"));
        assert_eq!(replies("STATUS"), None);
        assert_eq!(
            Command::parse(b"Verbose Status"),
            Command::Status { verbose: true }
        );
        assert_eq!(
            replies("timeout -1").as_deref(),
            Some("ERROR: Invalid timeout value -1\n")
        );
        assert_eq!(
            replies("set format xml").as_deref(),
            Some("ERROR: Invalid format xml\n")
        );
        assert_eq!(
            replies("HELP \u{1b}[2J").as_deref(),
            Some("ERROR: Unknown command HELP \\u{1b}[2J\n")
        );
    }

    #[test]
    fn no_client_makes_the_service_wait_for_long() {
        for seconds in ["0", "4000000000"] {
            let line = format!("TIMEOUT {seconds}");
            assert_eq!(
                Command::parse(line.as_bytes()),
                Command::Timeout(MAX_TIMEOUT)
            );
        }
        assert_eq!(
            Command::parse(b"TIMEOUT 3"),
            Command::Timeout(Duration::from_secs(3))
        );
    }
}
