//! Texts of events.

/// WTF-8 as text; unpaired surrogates become U+FFFD.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
