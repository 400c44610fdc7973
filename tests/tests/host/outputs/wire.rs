//! Reads Protocol Buffers' wire format, as far as the tests of outputs need it.

/// A field of a message.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Number(u64),
    Bytes(Vec<u8>),
}

/// The fields of a message, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Message(Vec<(u64, Value)>);

impl Message {
    pub(crate) fn read(mut bytes: &[u8]) -> Message {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let value = varint(&mut bytes);
            fields.push(match tag & 7 {
                0 => (tag >> 3, Value::Number(value)),
                2 => {
                    let (content, rest) = bytes.split_at(value as usize);
                    bytes = rest;
                    (tag >> 3, Value::Bytes(content.to_vec()))
                }
                other => panic!("wire type {other}"),
            });
        }
        Message(fields)
    }

    /// All numbers of a field that is not packed.
    pub(crate) fn numbers(&self, field: u64) -> Vec<u64> {
        let number = |value: &Value| match value {
            Value::Number(number) => *number,
            Value::Bytes(_) => panic!("field {field} is no number"),
        };
        self.of(field).map(number).collect()
    }

    /// The only number of a field; 0 if it is not set.
    pub(crate) fn number(&self, field: u64) -> u64 {
        let numbers = self.numbers(field);
        assert!(numbers.len() < 2, "field {field}: {numbers:?}");
        numbers.first().copied().unwrap_or(0)
    }

    /// The numbers of a packed field.
    pub(crate) fn packed(&self, field: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        for bytes in self.bytes(field) {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                numbers.push(varint(&mut rest));
            }
        }
        numbers
    }

    pub(crate) fn texts(&self, field: u64) -> Vec<String> {
        self.bytes(field).into_iter().map(|bytes| String::from_utf8(bytes).expect("UTF-8")).collect()
    }

    /// The only text of a field.
    pub(crate) fn text(&self, field: u64) -> String {
        let mut texts = self.texts(field);
        assert_eq!(texts.len(), 1, "field {field}");
        texts.remove(0)
    }

    pub(crate) fn messages(&self, field: u64) -> Vec<Message> {
        self.bytes(field).iter().map(|bytes| Message::read(bytes)).collect()
    }

    fn bytes(&self, field: u64) -> Vec<Vec<u8>> {
        let bytes = |value: &Value| match value {
            Value::Bytes(bytes) => bytes.clone(),
            Value::Number(_) => panic!("field {field} is a number"),
        };
        self.of(field).map(bytes).collect()
    }

    fn of(&self, field: u64) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |(number, _)| *number == field).map(|(_, value)| value)
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let (&byte, rest) = bytes.split_first().expect("a varint ends");
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
    }
    unreachable!("bytes end before that");
}
