//! RUNTIME_FUNCTION and UNWIND_INFO as they are in an image.

use crate::ImageTables;
use crate::frame::Fault;

/// One record of the exception directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RuntimeFunction {
    pub(crate) begin: u32,
    pub(crate) end: u32,
    pub(crate) unwind: u32,
}

/// One UNWIND_INFO structure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnwindInfo<'a> {
    pub(crate) version: u8,
    pub(crate) prologue: u8,
    pub(crate) frame_register: u8,
    /// In bytes, already scaled by 16.
    pub(crate) frame_offset: u32,
    /// UNW_FLAG_EHANDLER (1) and UNW_FLAG_UHANDLER (2): it names an exception or a termination
    /// handler.
    handler_flags: u8,
    codes: &'a [u8],
    /// The record that this one continues (UNW_FLAG_CHAININFO).
    pub(crate) chained: Option<RuntimeFunction>,
}

/// The prologue's operation that one unwind code describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum X64Operation {
    Push {
        register: u8,
    },
    Alloc {
        size: u32,
    },
    SetFrameRegister,
    /// A register stored `offset` bytes above the frame's base.
    Save {
        register: u8,
        offset: u32,
    },
    /// An XMM register stored. The walk ignores it.
    SaveXmm,
    MachineFrame {
        error_code: bool,
    },
    /// Version 2: where epilogues lie; see [`UnwindInfo::in_epilogue`].
    Epilogue,
}

/// An unwind code. Its operation is done once the instruction pointer is `offset` bytes past the
/// function's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code {
    pub(crate) offset: u8,
    pub(crate) operation: X64Operation,
}

impl RuntimeFunction {
    fn parse(at: &[u8]) -> Option<Self> {
        let word = |n: usize| Some(u32::from_le_bytes(at.get(n..n + 4)?.try_into().ok()?));
        Some(RuntimeFunction { begin: word(0)?, end: word(4)?, unwind: word(8)? })
    }

    pub(crate) fn contains(&self, rva: u32) -> bool {
        (self.begin..self.end).contains(&rva)
    }
}

/// The function that holds `rva`; `Err` if the image's tables are not known.
pub(crate) fn find(image: &ImageTables, rva: u32) -> Result<Option<RuntimeFunction>, Fault> {
    let directory = image.exception_directory().ok_or(Fault::NoUnwindData)?;
    let Some(index) = image.records_up_to(rva)?.checked_sub(1) else { return Ok(None) };
    let Some(function) = RuntimeFunction::parse(&directory[index * 12..]) else { return Ok(None) };
    if !function.contains(rva) {
        return Ok(None);
    }
    // An odd unwind RVA is the address of another record, plus one: several ranges share one
    // description.
    if function.unwind & 1 == 0 {
        return Ok(Some(function));
    }
    let shared = image.bytes(function.unwind & !1).and_then(RuntimeFunction::parse);
    match shared {
        Some(shared) if shared.unwind & 1 == 0 => Ok(Some(shared)),
        _ => Err(Fault::BadUnwindInfo),
    }
}

/// The most chained records to follow. Real chains have a handful, and a cycle must end.
pub(crate) const MAX_CHAIN: usize = 32;

/// The record at the end of `function`'s chain: the function proper.
pub(crate) fn root(image: &ImageTables, mut function: RuntimeFunction) -> Result<RuntimeFunction, Fault> {
    for _ in 0..MAX_CHAIN {
        match UnwindInfo::parse(image, function.unwind)?.chained {
            Some(next) => function = next,
            None => return Ok(function),
        }
    }
    Err(Fault::BadUnwindInfo)
}

const FLAG_HANDLERS: u8 = 1 | 2;
const FLAG_CHAINED: u8 = 4;

impl<'a> UnwindInfo<'a> {
    /// Reads the structure at `rva`.
    pub(crate) fn parse(image: &'a ImageTables, rva: u32) -> Result<Self, Fault> {
        let bytes = image.bytes(rva).ok_or(Fault::NoUnwindData)?;
        let [first, prologue, count, frame] = *bytes.first_chunk::<4>().ok_or(Fault::BadUnwindInfo)?;
        let version = first & 7;
        if !(1..=2).contains(&version) {
            return Err(Fault::UnsupportedVersion(version));
        }
        let len = usize::from(count) * 2;
        let codes = bytes.get(4..4 + len).ok_or(Fault::BadUnwindInfo)?;
        let chained = if (first >> 3) & FLAG_CHAINED != 0 {
            // The array of codes is padded to an even count.
            let at = 4 + len.next_multiple_of(4);
            let next = bytes.get(at..).and_then(RuntimeFunction::parse).ok_or(Fault::BadUnwindInfo)?;
            Some(next)
        } else {
            None
        };
        Ok(UnwindInfo {
            version,
            prologue,
            frame_register: frame & 15,
            frame_offset: u32::from(frame >> 4) * 16,
            handler_flags: (first >> 3) & FLAG_HANDLERS,
            codes,
            chained,
        })
    }

