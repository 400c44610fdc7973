//! The exception directory's records, packed and full, as sequences of operations.

use super::registers::Nonvolatile;
use crate::ImageTables;
use crate::frame::Fault;

/// One record of the exception directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) begin: u32,
    data: u32,
}

/// The effect of undoing one instruction of a prologue, or of executing one of an epilogue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arm64Operation {
    Alloc {
        size: u32,
    },
    /// `count` registers from `first` on lie `offset` bytes above sp, `stride` bytes apart; then sp
    /// moves up by `release`.
    Save {
        first: Nonvolatile,
        count: u8,
        offset: u32,
        stride: u32,
        release: u32,
    },
    /// `second` is lr, beside a register that is not its neighbour.
    SaveWithLr {
        first: Nonvolatile,
        offset: u32,
        release: u32,
    },
    /// sp = fp - `offset`.
    SetSp {
        offset: u32,
    },
    Nop,
    /// The next save stores one pair more.
    SaveNext,
    SignedLr,
    /// The end of the operations of this fragment's own prologue. Those of its function's prologue
    /// follow.
    EndOfScope,
    End,
    /// sp and pc lie at sp.
    MachineFrame,
    /// A CONTEXT lies at sp.
    Context,
    /// The return address is exact, not one behind a call.
    ClearUnwoundToCall,
}

impl Arm64Operation {
    /// Whether the operation stands for an instruction of the prologue or epilogue.
    fn is_instruction(self) -> bool {
        !matches!(
            self,
            Arm64Operation::MachineFrame | Arm64Operation::Context | Arm64Operation::ClearUnwoundToCall
        )
    }

    fn ends(self) -> bool {
        matches!(self, Arm64Operation::End | Arm64Operation::EndOfScope)
    }
}

/// The operations that undo a frame at one place. A fixed buffer: rules are compiled without
/// allocation.
pub(crate) struct Sequence {
    operations: [Arm64Operation; MAX_OPERATIONS],
    len: usize,
}

/// The most operations of one sequence. Ten pairs, four homes, allocations and ends are 25.
const MAX_OPERATIONS: usize = 96;

impl Sequence {
    fn new() -> Self {
        Sequence { operations: [Arm64Operation::End; MAX_OPERATIONS], len: 0 }
    }

    fn push(&mut self, operation: Arm64Operation) -> Result<(), Fault> {
        *self.operations.get_mut(self.len).ok_or(Fault::BadUnwindInfo)? = operation;
        self.len += 1;
        Ok(())
    }

    pub(crate) fn operations(&self) -> &[Arm64Operation] {
        &self.operations[..self.len]
    }

    /// Without the first `count` instructions.
    fn skip(&mut self, count: u32) {
        let mut left = count;
        let mut start = 0;
        while left > 0 && start < self.len {
            left -= u32::from(self.operations[start].is_instruction());
            start += 1;
        }
        self.operations.copy_within(start..self.len, 0);
        self.len -= start;
    }
}

/// The record whose function may hold `rva`, and where that function ends.
pub(crate) fn find(image: &ImageTables, rva: u32) -> Result<Option<(Function, u32)>, Fault> {
    let directory = image.exception_directory().ok_or(Fault::NoUnwindData)?;
    let word = |at: usize| {
        u32::from_le_bytes([directory[at], directory[at + 1], directory[at + 2], directory[at + 3]])
    };
    let Some(index) = image.records_up_to(rva)?.checked_sub(1) else { return Ok(None) };
    let function = Function { begin: word(index * 8), data: word(index * 8 + 4) };
    let end = function.begin.saturating_add(function.len(image)?);
    Ok((rva < end).then_some((function, end)))
}

/// The record that describes a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unwind {
    /// An `.xdata` record.
    Full { rva: u32 },
    /// The second word of the exception directory's record itself.
    Packed { data: u32, fragment: bool },
}

