//! The host's half of the mailbox for names (`stk_schema::mailbox`) as bytes: the agent's requests
//! and the host's answers.
//!
//! The bytes are another process's memory, so nothing in them is trusted.

use stk_schema::bytes::{u32_in, u64_in};
use stk_schema::mailbox::{
    GC_INFO_AT, HEADER_BYTES, MAILBOX_VERSION, NAME_BYTES, NameMailbox, NameSlot, SLOT_NAMED, SLOT_NAMELESS,
    SLOTS,
};

/// The agent's current request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NameRequest {
    /// Load address of the runtime's module.
    pub runtime: u64,
    /// `RuntimeKind` as the number that the agent gave; it may be unknown here.
    pub kind: u32,
    /// Number of the request, which the answer repeats.
    pub number: u32,
    /// Slots in use.
    pub count: usize,
    /// The mailbox has places for GCInfo.
    pub gc_info: bool,
}

/// The name of a piece of code.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Answer {
    /// First address of the code; 0 = not known.
    pub base: u64,
    /// Its length in bytes; 0 = not known.
    pub size: u64,
    /// Address of its GCInfo; 0 = not known.
    pub gc_info: u64,
    pub name: String,
}

/// The state in the head of a mailbox.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Head {
    /// This inject does not know the mailbox's version.
    Unknown,
    /// There is no request.
    Idle,
    Asks(NameRequest),
}

/// Reads the head of a mailbox.
pub(crate) fn head(bytes: &[u8; HEADER_BYTES]) -> Head {
    let (size, version) = (u32_in(bytes, 0) as usize, u32_in(bytes, 4));
    if size < GC_INFO_AT || version != MAILBOX_VERSION {
        return Head::Unknown;
    }
    let number = u32_in(bytes, std::mem::offset_of!(NameMailbox, request));
    let answered = u32_in(bytes, std::mem::offset_of!(NameMailbox, answer));
    let runtime = u64_in(bytes, std::mem::offset_of!(NameMailbox, runtime));
    if runtime == 0 || number == answered {
        return Head::Idle;
    }
    let count = u32_in(bytes, std::mem::offset_of!(NameMailbox, count)) as usize;
    let kind = u32_in(bytes, std::mem::offset_of!(NameMailbox, runtime_kind));
    let gc_info = size >= size_of::<NameMailbox>();
    Head::Asks(NameRequest { runtime, kind, number, count: count.min(SLOTS), gc_info })
}

/// Offset of slot `index` in the mailbox, in bytes.
pub(crate) fn slot_at(index: usize) -> usize {
    HEADER_BYTES + index * size_of::<NameSlot>()
}

/// Offset of the place for the address of GCInfo of slot `index`, in bytes.
pub(crate) fn gc_info_at(index: usize) -> usize {
    GC_INFO_AT + index * size_of::<u64>()
}

/// Offset of the host's part in a slot, in bytes.
pub(crate) const ANSWER_AT: usize = std::mem::offset_of!(NameSlot, base);

