//! Makes untrusted text safe for a terminal, and takes file names from paths.

use alloc::borrow::Cow;
use alloc::string::String;
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
}
