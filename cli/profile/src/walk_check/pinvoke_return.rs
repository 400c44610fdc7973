//! Recognises the code by which a managed method waits for the runtime after a P/Invoke.
//!
//! It gets the code between the return address of the P/Invoke's call and a later return address of
//! the same method. On x64, the JIT compiler writes there: this thread runs managed code again;
//! does the runtime want threads to stop? If so, call it. The call returns when the runtime lets
//! the thread continue.

/// Whether x64 code is exactly `mov byte ptr [reg+disp8], 1`, `cmp dword ptr [rip+disp32], 0`, `je`
/// to the end, and a call. Code that is not optimised first loads the register from the method's
/// stack frame: `mov reg, [rbp+disp]`. Optimised code first keeps the P/Invoke's result in another
/// register, if it returns one: `mov reg, rax`.
pub(super) fn waits_for_runtime(code: &[u8]) -> bool {
    let (kept, code) = after_result(code);
    let (loaded, code) = if kept.is_some() { (None, code) } else { after_load(code) };
    let Some((thread, rest)) = after_flag(code) else { return false };
    if loaded.is_some_and(|loaded| loaded != thread) || kept == Some(thread) {
        return false;
    }
    let [0x83, 0x3d, _, _, _, _, 0, 0x74, skipped, call @ ..] = rest else { return false };
    usize::from(*skipped) == call.len() && matches!(call, [0xff, 0x15, _, _, _, _] | [0xe8, _, _, _, _])
}

/// The register to which `mov reg, eax` or `mov reg, rax` moves the result of a call, and the code
/// behind it; the code itself if it begins otherwise.
fn after_result(code: &[u8]) -> (Option<u8>, &[u8]) {
    let (rex, rest) = match code {
        [rex @ (0x44 | 0x48 | 0x4c), rest @ ..] => (*rex, rest),
        _ => (0x40, code),
    };
    match rest {
        // mod = 11, rm = 0: from rax.
        [0x8b, modrm, rest @ ..] if modrm & 0xc7 == 0xc0 => (Some(modrm >> 3 & 7 | (rex & 4) << 1), rest),
        _ => (None, code),
    }
}

/// The register that `mov reg, [rbp+disp8]` or `mov reg, [rbp+disp32]` loads, and the code behind
/// it; the code itself if it begins otherwise.
fn after_load(code: &[u8]) -> (Option<u8>, &[u8]) {
    let (rex, modrm, rest) = match code {
        [rex @ (0x48 | 0x4c), 0x8b, modrm, rest @ ..] => (rex, modrm, rest),
        _ => return (None, code),
    };
    let behind = match modrm & 0xc7 {
        0x45 => rest.get(1..),
        0x85 => rest.get(4..),
        _ => None,
    };
    let register = modrm >> 3 & 7 | (rex & 4) << 1;
    behind.map_or((None, code), |behind| (Some(register), behind))
}

