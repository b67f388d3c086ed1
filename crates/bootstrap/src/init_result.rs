//! The end of the initialisation: the ranks' reports, and the result for all of them.

use std::time::Duration;

use crate::Error;
use crate::hello::millis;
use crate::wire::{Reader, WireError, Writer};

/// The longest report.
pub(crate) const MAX_REPORT: usize = 4096;
/// The longest result.
pub(crate) const MAX_INIT_RESULT: usize = 16 * 1024;

const MAX_REASON: usize = 2048;
const MAX_TEXT: usize = 12 * 1024;

/// A rank's report on its links.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InitReport {
    pub(crate) result: Result<(), String>,
    /// How long the rank will wait for the others' reports.
    pub(crate) time_left: Duration,
}

impl InitReport {
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
        Ok(InitReport {
            result: if ok { Ok(()) } else { Err(reason) },
            time_left,
        })
    }
}

/// Why a world does not come up; the same for all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InitFailure {
    pub(crate) kind: InitFailureKind,
    pub(crate) text: String,
}

/// The kind of the error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InitFailureKind {
    Mismatch = 1,
    Missing = 2,
    Lost = 3,
    Links = 4,
    Expired = 5,
}

impl InitFailure {
    pub(crate) fn encode(&self) -> Vec<u8> {
        Writer::default()
            .u8(self.kind as u8)
            .text(&self.text, MAX_TEXT)
            .finish()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        use InitFailureKind::{Expired, Links, Lost, Mismatch, Missing};
        let mut from = Reader::new(bytes);
        let code = from.u8()?;
        let kind = [Mismatch, Missing, Lost, Links, Expired]
            .into_iter()
            .find(|kind| *kind as u8 == code);
        let text = from.text(MAX_TEXT)?;
        from.end()?;
        Ok(InitFailure {
            kind: kind.ok_or(WireError::Field("kind of error"))?,
            text,
        })
    }
}

impl From<InitFailure> for Error {
    fn from(init_result: InitFailure) -> Self {
        match init_result.kind {
            InitFailureKind::Mismatch => Error::Mismatch(init_result.text),
            InitFailureKind::Missing => Error::Missing(init_result.text),
            InitFailureKind::Lost => Error::Lost(init_result.text),
            InitFailureKind::Links => Error::Links(init_result.text),
            InitFailureKind::Expired => Error::Expired(init_result.text),
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
            let _ = InitReport::decode(&bytes);
            let _ = InitFailure::decode(&bytes);
        }

        #[test]
        fn damaged_ones_are_refused_or_others(at: prop::sample::Index, with: u8, cut: prop::sample::Index) {
            let time_left = Duration::from_secs(9);
            let report = InitReport { result: Err("no é".to_owned()), time_left };
            let text = "no é".to_owned();
            let init_result = InitFailure { kind: InitFailureKind::Links, text };
            let (mut report, mut init_result) = (report.encode(), init_result.encode());
            prop_assert!(InitReport::decode(&report[..cut.index(report.len())]).is_err());
            let cut_off = &init_result[..cut.index(init_result.len())];
            prop_assert!(InitFailure::decode(cut_off).is_err());
            for bytes in [&mut report, &mut init_result] {
                let at = at.index(bytes.len());
                bytes[at] = with;
            }
            let _ = InitReport::decode(&report);
            if let Ok(read) = InitFailure::decode(&init_result) {
                prop_assert_eq!(read.encode(), init_result);
            }
        }

        #[test]
        fn reports_and_verdicts_survive(reason in ".{0,100}", ms in 0u64..1_000_000) {
            let time_left = Duration::from_millis(ms);
            for result in [Ok(()), Err(reason.clone())] {
                let report = InitReport { result, time_left };
                prop_assert_eq!(InitReport::decode(&report.encode()), Ok(report));
            }
            let init_result = InitFailure { kind: InitFailureKind::Lost, text: reason };
            prop_assert_eq!(InitFailure::decode(&init_result.encode()), Ok(init_result));
        }

        #[test]
        fn the_longest_texts_keep_the_limits(text in "[a-zé]{0,20000}") {
            let report = InitReport { result: Err(text.clone()), time_left: Duration::MAX };
            prop_assert!(report.encode().len() <= MAX_REPORT);
            let init_result = InitFailure { kind: InitFailureKind::Links, text };
            prop_assert!(init_result.encode().len() <= MAX_INIT_RESULT);
        }
    }
}
