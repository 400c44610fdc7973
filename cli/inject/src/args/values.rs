//! What the values of options may be: each function reads one, or says what is wrong with it.

use crate::duration;
use crate::process::name_pattern::NamePattern;
use crate::record::pattern;
use crate::rotate;
use std::ffi::OsString;
use stk_schema::typed::parse_size;
use stk_schema::{limits, requests};

/// When a recording continues in another file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RotateAt {
    /// After so many milliseconds.
    Time(u32),
    /// When the file has so many bytes.
    Size(u64),
}

pub(super) fn rotate_at(text: &str) -> Result<RotateAt, String> {
    // In less time the gaps would be a large part of the recording.
    const SHORTEST_MS: u32 = 1_000;
    let wrong = || format!("'{text}' is no time and no size: write 60s, 10m or 1h, or 256M or 2G");
    // A bare number would be seconds for one reader and bytes for another.
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Err(wrong());
    }
    if let Ok(ms) = duration::parse_ms(text) {
        return match ms {
            SHORTEST_MS.. => Ok(RotateAt::Time(ms)),
            _ => Err(format!("{text} for a file: at least 1s is needed")),
        };
    }
    match byte_count(text).map_err(|_| wrong())? {
        bytes @ rotate::LEAST_BYTES.. => Ok(RotateAt::Size(bytes)),
        _ => Err(format!("{text} for a file: at least 1M is needed")),
    }
}

pub(super) fn output(text: &str) -> Result<OsString, String> {
    if text == "-" {
        return Err("the recorded process writes the trace itself, into a file: name one".to_owned());
    }
    // Check the pattern before anything is changed. The values do not matter here.
    pattern::expand(text.as_ref(), pattern::Values { name: "", pid: 0, host: "", time: "" })
        .map_err(|error| error.to_string())?;
    Ok(text.into())
}

pub(super) fn name_pattern(text: &str) -> Result<String, String> {
    NamePattern::new(text).map(|_| text.to_owned())
}

pub(super) fn mark_text(text: &str) -> Result<String, String> {
    let most = requests::TEXT_BYTES;
    if text.trim().is_empty() {
        return Err("it is empty: say what happened".to_owned());
    }
    if text.len() > most {
        return Err(format!("it has {} bytes; a mark has room for {most}", text.len()));
    }
    Ok(text.to_owned())
}

pub(super) fn rate_mhz(text: &str) -> Result<u32, String> {
    let hz: f64 = text.parse().map_err(|_| format!("'{text}' is no number of samples per second"))?;
    if !(0.001..=20_000.0).contains(&hz) {
        return Err(format!("{text} samples per second: possible are 0.001 to 20000"));
    }
    Ok((hz * 1000.0).round() as u32)
}

pub(super) fn positive_ms(text: &str) -> Result<u32, String> {
    match duration::parse_ms(text).map_err(|error| error.to_string())? {
        0 => Err(format!("'{text}' is no time at all")),
        ms => Ok(ms),
    }
}

pub(super) fn flight_ms(text: &str) -> Result<u32, String> {
    match duration::parse_ms(text).map_err(|error| error.to_string())? {
        ms @ 1_000..=3_600_000 => Ok(ms),
        _ => Err(format!("{text} of --flight: possible are 1s to 1h")),
    }
}

pub(super) fn stack_bytes(text: &str) -> Result<u32, String> {
    let bytes = byte_count(text)?;
    // Less would not hold even one frame of most functions.
    const LEAST: u64 = 256;
    let most = limits::MAX_SAMPLE_WORDS as u64 * 8;
    if !(LEAST..=most).contains(&bytes) {
        return Err(format!("{text} stack bytes: possible are {LEAST} to {most}"));
    }
    Ok(bytes as u32)
}

pub(super) fn trace_bytes(text: &str) -> Result<u64, String> {
    // Less would hardly hold the events of a program's modules.
    const LEAST: u64 = 1 << 20;
    match byte_count(text)? {
        bytes @ 1..LEAST => {
            Err(format!("{bytes} bytes of trace: at least 1M is needed, and 0 means no limit"))
        }
        bytes => Ok(bytes),
    }
}

/// `65536`, `64k`, `1M`, `4G` in binary units.
fn byte_count(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| format!("'{text}' is no number of bytes: write 65536, 64k or 1M"))
}
