//! What people type in place of a number or a name: spans of time, sizes, patterns. One syntax for
//! all programs.

/// Nanoseconds of a span of time: a number of seconds, or numbers with units one after the other.
/// Units are ns, us (or µs), ms, s, m (or min), h, d. Saturates. `None`: the text is no span.
///
/// ```
/// use stk_schema::typed::parse_span;
/// assert_eq!(parse_span("1m30s"), Some(90_000_000_000));
/// assert_eq!(parse_span("1.5"), Some(1_500_000_000));
/// ```
pub fn parse_span(text: &str) -> Option<u64> {
    const SECOND: u64 = 1_000_000_000;
    let mut rest = text.trim();
    let mut is_first = true;
    let mut total = 0u64;
    while is_first || !rest.is_empty() {
        let (number, after) = rest.split_at(end(rest, |c| c.is_ascii_digit() || c == '.'));
        let after = after.trim_start();
        let (unit, next) = after.split_at(end(after, char::is_alphabetic));
        let scale = match unit {
            "" if is_first && next.is_empty() => SECOND,
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => SECOND,
            "m" | "min" => 60 * SECOND,
            "h" => 3_600 * SECOND,
            "d" => 86_400 * SECOND,
            _ => return None,
        };
        total = total.saturating_add(scaled(number, scale)?);
        rest = next.trim_start();
        is_first = false;
    }
    Some(total)
}

/// A number, decimal or 0x-hexadecimal.
pub fn parse_number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Where the characters end with which a text begins.
fn end(text: &str, is_part: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_part(c)).unwrap_or(text.len())
}

/// A decimal number times `scale`, rounded. Saturates.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    /// Digits behind the point that count.
    const DIGITS: usize = 18;
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.len() + part.len() == 0 || !is_number(whole) || !is_number(part) {
        return None;
    }
    let digits = |text: &str| {
        let add = |sum: u128, byte: u8| sum.saturating_mul(10).saturating_add(u128::from(byte - b'0'));
        text.bytes().fold(0, add)
    };
    let part = &part[..part.len().min(DIGITS)];
    let one = 10u128.pow(part.len() as u32);
    let rounded = (digits(part) * u128::from(scale) + one / 2) / one;
    let all = digits(whole).saturating_mul(scale.into()).saturating_add(rounded);
    Some(u64::try_from(all).unwrap_or(u64::MAX))
}

/// Bytes of a size: a number, alone or with a binary unit (k, M, G, T, each also with B or iB, in
/// upper or lower case). `None`: the text is no size, or not below 2^64.
///
/// ```
/// assert_eq!(stk_schema::typed::parse_size("64k"), Some(65_536));
/// ```
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = text.split_at(end(text, |c| c.is_ascii_digit()));
    let unit = unit.trim_start().as_bytes();
    let letter = match unit {
        [letter, rest @ ..] if rest.is_empty() || rest.eq_ignore_ascii_case(b"b") => *letter,
        [letter, rest @ ..] if rest.eq_ignore_ascii_case(b"ib") => *letter,
        [] => b'b',
        _ => return None,
    };
    let scale = match letter.to_ascii_lowercase() {
        b'b' if unit.len() < 2 => 1,
        b'k' => 1 << 10,
        b'm' => 1 << 20,
        b'g' => 1 << 30,
        b't' => 1 << 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(scale)
}

