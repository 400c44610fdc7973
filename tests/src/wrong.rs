//! Changes files that stk wrote, one change at a time: Parquet tables, traces that are followed,
//! and JSON. Randomised tests and fuzz targets choose which.
//! [`synth::mutate`](crate::synth::mutate) changes what is inside of a trace's blocks.

use crate::synth::{Choices, number};
use stk_schema::bytes::{leb128, leb128_at};

/// One change to a Parquet file: a number of its end, whose length stays right, or of a page's
/// header; values; any byte. Files without checksums of pages need none repaired.
pub fn parquet(bytes: &mut Vec<u8>, choices: &mut dyn Choices) {
    let Some(footer) = footer(bytes) else { return any_byte(bytes, choices) };
    match choices.below(8) {
        0..=2 => {
            let numbers = Thrift::numbers_of(bytes, footer).unwrap_or_default();
            let grown = replace(bytes, &numbers, choices);
            let end = bytes.len() - 8;
            let length = u32::from_le_bytes(bytes[end..end + 4].try_into().expect("four bytes"));
            let length = i64::from(length).saturating_add(grown) as u32;
            bytes[end..end + 4].copy_from_slice(&length.to_le_bytes());
        }
        3 | 4 => {
            let pages = pages(bytes, footer);
            replace(bytes, &pages, choices);
        }
        5 => {
            let at = 4 + choices.below((footer - 4).max(1));
            any_byte(&mut bytes[at..], choices);
        }
        6 => any_byte(&mut bytes[footer..], choices),
        _ => any_byte(bytes, choices),
    }
}

/// Where the end of a Parquet file begins, which describes it.
fn footer(bytes: &[u8]) -> Option<usize> {
    let (bytes, len) = bytes.strip_suffix(b"PAR1")?.split_last_chunk::<4>()?;
    bytes.len().checked_sub(u32::from_le_bytes(*len) as usize).filter(|&at| at > 4)
}

/// The numbers in the headers of the pages, which follow each other from the file's start on.
fn pages(bytes: &[u8], footer: usize) -> Vec<Number> {
    let (mut all, mut at) = (Vec::new(), 4);
    while at < footer {
        let mut thrift = Thrift { bytes: &bytes[..footer], at, numbers: Vec::new() };
        if thrift.fields(0).is_none() || thrift.at == at {
            break;
        }
        let packed = thrift.numbers.iter().find(|number| number.depth == 0 && number.field == 3);
        let Some(packed) = packed.and_then(|number| usize::try_from(number.value).ok()) else { break };
        at = thrift.at.saturating_add(packed);
        all.append(&mut thrift.numbers);
    }
    all
}

/// Changes one of these numbers. Returns by how many bytes the file has grown.
fn replace(bytes: &mut Vec<u8>, numbers: &[Number], choices: &mut dyn Choices) -> i64 {
    if numbers.is_empty() {
        return 0;
    }
    let Number { from, to, value, .. } = numbers[choices.below(numbers.len())];
    let value = number(value as u64, choices) as i64;
    let (varint, len) = leb128(((value << 1) ^ (value >> 63)) as u64);
    let mut varint = varint[..len].to_vec();
    // A longer form of the same number keeps all that follows at its place.
    while varint.len() < to - from {
        *varint.last_mut().expect("a byte") |= 0x80;
        varint.push(0);
    }
    let grown = varint.len() as i64 - (to - from) as i64;
    bytes.splice(from..to, varint);
    grown
}

/// A whole number in Thrift's compact protocol.
#[derive(Clone, Copy, Debug)]
struct Number {
    from: usize,
    to: usize,
    value: i64,
    field: i64,
    /// Structs that its struct is in.
    depth: usize,
}

/// Thrift's compact protocol, as far as Parquet uses it.
struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
    numbers: Vec<Number>,
}

