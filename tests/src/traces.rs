//! Traces for tests: images with real unwind data and exports, and threads with stacks that the
//! walker can walk.

use crate::synth::TraceBuilder;
use stk_format::RawSample;
use stk_schema::event::{Event, ManagedThread, RunState, RuntimeInfo, TableKind};
use stk_schema::identity::{CodeView, Identity, PeIdentity};
use stk_schema::registers::{IP, RegisterSet, SP};
use stk_schema::{Arch, Ticks};

/// SizeOfImage of every image here.
pub const IMAGE_SIZE: u32 = 0x10_0000;
/// RVA of the first function of an image. Functions are [`FUNCTION_SIZE`] bytes apart.
pub const FIRST_FUNCTION: u32 = 0x1000;
/// Bytes of a function.
pub const FUNCTION_SIZE: u32 = 0x40;
/// Offset of the instruction behind the call in a function.
pub const AFTER_CALL: u32 = 0x10;
/// Words of a frame: `sub rsp, 28h` and the return address.
const FRAME_WORDS: usize = 6;
const PDATA: u32 = 0x8_0000;
const XDATA: u32 = 0xC_0000;
const EDATA: u32 = 0xD_0000;

/// An x64 image in which every function begins with `sub rsp, 28h`.
#[derive(Clone, Debug)]
pub struct TestImage {
    pub path: &'static str,
    pub functions: u32,
    /// Exported names, and the numbers of their functions.
    pub exports: Vec<(&'static str, u32)>,
    /// First byte of the CodeView GUID; 0 = no CodeView record.
    pub guid: u8,
}

impl TestImage {
    pub fn new(path: &'static str, functions: u32) -> TestImage {
        TestImage { path, functions, exports: Vec::new(), guid: 0 }
    }

    /// RVA of a function.
    pub fn function(n: u32) -> u32 {
        FIRST_FUNCTION + n * FUNCTION_SIZE
    }

    /// Records the image, loaded at `base`, with its tables. Returns the instance id.
    pub fn load(&self, builder: &mut TraceBuilder, time: u64, base: u64) -> u64 {
        let instance = self.load_without_tables(builder, time, base);
        self.with_tables(|tables| builder.tables(time, instance, tables));
        instance
    }

    /// Calls `record` with its tables: kind, RVA, bytes.
    pub fn with_tables(&self, record: impl FnOnce(&[(TableKind, u32, &[u8])])) {
        let (pdata, xdata, edata) = (self.pdata(), xdata(), self.edata());
        let tables = [
            (TableKind::ExceptionDirectory, PDATA, pdata.as_slice()),
            (TableKind::UnwindInfo, XDATA, xdata.as_slice()),
            (TableKind::Exports, EDATA, edata.as_slice()),
        ];
        record(&tables[..if self.exports.is_empty() { 2 } else { 3 }]);
    }

    /// Records the image, loaded at `base`, without any of its contents.
    pub fn load_without_tables(&self, builder: &mut TraceBuilder, time: u64, base: u64) -> u64 {
        let name_hash = self.path.bytes().fold(17u32, |hash, byte| hash.wrapping_mul(31) + u32::from(byte));
        let pe = PeIdentity { time_date_stamp: name_hash, size_of_image: IMAGE_SIZE, check_sum: 0 };
        let mut identities = vec![Identity::Pe(pe)];
        if self.guid != 0 {
            identities.push(Identity::CodeView(CodeView {
                guid: [self.guid; 16],
                age: 1,
                pdb_name: b"app.pdb",
            }));
        }
        builder.module(time, base, IMAGE_SIZE.into(), self.path, identities)
    }

    /// RUNTIME_FUNCTION records (x64 exception handling, "struct RUNTIME_FUNCTION").
    fn pdata(&self) -> Vec<u8> {
        let record = |n| [TestImage::function(n), TestImage::function(n) + FUNCTION_SIZE, XDATA];
        (0..self.functions).flat_map(record).flat_map(u32::to_le_bytes).collect()
    }

