//! A thread context: the bytes of Windows' CONTEXT structure, with its registers by name.

use stk_schema::Arch;
use stk_unwind::{Registers, arm64, x64, x86};

use super::Memory;
use stk_base::model::bytes::u32_at;

/// A set of registers in the layout of `CONTEXT` (winnt.h). Only its flags, integer and control
/// registers are used.
///
/// As the contract requires, registers that a Frame does not hold keep their values: such a context
/// is not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Context {
    arch: Arch,
    bytes: Vec<u8>,
}

/// The layout of one architecture's CONTEXT, offsets in bytes.
struct ContextLayout {
    size: usize,
    flags: u64,
    ip: u64,
    sp: u64,
    fp: u64,
    /// Bit of the flags that marks that extended state follows.
    xstate: u32,
    /// CONTEXT_CONTROL and CONTEXT_INTEGER, with the bit of the architecture: what a sample holds.
    sampled: u32,
}

const X64: ContextLayout = ContextLayout {
    size: 0x4d0,
    flags: 0x30,
    ip: 0xf8,
    sp: 0x98,
    fp: 0xa0,
    xstate: 0x40,
    sampled: 0x10_0003,
};
const ARM64: ContextLayout =
    ContextLayout { size: 0x390, flags: 0, ip: 0x108, sp: 0x100, fp: 0xf0, xstate: 0x20, sampled: 0x40_0003 };
const X86: ContextLayout =
    ContextLayout { size: 0x2cc, flags: 0, ip: 0xb8, sp: 0xc4, fp: 0xb4, xstate: 0x40, sampled: 0x1_0003 };

/// In the order of their numbers, from offset 0x78.
const X64_NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];
const X64_FIRST: u64 = 0x78;
/// Offset of x0; x29 is fp, x30 lr.
const ARM64_FIRST: u64 = 0x08;
/// Offset of the vector registers, 16 bytes apart. d0 to d31 are their low halves.
const ARM64_VECTORS: u64 = 0x110;
/// By number of the register (eax, ecx, edx, ebx, esp, ebp, esi, edi).
const X86_NAMES: [(&str, u64); 8] = [
    ("eax", 0xb0),
    ("ecx", 0xac),
    ("edx", 0xa8),
    ("ebx", 0xa4),
    ("esp", 0xc4),
    ("ebp", 0xb4),
    ("esi", 0xa0),
    ("edi", 0x9c),
];

impl Context {
    /// A context of zeros.
    pub fn new(arch: Arch) -> Context {
        Context { arch, bytes: vec![0; layout(arch).size] }
    }

    /// Bytes of an architecture's CONTEXT.
    pub fn size(arch: Arch) -> usize {
        layout(arch).size
    }

    /// Reads a CONTEXT from the target's memory.
    pub fn read(arch: Arch, memory: &impl Memory, address: u64) -> Option<Context> {
        let mut context = Context::new(arch);
        memory.read(address, &mut context.bytes).then_some(context)
    }

    /// The registers of a sample. ContextFlags say CONTEXT_CONTROL and CONTEXT_INTEGER: of the
    /// control group a sample has the instruction and stack pointers (and fp and lr), not the
    /// processor's flags and segments, which are zero.
    pub fn from_registers(registers: &Registers) -> Context {
        let arch = match registers {
            Registers::X64(_) => Arch::X64,
            Registers::Arm64(_) => Arch::Arm64,
            Registers::X86(_) => Arch::X86,
        };
        let mut context = Context::new(arch);
        match registers {
            Registers::X64(r) => {
                for (at, value) in (X64_FIRST..).step_by(8).zip(r.gpr) {
                    context.put(at, value);
                }
            }
            Registers::Arm64(r) => {
                for (at, value) in (ARM64_FIRST..).step_by(8).zip(r.x) {
                    context.put(at, value);
                }
                for (at, value) in (ARM64_VECTORS + 8 * 16..).step_by(16).zip(r.d) {
                    context.put(at, value);
                }
            }
            Registers::X86(r) => {
                for ((_, at), value) in X86_NAMES.iter().zip(r.gpr) {
                    context.put(*at, u64::from(value));
                }
            }
        }
        context.set_ip(registers.ip());
        context.set_sp(registers.sp());
        context.set_flags(layout(arch).sampled);
        context
    }

