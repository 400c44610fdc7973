//! Makes untrusted text safe for a terminal, takes file names from paths, and writes counts, sizes
//! and spans of time for people.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::{String, ToString};
use core::fmt::Write;

/// The most characters shown of one text. A Windows path has at most 32,767.
pub const MAX_SHOWN: usize = 32_767;

/// The last component of a path in Windows or Unix syntax.
///
/// ```
/// assert_eq!(stk_schema::text::file_name(r"C:\Windows/System32\ntdll.dll"), "ntdll.dll");
/// ```
pub fn file_name(path: &str) -> &str {
    path.rsplit(['\\', '/']).next().unwrap_or(path)
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The text behind `prefix`, in whatever case the prefix is written.
pub(crate) fn strip_prefix_ignoring_case<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// `text` as one line that a terminal only shows: control characters, line separators and
/// characters that change the writing direction appear as `\u{..}`. A text longer than
/// [`MAX_SHOWN`] characters is cut and says so.
///
/// ```
/// assert_eq!(stk_schema::text::printable("a\u{1b}[2J\nb"), r"a\u{1b}[2J\u{a}b");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.len() <= MAX_SHOWN && !text.chars().any(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len().min(MAX_SHOWN));
    for c in text.chars().take(MAX_SHOWN) {
        if is_harmful(c) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    let left = text.chars().skip(MAX_SHOWN).count();
    if left > 0 {
        // Writing to a String cannot fail.
        let _ = write!(out, "… ({left} more characters)");
    }
    Cow::Owned(out)
}

/// [`printable`] for a text of several lines. It keeps the line ends.
pub fn printable_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        out.push_str(&printable(line.trim_end_matches('\n')));
        out.extend(line.ends_with('\n').then_some('\n'));
    }
    out
}

/// A count with a comma between groups of three digits: 1234567 as `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A size in binary units: `812 B`, `1.2 KiB`, `34.5 MiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    // 1023.95 would be shown as 1024.0.
    while value >= if unit == 0 { 1024.0 } else { 1023.95 } && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// A span of time with about three digits: `0 s`, `812 ns`, `12.3 µs`, `1.25 s`, `2 min 45 s`, `3 h
/// 05 min`.
pub fn span(ns: u64) -> String {
    const SECOND: u64 = 1_000_000_000;
    // What would be rounded up to 1000 of a unit is shown in the next one.
    match ns {
        0 => "0 s".to_string(),
        1..1_000 => format!("{ns} ns"),
        1_000..999_500 => format!("{} µs", three(ns as f64 / 1e3)),
        999_500..999_500_000 => format!("{} ms", three(ns as f64 / 1e6)),
        999_500_000..120_000_000_000 => format!("{} s", three(ns as f64 / 1e9)),
        _ => {
            let seconds = ns / SECOND + u64::from(ns % SECOND >= SECOND / 2);
            match seconds {
                0..7200 => format!("{} min {:02} s", seconds / 60, seconds % 60),
                _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
            }
        }
    }
}

/// A number with about three digits: `1.25`, `12.3`, `1234`.
pub fn three(value: f64) -> String {
    match value {
        ..9.995 => format!("{value:.2}"),
        ..99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// Whether a character can control a terminal, end a line, or change the order of the characters
/// shown.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmless_text_is_unchanged() {
        assert!(matches!(printable("C:\\app\\ä 名.dll"), Cow::Borrowed(_)));
    }

    #[test]
    fn controls_and_bidirectional_overrides_are_escaped() {
        assert_eq!(printable("\0\t\r\x7f\u{9b}"), r"\u{0}\u{9}\u{d}\u{7f}\u{9b}");
        assert_eq!(printable("\u{202e}\u{2066}\u{200f}x"), r"\u{202e}\u{2066}\u{200f}x");
    }

    #[test]
    fn overlong_text_is_cut_and_says_how_much_is_left_out() {
        let shown = printable(&"ä".repeat(MAX_SHOWN + 3)).into_owned();
        assert!(shown.ends_with("ä… (3 more characters)"));
        assert!(shown.chars().count() < MAX_SHOWN + 30);
    }

    #[test]
    fn line_ends_stay() {
        assert_eq!(printable_lines("a\n\u{1b}b\n"), "a\n\\u{1b}b\n");
    }

    #[test]
    fn digits_are_grouped_from_the_right() {
        assert_eq!([0, 7, 999].map(count), ["0", "7", "999"]);
        assert_eq!([1_000, 1_234_567, 12_345_678].map(count), ["1,000", "1,234,567", "12,345,678"]);
    }

    #[test]
    fn sizes_do_not_reach_1024_of_their_unit() {
        assert_eq!([0, 1_023, 1_024].map(size), ["0 B", "1023 B", "1.0 KiB"]);
        let below = (1023.95 * 1024.0) as u64;
        assert_eq!([below, below + 1].map(size), ["1023.9 KiB", "1.0 MiB"]);
        assert_eq!(
            [3 << 20, 5 << 30, 7 << 40, 3 << 50].map(size),
            ["3.0 MiB", "5.0 GiB", "7.0 TiB", "3072.0 TiB"]
        );
    }

    #[test]
    fn spans_have_three_digits_and_a_unit() {
        let spans = [
            (0, "0 s"),
            (812, "812 ns"),
            (1_500, "1.50 µs"),
            (12_340, "12.3 µs"),
            (999_400, "999 µs"),
            (999_500, "1.00 ms"),
            (1_500_000, "1.50 ms"),
            (9_994_000, "9.99 ms"),
            (9_996_000, "10.0 ms"),
            (999_600_000, "1.00 s"),
            (61_000_000_000, "61.0 s"),
            (119_990_000_000, "120 s"),
            (165_400_000_000, "2 min 45 s"),
            (7_199_600_000_000, "2 h 00 min"),
            (11_100_000_000_000, "3 h 05 min"),
        ];
        for (ns, text) in spans {
            assert_eq!(span(ns), text, "{ns}");
        }
    }
}