    /// An export directory (PE format, ".edata section").
    fn edata(&self) -> Vec<u8> {
        let count = self.exports.len() as u32;
        let (functions, names) = (EDATA + 40, EDATA + 40 + 4 * count);
        let (ordinals, texts) = (names + 4 * count, names + 6 * count);
        let mut sorted = self.exports.clone();
        sorted.sort();
        let mut out: Vec<u8> = [0, 0, 0, texts, 1, count, count, functions, names, ordinals]
            .iter()
            .flat_map(|word: &u32| word.to_le_bytes())
            .collect();
        out.extend(sorted.iter().flat_map(|(_, n)| TestImage::function(*n).to_le_bytes()));
        let mut at = texts;
        for (name, _) in &sorted {
            out.extend(at.to_le_bytes());
            at += name.len() as u32 + 1;
        }
        out.extend((0..count as u16).flat_map(u16::to_le_bytes));
        for (name, _) in &sorted {
            out.extend(name.as_bytes());
            out.push(0);
        }
        out
    }
}

/// UNWIND_INFO version 1, prologue of 4 bytes, one code: UWOP_ALLOC_SMALL of 28h bytes at 4.
fn xdata() -> Vec<u8> {
    vec![0x01, 0x04, 0x01, 0x00, 0x04, 0x42, 0, 0]
}

/// Addresses of ntdll and kernel32, which have the functions that threads start in.
pub const NTDLL: u64 = 0x7ff8_0000_0000;
pub const KERNEL32: u64 = 0x7ff7_0000_0000;

pub fn load_system(builder: &mut TraceBuilder) {
    let mut ntdll = TestImage::new(r"C:\Windows\System32\ntdll.dll", 4);
    ntdll.exports = vec![("RtlUserThreadStart", 0), ("NtWaitForSingleObject", 2)];
    ntdll.load(builder, 0, NTDLL);
    let mut kernel32 = TestImage::new(r"C:\Windows\System32\kernel32.dll", 4);
    kernel32.exports = vec![("BaseThreadInitThunk", 0)];
    kernel32.load(builder, 0, KERNEL32);
}

/// The address behind the call in function `n` of an image at `base`.
pub fn in_function(base: u64, n: u32) -> u64 {
    base + u64::from(TestImage::function(n) + AFTER_CALL)
}

/// The stack of a thread that the system started and that made `calls`, outermost first: registers
/// (rip, rsp) and words.
pub fn stack(stack_base: u64, calls: &[u64]) -> ([u64; 2], Vec<u64>) {
    let mut chain = vec![in_function(NTDLL, 0), in_function(KERNEL32, 0)];
    chain.extend(calls);
    let mut words = Vec::new();
    for caller in chain.iter().rev().skip(1) {
        words.extend([0; FRAME_WORDS - 1]);
        words.push(*caller);
    }
    // The frame of RtlUserThreadStart itself, which has no caller.
    words.extend([0; FRAME_WORDS]);
    let sp = stack_base - 8 * words.len() as u64;
    ([chain[chain.len() - 1], sp], words)
}

/// Records a sample of a thread that made `calls`.
pub fn sample(builder: &mut TraceBuilder, thread: u64, time: u64, stack_base: u64, calls: &[u64]) {
    let (registers, words) = stack(stack_base, calls);
    builder.sample(thread, time, &registers, &words);
}

/// Records a sample that a thread asked for, with this tag, when it had made `calls`.
pub fn capture(
    builder: &mut TraceBuilder,
    (thread, stack_base): (u64, u64),
    time: u64,
    calls: &[u64],
    tag: u64,
) {
    let ([ip, sp], words) = stack(stack_base, calls);
    let mut registers = [0; RegisterSet::X64.len()];
    (registers[IP], registers[SP]) = (ip, sp);
    let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    builder.raw(&RawSample {
        thread,
        time: Ticks(time),
        set: RegisterSet::X64,
        registers: &registers,
        stack_base,
        stack_start: sp,
        stack: &stack,
        code: None,
        cpu: None,
        state: RunState::Running,
        tag: Some(tag),
        tables_pending: false,
        context_reply: None,
        extra: &[],
    });
}

/// A thread at the moment of a sample: its registers, and its stack from the stack pointer up to
/// the base.
pub struct Moment<'a> {
    pub thread: u64,
    pub time: u64,
    pub ip: u64,
    pub sp: u64,
    pub words: &'a [u64],
    /// Code bytes at the instruction pointer; empty = not recorded.
    pub code: &'a [u8],
    pub state: RunState,
}

/// Records a sample with the code at its instruction pointer.
pub fn sample_with_code(builder: &mut TraceBuilder, moment: &Moment<'_>) {
    let Moment { thread, time, ip, sp, words, code, state } = *moment;
    let mut registers = [0; RegisterSet::X64.len()];
    (registers[IP], registers[SP]) = (ip, sp);
    let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    builder.raw(&RawSample {
        thread,
        time: Ticks(time),
        set: RegisterSet::X64,
        registers: &registers,
        stack_base: sp + stack.len() as u64,
        stack_start: sp,
        stack: &stack,
        code: (!code.is_empty()).then_some(code),
        cpu: None,
        state,
        tag: None,
        tables_pending: false,
        context_reply: None,
        extra: &[],
    });
}

/// A builder of a trace that has the system's modules.
pub fn trace() -> TraceBuilder {
    let mut builder = TraceBuilder::new(Arch::X64);
    load_system(&mut builder);
    builder
}

/// A single-file .NET host in `module` with this data contract.
pub fn runtime(module: u64, descriptor: &[u8]) -> Event<'_> {
    Event::RuntimeInfo(RuntimeInfo {
        module,
        time: Ticks(0),
        kind: 3,
        version: b"10.0.9",
        descriptor,
        pointer_data: &[],
        note: b"",
    })
}

/// The managed state at a thread's sample, with the innermost explicit Frame at `frame`.
pub fn managed(thread: u64, time: u64, frame: u64) -> Event<'static> {
    Event::ManagedThread(ManagedThread {
        thread,
        time: Ticks(time),
        address: 0x5000,
        state: 0,
        preemptive_disabled: 0,
        frame,
        exception: 0,
    })
}
