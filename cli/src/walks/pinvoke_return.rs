//! Recognises the code by which a managed method waits for the runtime after a P/Invoke.
//!
//! It gets the code between the return address of the P/Invoke's call and a later return address of
//! the same method. On x64, the JIT compiler writes there: this thread runs managed code again;
//! does the runtime want threads to stop? If so, call it. The call returns when the runtime lets
//! the thread go on.

/// Whether x64 code is exactly `mov byte ptr [reg+disp8], 1`, `cmp dword ptr [rip+disp32], 0`, `je`
/// to the end, and a call.
pub(super) fn waits_for_runtime(code: &[u8]) -> bool {
    let Some(rest) = after_flag(code) else { return false };
    let [0x83, 0x3d, _, _, _, _, 0, 0x74, skipped, call @ ..] = rest else { return false };
    usize::from(*skipped) == call.len() && matches!(call, [0xff, 0x15, _, _, _, _] | [0xe8, _, _, _, _])
}

/// The code behind `mov byte ptr [reg+disp8], 1`.
fn after_flag(code: &[u8]) -> Option<&[u8]> {
    let code = match code {
        [0x41, rest @ ..] => rest,
        _ => code,
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
        [_, 1, rest @ ..] => Some(rest),
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

    #[test]
    fn the_compilers_code_is_recognised() {
        assert!(waits_for_runtime(&RSI));
        assert!(waits_for_runtime(&R14));
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
    }
}
