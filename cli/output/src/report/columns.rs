//! Columns of whole numbers as bytes that compress well and that a page decodes fast.
//!
//! A column's numbers are in planes: first the lowest byte of every number, then the next one, as
//! many planes as its largest number needs. The upper planes of small numbers are zeros.

use serde::Serialize;

/// The largest number that a page can hold exactly (ECMA-262, Number.MAX_SAFE_INTEGER).
const MOST: u64 = (1 << 53) - 1;

/// Columns one behind the other.
#[derive(Default)]
pub(super) struct Columns {
    pub list: Vec<PageColumn>,
    pub bytes: Vec<u8>,
}

/// Where a column lies follows from those before it: it has `rows` times `planes` bytes.
#[derive(Serialize)]
pub(super) struct PageColumn {
    name: &'static str,
    rows: usize,
    planes: usize,
}

impl Columns {
    /// Adds a column. Numbers above 2⁵³ − 1, which no recording gives in nanoseconds, become that.
    pub(super) fn add(&mut self, name: &'static str, numbers: &[u64]) {
        let largest = numbers.iter().copied().max().unwrap_or(0).min(MOST);
        let planes = (64 - largest.leading_zeros() as usize).div_ceil(8);
        for plane in 0..planes {
            self.bytes.extend(numbers.iter().map(|number| (*number.min(&MOST) >> (8 * plane)) as u8));
        }
        self.list.push(PageColumn { name, rows: numbers.len(), planes });
    }
}

/// Maps numbers near zero to small ones: 0, −1, 1, −2 to 0, 1, 2, 3.
pub(super) fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

/// Difference of two numbers, [`zigzag`] mapped.
pub(super) fn difference(number: u64, from: u64) -> u64 {
    zigzag(number.wrapping_sub(from) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_in_planes_lowest_bytes_first() {
        let mut columns = Columns::default();
        columns.add("a", &[1, 0x0203, 0]);
        columns.add("empty", &[0, 0]);
        columns.add("most", &[u64::MAX]);
        assert_eq!(columns.bytes, [1, 3, 0, 0, 2, 0, 255, 255, 255, 255, 255, 255, 31]);
        let planes: Vec<usize> = columns.list.iter().map(|column| column.planes).collect();
        assert_eq!(planes, [2, 0, 7]);
    }

    #[test]
    fn differences_near_zero_are_small_numbers() {
        assert_eq!([0, -1, 1, -2, i64::MIN].map(zigzag), [0, 1, 2, 3, u64::MAX]);
        assert_eq!([difference(5, 7), difference(7, 5)], [3, 4]);
    }
}
