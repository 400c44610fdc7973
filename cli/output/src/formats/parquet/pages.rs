//! What a Parquet file states of its schema and its pages, before polars believes it: numbers of
//! Thrift's compact protocol.

use stk_schema::bytes::leb128_at;

/// Groups in a schema: polars walks them as deep as they are nested. Tables have a few.
const MOST_GROUPS: usize = 100;
/// Structs in structs.
const MOST_DEEP: usize = 16;
/// Values of a column's pages for each stored byte, and those that any may have.
const VALUES_PER_BYTE: u64 = 64;
const VALUES_FREE: u64 = 1 << 22;
/// Unpacked bytes of a column's pages for each stored one, and those that any may have.
const PLAIN_PER_BYTE: u64 = 256;
const PLAIN_FREE: u64 = 16 << 20;
/// The encoding of texts of which each repeats a part of the one before: a byte can stand for all
/// of that. stk does not write it.
const DELTA_BYTE_ARRAY: i64 = 7;

/// Looks at the end of a file, which describes it. The error is a sentence.
pub(super) fn check_end(bytes: &[u8]) -> Result<(), String> {
    let end = bytes.strip_suffix(b"PAR1").and_then(|bytes| bytes.split_last_chunk::<4>());
    let end = end.and_then(|(bytes, len)| {
        let start = bytes.len().checked_sub(u32::from_le_bytes(*len) as usize)?;
        bytes.get(start..)
    });
    let end = end.ok_or("is no Parquet file")?;
    let mut groups = 0;
    let mut numbers = |path: &[i64], number: i64| {
        // The number of children of an element of the schema.
        groups += usize::from(path == [2, 5] && number != 0);
    };
    Thrift { bytes: end, at: 0 }.fields(&mut Vec::new(), &mut numbers).ok_or("its end cannot be read")?;
    match groups <= MOST_GROUPS {
        true => Ok(()),
        false => Err(format!("has {groups} groups of columns")),
    }
}

/// Looks at the headers of a column's pages, which must have that many values. The error is a
/// sentence.
pub(super) fn check(stored: &[u8], values: i64) -> Result<(), String> {
    let len = stored.len() as u64;
    let most_values = VALUES_FREE + len.saturating_mul(VALUES_PER_BYTE);
    let most_plain = PLAIN_FREE + len.saturating_mul(PLAIN_PER_BYTE);
    let (mut seen, mut plain, mut dictionary) = (0u64, 0u64, 0u64);
    let mut thrift = Thrift { bytes: stored, at: 0 };
    while seen < values.max(0) as u64 && thrift.at < stored.len() {
        let (mut unpacked, mut packed, mut encoding, mut negative) = (0, 0, 0, false);
        let mut numbers = |path: &[i64], number: i64| match path {
            // A checksum.
            [4] => {}
            _ if number < 0 => negative = true,
            [2] => unpacked = number,
            [3] => packed = number,
            [5 | 8, 1] => seen = seen.saturating_add(number as u64),
            [7, 1] => dictionary = dictionary.saturating_add(number as u64),
            [5, 2] | [8, 4] => encoding = number,
            _ => {}
        };
        let header = thrift.fields(&mut Vec::new(), &mut numbers);
        // polars takes a negative number of values for a very large one.
        let packed = usize::try_from(packed).ok().filter(|_| header.is_some() && !negative);
        let packed = packed.ok_or("the header of a page cannot be read")?;
        thrift.at = thrift.at.saturating_add(packed);
        plain = plain.saturating_add(unpacked as u64);
        if encoding == DELTA_BYTE_ARRAY {
            return Err("texts that repeat those before them (DELTA_BYTE_ARRAY)".to_owned());
        }
        if seen.max(dictionary) > most_values || plain > most_plain {
            return Err(format!("{} values, {plain} bytes unpacked, of {len} stored", seen.max(dictionary)));
        }
    }
    // polars reserves memory for what the column states.
    if seen < values.max(0) as u64 {
        return Err(format!("states {values} values, and its pages have {seen}"));
    }
    Ok(())
}

