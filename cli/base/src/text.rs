//! Numbers, times and columns as text.

use std::borrow::Cow;
use std::path::{Component, Path};
use std::sync::OnceLock;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::{Offset, TimeZone as Zone};
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

impl TimeZone {
    /// Its rules. Of a machine that names no zone they are UTC's.
    fn rules(self) -> Zone {
        match self {
            TimeZone::Utc => Zone::UTC,
            TimeZone::Local if names_a_zone() => Zone::system(),
            TimeZone::Local => Zone::UTC,
        }
    }
}

/// Whether `TZ`, if it is set, names a zone. As a path it can name a device without end, which
/// would be read to its end: such a name is reported once and counts as UTC.
fn names_a_zone() -> bool {
    static NAMES: OnceLock<bool> = OnceLock::new();
    *NAMES.get_or_init(|| {
        let Some(text) = std::env::var_os("TZ") else { return true };
        let is_zone = is_zone(&text.to_string_lossy());
        if !is_zone {
            log::warn!("the environment variable TZ leads to no regular file: local times are those of UTC");
        }
        is_zone
    })
}

fn is_zone(text: &str) -> bool {
    let path = Path::new(text.strip_prefix(':').unwrap_or(text));
    let leads_out = path.components().any(|part| part == Component::ParentDir);
    !leads_out && (!path.is_absolute() || path.is_file())
}

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
    let shown = timestamp(ns_since_epoch).to_zoned(zone.rules());
    let end = match zone {
        TimeZone::Utc => "Z",
        TimeZone::Local => "%:z",
    };
    shown.strftime(&format!("%Y-%m-%dT%H:%M:%S%.3f{end}")).to_string()
}

/// The day of a moment in UTC: `2026-11-21`.
pub fn utc_date(ns_since_epoch: u64) -> String {
    timestamp(ns_since_epoch).strftime("%Y-%m-%d").to_string()
}

/// A moment of this number, which ends in the year 2554.
fn timestamp(ns_since_epoch: u64) -> Timestamp {
    Timestamp::from_nanosecond(ns_since_epoch.into()).unwrap_or(Timestamp::MAX)
}

/// How many seconds a zone's clocks are ahead of UTC at a moment, in seconds since the epoch.
pub fn offset(zone: TimeZone, seconds: i64) -> i32 {
    Timestamp::from_second(seconds).map_or(0, |moment| zone.rules().to_offset(moment).seconds())
}

/// Seconds since the epoch at a time that clocks of a zone show; `seconds` is that time as if in
/// UTC. Of a time that they show twice the first, of one that they skip as much later as they skip.
pub fn from_clock(zone: TimeZone, seconds: i64) -> i64 {
    let shown = Timestamp::from_second(seconds).map(|moment| Offset::UTC.to_datetime(moment));
    let found = shown.and_then(|shown| zone.rules().to_ambiguous_timestamp(shown).compatible());
    found.map_or(seconds, Timestamp::as_second)
}

/// The day number of a date, since 1970-01-01; `None` if the calendar has no such day.
pub fn day_number(year: i16, month: i8, day: i8) -> Option<i64> {
    let date = Date::new(year, month, day).ok().filter(|date| date.year() > 0)?;
    Some(date.to_zoned(Zone::UTC).ok()?.timestamp().as_second().div_euclid(86_400))
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

/// `1 thread`, `2 threads`, `2 processes`: a count with its noun.
pub fn counted(n: u64, noun: &str) -> String {
    let ending = match noun {
        _ if n == 1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{} {noun}{ending}", count(n))
}

/// A text with everything but ASCII letters, digits and the bytes in `kept` as `%XX` (RFC 3986,
/// 2.1).
pub fn percent_encoded(text: &str, kept: &[u8]) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || kept.contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
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
    fn counted_nouns_have_their_plural() {
        assert_eq!(counted(1, "process"), "1 process");
        assert_eq!(counted(2, "process"), "2 processes");
        assert_eq!(counted(1_000, "thread"), "1,000 threads");
    }

    #[test]
    fn time_zone_that_is_no_regular_file_counts_as_utc() {
        assert!(["Europe/Berlin", "CET-1CEST,M3.5.0,M10.5.0/3", "", ":UTC"].into_iter().all(is_zone));
        for text in ["/dev/zero", ":/dev/zero", "../../../../dev/zero", "/", "Europe/../../x"] {
            assert!(!is_zone(text), "{text}");
        }
    }

    #[test]
    fn moments_match_the_calendar() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_782_400_000_000_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(utc(1_700_000_000_123_999_999), "2023-11-14T22:13:20.123Z");
        // `date -ud @18446744073 +%FT%T`
        assert_eq!(utc(u64::MAX), "2554-07-21T23:34:33.709Z");
    }

    #[test]
    fn a_date_has_its_day_number() {
        assert_eq!(day_number(1970, 1, 1), Some(0));
        // 951782400 s, as `date -ud 2000-02-29 +%s` has it.
        assert_eq!(day_number(2000, 2, 29), Some(951_782_400 / 86_400));
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