impl Function {
    pub(crate) fn unwind(&self) -> Unwind {
        match self.data & 3 {
            0 => Unwind::Full { rva: self.data },
            flag => Unwind::Packed { data: self.data, fragment: flag == 2 },
        }
    }

    fn len(&self, image: &ImageTables) -> Result<u32, Fault> {
        match self.data & 3 {
            0 => Ok((header(image, self.data)? & 0x3_ffff) * 4),
            _ => Ok((self.data >> 2 & 0x7ff) * 4),
        }
    }

    /// The operations that undo the frame at `offset` bytes into the function.
    pub(crate) fn sequence(&self, image: &ImageTables, offset: u32) -> Result<Sequence, Fault> {
        match self.data & 3 {
            0 => full(image, self.data, offset / 4),
            1 | 2 => packed(self.data, offset / 4),
            _ => Err(Fault::BadUnwindInfo),
        }
    }
}

/// Packed unwind data: the canonical prologue and epilogue that its fields stand for.
fn packed(data: u32, instruction: u32) -> Result<Sequence, Fault> {
    let field = |low: u32, bits: u32| data >> low & ((1 << bits) - 1);
    let (is_fragment, len) = (field(0, 2) == 2, field(2, 11));
    let (reg_f, reg_i, homes, cr) = (field(13, 3), field(16, 4), field(20, 1), field(21, 2));
    let frame = field(23, 9) * 16;
    if reg_i > 10 {
        return Err(Fault::BadUnwindInfo);
    }
    let saves_lr = u32::from(cr == 1);
    let int_size = (reg_i + saves_lr) * 8;
    let fp_count = if reg_f == 0 { 0 } else { reg_f + 1 };
    let fp_size = fp_count * 8;
    // Without a saved register, arguments are homed behind the prologue, in the one allocation of
    // the whole frame.
    let homes = if int_size + fp_size == 0 { 0 } else { homes };
    let saved = (int_size + fp_size + homes * 64).next_multiple_of(16);
    let local = frame.checked_sub(saved).ok_or(Fault::BadUnwindInfo)?;
    let chained = cr >= 2;

    // In the order of an epilogue: last done in the prologue first.
    let mut sequence = Sequence::new();
    if chained {
        sequence.push(Arm64Operation::SetSp { offset: 0 })?;
        let release = if local <= 512 { local } else { 0 };
        sequence.push(Arm64Operation::Save { first: X29, count: 2, offset: 0, stride: 8, release })?;
    }
    if !chained || local > 512 {
        push_allocs(&mut sequence, local)?;
    }
    for _ in 0..homes * 4 {
        sequence.push(Arm64Operation::Nop)?;
    }
    push_saves(&mut sequence, reg_i, saves_lr != 0, fp_count, saved)?;
    if cr == 2 {
        sequence.push(Arm64Operation::SignedLr)?;
    }
    let prologue = sequence.len as u32;
    sequence.push(Arm64Operation::End)?;
    if is_fragment {
        return Ok(sequence);
    }
    if instruction < prologue {
        sequence.skip(prologue - instruction);
        return Ok(sequence);
    }
    // An epilogue does neither restore sp from fp nor undo the homing of arguments.
    let left_out =
        |operation: &Arm64Operation| matches!(operation, Arm64Operation::SetSp { .. } | Arm64Operation::Nop);
    let skipped = sequence.operations().iter().filter(|operation| left_out(operation)).count() as u32;
    let epilogue = prologue - skipped + 1;
    if let Some(done) = (instruction + epilogue).checked_sub(len)
        && instruction < len
    {
        let mut kept = Sequence::new();
        for operation in sequence.operations().iter().filter(|operation| !left_out(operation)) {
            kept.push(*operation)?;
        }
        kept.skip(done);
        return Ok(kept);
    }
    Ok(sequence)
}

const X29: Nonvolatile = Nonvolatile::X(29);

