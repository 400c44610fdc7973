//! A PDB's descriptions of an x86 image's frames.

use std::ops::Range;

use super::program::Program;

/// One FrameData record ("New FPO"): how to find the caller from a range of code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameData {
    /// The first RVA that the record describes.
    pub rva: u32,
    /// How many bytes of code it describes.
    pub len: u32,
    /// Bytes of local variables.
    pub locals: u32,
    /// Bytes of parameters.
    pub params: u32,
    /// Bytes of prologue that are left from `rva` on.
    pub prologue: u32,
    /// Bytes of saved registers.
    pub saved: u32,
    /// The record begins a function.
    pub is_function_start: bool,
    /// The function has structured exception handling.
    pub has_seh: bool,
    /// The function has C++ exception handling.
    pub has_eh: bool,
    /// The program, such as `$T0 .raSearch = $eip $T0 ^ = $esp $T0 4 + =`.
    pub program: String,
}

/// One FPO record (FPO_DATA), of code without FrameData: mostly assembler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fpo {
    /// The function's first RVA.
    pub rva: u32,
    /// Its bytes of code.
    pub len: u32,
    /// Bytes of local variables.
    pub locals: u32,
    /// Bytes of parameters.
    pub params: u32,
    /// Bytes of saved registers.
    pub saved: u32,
    /// The function uses ebp as its frame pointer.
    pub uses_ebp: bool,
    /// Bytes of prologue.
    pub prologue: u32,
    /// The function has structured exception handling.
    pub has_seh: bool,
    /// The type of frame (`cbFrame`): 0 FPO, 1 trap, 2 TSS, 3 neither.
    pub frame_type: u8,
}

/// The frame records of one x86 image.
#[derive(Debug, Default)]
pub struct X86Tables {
    frames: Vec<Record>,
    /// Extents of functions, sorted.
    functions: Vec<Range<u32>>,
}

/// A record in searchable form.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) rva: u32,
    pub(crate) len: u32,
    /// Bytes between esp, where no argument is being pushed, and the return address.
    pub(crate) frame: u32,
    pub(crate) locals: u32,
    pub(crate) saved: u32,
    pub(crate) params: u32,
    /// Bytes from `rva` on in which the frame that the program assumes is not set up yet.
    pub(crate) prologue: u32,
    /// Bytes of prologue from `rva` on, as the record has them.
    pub(crate) prologue_bytes: u32,
    pub(crate) has_seh: bool,
    /// `None`: the record does not say it.
    pub(crate) has_eh: Option<bool>,
    pub(crate) how: FrameRule,
}

/// How a record finds the caller.
#[derive(Debug)]
pub(crate) enum FrameRule {
    Program(Program),
    /// FPO: the return address lies above locals and saved registers, or above ebp.
    Above {
        uses_ebp: bool,
        frame_type: u8,
    },
}

impl X86Tables {
    /// Takes the records of a PDB's FrameData and FPO streams, in any order. Records whose programs
    /// do not parse are left out; [`X86Tables::len`] counts the others.
    pub fn new(frame_data: impl IntoIterator<Item = FrameData>, fpo: impl IntoIterator<Item = Fpo>) -> Self {
        let mut functions = Vec::new();
        let mut frames = Vec::new();
        for record in frame_data {
            if record.is_function_start {
                functions.push(record.rva..record.rva.saturating_add(record.len));
            }
            let Some(program) = Program::parse(&record.program) else { continue };
            // A search for the return address takes the prologue into account.
            let is_early = record.is_function_start && !program.searches();
            frames.push(Record {
                prologue: if is_early { record.prologue } else { 0 },
                rva: record.rva,
                len: record.len,
                frame: record.locals.saturating_add(record.saved),
                locals: record.locals,
                saved: record.saved,
                params: record.params,
                prologue_bytes: record.prologue,
                has_seh: record.has_seh,
                has_eh: Some(record.has_eh),
                how: FrameRule::Program(program),
            });
        }
        for record in fpo {
            functions.push(record.rva..record.rva.saturating_add(record.len));
            frames.push(Record {
                rva: record.rva,
                len: record.len,
                frame: record.locals.saturating_add(record.saved),
                locals: record.locals,
                saved: record.saved,
                params: record.params,
                prologue: 0,
                prologue_bytes: record.prologue,
                has_seh: record.has_seh,
                has_eh: None,
                how: FrameRule::Above { uses_ebp: record.uses_ebp, frame_type: record.frame_type },
            });
        }
        // Among the records that hold an address, the one that begins last is the most exact.
        frames.sort_by_key(|record| (record.rva, std::cmp::Reverse(record.len)));
        functions.sort_by_key(|function: &Range<u32>| (function.start, function.end));
        functions.dedup();
        X86Tables { frames, functions }
    }

    /// Adds the extents of functions (S_GPROC32 and S_LPROC32), for code that has no record.
    pub fn with_functions(mut self, functions: impl IntoIterator<Item = Range<u32>>) -> Self {
        self.functions.extend(functions);
        self.functions.sort_by_key(|function| (function.start, function.end));
        self.functions.dedup_by_key(|function| function.start);
        self
    }

    /// Usable records.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there is no usable record.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The most exact record that holds `rva`, by index.
    pub(crate) fn find(&self, rva: u32) -> Option<usize> {
        let after = self.frames.partition_point(|record| record.rva <= rva);
        // Records nest: a function's record encloses those of its prologue's later stages.
        const NESTED: usize = 64;
        let holds = |index: &usize| rva - self.frames[*index].rva < self.frames[*index].len;
        (after.saturating_sub(NESTED)..after).rev().find(holds)
    }

    /// Bytes of parameters of the function that holds `rva`, by its most exact record.
    pub fn parameter_bytes(&self, rva: u32) -> Option<u32> {
        Some(self.frames[self.find(rva)?].params)
    }

    pub(crate) fn record(&self, index: usize) -> Option<&Record> {
        self.frames.get(index)
    }

    /// The extent of the function that holds `rva`.
    pub(crate) fn function(&self, rva: u32) -> Option<Range<u32>> {
        let after = self.functions.partition_point(|function| function.start <= rva);
        self.functions[..after].last().filter(|function| function.contains(&rva)).cloned()
    }
}
