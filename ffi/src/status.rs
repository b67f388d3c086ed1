//! Result codes.

use std::ffi::{CStr, c_int};

use spark_ccl_abi::failure::{Code, Kind};

/// `spark_ccl_result`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// `SPARK_CCL_SUCCESS`.
    Success = 0,
    /// `SPARK_CCL_INVALID`.
    Invalid = 1,
    /// `SPARK_CCL_TIMEOUT`.
    Timeout = 2,
    /// `SPARK_CCL_REMOTE`.
    Remote = 3,
    /// `SPARK_CCL_SYSTEM`.
    System = 4,
    /// `SPARK_CCL_INTERNAL`.
    Internal = 5,
}

impl Code for Status {
    const SUCCESS: Self = Self::Success;

    fn of(kind: Kind) -> Self {
        match kind {
            Kind::Argument | Kind::Usage => Self::Invalid,
            Kind::Timeout => Self::Timeout,
            Kind::Remote => Self::Remote,
            Kind::Device | Kind::System => Self::System,
            Kind::Internal => Self::Internal,
        }
    }
}

/// A few words for a code.
pub(crate) fn name(result: c_int) -> &'static CStr {
    match result {
        0 => c"success",
        1 => c"invalid argument or setting",
        2 => c"a deadline passed",
        3 => c"another rank died, aborted or disagreed",
        4 => c"the system refused something",
        5 => c"defect of the library",
        _ => c"not a result of spark-ccl",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names() {
        let names: Vec<_> = (0..6).map(name).collect();
        assert!(names.iter().all(|text| *text != name(6)));
        assert_eq!(name(6), name(-1));
    }
}