/// Whether the whole of `name` (UTF-8 or WTF-8) fits `pattern`: `*` stands for any text, `?` for
/// one character, everything else for itself; ASCII letters also in the other case if `any_case`.
/// Takes at most the product of the two lengths in steps, no memory and no recursion.
pub fn fits(pattern: &[u8], name: &[u8], any_case: bool) -> bool {
    let (mut at, mut in_name) = (0, 0);
    // After the last `*`, and the first byte of the name that it does not stand for.
    let mut star = None;
    let same = |a: u8, b: u8| a == b || any_case && a.eq_ignore_ascii_case(&b);
    loop {
        match pattern.get(at) {
            Some(b'*') => {
                at += 1;
                star = Some((at, in_name));
                continue;
            }
            Some(b'?') if in_name < name.len() => {
                at += 1;
                in_name = next_character(name, in_name);
                continue;
            }
            Some(byte) if name.get(in_name).is_some_and(|other| same(*other, *byte)) => {
                at += 1;
                in_name += 1;
                continue;
            }
            None if in_name == name.len() => return true,
            _ => {}
        }
        // The last star stands for one byte more.
        let Some((after, until)) = star.filter(|&(_, until)| until < name.len()) else { return false };
        star = Some((after, until + 1));
        (at, in_name) = (after, until + 1);
    }
}

/// Where the character after the one at `at` begins.
fn next_character(name: &[u8], at: usize) -> usize {
    let rest = name.get(at + 1..).unwrap_or(&[]);
    at + 1 + rest.iter().take_while(|&&byte| byte & 0xc0 == 0x80).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(pattern: &str, name: &str) -> bool {
        fits(pattern.as_bytes(), name.as_bytes(), true)
    }

    #[test]
    fn spans_are_seconds_or_numbers_with_units() {
        const MS: u64 = 1_000_000;
        for (text, ms) in [
            ("10", 10_000),
            ("0.25", 250),
            (".5", 500),
            ("0", 0),
            ("10s", 10_000),
            ("500ms", 500),
            ("250 ms", 250),
            ("1m", 60_000),
            ("3min", 180_000),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("1d1h1m1s1ms", 86_400_000 + 3_600_000 + 60_000 + 1_000 + 1),
            // As stk prints them.
            ("12.345 s", 12_345),
            ("2 min 45 s", 165_000),
        ] {
            assert_eq!(parse_span(text), Some(ms * MS), "{text}");
        }
        assert_eq!(["7ns", "1.5us", "2µs", "0.4ns"].map(parse_span), [7, 1_500, 2_000, 0].map(Some));
        assert_eq!(
            ["99999999999", "9999999999999999999999999999999999999999d"].map(parse_span),
            [Some(u64::MAX); 2]
        );
        for text in [
            "",
            " ",
            "s",
            "-1",
            "-1s",
            "1x",
            "1m30",
            "1..2s",
            "ten",
            "soon",
            "1e3",
            "10 s x",
            "∞",
            ".",
            "1 30",
            "3 parsecs",
        ] {
            assert_eq!(parse_span(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_have_binary_units() {
        for (text, bytes) in [
            ("65536", 65_536),
            ("7b", 7),
            ("64k", 64 << 10),
            ("64KB", 64 << 10),
            ("1M", 1 << 20),
            ("512 MiB", 512 << 20),
            ("2G", 2 << 30),
            ("1tib", 1 << 40),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in ["", "k", "-1", "1.5M", "1x", "1bb", "1bib", "much", "18446744073709551616", "16777216T"]
        {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn a_name_without_wildcards_fits_itself_alone_in_any_case() {
        assert!(fit("worker", "Worker") && fit("", ""));
        assert!(!fit("worker", "worker 1") && !fit("worker", "a worker") && !fit("", "a"));
    }

    #[test]
    fn a_star_stands_for_any_text_and_a_question_mark_for_one_character() {
        for (pattern, name) in [
            ("*", ""),
            ("*", "anything"),
            ("work*", "worker 12"),
            ("*er", "worker"),
            ("*o*k*", "worker k"),
            ("a*ab", "aaaab"),
            ("a**b", "ab"),
            ("gr??e", "größe"),
            ("?", "€"),
        ] {
            assert!(fit(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("work*", "a worker"), ("?", ""), ("?", "ab"), ("a*b", "abc"), ("gr?e", "größe"), ("*a", "b")]
        {
            assert!(!fit(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_of_many_stars_ends_soon() {
        let (pattern, name) = ("*a".repeat(100) + "b", "a".repeat(5000));
        assert!(!fit(&pattern, &name));
    }
}