/// The host's part of a slot. `None`: the runtime has no name for the address.
pub(crate) fn answer(answer: Option<&Answer>) -> Vec<u8> {
    let Some(Answer { base, size, name, .. }) = answer else {
        let mut bytes = vec![0; 16];
        bytes.extend(SLOT_NAMELESS.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        return bytes;
    };
    let name = cut(name, NAME_BYTES);
    let mut bytes = base.to_le_bytes().to_vec();
    bytes.extend(size.to_le_bytes());
    bytes.extend(SLOT_NAMED.to_le_bytes());
    bytes.extend((name.len() as u32).to_le_bytes());
    bytes.extend(name.as_bytes());
    bytes
}

/// `text` in at most `most` bytes; a text that was cut ends with `…`.
pub(crate) fn cut(text: &str, most: usize) -> String {
    const MARK: &str = "…";
    if text.len() <= most {
        return text.to_owned();
    }
    let end = (0..=most.saturating_sub(MARK.len())).rev().find(|&end| text.is_char_boundary(end));
    format!("{}{MARK}", &text[..end.unwrap_or(0)])
}

/// A name as stk writes it, `Module!Namespace.Type.Method(signature)`, from the path of the module
/// (empty if it has none) and the library's own text. The library's names of stubs end with their
/// address, which is left out because the stack has it.
pub(crate) fn full_name(module: &str, text: &str) -> String {
    let text: String = text.chars().filter(|char| !char.is_control()).collect();
    let text = match text.rsplit_once('@') {
        Some((stub, address))
            if stub.ends_with(']')
                && !address.is_empty()
                && address.chars().all(|char| char.is_ascii_hexdigit()) =>
        {
            stub
        }
        _ => &text,
    };
    let file = module.rsplit(['\\', '/']).next().unwrap_or_default();
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    let stem = stem.strip_suffix(".ni").unwrap_or(stem); // native images of .NET Framework: mscorlib.ni.dll
    if stem.is_empty() || text.is_empty() { text.to_owned() } else { format!("{stem}!{text}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stk_schema::event::RuntimeKind;

    /// The head of a mailbox as the agent lays it out.
    fn bytes(size: u32, runtime: u64, request: u32, count: u32, answer: u32) -> [u8; HEADER_BYTES] {
        let mut bytes = [0xee; HEADER_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &size.to_le_bytes());
        put(4, &1u32.to_le_bytes());
        put(8, &runtime.to_le_bytes());
        put(16, &2u32.to_le_bytes());
        put(20, &request.to_le_bytes());
        put(24, &count.to_le_bytes());
        put(36, &answer.to_le_bytes());
        bytes
    }

    /// Of agents whose mailbox ends with the slots.
    const SIZE: u32 = 65_824;

    #[test]
    fn a_request_is_read_where_the_agent_wrote_it() {
        let asked = NameRequest {
            runtime: 0x1_8000_0000,
            kind: RuntimeKind::Framework as u32,
            number: 7,
            count: 3,
            gc_info: false,
        };
        for (size, gc_info) in [(SIZE, false), (SIZE + 511, false), (SIZE + 512, true), (u32::MAX, true)] {
            let asked = NameRequest { gc_info, ..asked };
            assert_eq!(head(&bytes(size, 0x1_8000_0000, 7, 3, 6)), Head::Asks(asked));
        }
        assert_eq!(head(&bytes(SIZE, 0x1_8000_0000, 7, 3, 7)), Head::Idle, "answered");
        assert_eq!(head(&bytes(SIZE, 0, 7, 3, 6)), Head::Idle, "of no runtime");
        assert_eq!(slot_at(0), 288);
        assert_eq!(slot_at(63), 288 + 63 * 1024);
        assert_eq!([gc_info_at(0), gc_info_at(63)], [65_824, 65_824 + 63 * 8]);
    }

    #[test]
    fn invalid_requests_are_not_read_beyond_the_mailbox() {
        assert_eq!(head(&bytes(SIZE - 1, 1, 7, 3, 6)), Head::Unknown);
        let mut other = bytes(SIZE, 1, 7, 3, 6);
        other[4] = 2;
        assert_eq!(head(&other), Head::Unknown, "of another version");
        assert_eq!(head(&[0; HEADER_BYTES]), Head::Unknown);
        let Head::Asks(request) = head(&bytes(SIZE, 1, 7, u32::MAX, 6)) else { panic!("asked") };
        assert_eq!(request.count, 64);
    }

    #[test]
    fn an_answer_fits_its_slot_whatever_the_name() {
        let room = size_of::<NameSlot>() - ANSWER_AT;
        for len in [1, NAME_BYTES - 1, NAME_BYTES, NAME_BYTES + 1, 5000] {
            let name = "ä".repeat(len / 2) + &"x".repeat(len % 2);
            let bytes = answer(Some(&Answer { base: 1, size: 2, gc_info: 3, name: name.clone() }));
            assert!(bytes.len() <= room);
            let text = std::str::from_utf8(&bytes[24..]).expect("UTF-8");
            assert_eq!(u32::from_le_bytes(bytes[20..24].try_into().unwrap()) as usize, text.len());
            assert_eq!(text == name, len <= NAME_BYTES);
            assert_eq!(text.ends_with('…'), len > NAME_BYTES);
        }
        assert_eq!(answer(None)[16..], [2, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn names_are_written_as_elsewhere_in_stk() {
        let name = full_name(r"C:\app\mixed.dll", "Mixed.Work.Down(Int32)");
        assert_eq!(name, "mixed!Mixed.Work.Down(Int32)");
        assert_eq!(
            full_name(r"C:\Windows\assembly\mscorlib.ni.dll", "System.X.Y()"),
            "mscorlib!System.X.Y()"
        );
        assert_eq!(full_name("", "DynamicClass.Made(Int32)"), "DynamicClass.Made(Int32)");
        assert_eq!(full_name("", "CLRStub[MethodDescPrestub]@7ff812345678"), "CLRStub[MethodDescPrestub]");
        assert_eq!(full_name("a.dll", "T.M@x(Int32[])"), "a!T.M@x(Int32[])");
        assert_eq!(full_name("a.dll", "T.M\n()"), "a!T.M()");
        assert_eq!(full_name("a.dll", ""), "");
    }
}
