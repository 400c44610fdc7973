//! The tags of captures and marks, on the command line and in texts.

use stk_schema::typed::parse_number;

/// A tag, decimal or 0x-hexadecimal.
pub fn parse_tag(text: &str) -> Result<u64, String> {
    parse_number(text).ok_or_else(|| "give a number of 64 bits, such as 7 or 0x1f".into())
}

/// A tag in both notations: `31 (0x1f)`.
pub fn tag_text(tag: u64) -> String {
    format!("{tag} ({tag:#x})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_decimal_or_hexadecimal() {
        assert_eq!(parse_tag("31"), Ok(31));
        assert_eq!(parse_tag("0x1f"), Ok(31));
        assert_eq!(parse_tag("18446744073709551615"), Ok(u64::MAX));
        for wrong in ["", "-1", "1f", "0x", "18446744073709551616"] {
            assert!(parse_tag(wrong).is_err(), "{wrong}");
        }
        assert_eq!(tag_text(31), "31 (0x1f)");
    }
}