/// `sub sp` of `size` bytes, in two where one instruction cannot hold it. Undone in reverse.
fn push_allocs(sequence: &mut Sequence, size: u32) -> Result<(), Fault> {
    // The largest size of one `sub` here: a multiple of 16 below 4096.
    const MOST: u32 = 4080;
    if size > MOST {
        sequence.push(Arm64Operation::Alloc { size: size - MOST })?;
        sequence.push(Arm64Operation::Alloc { size: MOST })
    } else if size > 0 {
        sequence.push(Arm64Operation::Alloc { size })
    } else {
        Ok(())
    }
}

/// A save of the canonical prologue: `count` neighbours, `offset` bytes above the stack pointer.
/// The first one allocates `saved` bytes.
fn save_run(first: Nonvolatile, count: u8, offset: u32, saved: u32) -> Arm64Operation {
    let release = if offset == 0 { saved } else { 0 };
    Arm64Operation::Save { first, count, offset, stride: 8, release }
}

/// Pushes the saves of x19 and up, and of lr, in the order of the prologue. Returns their bytes.
fn push_integer_saves(done: &mut Sequence, reg_i: u32, saves_lr: bool, saved: u32) -> Result<u32, Fault> {
    let mut offset = 0;
    let mut register = 19u8;
    for _ in 0..reg_i / 2 {
        done.push(save_run(Nonvolatile::X(register), 2, offset, saved))?;
        offset += 16;
        register += 2;
    }
    let last = Nonvolatile::X(register);
    match (reg_i % 2 == 1, saves_lr) {
        (true, true) => {
            if offset == 0 {
                // No pre-indexed form of the pair exists among the codes: the space is made first.
                done.push(Arm64Operation::Alloc { size: saved })?;
            }
            done.push(Arm64Operation::SaveWithLr { first: last, offset, release: 0 })?;
            offset += 16;
        }
        (true, false) => {
            done.push(save_run(last, 1, offset, saved))?;
            offset += 8;
        }
        (false, true) => {
            done.push(save_run(Nonvolatile::X(30), 1, offset, saved))?;
            offset += 8;
        }
        (false, false) => {}
    }
    Ok(offset)
}

/// The saves of the canonical prologue, undone in reverse. The first one done allocates `saved`
/// bytes.
fn push_saves(
    sequence: &mut Sequence,
    reg_i: u32,
    saves_lr: bool,
    fp_count: u32,
    saved: u32,
) -> Result<(), Fault> {
    let mut done = Sequence::new();
    let mut offset = push_integer_saves(&mut done, reg_i, saves_lr, saved)?;
    let mut register = 8u8;
    let mut left = fp_count;
    while left > 0 {
        let count = left.min(2);
        done.push(save_run(Nonvolatile::D(register), count as u8, offset, saved))?;
        offset += 8 * count;
        register += count as u8;
        left -= count;
    }
    for operation in done.operations().iter().rev() {
        sequence.push(*operation)?;
    }
    Ok(())
}

fn header(image: &ImageTables, rva: u32) -> Result<u32, Fault> {
    word(image.bytes(rva).ok_or(Fault::NoUnwindData)?, 0)
}

fn word(bytes: &[u8], index: usize) -> Result<u32, Fault> {
    let at = bytes.get(index * 4..index * 4 + 4).ok_or(Fault::BadUnwindInfo)?;
    Ok(u32::from_le_bytes([at[0], at[1], at[2], at[3]]))
}

