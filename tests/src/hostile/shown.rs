//! What no output for people may have in it.

/// Beginnings of lines that only a name holds.
const FORGED: [&str; 2] = ["forged: ", "stk: wrote b.json"];

/// Whether a line is one that a name forged.
pub fn forged(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    text.lines().any(|line| FORGED.iter().any(|forged| line.starts_with(forged)))
}

/// The text around the first character that a terminal does not only show: control characters
/// except line ends and tabs, line separators, and characters that change the writing direction.
pub fn harm(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let harmful = |c: char| {
        c.is_control() && !matches!(c, '\n' | '\t')
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let at = text.find(harmful)?;
    let before: Vec<char> = text[..at].chars().rev().take(60).collect();
    Some(before.into_iter().rev().chain(text[at..].chars().take(20)).collect())
}
