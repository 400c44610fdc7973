//! Writes Protocol Buffers' wire format, field by field.
//!
//! <https://protobuf.dev/programming-guides/encoding/>

use stk_schema::bytes::leb128;

/// Wire types.
const VARINT: u64 = 0;
const LEN: u64 = 2;

/// A message in the making.
#[derive(Default)]
pub(super) struct Message {
    pub bytes: Vec<u8>,
}

impl Message {
    /// Appends a number. Zeros are written too.
    pub(super) fn number(&mut self, field: u32, value: u64) {
        self.tag(field, VARINT);
        varint(&mut self.bytes, value);
    }

    /// Appends a string.
    pub(super) fn text(&mut self, field: u32, text: &str) {
        self.tag(field, LEN);
        varint(&mut self.bytes, text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// Appends a message that `fill` makes.
    pub(super) fn message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) {
        self.tag(field, LEN);
        let start = self.bytes.len();
        fill(self);
        let len = self.bytes.len() - start;
        varint(&mut self.bytes, len as u64);
        // The length stands before the message.
        self.bytes[start..].rotate_left(len);
    }

    /// Appends numbers, packed.
    pub(super) fn packed(&mut self, field: u32, values: impl Iterator<Item = u64>) {
        self.message(field, |message| values.for_each(|value| varint(&mut message.bytes, value)));
    }

    fn tag(&mut self, field: u32, wire_type: u64) {
        varint(&mut self.bytes, u64::from(field) << 3 | wire_type);
    }
}

fn varint(out: &mut Vec<u8>, value: u64) {
    let (bytes, len) = leb128(value);
    out.extend_from_slice(&bytes[..len]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(fill: impl FnOnce(&mut Message)) -> Vec<u8> {
        let mut message = Message::default();
        fill(&mut message);
        message.bytes
    }

    /// The examples of the page that describes the encoding.
    #[test]
    fn the_examples_of_the_specification_come_out() {
        assert_eq!(written(|m| m.number(1, 150)), [0x08, 0x96, 0x01]);
        let testing = [0x12, 0x07, 0x74, 0x65, 0x73, 0x74, 0x69, 0x6e, 0x67];
        assert_eq!(written(|m| m.text(2, "testing")), testing);
        let nested = [0x1a, 0x03, 0x08, 0x96, 0x01];
        assert_eq!(written(|m| m.message(3, |m| m.number(1, 150))), nested);
        let packed = [0x32, 0x06, 0x03, 0x8e, 0x02, 0x9e, 0xa7, 0x05];
        assert_eq!(written(|m| m.packed(6, [3, 270, 86942].into_iter())), packed);
    }

    #[test]
    fn lengths_and_numbers_of_several_bytes_are_written() {
        let text = "x".repeat(300);
        let bytes = written(|m| m.message(1, |m| m.text(200, &text)));
        // 300 is 0xac 0x02, field 200 is 0xc2 0x0c, and these four bytes and the text are 304.
        assert_eq!(bytes[..7], [0x0a, 0xb0, 0x02, 0xc2, 0x0c, 0xac, 0x02]);
        assert_eq!(bytes.len(), 307);
        let most = written(|m| m.number(1, u64::MAX));
        assert_eq!(most, [0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1]);
        assert_eq!(written(|m| m.message(1, |_| ())), [0x0a, 0]);
    }
}
