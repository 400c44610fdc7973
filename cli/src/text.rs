//! Numbers, spans and moments as text.

pub(crate) use stk_schema::text::{count, size};

/// A span of time as text.
pub(crate) fn span(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    match ns {
        0..1_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        1_000_000_000..60_000_000_000 => format!("{seconds:.2} s"),
        _ => {
            let whole = ns / 1_000_000_000;
            format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
        }
    }
}

/// A moment as ISO 8601 in UTC, to the millisecond.
pub(crate) fn utc(ns_since_epoch: u64) -> String {
    let (date, time) = date_and_time(ns_since_epoch);
    format!("{date}T{time}.{:03}Z", ns_since_epoch / 1_000_000 % 1000)
}

/// A moment's date and time of day in UTC: `2026-11-21` and `07:05:09`.
pub(crate) fn date_and_time(ns_since_epoch: u64) -> (String, String) {
    let seconds = ns_since_epoch / 1_000_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days as i64);
    let time = format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60);
    (format!("{year:04}-{month:02}-{day:02}"), time)
}

/// Year, month and day of a day number since 1970-01-01 (Howard Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms").
fn civil(days: i64) -> (i64, u32, u32) {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = (doy - (153 * mp + 2) / 5 + 1) as u32;
    let month = if mp < 10 { mp + 3 } else { mp - 9 } as u32;
    (yoe + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_readable_units() {
        assert_eq!(span(1_500_000), "1.5 ms");
        assert_eq!(span(61_000_000_000), "0:01:01");
    }

    #[test]
    fn moments_match_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_782_400_000_000_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(utc(1_700_000_000_123_000_000), "2023-11-14T22:13:20.123Z");
    }
}
