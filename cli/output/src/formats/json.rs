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
    decimal(out, ns, 3);
}

/// Appends nanoseconds as milliseconds with up to six decimals.
pub(super) fn milliseconds(out: &mut Vec<u8>, ns: u64) {
    decimal(out, ns, 6);
}

/// Appends a number divided by a power of ten that is below 10 to the 19.
fn decimal(out: &mut Vec<u8>, value: u64, places: u32) {
    let one = 10u64.pow(places);
    number(out, value / one);
    let mut rest = value % one;
    if rest != 0 {
        out.push(b'.');
    }
    let mut place = one / 10;
    while rest != 0 {
        out.push(b'0' + (rest / place) as u8);
        rest %= place;
        place /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_end_with_their_last_digit_that_is_not_0() {
        let of = |write: fn(&mut Vec<u8>, u64), ns| {
            let mut out = Vec::new();
            write(&mut out, ns);
            String::from_utf8(out).unwrap()
        };
        for (ns, shown) in [(0, "0"), (1000, "1"), (1001, "1.001"), (1230, "1.23"), (7, "0.007")] {
            assert_eq!(of(microseconds, ns), shown);
        }
        for (ns, shown) in [(0, "0"), (2_000_000, "2"), (2_000_050, "2.00005"), (7, "0.000007")] {
            assert_eq!(of(milliseconds, ns), shown);
        }
        assert_eq!(of(microseconds, u64::MAX), "18446744073709551.615");
    }
}
