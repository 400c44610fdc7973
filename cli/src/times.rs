//! Times on the command line: since the trace's start, by the clock, or with a date.

use stk_base::text::{TimeZone, day_number, from_clock, offset};
use stk_profile::trace::Trace;
use stk_schema::typed;

/// A time that an option names. Which moment of a trace it is depends on when that was recorded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeArg {
    /// Nanoseconds since the trace's start.
    SinceStart(u64),
    /// A time of day, on the day of the trace's start or the next one.
    OfDay {
        /// Nanoseconds since midnight.
        ns: u64,
        /// Seconds that its zone is ahead of UTC; `None`: the zone of `--tz`.
        offset: Option<i32>,
    },
    /// A date and a time.
    Dated {
        /// Seconds since the epoch, as if the time were in UTC.
        seconds: i64,
        /// Nanoseconds of the second.
        ns: u32,
        /// Seconds that its zone is ahead of UTC; `None`: the zone of `--tz`.
        offset: Option<i32>,
    },
}

const SECOND: i128 = 1_000_000_000;
const DAY: i64 = 86_400;

impl TimeArg {
    /// The moment in nanoseconds since the start of a trace. Negative if it lies before that.
    pub fn of(self, trace: &Trace<'_>, zone: TimeZone) -> i128 {
        let last = trace.clock.ns(trace.last());
        self.since(trace.header().utc_start, last, zone)
    }

    /// The moment since a start, in nanoseconds since the epoch, of a recording of this duration.
    pub fn since(self, start: u64, duration: u64, zone: TimeZone) -> i128 {
        let start_s = (start / SECOND as u64) as i64;
        let start = i128::from(start);
        match self {
            TimeArg::SinceStart(ns) => ns.into(),
            TimeArg::Dated { seconds, ns, offset } => {
                i128::from(in_utc(seconds, offset, zone)) * SECOND + i128::from(ns) - start
            }
            TimeArg::OfDay { ns, offset: own } => {
                let ahead = i64::from(own.unwrap_or_else(|| offset(zone, start_s)));
                let midnight = (start_s + ahead).div_euclid(DAY) * DAY;
                let on = |day: i64| {
                    let seconds = midnight + day * DAY + (i128::from(ns) / SECOND) as i64;
                    i128::from(in_utc(seconds, own, zone)) * SECOND + i128::from(ns) % SECOND - start
                };
                // A recording may continue past midnight.
                let (today, tomorrow) = (on(0), on(1));
                if today < 0 && tomorrow <= i128::from(duration) { tomorrow } else { today }
            }
        }
    }
}

/// Seconds since the epoch of a time that is given as if it were in UTC.
fn in_utc(seconds: i64, offset: Option<i32>, zone: TimeZone) -> i64 {
    match offset {
        Some(offset) => seconds - i64::from(offset),
        None => from_clock(zone, seconds),
    }
}

/// A time as options take it: `90`, `1.5s`, `250ms` since the trace's start; `03:14`, `03:14:05.2Z`
/// by the clock; RFC 3339 with a date.
pub fn parse(text: &str) -> Result<TimeArg, String> {
    let text = text.trim();
    if !text.contains(':') {
        return parse_span(text).map(TimeArg::SinceStart);
    }
    let wrong = || "give a time such as 03:14, 03:14:05.2Z or 2026-11-21T03:14:05+01:00".to_owned();
    let (date, clock) = match text.split_once(['T', 't', ' ']) {
        Some((date, clock)) => (Some(parse_date(date).ok_or_else(wrong)?), clock),
        None => (None, text),
    };
    let (clock, offset) = split_offset(clock).ok_or_else(wrong)?;
    let (second, ns) = parse_clock(clock).ok_or_else(wrong)?;
    Ok(match date {
        Some(day) => TimeArg::Dated { seconds: day * DAY + i64::from(second), ns, offset },
        None => TimeArg::OfDay { ns: u64::from(second) * SECOND as u64 + u64::from(ns), offset },
    })
}

fn parse_date(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, '-');
    let mut part = |digits| number(parts.next()?, digits);
    let (year, month, day) = (part(4)?, part(2)?, part(2)?);
    day_number(year.try_into().ok()?, month.try_into().ok()?, day.try_into().ok()?)
}