    /// Whether it has a handler but no codes. A compiler gives no handler to a function that makes
    /// no frame and so calls nothing. So this is assembler, and only the handler knows the frame.
    pub(crate) fn is_known_by_its_handler(&self) -> bool {
        self.handler_flags != 0
            && self.codes.is_empty()
            && self.prologue == 0
            && self.frame_register == 0
            && self.chained.is_none()
    }

    /// Whether it names an exception handler, and a termination handler.
    pub(crate) fn handlers(&self) -> [bool; 2] {
        [self.handler_flags & 1 != 0, self.handler_flags & 2 != 0]
    }

    /// The codes in the order of the array: last done first.
    pub(crate) fn codes(&self) -> Codes<'a> {
        Codes { rest: self.codes, version: self.version, epilogues: 0 }
    }

    /// Version 2: how many bytes of an epilogue's pops and return lie before `rva`, if `rva` is in
    /// one that the codes describe. `None` otherwise, and always for version 1.
    pub(crate) fn in_epilogue(&self, function: &RuntimeFunction, rva: u32) -> Option<u32> {
        if self.version != 2 {
            return None;
        }
        let mut size = None;
        for pair in self.codes.chunks_exact(2) {
            let [low, high] = *pair.first_chunk::<2>()?;
            if high & 15 != 6 {
                break;
            }
            let start = match size {
                None => {
                    size = Some(u32::from(low));
                    // The first code gives the size of every epilogue, and whether one ends the
                    // function.
                    (high >> 4 & 1 != 0).then(|| function.end.checked_sub(u32::from(low))).flatten()
                }
                Some(_) => {
                    let back = u32::from(low) | u32::from(high >> 4) << 8;
                    if back == 0 { None } else { function.end.checked_sub(back) }
                }
            };
            if let (Some(start), Some(size)) = (start, size)
                && rva >= start
                && rva - start < size
            {
                return Some(rva - start);
            }
        }
        None
    }
}

/// Iterates over the unwind codes of one structure.
pub(crate) struct Codes<'a> {
    rest: &'a [u8],
    version: u8,
    epilogues: usize,
}

impl Iterator for Codes<'_> {
    type Item = Result<Code, Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        let [offset, packed] = *self.rest.first_chunk::<2>()?;
        let (op, info) = (packed & 15, packed >> 4);
        if self.version == 2 && self.epilogues % 2 == 1 && offset == 0 && packed == 0 {
            // An odd number of epilogue codes is padded by an empty slot.
            self.rest = &self.rest[2..];
            self.epilogues += 1;
            return Some(Ok(Code { offset, operation: X64Operation::Epilogue }));
        }
        let slots = match (op, info) {
            (0 | 2 | 3 | 10, _) => 1,
            (1, 0) | (4 | 8, _) => 2,
            (1, 1) | (5 | 9, _) => 3,
            (6, _) if self.version == 2 => 1,
            // Version 1 once had SAVE_XMM and SAVE_XMM_FAR here. Only their length still matters.
            (6, _) => 2,
            (7, _) => 3,
            _ => return self.bad(),
        };
        let Some(code) = self.rest.get(..slots * 2) else { return self.bad() };
        let short = |n: usize| u32::from(u16::from_le_bytes([code[n * 2], code[n * 2 + 1]]));
        let operation = match op {
            0 => X64Operation::Push { register: info },
            1 if info == 0 => X64Operation::Alloc { size: short(1) * 8 },
            1 => X64Operation::Alloc { size: short(1) | short(2) << 16 },
            2 => X64Operation::Alloc { size: u32::from(info) * 8 + 8 },
            3 => X64Operation::SetFrameRegister,
            4 => X64Operation::Save { register: info, offset: short(1) * 8 },
            5 => X64Operation::Save { register: info, offset: short(1) | short(2) << 16 },
            6 if self.version == 2 => {
                self.epilogues += 1;
                X64Operation::Epilogue
            }
            10 => match info {
                0 => X64Operation::MachineFrame { error_code: false },
                1 => X64Operation::MachineFrame { error_code: true },
                _ => return self.bad(),
            },
            _ => X64Operation::SaveXmm,
        };
        if operation != X64Operation::Epilogue {
            self.epilogues = 0;
        }
        self.rest = &self.rest[slots * 2..];
        Some(Ok(Code { offset, operation }))
    }
}

impl Codes<'_> {
    fn bad(&mut self) -> Option<Result<Code, Fault>> {
        self.rest = &[];
        Some(Err(Fault::BadUnwindInfo))
    }
}
