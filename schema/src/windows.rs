//! Layouts of Windows' own structures that more than one crate of stk needs (Windows SDK `winnt.h`,
//! x64 ABI documentation), and the names of its devices. Offsets are bytes.

use crate::text::strip_prefix_ignoring_case;

/// RUNTIME_FUNCTION of x64: three RVAs.
pub const RUNTIME_FUNCTION_X64_SIZE: usize = 12;
/// RUNTIME_FUNCTION of arm64: BeginAddress and unwind data.
pub const RUNTIME_FUNCTION_ARM64_SIZE: usize = 8;

/// Index of the export directory in the optional header's data directories.
pub const DIRECTORY_EXPORT: usize = 0;
/// Index of the exception directory.
pub const DIRECTORY_EXCEPTION: usize = 3;
/// Index of the debug directory.
pub const DIRECTORY_DEBUG: usize = 6;
/// Index of the COM descriptor: .NET's own header.
pub const DIRECTORY_COM_DESCRIPTOR: usize = 14;

/// IMAGE_FILE_MACHINE_AMD64.
pub const MACHINE_X64: u16 = 0x8664;
/// IMAGE_FILE_MACHINE_I386.
pub const MACHINE_X86: u16 = 0x014c;
/// IMAGE_FILE_MACHINE_ARM64.
pub const MACHINE_ARM64: u16 = 0xaa64;

/// UNWIND_INFO flag: the function has an exception handler.
pub const UNW_FLAG_EHANDLER: u8 = 1;
/// UNWIND_INFO flag: the function has a termination handler.
pub const UNW_FLAG_UHANDLER: u8 = 2;
/// UNWIND_INFO flag: another RUNTIME_FUNCTION follows the codes and continues the description.
pub const UNW_FLAG_CHAININFO: u8 = 4;

/// Offset of NT_TIB.StackBase in the TEB, 64-bit.
pub const TEB64_STACK_BASE: usize = 0x08;
/// Offset of NT_TIB.StackLimit in the TEB, 64-bit.
pub const TEB64_STACK_LIMIT: usize = 0x10;
/// Offset of NT_TIB.StackBase in the TEB, 32-bit.
pub const TEB32_STACK_BASE: usize = 0x04;
/// Offset of NT_TIB.StackLimit in the TEB, 32-bit.
pub const TEB32_STACK_LIMIT: usize = 0x08;

/// PROCESS_MITIGATION_USER_SHADOW_STACK_POLICY: EnableUserShadowStackStrictMode (winnt.h).
pub const SHADOW_STACK_STRICT: u32 = 1 << 4;

/// Whether the walks of `--check-walks` may be made in a process with these flags of
/// PROCESS_MITIGATION_USER_SHADOW_STACK_POLICY: after a fault in a walk, an exception handler sets
/// another stack pointer, and in strict mode the system would end the process for that.
pub const fn walks_allowed(shadow_stack_policy: u32) -> bool {
    shadow_stack_policy & SHADOW_STACK_STRICT == 0
}

/// Whether Windows treats a file name, with any extension, as a device (Microsoft, "Naming Files,
/// Paths, and Namespaces").
pub fn is_device_name(name: &str) -> bool {
    const DEVICES: [&str; 7] = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$", "CLOCK$"];
    let stem = name.split('.').next().unwrap_or_default().trim_end_matches(' ');
    if DEVICES.iter().any(|device| stem.eq_ignore_ascii_case(device)) {
        return true;
    }
    let number = strip_prefix_ignoring_case(stem, "COM").or_else(|| strip_prefix_ignoring_case(stem, "LPT"));
    let mut digits = number.unwrap_or_default().chars();
    matches!((digits.next(), digits.next()), (Some('0'..='9' | '¹' | '²' | '³'), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_recognised_with_any_extension() {
        for name in ["NUL", "nul.pdb", "con .x", "COM1", "lpt9.dll", "COM²", "CONIN$", "clock$"] {
            assert!(is_device_name(name), "{name}");
        }
        for name in ["", "common.pdb", "com.pdb", "comm.pdb", "COM10", "nulls", "console.dll"] {
            assert!(!is_device_name(name), "{name}");
        }
    }

    #[test]
    fn walks_are_refused_in_strict_mode_only() {
        // EnableUserShadowStack | SetContextIpValidation, as programs linked with /CETCOMPAT have
        // it.
        assert!(walks_allowed(0) && walks_allowed(0b0101));
        assert!(!walks_allowed(0x10) && !walks_allowed(0x11));
    }
}
