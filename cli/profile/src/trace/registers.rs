//! Recorded registers in the walker's form.

use stk_schema::registers::{IP, RegisterSet, SP, x64_index};
use stk_unwind::{Registers, arm64, x64, x86};

/// The walker's input for a sample whose registers are `registers`.
pub fn walk_input<'a>(sample: &stk_format::Sample<'a>, registers: &'a Registers) -> stk_unwind::Sample<'a> {
    stk_unwind::Sample {
        registers,
        stack: sample.stack,
        stack_start: sample.stack_start,
        stack_base: (sample.stack_base != 0).then_some(sample.stack_base),
        truncated: sample.truncated,
        code_at_ip: sample.code_at_ip,
    }
}

/// The registers of a sample; `None` for a set that cannot be walked.
pub fn registers(set: RegisterSet, values: &[u64]) -> Option<Registers> {
    if values.len() != set.len() {
        return None;
    }
    match set {
        RegisterSet::X64 => {
            let gpr = std::array::from_fn(|n| values[x64_index(n)]);
            Some(Registers::X64(x64::X64Registers { ip: values[IP], gpr }))
        }
        RegisterSet::Arm64 => {
            // Stored after pc and sp: lr, fp, x0–x28, d8–d15.
            let x = std::array::from_fn(|n| match n {
                29 => values[3],
                30 => values[2],
                n => values[4 + n],
            });
            let d = std::array::from_fn(|n| values[33 + n]);
            Some(Registers::Arm64(arm64::Arm64Registers { pc: values[IP], sp: values[SP], x, d }))
        }
        RegisterSet::X86 => {
            // x64's first eight registers are in the order of the x86 general registers.
            let gpr = std::array::from_fn(|n| values[x64_index(n)] as u32);
            Some(Registers::X86(x86::X86Registers { ip: values[IP] as u32, gpr }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each register's value is its index in the stored order, so the name gives the expected
    /// value.
    fn numbered(set: RegisterSet) -> (Vec<u64>, impl Fn(&str) -> u64) {
        let of = move |name: &str| set.names().iter().position(|known| *known == name).unwrap() as u64;
        ((0..set.len() as u64).collect(), of)
    }

    #[test]
    fn x64_registers_follow_the_numbering_of_the_instruction_set() {
        let (values, of) = numbered(RegisterSet::X64);
        let Some(Registers::X64(r)) = registers(RegisterSet::X64, &values) else { panic!("not x64") };
        let names = [
            "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
            "r14", "r15",
        ];
        assert_eq!(r.gpr.to_vec(), names.map(&of));
        assert_eq!(r.ip, of("rip"));
    }

    #[test]
    fn arm64_registers_follow_the_numbering_of_the_instruction_set() {
        let (values, of) = numbered(RegisterSet::Arm64);
        let Some(Registers::Arm64(r)) = registers(RegisterSet::Arm64, &values) else { panic!("not arm64") };
        assert_eq!((r.pc, r.sp, r.x[29], r.x[30]), (of("pc"), of("sp"), of("fp"), of("lr")));
        assert!((0..29).all(|n| r.x[n] == of(&format!("x{n}"))));
        assert!((0..8).all(|n| r.d[n] == of(&format!("d{}", n + 8))));
    }

    #[test]
    fn x86_registers_follow_the_numbering_of_the_instruction_set() {
        let (values, of) = numbered(RegisterSet::X86);
        let Some(Registers::X86(r)) = registers(RegisterSet::X86, &values) else { panic!("not x86") };
        let names = ["eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi"];
        assert_eq!(r.gpr.map(u64::from), names.map(&of));
        assert_eq!(u64::from(r.ip), of("eip"));
    }

    #[test]
    fn a_set_with_too_few_registers_is_refused() {
        assert!(registers(RegisterSet::X64, &[1, 2]).is_none());
    }
}
