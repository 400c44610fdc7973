//! Numbers, times and columns as text.

use std::borrow::Cow;
pub use stk_schema::text::{count, size, span, three};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The zone in which moments are shown.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum TimeZone {
    /// Coordinated universal time, so that every machine shows the same.
    #[default]
    Utc,
    /// That of this machine.
    Local,
}

const SECOND: u64 = 1_000_000_000;

/// A moment of a recording, as seconds since its start: `12.345 s`. `--at` and `--from` take it.
/// As in [`moment`], what is below a millisecond is left out.
pub fn since_start(ns: u64) -> String {
    let ms = ns / 1_000_000;
    format!("{}.{:03} s", ms / 1000, ms % 1000)
}

/// A moment in UTC as ISO 8601 has it, to the millisecond: `2026-11-21T07:05:09.120Z`.
pub fn utc(ns_since_epoch: u64) -> String {
    moment(ns_since_epoch, TimeZone::Utc)
}

/// A moment as ISO 8601 has it, to the millisecond: `2026-11-21T08:05:09.120+01:00`.
pub fn moment(ns_since_epoch: u64, zone: TimeZone) -> String {
    let seconds = (ns_since_epoch / SECOND) as i64;
    let offset = offset(zone, seconds);
    let shown = seconds + i64::from(offset);
    let (year, month, day) = civil(shown.div_euclid(86_400));
    let second = shown.rem_euclid(86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let ms = ns_since_epoch / 1_000_000 % 1000;
    let zone = match (zone, offset) {
        (TimeZone::Utc, _) => "Z".to_owned(),
        (TimeZone::Local, offset) => {
            let sign = if offset < 0 { '-' } else { '+' };
            format!("{sign}{:02}:{:02}", offset.abs() / 3600, offset.abs() / 60 % 60)
        }
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}{zone}")
}

/// The day of a moment in UTC: `2026-11-21`.
pub fn utc_date(ns_since_epoch: u64) -> String {
    let (year, month, day) = civil((ns_since_epoch / SECOND / 86_400) as i64);
    format!("{year:04}-{month:02}-{day:02}")
}

/// How many seconds a zone's clocks are ahead of UTC at a moment, in seconds since the epoch.
pub fn offset(zone: TimeZone, seconds: i64) -> i32 {
    match zone {
        TimeZone::Utc => 0,
        TimeZone::Local => crate::local_time::offset(seconds).unwrap_or(0),
    }
}

/// Seconds since the epoch at a time that clocks of a zone show; `seconds` is that time as if in
/// UTC. Of a time that they show twice or never, one that is near.
pub fn from_clock(zone: TimeZone, seconds: i64) -> i64 {
    let guess = seconds - i64::from(offset(zone, seconds));
    seconds - i64::from(offset(zone, guess))
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

/// The day number of a date, since 1970-01-01; `None` if the calendar has no such day. The reverse
/// of [`civil`], from the same source.
pub fn day_number(year: i64, month: u32, day: u32) -> Option<i64> {
    if !(1..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let y = year - i64::from(month <= 2);
    let era = y.div_euclid(400);
    let yoe = y.rem_euclid(400);
    let mp = (i64::from(month) + 9) % 12;
    let doy = (153 * mp + 2) / 5 + i64::from(day) - 1;
    let doe = yoe * 365 + yoe / 4 - yoe / 100 + doy;
    let days = era * 146_097 + doe - 719_468;
    (civil(days) == (year, month, day)).then_some(days)
}

/// Columns that a terminal takes for a text: two for a CJK character, none for a combining one.
pub fn width(text: &str) -> usize {
    text.width()
}

/// A text with spaces behind it, so that it takes at least so many columns.
pub fn pad(text: &str, columns: usize) -> String {
    let mut text = text.to_owned();
    text.extend(std::iter::repeat_n(' ', columns.saturating_sub(width(&text))));
    text
}

/// Shortens a text to so many columns, in its middle, since both ends of a C++ name are useful.
pub fn cut(text: &str, columns: usize) -> Cow<'_, str> {
    if width(text) <= columns {
        return Cow::Borrowed(text);
    }
    let left = columns.saturating_sub(1);
    let head = within(text.chars(), left * 2 / 3);
    let tail = within(text.chars().rev(), left - left * 2 / 3);
    Cow::Owned(head.into_iter().chain(['…']).chain(tail.into_iter().rev()).collect())
}

/// As many of the characters as fit.
fn within(chars: impl Iterator<Item = char>, mut columns: usize) -> Vec<char> {
    let fits = |&c: &char| {
        let rest = columns.checked_sub(c.width().unwrap_or(0));
        columns = rest.unwrap_or(0);
        rest.is_some()
    };
    chars.take_while(fits).collect()
}

/// `1 thread`, `2 threads`: a count with its noun, whose plural has an `s`.
pub fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// A text with a capital letter in front.
pub fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    first + chars.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_match_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_782_400_000_000_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(utc(1_700_000_000_123_000_000), "2023-11-14T22:13:20.123Z");
    }

    #[test]
    fn a_date_and_its_day_number_lead_to_each_other() {
        assert_eq!(day_number(1970, 1, 1), Some(0));
        // 951782400 s, as `date -ud 2000-02-29 +%s` has it.
        assert_eq!(day_number(2000, 2, 29), Some(951_782_400 / 86_400));
        for days in (0..200_000).step_by(17) {
            let (year, month, day) = civil(days);
            assert_eq!(day_number(year, month, day), Some(days));
        }
        assert_eq!([day_number(2023, 2, 29), day_number(2023, 4, 31), day_number(2023, 13, 1)], [None; 3]);
    }

    #[test]
    fn moments_since_the_start_are_seconds_to_the_millisecond() {
        assert_eq!(since_start(0), "0.000 s");
        assert_eq!(since_start(2_000_000_000), "2.000 s");
        assert_eq!(since_start(1_999_999_999), "1.999 s");
        assert_eq!(since_start(3_600_000_000_000), "3600.000 s");
    }

    #[test]
    fn columns_are_those_of_a_terminal() {
        // Unicode, UAX #11: these two are wide; U+0308 combines with the letter before it.
        assert_eq!(width("名前"), 4);
        assert_eq!(width("a\u{308}"), 1);
        assert_eq!(pad("名", 4), "名  ");
        assert_eq!(pad("größe", 3), "größe");
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("0123456789", 7), "0123…89");
        let cut = cut("名名名名名名", 8);
        assert!(width(&cut) <= 8 && cut.contains('…'), "{cut}");
    }

    #[test]
    fn one_is_no_plural() {
        assert_eq!([counted(0, "thread"), counted(1, "thread")], ["0 threads", "1 thread"]);
        assert_eq!(counted(1200, "frame"), "1,200 frames");
    }
}
