//! Reads as much of JSON as the contract descriptor needs: members of objects, elements of arrays,
//! integers. Values are slices of the text; nothing is allocated. Deep nesting is harmless, because
//! nothing recurses.

/// The text of one value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Value<'a>(&'a [u8]);

impl<'a> Value<'a> {
    /// The value at the start of `text`.
    pub(crate) fn parse(text: &'a [u8]) -> Option<Value<'a>> {
        let text = text.trim_ascii_start();
        Some(Value(text.get(..value_len(text)?)?))
    }

    /// The member `key` of an object. Keys with escapes are not found.
    pub(crate) fn member(&self, key: &str) -> Option<Value<'a>> {
        let mut rest = self.0.strip_prefix(b"{")?.trim_ascii_start();
        while rest.first() == Some(&b'"') {
            let len = string_len(rest)?;
            let name = rest.get(1..len - 1)?;
            rest = rest.get(len..)?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
            let value = rest.get(..value_len(rest)?)?;
            if name == key.as_bytes() {
                return Some(Value(value));
            }
            rest = next(rest, value.len())?;
        }
        None
    }

    /// The element `index` of an array.
    pub(crate) fn element(&self, index: usize) -> Option<Value<'a>> {
        let mut rest = self.0.strip_prefix(b"[")?.trim_ascii_start();
        for _ in 0..index {
            rest = next(rest, value_len(rest)?)?;
        }
        let value = rest.get(..value_len(rest)?)?;
        Some(Value(value))
    }

    /// An integer, or a text that is the letter `c` and an integer.
    pub(crate) fn version(&self) -> Option<u64> {
        let text = self.0.strip_prefix(b"\"c").and_then(|text| text.strip_suffix(b"\""));
        text.map_or_else(|| self.integer(), |text| Value(text).integer())
    }

    /// An integer: a number, or a string that holds one, decimal or as `0x…`.
    pub(crate) fn integer(&self) -> Option<u64> {
        let text = self.0.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or(self.0);
        let text = core::str::from_utf8(text).ok()?;
        match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        }
    }
}

/// The text after a value of `len` bytes and its comma; `None` at the end of the array or object.
fn next(text: &[u8], len: usize) -> Option<&[u8]> {
    Some(text.get(len..)?.trim_ascii_start().strip_prefix(b",")?.trim_ascii_start())
}

/// Length of the value at the start of `text`.
fn value_len(text: &[u8]) -> Option<usize> {
    match text.first()? {
        b'"' => string_len(text),
        b'{' | b'[' => {
            let (mut depth, mut at) = (0usize, 0);
            loop {
                match text.get(at)? {
                    b'"' => {
                        at += string_len(text.get(at..)?)?;
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => depth -= 1,
                    _ => {}
                }
                at += 1;
                if depth == 0 {
                    return Some(at);
                }
            }
        }
        _ => {
            let len = text.iter().position(|byte| b",}] \t\r\n".contains(byte)).unwrap_or(text.len());
            (len != 0).then_some(len)
        }
    }
}

/// Bytes of the string at the start of `text`, quotes included.
fn string_len(text: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = br#" {"a": [1, [2, "x]}"], {"b": "0x1F"}], "c\"d": 3, "e" : {"f":-1,"!":40}} "#;

    #[test]
    fn members_elements_and_integers() {
        let value = Value::parse(TEXT).unwrap();
        let array = value.member("a").unwrap();
        assert_eq!(array.element(0).unwrap().integer(), Some(1));
        assert_eq!(array.element(1).unwrap().element(0).unwrap().integer(), Some(2));
        assert_eq!(array.element(2).unwrap().member("b").unwrap().integer(), Some(31));
        assert_eq!(array.element(3), None);
        assert_eq!(value.member("e").unwrap().member("!").unwrap().integer(), Some(40));
        assert_eq!(value.member("e").unwrap().member("f").unwrap().integer(), None);
        assert_eq!(value.member("b"), None);
    }

    #[test]
    fn text_that_is_cut_or_damaged_anywhere_gives_no_panic() {
        for len in 0..TEXT.len() {
            for damage in [b'"', b'{', b']', b'\\', b',', 0xff] {
                let mut text = TEXT[..len].to_vec();
                if let Some(last) = text.last_mut() {
                    *last = damage;
                }
                let Some(value) = Value::parse(&text) else { continue };
                let _ = (value.member("e"), value.element(2), value.integer());
                let _ = value.member("a").and_then(|array| array.element(2));
            }
        }
        assert_eq!(Value::parse(&[b'['; 100_000]), None);
    }
}
