//! Parsers of values. They return `None` for an invalid text; the caller's error says what is
//! expected.

use std::time::Duration;

/// A positive number of seconds, at most a billion.
pub(crate) fn seconds(text: &str) -> Option<Duration> {
    let seconds: f64 = text.parse().ok()?;
    let allowed = seconds > 0.0 && seconds <= 1e9;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|d| allowed && !d.is_zero())
}

/// `1` or `0`, or one of the usual words.
pub(crate) fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// A number of bytes with an optional binary suffix `K`, `M` or `G`.
pub(crate) fn bytes(text: &str) -> Option<usize> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    number(digits)?.checked_mul(1 << shift)
}

/// Decimal digits only.
pub(crate) fn number(text: &str) -> Option<usize> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn seconds_are_positive_and_may_be_fractions() {
        assert_eq!(seconds("600"), Some(Duration::from_secs(600)));
        assert_eq!(seconds("0.25"), Some(Duration::from_millis(250)));
        for bad in ["0", "-1", "nan", "inf", "1e10", "1e-30", "", "10s"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn bytes_with_suffixes() {
        assert_eq!(bytes("65536"), Some(65536));
        assert_eq!(bytes("64k"), Some(65536));
        assert_eq!(bytes("4M"), Some(4 << 20));
        assert_eq!(bytes("1G"), Some(1 << 30));
        for bad in [
            "",
            "K",
            "-1",
            "+1",
            "1.5K",
            "99999999999999999999",
            "99999999999G",
        ] {
            assert_eq!(bytes(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = (seconds(&text), boolean(&text), bytes(&text), number(&text));
        }

        #[test]
        fn what_is_almost_a_number_is_one_or_refused(text in "[+-]?[0-9]{0,22}[.]?[0-9]{0,4}(e-?[0-9]{1,3})?[kKmMgG]?") {
            if let Some(seconds) = seconds(&text) {
                prop_assert!(!seconds.is_zero() && seconds <= Duration::from_secs(1_000_000_000));
            }
            if let Some(number) = number(&text) {
                let digits = number.to_string();
                prop_assert_eq!(text.trim_start_matches('0'), digits.trim_start_matches('0'));
            }
            let _ = bytes(&text);
        }
    }
}
