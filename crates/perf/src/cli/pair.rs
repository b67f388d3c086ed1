//! Arguments that consist of two values.

use std::str::FromStr;

/// Parses two values separated by a colon; `expected` describes them in the error.
pub(crate) fn parse<A: FromStr, B: FromStr>(text: &str, expected: &str) -> Result<(A, B), String> {
    text.split_once(':')
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)))
        .ok_or_else(|| format!("'{text}' is not {expected}"))
}
