//! Walks over arbitrary input.

use stk_unwind::{
    Arch, Frame, History, ImageTables, LoadedModule, ModuleId, Modules, Registers, Sample, Trust, WalkOptions,
    Walker, arm64, explain, x64, x86,
};

/// Where the first image lies; the second one follows at the same distance again.
pub const BASE: u64 = 0x1000_0000;
/// SizeOfImage of every image.
pub const SIZE: u32 = 0x1_0000;
/// Where the stack lies.
pub const STACK: u64 = 0x2000_0000;
/// The most frames. It is small, so that a walk that would not end is found by its length.
const MAX_FRAMES: usize = 64;
/// The most frames to explain, because each explanation compiles the rule again.
const EXPLAINED: usize = 8;

/// Takes values off the front of arbitrary bytes; zeros when they have run out.
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// The next two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// The next part, at most 4 KB long, with its length before it.
    pub fn part(&mut self) -> &'a [u8] {
        let len = usize::from(self.short() & 0xfff).min(self.0.len());
        let (part, rest) = self.0.split_at(len);
        self.0 = rest;
        part
    }

    /// An address that is often on the stack or in an image, otherwise any number.
    pub fn address(&mut self) -> u64 {
        let kind = self.byte();
        let value = u64::from(self.short());
        match kind & 3 {
            0 => STACK + (value & 0xffc),
            1 => BASE + value,
            2 => value,
            _ => u64::from_le_bytes(std::array::from_fn(|_| self.byte())),
        }
    }

    /// Registers of the architecture that `kind` names.
    pub fn registers(&mut self, kind: u8) -> Registers {
        match kind % 3 {
            0 => Registers::X64(x64::X64Registers {
                ip: self.address(),
                gpr: std::array::from_fn(|_| self.address()),
            }),
            1 => Registers::Arm64(arm64::Arm64Registers {
                pc: self.address(),
                sp: self.address(),
                x: std::array::from_fn(|_| self.address()),
                d: [0; 8],
            }),
            _ => Registers::X86(x86::X86Registers {
                ip: self.address() as u32,
                gpr: std::array::from_fn(|_| self.address() as u32),
            }),
        }
    }
}

struct Space<'a>(&'a [ImageTables]);

impl Modules for Space<'_> {
    fn find(&self, address: u64) -> Option<LoadedModule<'_>> {
        let index = usize::try_from(address.checked_sub(BASE)? / u64::from(SIZE)).ok()?;
        let image = self.0.get(index)?;
        let base = BASE + index as u64 * u64::from(SIZE);
        Some(LoadedModule { module: ModuleId(index as u32), base, image, image_key: index as u32 })
    }
}

/// Walks and checks the properties that must hold for any input.
pub fn check(images: &[ImageTables], mut rest: Bytes<'_>, kind: u8) {
    let registers = rest.registers(kind);
    let flags = rest.byte();
    let code = rest.part();
    let words = rest.0.get(..0x1000).unwrap_or(rest.0);
    // Words of the stack that point somewhere make longer walks than random ones.
    let mut stack = words.to_vec();
    if flags & 8 != 0 {
        let mut bytes = Bytes(words);
        let wide = !matches!(registers, Registers::X86(_));
        stack.clear();
        while !bytes.0.is_empty() {
            let address = bytes.address();
            if wide {
                stack.extend_from_slice(&address.to_le_bytes());
            } else {
                stack.extend_from_slice(&(address as u32).to_le_bytes());
            }
        }
    }
    let sample = Sample {
        registers: &registers,
        stack: &stack,
        stack_start: STACK,
        stack_base: (flags & 1 != 0).then_some(STACK + stack.len() as u64),
        truncated: flags & 2 != 0,
        code_at_ip: (!code.is_empty()).then_some(code),
    };
    let mut options = WalkOptions::default();
    options.max_frames = MAX_FRAMES;
    options.scan = flags & 4 != 0;
    let space = Space(images);
    let mut walker = Walker::new(options);
    let mut frames: Vec<Frame> = Vec::new();
    let stop = walker.walk(&space, &sample, &mut frames);
    assert!((1..=MAX_FRAMES).contains(&frames.len()));
    // Only the innermost function may leave the stack pointer where it is.
    assert!(frames.iter().skip(1).is_sorted_by(|a, b| a.sp < b.sp));

    let mut again = Vec::new();
    assert_eq!(walker.walk(&space, &sample, &mut again), stop, "rules from the cache");
    assert_eq!(again, frames);

    again.clear();
    let with_registers = walker.walk_with_registers(&space, &sample, |frame, registers| {
        assert_eq!((registers.ip(), registers.sp()), (frame.address, frame.sp));
        again.push(*frame);
    });
    assert_eq!(with_registers, stop, "registers restored on the way");
    assert_eq!(again, frames);

    for (i, frame) in frames.iter().enumerate().take(EXPLAINED) {
        let caller = frames.get(i + 1);
        let explanation = explain(&space, &sample, frame, caller);
        assert!(!explanation.record.is_empty() && !explanation.rule.is_empty());
        // On arm64 a caller may be exact although its trust does not say so. The explanation then
        // treats it as not exact.
        if caller.is_some_and(|caller| caller.trust != Trust::Scan)
            && !matches!(registers, Registers::Arm64(_))
        {
            assert!(!explanation.rule.starts_with("no rule"), "{explanation}");
        }
    }

    let mut history = History::default();
    for unchanged_from in [u64::MAX, 0, STACK + 0x40] {
        for arch in [Arch::X64, Arch::Arm64, Arch::X86] {
            walker.places(arch, sample.stack, |_| {});
        }
        assert_eq!(walker.walk_again(&space, &sample, unchanged_from, &mut history), stop, "tail reuse");
        assert!(history.frames().iter().rev().eq(&frames));
    }
}
