//! Byte sizes in nccl-tests' notation: a number with at most one binary suffix.

/// Parses `8`, `4K`, `1.5M`, `1G`, `2T` (binary multiples) into bytes.
///
/// ```
/// # use spark_ccl_console::notation::size::parse;
/// assert_eq!(parse("1.5M"), Ok(1_572_864));
/// ```
///
/// # Errors
///
/// If it is no number with at most one suffix, or not a size that a buffer can have.
pub fn parse(text: &str) -> Result<u64, String> {
    let trimmed = text.trim();
    let (digits, factor) = match trimmed.chars().last() {
        Some('k' | 'K') => (&trimmed[..trimmed.len() - 1], 1u64 << 10),
        Some('m' | 'M') => (&trimmed[..trimmed.len() - 1], 1 << 20),
        Some('g' | 'G') => (&trimmed[..trimmed.len() - 1], 1 << 30),
        Some('t' | 'T') => (&trimmed[..trimmed.len() - 1], 1 << 40),
        _ => (trimmed, 1),
    };
    let expected = || {
        format!(
            "'{text}' is not a size: expected a number and at most one of K, M, G, T, such as 8, \
             4K, 1.5M"
        )
    };
    let plain = digits.chars().all(|c| c.is_ascii_digit() || c == '.');
    if !plain || !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(expected());
    }
    let value: f64 = digits.parse().map_err(|_| expected())?;
    let bytes = value * factor as f64;
    // Above 2^53 an f64 cannot hold every byte count; no machine has such a buffer.
    if bytes > 2f64.powi(53) {
        return Err(format!("'{text}' is more than 8192T"));
    }
    if bytes > 0.0 && bytes < 1.0 {
        return Err(format!("'{text}' is less than one byte"));
    }
    Ok(bytes as u64)
}

/// A readable size, in the largest binary unit in which it is at least one.
///
/// ```
/// # use spark_ccl_console::notation::size::human;
/// assert_eq!(human(1_572_864), "1.5 MiB");
/// ```
pub fn human(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_suffixes() {
        assert_eq!(parse("8"), Ok(8));
        assert_eq!(parse("4K"), Ok(4096));
        assert_eq!(parse("4k"), Ok(4096));
        assert_eq!(parse("1.5M"), Ok(1_572_864));
        assert_eq!(parse("1G"), Ok(1 << 30));
        assert_eq!(parse("0"), Ok(0));
    }

    #[test]
    fn refused() {
        for bad in [
            "",
            "K",
            "8KB",
            "abc",
            "-8",
            "1e9",
            "inf",
            "nan",
            "0x10",
            "8 8",
            ".5",
            "1.2.3",
            "0.3",
            "99999999T",
            "8µ",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn for_people() {
        assert_eq!(human(8), "8 B");
        assert_eq!(human(1 << 30), "1 GiB");
        assert_eq!(human(1_572_864), "1.5 MiB");
    }
}
