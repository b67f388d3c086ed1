//! The end of the initialisation: the ranks' reports, and the verdict for all of them.

use std::time::Duration;

use crate::Error;
use crate::hello::millis;
use crate::wire::{Reader, WireError, Writer};

/// The longest report.
pub(crate) const MAX_REPORT: usize = 4096;
/// The longest verdict.
pub(crate) const MAX_VERDICT: usize = 16 * 1024;

const MAX_REASON: usize = 2048;
const MAX_TEXT: usize = 12 * 1024;

/// A rank's report on its links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) result: Result<(), String>,
    /// How long the rank will wait for the others' reports.
    pub(crate) time_left: Duration,
}

impl Report {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.u64(millis(self.time_left))
            .u8(u8::from(self.result.is_ok()));
        to.text(
            self.result.as_ref().err().map_or("", String::as_str),
            MAX_REASON,
        );
        to.finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut from = Reader::new(bytes);
        let time_left = Duration::from_millis(from.u64()?);
        let ok = from.u8()? != 0;
        let reason = from.text(MAX_REASON)?;
        from.end()?;
        Ok(Report {
            result: if ok { Ok(()) } else { Err(reason) },
            time_left,
        })
    }
}

/// Why a world does not come up; the same for all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) kind: VerdictKind,
    pub(crate) text: String,
}

/// The kind of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum VerdictKind {
    Mismatch = 1,
    Missing = 2,
    Lost = 3,
    Links = 4,
    Expired = 5,
}

impl Verdict {
    pub(crate) fn encode(&self) -> Vec<u8> {
        Writer::default()
            .u8(self.kind as u8)
            .text(&self.text, MAX_TEXT)
            .finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        use VerdictKind::{Expired, Links, Lost, Mismatch, Missing};
        let mut from = Reader::new(bytes);
        let code = from.u8()?;
        let kind = [Mismatch, Missing, Lost, Links, Expired]
            .into_iter()
            .find(|kind| *kind as u8 == code);
        let text = from.text(MAX_TEXT)?;
        from.end()?;
        Ok(Verdict {
            kind: kind.ok_or(WireError::Field("kind of error"))?,
            text,
        })
    }
}

impl From<Verdict> for Error {
    fn from(verdict: Verdict) -> Self {
        match verdict.kind {
            VerdictKind::Mismatch => Error::Mismatch(verdict.text),
            VerdictKind::Missing => Error::Missing(verdict.text),
            VerdictKind::Lost => Error::Lost(verdict.text),
            VerdictKind::Links => Error::Links(verdict.text),
            VerdictKind::Expired => Error::Expired(verdict.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = Report::decode(&bytes);
            let _ = Verdict::decode(&bytes);
        }

        #[test]
        fn damaged_ones_are_refused_or_others(at: prop::sample::Index, with: u8, cut: prop::sample::Index) {
            let report = Report { result: Err("no é".to_owned()), time_left: Duration::from_secs(9) };
            let verdict = Verdict { kind: VerdictKind::Links, text: "no é".to_owned() };
            let (mut report, mut verdict) = (report.encode(), verdict.encode());
            prop_assert!(Report::decode(&report[..cut.index(report.len())]).is_err());
            prop_assert!(Verdict::decode(&verdict[..cut.index(verdict.len())]).is_err());
            for bytes in [&mut report, &mut verdict] {
                let at = at.index(bytes.len());
                bytes[at] = with;
            }
            let _ = Report::decode(&report);
            if let Ok(read) = Verdict::decode(&verdict) {
                prop_assert_eq!(read.encode(), verdict);
            }
        }

        #[test]
        fn reports_and_verdicts_survive(reason in ".{0,100}", ms in 0u64..1_000_000) {
            let time_left = Duration::from_millis(ms);
            for result in [Ok(()), Err(reason.clone())] {
                let report = Report { result, time_left };
                prop_assert_eq!(Report::decode(&report.encode()), Ok(report));
            }
            let verdict = Verdict { kind: VerdictKind::Lost, text: reason };
            prop_assert_eq!(Verdict::decode(&verdict.encode()), Ok(verdict));
        }

        #[test]
        fn the_longest_texts_keep_the_limits(text in "[a-zé]{0,20000}") {
            let report = Report { result: Err(text.clone()), time_left: Duration::MAX };
            prop_assert!(report.encode().len() <= MAX_REPORT);
            let verdict = Verdict { kind: VerdictKind::Links, text };
            prop_assert!(verdict.encode().len() <= MAX_VERDICT);
        }
    }
}