/// A time of day without its zone, and the zone's offset in seconds.
fn split_offset(text: &str) -> Option<(&str, Option<i32>)> {
    if let Some(clock) = text.strip_suffix(['Z', 'z']) {
        return Some((clock, Some(0)));
    }
    let Some(at) = text.find(['+', '-']) else { return Some((text, None)) };
    let (hours, minutes) = text[at + 1..].split_once(':')?;
    let (hours, minutes) = (number(hours, 2)?, number(minutes, 2)?);
    let seconds = i32::try_from(hours * 3600 + minutes * 60).ok().filter(|_| hours < 24 && minutes < 60)?;
    Some((&text[..at], Some(if text[at..].starts_with('-') { -seconds } else { seconds })))
}

/// Seconds since midnight, and nanoseconds: `HH:MM`, `HH:MM:SS`, `HH:MM:SS.fff`.
fn parse_clock(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.splitn(3, ':');
    let (hour, minute) = (number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let (second, ns) = match parts.next() {
        None => (0, 0),
        Some(seconds) => match seconds.split_once('.') {
            None => (number(seconds, 2)?, 0),
            Some((seconds, fraction)) if (1..=9).contains(&fraction.len()) => {
                let scale = 10u32.pow(9 - fraction.len() as u32);
                (number(seconds, 2)?, number(fraction, fraction.len())? * scale)
            }
            Some(_) => return None,
        },
    };
    (hour < 24 && minute < 60 && second < 60).then_some((hour * 3600 + minute * 60 + second, ns))
}

/// A number of exactly so many digits.
fn number(text: &str, digits: usize) -> Option<u32> {
    let all = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| all)
}

/// A span: see [`typed::parse_span`].
pub fn parse_span(text: &str) -> Result<u64, String> {
    let span = typed::parse_span(text);
    span.ok_or_else(|| "give a span such as 250ms, 1.5s or 1m30s, or a time such as 03:14:05Z".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_a_time_since_the_start() {
        assert_eq!(parse("1m30s"), Ok(TimeArg::SinceStart(90_000_000_000)));
        // As dump and info print them.
        assert_eq!(parse("12.345 s"), Ok(TimeArg::SinceStart(12_345_000_000)));
        assert!(parse("soon").is_err());
    }

    /// 2026-11-21T23:59:30Z, by `date -ud 2026-11-21T23:59:30 +%s`.
    const START: u64 = 1_795_305_570_000_000_000;

    fn since(text: &str) -> f64 {
        parse(text).unwrap().since(START, 120_000_000_000, TimeZone::Utc) as f64 / 1e9
    }

    #[test]
    fn a_time_of_day_is_that_of_the_trace_or_after_its_midnight() {
        assert_eq!(since("23:59:40"), 10.0);
        assert_eq!(since("23:59:40.25Z"), 10.25);
        assert_eq!(since("00:01"), 90.0);
        // In a zone where the recording began at 01:59:30.
        assert_eq!(since("02:00:00+02:00"), 30.0);
        assert_eq!(since("18:59:31-05:00"), 1.0);
        // Before the start, and not within the recording on the next day either.
        assert_eq!(since("23:59:00"), -30.0);
        assert_eq!(since("12:00"), -43_170.0);
    }

    #[test]
    fn a_date_with_a_time_is_that_moment() {
        assert_eq!(since("2026-11-21T23:59:35Z"), 5.0);
        assert_eq!(since("2026-11-22 00:00:35.5"), 65.5);
        assert_eq!(since("2026-11-22T01:00:00+01:00"), 30.0);
        assert_eq!(since("2026-11-20T23:59:30Z"), -86_400.0);
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "24:00",
            "3:14",
            "03:60",
            "03:14:60",
            "03:14:05.",
            "03:14:05.1234567890",
            "03:14+1",
            "03:14+24:00",
            "2026-13-01T00:00Z",
            "2026-02-29T00:00Z",
            "26-11-21T00:00Z",
            "2026-11-21T",
            "x03:14",
            "03:14:05ZZ",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
