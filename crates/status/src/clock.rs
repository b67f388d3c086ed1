//! The time of day as text.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time since 1970, in UTC.
pub fn since_1970() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// Now, as `YYYY-MM-DD hh:mm:ss` in UTC.
pub fn now() -> String {
    format(since_1970().as_secs())
}

fn format(seconds: u64) -> String {
    let (year, month, day) = date(seconds / 86_400);
    let of_day = seconds % 86_400;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        of_day / 3600,
        of_day / 60 % 60,
        of_day % 60
    )
}

/// The Gregorian date, from days since 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    let mut year = 1970;
    let mut left = days;
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        assert_eq!(format(0), "1970-01-01 00:00:00");
        assert_eq!(format(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(format(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(format(1_767_225_599), "2025-12-31 23:59:59");
    }
}