/// A full `.xdata` record.
fn full(image: &ImageTables, rva: u32, instruction: u32) -> Result<Sequence, Fault> {
    let bytes = image.bytes(rva).ok_or(Fault::NoUnwindData)?;
    let head = word(bytes, 0)?;
    let len = head & 0x3_ffff;
    let version = head >> 18 & 3;
    if version != 0 {
        return Err(Fault::UnsupportedVersion(version as u8));
    }
    let single_epilogue = head >> 21 & 1 != 0;
    let (mut epilogues, mut code_words, mut next) = (head >> 22 & 31, head >> 27, 1);
    if epilogues == 0 && code_words == 0 {
        let extension = word(bytes, 1)?;
        (epilogues, code_words, next) = (extension & 0xffff, extension >> 16 & 0xff, 2);
    }
    let scopes = if single_epilogue { 0 } else { epilogues as usize };
    let codes_at = (next + scopes) * 4;
    let codes = bytes.get(codes_at..codes_at + code_words as usize * 4).ok_or(Fault::BadUnwindInfo)?;

    let prologue = instructions(codes, 0)?;
    if instruction < prologue {
        return decode(codes, 0, prologue - instruction);
    }
    if single_epilogue {
        // This epilogue ends with the function. Its return counts as an instruction too.
        let start = len.checked_sub(instructions(codes, epilogues as usize)? + 1);
        if let Some(done) = start.and_then(|start| instruction.checked_sub(start))
            && instruction < len
        {
            return decode(codes, epilogues as usize, done);
        }
    }
    for n in 0..scopes {
        let scope = word(bytes, next + n)?;
        let (start, index) = (scope & 0x3_ffff, (scope >> 22) as usize);
        if let Some(done) = instruction.checked_sub(start)
            && done <= instructions(codes, index)?
        {
            return decode(codes, index, done);
        }
    }
    decode(codes, 0, 0)
}

/// How many instructions the codes from `index` to the end of their scope stand for, the end not
/// counted.
fn instructions(codes: &[u8], index: usize) -> Result<u32, Fault> {
    let mut rest = codes.get(index..).ok_or(Fault::BadUnwindInfo)?;
    let mut count = 0;
    while !rest.is_empty() {
        let (operation, len) = operation(rest)?;
        if operation.ends() {
            return Ok(count);
        }
        count += u32::from(operation.is_instruction());
        rest = &rest[len..];
    }
    Err(Fault::BadUnwindInfo)
}

/// The operations from `index` on, without the first `skip` instructions, to the end.
fn decode(codes: &[u8], index: usize, skip: u32) -> Result<Sequence, Fault> {
    let mut rest = codes.get(index..).ok_or(Fault::BadUnwindInfo)?;
    let mut sequence = Sequence::new();
    while !rest.is_empty() {
        let (operation, len) = operation(rest)?;
        sequence.push(operation)?;
        if operation == Arm64Operation::End {
            sequence.skip(skip);
            return Ok(sequence);
        }
        rest = &rest[len..];
    }
    Err(Fault::BadUnwindInfo)
}

