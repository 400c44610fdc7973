//! Spans of time on the command line, in milliseconds.

use stk_schema::text::span;
use stk_schema::typed::parse_span;
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

/// Milliseconds of a span of time as [`parse_span`] reads it, rounded.
///
/// # Errors
/// When it is no such span, or does not fit 32 bits (49 days).
pub(crate) fn parse_ms(text: &str) -> Result<u32, DurationError> {
    const MS: u64 = 1_000_000;
    let ns = parse_span(text).ok_or_else(|| DurationError::NoSpan(text.to_owned()))?;
    let ms = ns / MS + u64::from(ns % MS >= MS / 2);
    u32::try_from(ms).map_err(|_| DurationError::TooLong(text.to_owned()))
}

/// `ms` for people, as stk writes spans: `812 ms`, `12.3 s`, `3 min 05 s`, `2 h 03 min`.
pub(crate) fn show(ms: u64) -> String {
    span(ms.saturating_mul(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_milliseconds_of_at_most_49_days() {
        assert_eq!(["1m30s", "0.25", "0.4ms"].map(parse_ms), [Ok(90_000), Ok(250), Ok(0)]);
        assert!(parse_ms("50d").expect_err("50 days").to_string().contains("49 days"));
        let error = parse_ms("soon").expect_err("no span").to_string();
        assert!(error.contains("'soon'"), "{error}");
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
