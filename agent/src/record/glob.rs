//! Names by pattern, without a regular expression library: `*` stands for any text, `?` for one
//! character, everything else for itself; ASCII letters in upper or lower case.

/// Whether the whole of `name` (UTF-8 or WTF-8) fits `pattern`. Takes at most the product of the
/// two lengths in steps, no memory and no recursion.
pub(crate) fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut in_name) = (0, 0);
    // After the last `*`, and the first byte of the name that it does not stand for.
    let mut star = None;
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
            Some(byte) if name.get(in_name).is_some_and(|other| other.eq_ignore_ascii_case(byte)) => {
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
    use super::fits;

    fn fit(pattern: &str, name: &str) -> bool {
        fits(pattern.as_bytes(), name.as_bytes())
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