/// The first operation of `codes` and its length in bytes.
fn operation(codes: &[u8]) -> Result<(Arm64Operation, usize), Fault> {
    let byte = |n: usize| codes.get(n).copied().map(u32::from).ok_or(Fault::BadUnwindInfo);
    let first = byte(0)?;
    let x = |n: u32| Nonvolatile::X(n as u8);
    let pair =
        |first, count: u8, offset, release| Arm64Operation::Save { first, count, offset, stride: 8, release };
    // Codes of two bytes, big-endian: a register number above a six-bit (or, for `…_x` singles,
    // five-bit) offset.
    let two = || Ok::<u32, Fault>((first << 8) | byte(1)?);
    let z = |value: u32| (value & 0x3f) * 8;
    let register = |value: u32| value >> 6 & 15;
    Ok(match first {
        0x00..=0x1f => (Arm64Operation::Alloc { size: (first & 0x1f) * 16 }, 1),
        0x20..=0x3f => (pair(x(19), 2, 0, (first & 0x1f) * 8), 1),
        0x40..=0x7f => (pair(X29, 2, z(first), 0), 1),
        0x80..=0xbf => (pair(X29, 2, 0, z(first) + 8), 1),
        0xc0..=0xc7 => (Arm64Operation::Alloc { size: (two()? & 0x7ff) * 16 }, 2),
        0xc8..=0xcb => (pair(x(19 + register(two()?)), 2, z(two()?), 0), 2),
        0xcc..=0xcf => (pair(x(19 + register(two()?)), 2, 0, z(two()?) + 8), 2),
        0xd0..=0xd3 => (pair(x(19 + register(two()?)), 1, z(two()?), 0), 2),
        0xd4..=0xd5 => (pair(x(19 + (two()? >> 5 & 15)), 1, 0, (two()? & 31) * 8 + 8), 2),
        0xd6..=0xd7 => {
            let first = x(19 + 2 * (two()? >> 6 & 7));
            (Arm64Operation::SaveWithLr { first, offset: z(two()?), release: 0 }, 2)
        }
        0xd8..=0xd9 => (pair(Nonvolatile::D(8 + (two()? >> 6 & 7) as u8), 2, z(two()?), 0), 2),
        0xda..=0xdb => (pair(Nonvolatile::D(8 + (two()? >> 6 & 7) as u8), 2, 0, z(two()?) + 8), 2),
        0xdc..=0xdd => (pair(Nonvolatile::D(8 + (two()? >> 6 & 7) as u8), 1, z(two()?), 0), 2),
        0xde => (pair(Nonvolatile::D(8 + (two()? >> 5 & 7) as u8), 1, 0, (two()? & 31) * 8 + 8), 2),
        0xe0 => (Arm64Operation::Alloc { size: (byte(1)? << 16 | byte(2)? << 8 | byte(3)?) * 16 }, 4),
        0xe1 => (Arm64Operation::SetSp { offset: 0 }, 1),
        0xe2 => (Arm64Operation::SetSp { offset: byte(1)? * 8 }, 2),
        0xe3 => (Arm64Operation::Nop, 1),
        0xe4 => (Arm64Operation::End, 1),
        0xe5 => (Arm64Operation::EndOfScope, 1),
        0xe6 => (Arm64Operation::SaveNext, 1),
        0xe7 => (save_any(byte(1)?, byte(2)?)?, 3),
        0xe9 => (Arm64Operation::MachineFrame, 1),
        0xea => (Arm64Operation::Context, 1),
        0xec => (Arm64Operation::ClearUnwoundToCall, 1),
        0xfc => (Arm64Operation::SignedLr, 1),
        // 0xeb is the frame of an x64 context, which only ARM64EC has.
        0xeb => return Err(Fault::OtherArchitecture),
        0xdf => return Err(Fault::ScalableVectors),
        // 0xe8 (the kernel's trap frame) and the reserved ones.
        _ => return Err(Fault::BadUnwindInfo),
    })
}

/// save_any_reg: `0pxrrrrr ttoooooo`: p a pair, x pre-indexed, r the register, t its kind (3 for
/// those of SVE), o the offset.
fn save_any(second: u32, third: u32) -> Result<Arm64Operation, Fault> {
    let (is_pair, is_pre_indexed, number) = (second & 0x40 != 0, second & 0x20 != 0, (second & 31) as u8);
    let (kind, value) = (third >> 6, third & 0x3f);
    let (first, stride) = match kind {
        0 => (Nonvolatile::X(number), 8),
        1 => (Nonvolatile::D(number), 8),
        // Only the low half of a full vector register is nonvolatile.
        2 => (Nonvolatile::D(number), 16),
        _ => return Err(Fault::ScalableVectors),
    };
    let count = if is_pair { 2 } else { 1 };
    Ok(if is_pre_indexed {
        Arm64Operation::Save { first, count, offset: 0, stride, release: value * 16 + 16 }
    } else {
        let scale = if is_pair || stride == 16 { 16 } else { 8 };
        Arm64Operation::Save { first, count, offset: value * scale, stride, release: 0 }
    })
}

#[cfg(test)]
mod tests;
