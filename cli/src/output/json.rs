//! Writes JSON piece by piece, since the tree of a large profile would not fit into memory.

/// Appends a string with quotes and escapes.
pub(super) fn string(out: &mut Vec<u8>, text: &str) {
    // Writing to a `Vec` cannot fail, and neither can serializing a `&str`.
    let _ = serde_json::to_writer(out, text);
}

/// Appends `"key":`.
pub(super) fn key(out: &mut Vec<u8>, key: &str) {
    string(out, key);
    out.push(b':');
}

/// Appends a whole number.
pub(super) fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends nanoseconds as microseconds with up to three decimals.
pub(super) fn microseconds(out: &mut Vec<u8>, ns: u64) {
    number(out, ns / 1000);
    let rest = ns % 1000;
    if rest != 0 {
        let digits =
            [b'.', b'0' + (rest / 100) as u8, b'0' + (rest / 10 % 10) as u8, b'0' + (rest % 10) as u8];
        let used = 4 - digits.iter().rev().take_while(|&&d| d == b'0').count();
        out.extend_from_slice(&digits[..used]);
    }
}