    /// The registers in the unwinder's form.
    pub fn registers(&self) -> Registers {
        match self.arch {
            Arch::X64 => {
                let mut r = x64::X64Registers { ip: self.ip(), gpr: [0; 16] };
                for (at, value) in (X64_FIRST..).step_by(8).zip(&mut r.gpr) {
                    *value = self.get(at);
                }
                Registers::X64(r)
            }
            Arch::Arm64 => {
                let mut r = arm64::Arm64Registers { pc: self.ip(), sp: self.sp(), x: [0; 31], d: [0; 8] };
                for (at, value) in (ARM64_FIRST..).step_by(8).zip(&mut r.x) {
                    *value = self.get(at);
                }
                for (at, value) in (ARM64_VECTORS + 8 * 16..).step_by(16).zip(&mut r.d) {
                    *value = self.get(at);
                }
                Registers::Arm64(r)
            }
            Arch::X86 => {
                // The offsets of a 32-bit layout hold 32-bit values.
                let mut r = x86::X86Registers { ip: self.ip() as u32, gpr: [0; 8] };
                for ((_, at), value) in X86_NAMES.iter().zip(&mut r.gpr) {
                    *value = self.get(*at) as u32;
                }
                Registers::X86(r)
            }
        }
    }

    pub fn arch(&self) -> Arch {
        self.arch
    }

    /// The bytes, in the layout of CONTEXT: the contract's GetRawContext.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The instruction pointer.
    pub fn ip(&self) -> u64 {
        self.get(layout(self.arch).ip)
    }

    /// The stack pointer.
    pub fn sp(&self) -> u64 {
        self.get(layout(self.arch).sp)
    }

    /// The frame pointer: rbp, fp or ebp.
    pub fn fp(&self) -> u64 {
        self.get(layout(self.arch).fp)
    }

    /// Sets the instruction pointer.
    pub fn set_ip(&mut self, value: u64) {
        self.put(layout(self.arch).ip, value);
    }

    /// Sets the stack pointer.
    pub fn set_sp(&mut self, value: u64) {
        self.put(layout(self.arch).sp, value);
    }

    /// Sets the frame pointer.
    pub fn set_fp(&mut self, value: u64) {
        self.put(layout(self.arch).fp, value);
    }

    /// ContextFlags.
    pub fn flags(&self) -> u32 {
        let at = layout(self.arch).flags as usize;
        u32_at(&self.bytes, at).unwrap_or(0)
    }

    /// Clears the bit that marks extended state, since this structure holds none.
    pub fn clear_xstate(&mut self) {
        self.set_flags(self.flags() & !layout(self.arch).xstate);
    }

    fn set_flags(&mut self, flags: u32) {
        let at = layout(self.arch).flags as usize;
        if let Some(bytes) = self.bytes.get_mut(at..at + 4) {
            bytes.copy_from_slice(&flags.to_le_bytes());
        }
    }

    /// A register by the name that data descriptors use, in any case: `Rbx`, `X19`, `Fp`, `Edi`.
    pub fn register(&self, name: &str) -> Option<u64> {
        register_offset(self.arch, name).map(|at| self.get(at))
    }

    /// Sets a register by name. Returns false if the architecture has no register of that name.
    pub fn set_register(&mut self, name: &str, value: u64) -> bool {
        register_offset(self.arch, name).map(|at| self.put(at, value)).is_some()
    }

    fn width(&self) -> usize {
        if self.arch == Arch::X86 { 4 } else { 8 }
    }

    fn get(&self, at: u64) -> u64 {
        let at = at as usize;
        let bytes = self.bytes.get(at..at + self.width()).unwrap_or_default();
        bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    fn put(&mut self, at: u64, value: u64) {
        let (at, width) = (at as usize, self.width());
        if let (Some(bytes), Some(value)) =
            (self.bytes.get_mut(at..at + width), value.to_le_bytes().get(..width))
        {
            bytes.copy_from_slice(value);
        }
    }
}

fn layout(arch: Arch) -> &'static ContextLayout {
    match arch {
        Arch::X64 => &X64,
        Arch::Arm64 => &ARM64,
        Arch::X86 => &X86,
    }
}

