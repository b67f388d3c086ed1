//! Numbers with as many digits as matter.

/// Six significant digits without trailing zeros.
///
/// ```
/// # use spark_ccl_console::notation::number::significant;
/// assert_eq!(significant(1.234_567_89), "1.23457");
/// ```
pub fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return format!("{value}");
    }
    let decimals = (5 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_significant_digits() {
        assert_eq!(significant(0.0), "0");
        assert_eq!(significant(1.234_567_89), "1.23457");
        assert_eq!(significant(0.001_234_567_8), "0.00123457");
        assert_eq!(significant(12.0), "12");
    }
}
