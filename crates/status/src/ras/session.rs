//! A connection with a RAS client, as a state machine over bytes. Knows no socket and no clock.

use std::time::Duration;

use super::Format;
use super::command::{Command, MAX_LINE};

/// How long ranks may take to answer, unless the client says otherwise.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A connection with a client, without its socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The start of a line that is not complete yet.
    pending: Vec<u8>,
    format: Format,
    timeout: Duration,
}

/// The result of a client's bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Step {
    /// An answer to send now.
    pub reply: String,
    /// A request for a report. The connection ends after the report; later input is ignored.
    pub request: Option<Request>,
}

/// A request for a report of what runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The form of the answer.
    pub format: Format,
    /// Whether it tells all details.
    pub verbose: bool,
    /// How long ranks may take to answer.
    pub timeout: Duration,
}

/// A client's line is too long. Its connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected lines of less than {MAX_LINE} bytes, saw a longer one")]
pub struct TooLong;

impl Default for Session {
    fn default() -> Self {
        Self {
            pending: Vec::new(),
            format: Format::default(),
            timeout: TIMEOUT,
        }
    }
}

impl Session {
    /// Takes the bytes of a client.
    ///
    /// # Errors
    /// [`TooLong`] if a line exceeds what is allowed.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Step, TooLong> {
        let mut step = Step::default();
        let mut parts = bytes.split(|&byte| byte == b'\n');
        let last = parts.next_back().unwrap_or_default();
        for part in parts {
            self.keep(part)?;
            let line = std::mem::take(&mut self.pending);
            self.obey(&Command::parse(&line), &mut step);
            if step.request.is_some() {
                return Ok(step);
            }
        }
        self.keep(last)?;
        Ok(step)
    }

    fn keep(&mut self, part: &[u8]) -> Result<(), TooLong> {
        if self.pending.len() + part.len() >= MAX_LINE {
            return Err(TooLong);
        }
        self.pending.extend(part);
        Ok(())
    }

    fn obey(&mut self, command: &Command, step: &mut Step) {
        match *command {
            Command::Timeout(timeout) => self.timeout = timeout,
            Command::Format(format) => self.format = format,
            Command::Status { verbose } => {
                step.request = Some(Request {
                    format: self.format,
                    verbose,
                    timeout: self.timeout,
                });
            }
            Command::Protocol | Command::Invalid(_) => {}
        }
        step.reply.extend(command.reply());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_conversation() {
        let mut session = Session::default();
        let hello = session.feed(b"CLIENT PROTOCOL 2\nTIMEO").unwrap();
        assert_eq!(hello.reply, "SERVER PROTOCOL 2\n");
        assert_eq!(hello.request, None);
        let rest = b"UT 3\nSET FORMAT json\nVERBOSE STATUS\nTIMEOUT 9\n";
        let asked = session.feed(rest).unwrap();
        assert_eq!(asked.reply, "OK\nOK\n");
        let request = Request {
            format: Format::Json,
            verbose: true,
            timeout: Duration::from_secs(3),
        };
        assert_eq!(asked.request, Some(request));
    }

    #[test]
    fn a_line_without_an_end_is_refused() {
        let mut session = Session::default();
        let part = [b'x'; MAX_LINE / 2];
        assert_eq!(session.feed(&part), Ok(Step::default()));
        assert_eq!(session.feed(&part), Err(TooLong));
    }
}