fn register_offset(arch: Arch, name: &str) -> Option<u64> {
    let name = name.to_ascii_lowercase();
    match arch {
        Arch::X64 if name == "rip" => Some(X64.ip),
        Arch::X64 => {
            let number = X64_NAMES.iter().position(|known| *known == name)?;
            Some(X64_FIRST + 8 * number as u64)
        }
        Arch::X86 if name == "eip" => Some(X86.ip),
        Arch::X86 => X86_NAMES.iter().find(|(known, _)| *known == name).map(|(_, at)| *at),
        Arch::Arm64 => match name.as_str() {
            "pc" => Some(ARM64.ip),
            "sp" => Some(ARM64.sp),
            "fp" => Some(ARM64.fp),
            "lr" => Some(ARM64.fp + 8),
            _ => {
                let number: u64 = name.strip_prefix('x')?.parse().ok().filter(|number| *number <= 30)?;
                Some(ARM64_FIRST + 8 * number)
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets copied from the structures of winnt.h.
    #[test]
    fn register_offsets_match_winnt_h() {
        for (arch, name, at, width) in [
            (Arch::X64, "Rbx", 0x90, 8),
            (Arch::X64, "Rbp", 0xa0, 8),
            (Arch::X64, "R15", 0xf0, 8),
            (Arch::X64, "Rip", 0xf8, 8),
            (Arch::Arm64, "X19", 0xa0, 8),
            (Arch::Arm64, "Fp", 0xf0, 8),
            (Arch::Arm64, "Lr", 0xf8, 8),
            (Arch::Arm64, "Sp", 0x100, 8),
            (Arch::Arm64, "Pc", 0x108, 8),
            (Arch::X86, "Edi", 0x9c, 4),
            (Arch::X86, "Ebp", 0xb4, 4),
            (Arch::X86, "Esp", 0xc4, 4),
        ] {
            let mut context = Context::new(arch);
            assert!(context.set_register(name, 0x1122_3344));
            let expected = &0x1122_3344u64.to_le_bytes()[..width];
            assert_eq!(&context.bytes()[at..at + width], expected, "{arch:?} {name}");
            assert_eq!(context.bytes().iter().filter(|byte| **byte != 0).count(), 4, "{arch:?} {name}");
        }
        assert!(!Context::new(Arch::X64).set_register("X19", 1));
        assert!(!Context::new(Arch::Arm64).set_register("X31", 1));
        assert_eq!([Arch::X64, Arch::Arm64, Arch::X86].map(Context::size), [1232, 912, 716]);
    }

    #[test]
    fn registers_survive_conversion_to_a_context_and_back() {
        let x64 = x64::X64Registers { ip: 1, gpr: std::array::from_fn(|n| 100 + n as u64) };
        let arm64 = arm64::Arm64Registers {
            pc: 1,
            sp: 2,
            x: std::array::from_fn(|n| 100 + n as u64),
            d: std::array::from_fn(|n| 200 + n as u64),
        };
        let x86 = x86::X86Registers { ip: 1, gpr: std::array::from_fn(|n| 100 + n as u32) };
        for registers in [Registers::X64(x64), Registers::Arm64(arm64), Registers::X86(x86)] {
            let context = Context::from_registers(&registers);
            assert_eq!(context.registers(), registers);
            assert_eq!((context.ip(), context.sp()), (registers.ip(), registers.sp()));
        }
    }

    /// `CONTEXT_CONTROL | CONTEXT_INTEGER` of winnt.h.
    #[test]
    fn a_samples_context_says_which_registers_it_holds() {
        let x64 = Registers::X64(x64::X64Registers { ip: 1, gpr: [2; 16] });
        let arm64 = Registers::Arm64(arm64::Arm64Registers { pc: 1, sp: 2, x: [3; 31], d: [4; 8] });
        let x86 = Registers::X86(x86::X86Registers { ip: 1, gpr: [2; 8] });
        for (registers, flags, at) in
            [(x64, 0x0010_0003u32, 0x30), (arm64, 0x0040_0003, 0), (x86, 0x0001_0003, 0)]
        {
            let context = Context::from_registers(&registers);
            assert_eq!(context.bytes()[at..at + 4], flags.to_le_bytes(), "{:?}", context.arch());
        }
    }

    #[test]
    fn clearing_the_extended_state_flag_keeps_the_other_flags() {
        let bits = [
            (Arch::X64, 0x10_005f, 0x10_001f),
            (Arch::Arm64, 0x40_003f, 0x40_001f),
            (Arch::X86, 0x1_007f, 0x1_003f),
        ];
        for (arch, before, after) in bits {
            let mut context = Context::new(arch);
            let at = layout(arch).flags as usize;
            context.bytes[at..at + 4].copy_from_slice(&u32::to_le_bytes(before));
            context.clear_xstate();
            assert_eq!(context.flags(), after, "{arch:?}");
        }
    }
}
