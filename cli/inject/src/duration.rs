//! Spans of time on the command line: `10` (seconds), `0.5s`, `500ms`, `1m30s`, `2h`.

use stk_schema::text::span;
use thiserror::Error;

/// Why a text is not a duration.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum DurationError {
    /// It has another syntax.
    #[error("'{0}' is no span of time: write 10 (seconds), 500ms, 10s, 1m30s or 2h")]
    NoSpan(String),
    /// It does not fit 32 bits.
    #[error("'{0}' is too long: at most 49 days")]
    TooLong(String),
}

/// Milliseconds in `text`, which is a number of seconds or a sequence of numbers with units `ms`,
/// `s`, `m`, `h`, `d`.
///
/// # Errors
/// When it is no such span, or does not fit 32 bits (49 days).
pub(crate) fn parse_ms(text: &str) -> Result<u32, DurationError> {
    let bad = || DurationError::NoSpan(text.to_owned());
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(bad());
    }
    let mut total = 0.0f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().map_err(|_| bad())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let scale = match &rest[..letters] {
            // A bare number is seconds, but only if it is the whole text: `1m30` is an error.
            "" if digits == text.trim().len() => 1_000.0,
            "ms" => 1.0,
            "s" => 1_000.0,
            "m" => 60_000.0,
            "h" => 3_600_000.0,
            "d" => 86_400_000.0,
            _ => return Err(bad()),
        };
        rest = &rest[letters..];
        total += number * scale;
    }
    let total = total.round();
    if total > f64::from(u32::MAX) {
        return Err(DurationError::TooLong(text.to_owned()));
    }
    Ok(total as u32)
}

/// `ms` for people, as stk writes spans: `812 ms`, `12.3 s`, `3 min 05 s`, `2 h 03 min`.
pub(crate) fn show(ms: u64) -> String {
    span(ms.saturating_mul(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_number_is_seconds() {
        assert_eq!(parse_ms("10"), Ok(10_000));
        assert_eq!(parse_ms("0.25"), Ok(250));
        assert_eq!(parse_ms("0"), Ok(0));
    }

    #[test]
    fn units_add_up() {
        assert_eq!(parse_ms("10s"), Ok(10_000));
        assert_eq!(parse_ms("1m"), Ok(60_000));
        assert_eq!(parse_ms("1m30s"), Ok(90_000));
        assert_eq!(parse_ms("500ms"), Ok(500));
        assert_eq!(parse_ms("1.5h"), Ok(5_400_000));
        assert_eq!(parse_ms("1d1h1m1s1ms"), Ok(86_400_000 + 3_600_000 + 60_000 + 1_000 + 1));
    }

    #[test]
    fn texts_that_are_not_durations_are_refused_and_named() {
        for text in ["", " ", "s", "-1", "1x", "1m30", "1..2s", "ten", "1e3", "10 s x", "∞"] {
            let error = parse_ms(text).expect_err(text);
            assert!(error.to_string().contains(text), "{error}");
        }
        assert!(parse_ms("50d").expect_err("50 days").to_string().contains("49 days"));
    }

    #[test]
    fn durations_are_shown_in_fitting_units() {
        assert_eq!(show(0), "0 s");
        assert_eq!(show(u64::MAX), show(u64::MAX / 1_000_000));
        assert_eq!(show(12_345), "12.3 s");
        assert_eq!(show(185_000), "3 min 05 s");
        assert_eq!(show(7_380_000), "2 h 03 min");
    }
}