/// Bytes of Thrift's compact protocol.
struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Is called for each whole number with the numbers of the fields that it is in.
type Numbers<'n> = &'n mut dyn FnMut(&[i64], i64);

impl Thrift<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn skip(&mut self, len: u64) -> Option<()> {
        self.at = self.at.checked_add(usize::try_from(len).ok()?)?;
        (self.at <= self.bytes.len()).then_some(())
    }

    fn varint(&mut self) -> Option<u64> {
        let (value, end) = leb128_at(self.bytes, self.at)?;
        self.at = end;
        Some(value)
    }

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// A struct to its end.
    fn fields(&mut self, path: &mut Vec<i64>, numbers: Numbers<'_>) -> Option<()> {
        if path.len() > MOST_DEEP {
            return None;
        }
        let mut field = 0i64;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            field = match head >> 4 {
                0 => self.zigzag()?,
                more => field.checked_add(more.into())?,
            };
            path.push(field);
            // The value of a boolean field is its type.
            if !matches!(head & 15, 1 | 2) {
                self.value(head & 15, path, numbers)?;
            }
            path.pop();
        }
    }

    fn value(&mut self, kind: u8, path: &mut Vec<i64>, numbers: Numbers<'_>) -> Option<()> {
        match kind {
            1..=3 => self.skip(1),
            4..=6 => {
                let number = self.zigzag()?;
                numbers(path, number);
                Some(())
            }
            7 => self.skip(8),
            8 => {
                let len = self.varint()?;
                self.skip(len)
            }
            9 | 10 => {
                let head = self.byte()?;
                let len = if head >> 4 == 15 { self.varint()? } else { u64::from(head >> 4) };
                // A file has no lists of lists. Each value takes a byte at least, so that a list's
                // length is no loop without end.
                let kind = Some(head & 15).filter(|kind| !matches!(kind, 9 | 10))?;
                (0..len).try_for_each(|_| self.value(kind, path, numbers))
            }
            12 => self.fields(path, numbers),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of a data page without bytes: of so many values in this encoding.
    fn page(values: u8, encoding: u8) -> Vec<u8> {
        vec![0x15, 0, 0x15, 20, 0x15, 0, 0x2c, 0x15, 2 * values, 0x15, 2 * encoding, 0, 0]
    }

    #[test]
    fn pages_are_counted_up_to_the_values_that_are_wanted() {
        let pages = [page(60, 0), page(60, 8), b"\xff\xff no page".to_vec()].concat();
        assert_eq!(check(&pages, 120), Ok(()));
        assert_eq!(check(&pages, 121), Err("the header of a page cannot be read".to_owned()));
    }

    #[test]
    fn more_values_than_the_pages_have_are_an_error() {
        for (stored, values) in [(page(60, 0), 61), (Vec::new(), 1 << 32), (page(60, 0), i64::MAX)] {
            let error = check(&stored, values).unwrap_err();
            assert!(error.starts_with(&format!("states {values} values")), "{error}");
        }
        assert_eq!(check(&[], 0), Ok(()));
    }

    #[test]
    fn negative_number_of_values_is_an_error() {
        let mut negative = page(60, 0);
        negative[8] |= 1;
        assert_eq!(check(&negative, 60), Err("the header of a page cannot be read".to_owned()));
    }

    #[test]
    fn texts_that_repeat_those_before_them_are_refused() {
        assert!(check(&page(3, DELTA_BYTE_ARRAY as u8), 3).unwrap_err().contains("DELTA_BYTE_ARRAY"));
    }

    #[test]
    fn numbers_that_never_end_are_an_error() {
        for bytes in
            [&[0xff; 400][..], &[0x1c; 100_000], &[0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x0f], &[0x15]]
        {
            assert_eq!(Thrift { bytes, at: 0 }.fields(&mut Vec::new(), &mut |_, _| {}), None);
        }
        assert!(check_end(b"PAR1").is_err() && check_end(b"\xff\xff\xff\xffPAR1").is_err());
    }
}