/// The register of `mov byte ptr [reg+disp8], 1`, and the code behind it.
fn after_flag(code: &[u8]) -> Option<(u8, &[u8])> {
    let (high, code) = match code {
        [0x41, rest @ ..] => (8, rest),
        _ => (0, code),
    };
    let [0xc6, modrm, rest @ ..] = code else { return None };
    // mod = 01: an 8-bit displacement follows; reg = 0: MOV.
    if modrm & 0xf8 != 0x40 {
        return None;
    }
    // rm = 4: a SIB byte follows; 24h is the plain base register.
    let rest = match (modrm & 7, rest) {
        (4, [0x24, rest @ ..]) => rest,
        (4, _) => return None,
        (_, rest) => rest,
    };
    match rest {
        [_, 1, rest @ ..] => Some((modrm & 7 | high, rest)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::waits_for_runtime;

    /// From a recording of CoreCLR 10.0.9: System.Threading.Thread.Sleep.
    const RSI: [u8; 19] = [
        0xc6, 0x46, 0x04, 0x01, 0x83, 0x3d, 0x5b, 0x57, 0xe2, 0x5f, 0x00, 0x74, 0x06, 0xff, 0x15, 0x8b, 0xf7,
        0xe1, 0x5f,
    ];
    const R14: [u8; 20] = [
        0x41, 0xc6, 0x46, 0x04, 0x01, 0x83, 0x3d, 0x48, 0xf0, 0xe1, 0x5f, 0x00, 0x74, 0x06, 0xff, 0x15, 0x78,
        0x90, 0xe1, 0x5f,
    ];

    /// The same method before it was optimised, and a stub that keeps the thread elsewhere.
    const RAX: [u8; 23] = [
        0x48, 0x8b, 0x45, 0xc0, 0xc6, 0x40, 0x04, 0x01, 0x83, 0x3d, 0x5d, 0xa4, 0xe2, 0x5f, 0x00, 0x74, 0x06,
        0xff, 0x15, 0x8d, 0x44, 0xe2, 0x5f,
    ];
    const RCX: [u8; 23] = [
        0x48, 0x8b, 0x4d, 0xb8, 0xc6, 0x41, 0x04, 0x01, 0x83, 0x3d, 0x1d, 0x3d, 0xe4, 0x5f, 0x00, 0x74, 0x06,
        0xff, 0x15, 0x4d, 0xdd, 0xe3, 0x5f,
    ];

    /// Optimised code that keeps the result in ebx: Mixed.Work.Down.
    const EBX: [u8; 21] = [
        0x8b, 0xd8, 0xc6, 0x46, 0x04, 0x01, 0x83, 0x3d, 0x5b, 0x57, 0xe2, 0x5f, 0x00, 0x74, 0x06, 0xff, 0x15,
        0x8b, 0xf7, 0xe1, 0x5f,
    ];

    #[test]
    fn the_compilers_code_is_recognised() {
        for code in [&RSI[..], &R14, &RAX, &RCX, &EBX] {
            assert!(waits_for_runtime(code), "{code:x?}");
        }
        // mov r14, [rbp-40h]; mov rsi, [rbp-100h].
        assert!(waits_for_runtime(&[&[0x4c, 0x8b, 0x75, 0xc0], &R14[..]].concat()));
        assert!(waits_for_runtime(&[&[0x48, 0x8b, 0xb5, 0x00, 0xff, 0xff, 0xff], &RSI[..]].concat()));
        // mov rbx, rax; mov r15d, eax.
        assert!(waits_for_runtime(&[&[0x48], &EBX[..]].concat()));
        assert!(waits_for_runtime(&[&[0x44, 0x8b, 0xf8], &R14[..]].concat()));
        // r12 needs a SIB byte.
        let r12 = [&[0x41, 0xc6, 0x44, 0x24], &R14[3..]].concat();
        assert!(waits_for_runtime(&r12));
    }

    #[test]
    fn other_code_is_not_recognised() {
        for len in 0..RSI.len() {
            assert!(!waits_for_runtime(&RSI[..len]), "{len} bytes");
        }
        // Displacements do not matter; every other byte does.
        for at in [0, 1, 3, 4, 5, 10, 11, 12, 13, 14] {
            let mut code = RSI;
            code[at] ^= 0x10;
            assert!(!waits_for_runtime(&code), "byte {at}");
        }
        assert!(!waits_for_runtime(&[&RSI[..], &[0x90]].concat()));
        for len in 0..RAX.len() {
            assert!(!waits_for_runtime(&RAX[..len]), "{len} bytes");
        }
        for len in 0..EBX.len() {
            assert!(!waits_for_runtime(&EBX[..len]), "{len} bytes");
        }
        // Another instruction; from ecx; from memory; over the thread's own register; twice.
        for (at, byte) in [(0, 0x89), (1, 0xd9), (1, 0x18), (1, 0xf0)] {
            let mut code = EBX;
            code[at] = byte;
            assert!(!waits_for_runtime(&code), "byte {at}");
        }
        assert!(!waits_for_runtime(&[&EBX[..2], &EBX[..]].concat()));
        // Loads of another register, and from elsewhere than the stack frame.
        for (at, bits) in [(0, 4), (2, 8), (2, 1), (2, 0x40), (5, 1)] {
            let mut code = RAX;
            code[at] ^= bits;
            assert!(!waits_for_runtime(&code), "byte {at}");
        }
    }
}
