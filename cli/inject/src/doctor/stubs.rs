//! Checks that ntdll's system calls are the same in memory as in the file. Security software often
//! puts a jump at their beginning. Its code then runs while the recorder holds a thread.

use super::{Fact, Verdict};

const GROUP: &str = "system-calls";

/// The functions that the recorder and inject depend on.
pub(crate) const FUNCTIONS: [&str; 12] = [
    "NtSuspendThread",
    "NtResumeThread",
    "NtGetContextThread",
    "NtReadVirtualMemory",
    "NtQueryInformationThread",
    "NtGetNextThread",
    "NtWriteFile",
    "NtCreateThreadEx",
    "NtWriteVirtualMemory",
    "NtAllocateVirtualMemory",
    "NtQueueApcThread",
    "LdrLoadDll",
];

/// The number of bytes to compare. On x86 only the first instruction, because the next one holds an
/// address, which the loader relocates.
pub(crate) const fn compared(machine: u16) -> usize {
    if machine == 0x14c { 5 } else { 16 }
}

/// The beginning of one function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stub {
    pub name: &'static str,
    /// Its first bytes in memory and in the file; `None` if ntdll has no such function.
    pub bytes: Option<(Vec<u8>, Vec<u8>)>,
    /// The owner of the changed code: a module's path, or a description of the memory.
    pub hooked_by: Option<String>,
}

/// The target of changed code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Jump {
    To(u64),
    /// To the address that is stored at this one.
    Through(u64),
}

/// The target of the jump with which the code in `bytes` at `address` begins; `None` if it does not
/// begin with a known form of jump. `wide`: 64-bit code.
pub(crate) fn jump(bytes: &[u8], address: u64, wide: bool) -> Option<Jump> {
    let int32 = |at: usize| Some(i32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let mask = |value: u64| if wide { value } else { value & 0xffff_ffff };
    let relative = |at: usize| {
        Some(mask(address.wrapping_add(at as u64 + 4).wrapping_add_signed(i64::from(int32(at)?))))
    };
    match bytes {
        [0xe9, ..] => Some(Jump::To(relative(1)?)),
        [0xff, 0x25, ..] if wide => Some(Jump::Through(relative(2)?)),
        [0xff, 0x25, ..] => Some(Jump::Through(u64::from(int32(2)? as u32))),
        // mov rax, imm64; jmp rax
        [0x48, 0xb8, ..] if bytes.get(10..12) == Some(&[0xff, 0xe0]) => {
            Some(Jump::To(u64::from_le_bytes(bytes.get(2..10)?.try_into().ok()?)))
        }
        // push imm32; ret
        [0x68, _, _, _, _, 0xc3, ..] => Some(Jump::To(u64::from(int32(1)? as u32))),
        _ => None,
    }
}

/// Judges the findings and returns facts with verdicts.
pub(crate) fn judge(stubs: &[Stub]) -> Vec<Fact> {
    if stubs.is_empty() {
        return vec![Fact::unknown(GROUP, "ntdll", "ntdll.dll's file cannot be read")];
    }
    stubs.iter().map(judge_one).collect()
}

fn judge_one(stub: &Stub) -> Fact {
    let Some((memory, file)) = &stub.bytes else {
        return Fact::unknown(GROUP, stub.name, "ntdll does not export it");
    };
    let hex: Vec<String> = memory.iter().map(|byte| format!("{byte:02x}")).collect();
    let fact = Fact::ok(GROUP, stub.name, hex.join(" "));
    if memory == file {
        return fact;
    }
    let by = stub.hooked_by.as_deref().unwrap_or("code that could not be found");
    fact.but(
        Verdict::Note,
        format!("changed in memory, leads to {by}: it runs at each call, also while a thread is suspended"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_are_followed_as_hooks_write_them() {
        let at = 0x7ffa_0000_1000;
        assert_eq!(jump(&[0xe9, 0xfb, 0x0f, 0, 0], at, true), Some(Jump::To(0x7ffa_0000_2000)));
        assert_eq!(jump(&[0xe9, 0xfb, 0xff, 0xff, 0xff], at, true), Some(Jump::To(at)));
        assert_eq!(jump(&[0xff, 0x25, 0xfa, 0, 0, 0], at, true), Some(Jump::Through(at + 0x100)));
        assert_eq!(
            jump(&[0xff, 0x25, 0x78, 0x56, 0x34, 0x92], 0x7700_0000, false),
            Some(Jump::Through(0x9234_5678))
        );
        let absolute = [0x48, 0xb8, 8, 7, 6, 5, 4, 3, 2, 1, 0xff, 0xe0];
        assert_eq!(jump(&absolute, at, true), Some(Jump::To(0x0102_0304_0506_0708)));
        assert_eq!(jump(&[0x68, 1, 0, 0, 0x90, 0xc3], at, false), Some(Jump::To(0x9000_0001)));
        // On x86 addresses wrap at 4 GB.
        assert_eq!(jump(&[0xe9, 0, 0, 0, 0x10], 0xf000_0000, false), Some(Jump::To(5)));
    }

    #[test]
    fn a_plain_system_call_is_no_jump() {
        assert_eq!(jump(&[0x4c, 0x8b, 0xd1, 0xb8, 0x3f, 0, 0, 0], 0, true), None);
        assert_eq!(jump(&[0xe9, 1], 0, true), None);
        assert_eq!(jump(&[], 0, true), None);
    }

    #[test]
    fn a_changed_stub_names_the_owner_of_its_target() {
        let stub = |memory: &[u8], hooked_by: Option<&str>| Stub {
            name: "NtSuspendThread",
            bytes: Some((memory.to_vec(), vec![0x4c, 0x8b])),
            hooked_by: hooked_by.map(str::to_owned),
        };
        let facts = judge(&[
            stub(&[0x4c, 0x8b], None),
            stub(&[0xe9, 0x00], Some("C:\\edr\\hook.dll")),
            Stub { bytes: None, ..stub(&[], None) },
        ]);
        assert_eq!(facts[0].verdict, Verdict::Ok);
        assert_eq!((&facts[0].value, facts[1].verdict), (&"4c 8b".into(), Verdict::Note));
        assert!(facts[1].explanation.as_deref().is_some_and(|why| why.contains("hook.dll")), "{facts:?}");
        assert_eq!(facts[2].verdict, Verdict::Unknown);
    }
}
