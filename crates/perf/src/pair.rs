//! Arguments of two parts.

use std::str::FromStr;

/// Parses two values with a colon between them; `expected` is for the error.
pub(crate) fn parse<A: FromStr, B: FromStr>(text: &str, expected: &str) -> Result<(A, B), String> {
    text.split_once(':')
        .and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)))
        .ok_or_else(|| format!("'{text}' is not {expected}"))
}