impl Thrift<'_> {
    /// The numbers of a struct that begins at `at`.
    fn numbers_of(bytes: &[u8], at: usize) -> Option<Vec<Number>> {
        let mut thrift = Thrift { bytes, at, numbers: Vec::new() };
        thrift.fields(0)?;
        Some(thrift.numbers)
    }

    fn byte(&mut self) -> Option<u8> {
        self.at += 1;
        self.bytes.get(self.at - 1).copied()
    }

    fn varint(&mut self) -> Option<u64> {
        let (value, end) = leb128_at(self.bytes, self.at)?;
        self.at = end;
        Some(value)
    }

    fn zigzag(&mut self) -> Option<i64> {
        self.varint().map(|value| (value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn fields(&mut self, depth: usize) -> Option<()> {
        let mut field = 0i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            field = match head >> 4 {
                0 => self.zigzag()?,
                more => field.wrapping_add(more.into()),
            };
            // The value of a boolean field is its type.
            if head & 15 > 2 {
                self.value(head & 15, field, depth)?;
            }
        }
    }

    fn value(&mut self, kind: u8, field: i64, depth: usize) -> Option<()> {
        match kind {
            1..=3 => self.byte().map(drop),
            4..=6 => {
                let from = self.at;
                let value = self.zigzag()?;
                self.numbers.push(Number { from, to: self.at, value, field, depth });
                Some(())
            }
            8 => {
                let len = self.varint()?;
                self.at = self.at.checked_add(usize::try_from(len).ok()?)?;
                Some(())
            }
            9 => {
                let head = self.byte()?;
                let len = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                (0..len).try_for_each(|_| self.value(head & 15, field, depth + 1))
            }
            12 if depth < 16 => self.fields(depth + 1),
            _ => None,
        }
    }
}

/// One change to the bytes of a trace as they are stored: a bit, bytes that are missing, bytes that
/// are zero, bytes that are there again. The first `kept` bytes stay.
pub fn stored(bytes: &mut Vec<u8>, kept: usize, choices: &mut dyn Choices) {
    if bytes.len() <= kept {
        return;
    }
    let at = kept + choices.below(bytes.len() - kept);
    let end = |len: usize| (at + len).min(bytes.len());
    match choices.below(8) {
        0..=2 => bytes[at] ^= 1 << choices.below(8),
        3 | 4 => {
            let end = end(choices.below(200));
            bytes.drain(at..end);
        }
        5 | 6 => {
            let end = end(choices.below(300));
            bytes[at..end].fill(0);
        }
        _ => {
            let again = bytes[at..end(choices.below(2_000))].to_vec();
            let to = kept + choices.below(bytes.len() - kept);
            bytes.splice(to..to, again);
        }
    }
}

/// One change to a JSON text: a number or text of it, its end, its depth, any byte.
pub fn json(text: &mut Vec<u8>, choices: &mut dyn Choices) {
    const TEXTS: [&str; 10] = [
        "null",
        "-1",
        "1e999",
        "\"\"",
        "[]",
        "{}",
        "true",
        "\"\\u001b[31m\\u202e\"",
        "\"../..\"",
        "\"/dev/zero\"",
    ];
    match choices.below(8) {
        0..=3 => {
            let values = values(text);
            if values.is_empty() {
                return;
            }
            let value = values[choices.below(values.len())].clone();
            let new = match choices.below(3) {
                0 => TEXTS[choices.below(TEXTS.len())].to_owned(),
                1 => number(0, choices).to_string(),
                _ => format!("\"{}\"", "x".repeat(choices.below(300))),
            };
            text.splice(value, new.into_bytes());
        }
        4 => text.truncate(choices.below(text.len() + 1)),
        5 => {
            let at = choices.below(text.len() + 1);
            let deep = "[".repeat(choices.below(2_000));
            text.splice(at..at, deep.into_bytes());
        }
        6 => {
            let (at, len) = (choices.below(text.len() + 1), choices.below(200));
            let again = text[at..(at + len).min(text.len())].to_vec();
            text.splice(at..at, again);
        }
        _ => any_byte(text, choices),
    }
}

/// Where the texts and numbers of a JSON text are, the names of fields included.
fn values(text: &[u8]) -> Vec<std::ops::Range<usize>> {
    let (mut values, mut at) = (Vec::new(), 0);
    while at < text.len() {
        let rest = &text[at..];
        let len = match rest[0] {
            b'"' => rest[1..].iter().position(|&byte| byte == b'"').map_or(rest.len(), |len| len + 2),
            b'0'..=b'9' => rest.iter().take_while(|byte| byte.is_ascii_digit()).count(),
            _ => {
                at += 1;
                continue;
            }
        };
        values.push(at..at + len);
        at += len;
    }
    values
}

/// Changes a byte, or a few that follow it.
fn any_byte(bytes: &mut [u8], choices: &mut dyn Choices) {
    if bytes.is_empty() {
        return;
    }
    let at = choices.below(bytes.len());
    match choices.below(5) {
        0 => bytes[at] ^= 1 << choices.below(8),
        1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][choices.below(5)],
        // A number that continues, up to the largest.
        2 => bytes[at..].iter_mut().take(9).for_each(|byte| *byte |= 0x80),
        3 => {
            let len = (1 + choices.below(8)).min(bytes.len() - at);
            let from = choices.below(bytes.len() - len + 1);
            bytes.copy_within(from..from + len, at);
        }
        _ => bytes[at] = bytes[at].wrapping_add(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::Random;

    #[test]
    fn number_of_a_footer_is_replaced_and_its_length_stays_right() {
        // A struct with the number 3 in field 3, and a list of two structs with a number each.
        let end = [0x35, 6, 0x19, 0x2c, 0x15, 2, 0, 0x15, 4, 0, 0];
        let sound = [b"PAR1    ", &end[..], &(end.len() as u32).to_le_bytes(), b"PAR1"].concat();
        let numbers = Thrift::numbers_of(&sound, footer(&sound).unwrap()).unwrap();
        let values = numbers.iter().map(|number| (number.value, number.field, number.depth));
        assert_eq!(values.collect::<Vec<_>>(), [(3, 3, 0), (1, 1, 2), (2, 1, 2)]);
        let mut random = Random::new(1);
        let mut longer = 0;
        for _ in 0..200 {
            let mut bytes = sound.clone();
            parquet(&mut bytes, &mut random);
            if bytes.len() > sound.len() {
                longer += 1;
                assert_eq!(footer(&bytes), footer(&sound));
            }
        }
        assert!(longer > 20, "{longer}");
    }

    #[test]
    fn every_change_leaves_something_and_some_leave_json() {
        let mut random = Random::new(2);
        let (mut read, mut refused) = (0, 0);
        for _ in 0..500 {
            let mut text = br#"{"key":"0123","bytes":7,"facts":{"samples":1}}"#.to_vec();
            json(&mut text, &mut random);
            match serde_json::from_slice::<serde_json::Value>(&text) {
                Ok(_) => read += 1,
                Err(_) => refused += 1,
            }
            let mut bytes = vec![7; 300];
            stored(&mut bytes, 128, &mut random);
            assert!(bytes[..128] == [7; 128]);
        }
        assert!(read > 100 && refused > 100, "{read} {refused}");
    }
}
