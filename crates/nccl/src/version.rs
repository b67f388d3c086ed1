//! NCCL's version numbers.

use std::fmt;

/// A version of NCCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// The 2 of 2.30.7.
    pub major: u32,
    /// The 30 of 2.30.7.
    pub minor: u32,
    /// The 7 of 2.30.7.
    pub patch: u32,
}

impl Version {
    /// The oldest supported version.
    pub const OLDEST: Self = Self::new(2, 18, 0);

    pub(crate) const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self {
            major,
            minor,
            patch,
        }
    }

    /// From the result of `ncclGetVersion`. Up to version 2.8 it had one digit less.
    pub(crate) const fn from_code(code: u32) -> Self {
        let major = if code < 10_000 { 1000 } else { 10_000 };
        Self::new(code / major, code % major / 100, code % 100)
    }

    /// NCCL's number for it.
    pub(crate) const fn code(self) -> u32 {
        self.major * 10_000 + self.minor * 100 + self.patch
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes() {
        let newest = Version::from_code(23_007);
        assert_eq!(newest, Version::new(2, 30, 7));
        assert_eq!(
            (newest.code(), newest.to_string()),
            (23_007, "2.30.7".into())
        );
        assert_eq!(Version::from_code(2_708), Version::new(2, 7, 8));
        assert!(Version::from_code(21_701) < Version::OLDEST && Version::OLDEST < newest);
    }
}
