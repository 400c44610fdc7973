//! Offsets, in bytes, of the fields that the recorder reads from Windows' own process and thread
//! structures, for both pointer widths. x64 and arm64 share one set, x86 has the other.
//!
//! Sources: the Windows SDK's `winnt.h` (NT_TIB, RTL_CRITICAL_SECTION, CONTEXT) and `winternl.h`
//! (PEB, LDR_DATA_TABLE_ENTRY), the DLL load notification's documentation, and for the fields that
//! Microsoft does not publish the native API headers of phnt (`ntpebteb.h`, `ntldr.h`,
//! `ntpsapi.h`), which Wine's `winternl.h` repeats. `tests/tests/e2e/layouts.rs` writes a C
//! file of `_Static_assert`s from these numbers and compiles it for each architecture against those
//! declarations.

use crate::Arch;

/// Offsets and sizes for one pointer width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Layout {
    /// NT_TIB.StackBase, in the TEB.
    pub teb_stack_base: usize,
    /// NT_TIB.StackLimit, in the TEB.
    pub teb_stack_limit: usize,
    /// NT_TIB.Self, in the TEB.
    pub teb_self: usize,
    /// PEB.Ldr.
    pub peb_loader_data: usize,
    /// PEB.FastPebLock.
    pub peb_fast_peb_lock: usize,
    /// PEB.CrossProcessFlags.
    pub peb_cross_process_flags: usize,
    /// PEB.LoaderLock.
    pub peb_loader_lock: usize,
    /// PEB_LDR_DATA.Initialized.
    pub loader_initialized: usize,
    /// PEB_LDR_DATA.InLoadOrderModuleList.
    pub loader_list: usize,
    /// PEB_LDR_DATA.EntryInProgress.
    pub loader_entry_in_progress: usize,
    /// LDR_DATA_TABLE_ENTRY.DllBase.
    pub entry_base: usize,
    /// LDR_DATA_TABLE_ENTRY.EntryPoint.
    pub entry_point: usize,
    /// LDR_DATA_TABLE_ENTRY.SizeOfImage.
    pub entry_size: usize,
    /// LDR_DATA_TABLE_ENTRY.FullDllName.Length.
    pub entry_name_len: usize,
    /// LDR_DATA_TABLE_ENTRY.FullDllName.Buffer.
    pub entry_name: usize,
    /// Bytes of an LDR_DATA_TABLE_ENTRY that the recorder reads: up to the end of FullDllName.
    pub entry_read: usize,
    /// LDR_DATA_TABLE_ENTRY.BaseDllName.
    pub entry_base_name: usize,
    /// LDR_DATA_TABLE_ENTRY.Flags.
    pub entry_flags: usize,
    /// RTL_CRITICAL_SECTION.OwningThread.
    pub section_owner: usize,
    /// Size of RTL_CRITICAL_SECTION.
    pub section_size: usize,
    /// THREAD_BASIC_INFORMATION.TebBaseAddress.
    pub thread_teb: usize,
    /// THREAD_BASIC_INFORMATION.ClientId.UniqueThread.
    pub thread_id: usize,
    /// Size of THREAD_BASIC_INFORMATION.
    pub thread_size: usize,
    /// UNICODE_STRING.Buffer.
    pub string_text: usize,
    /// LDR_DLL_NOTIFICATION_DATA.FullDllName.
    pub notification_name: usize,
    /// LDR_DLL_NOTIFICATION_DATA.DllBase.
    pub notification_base: usize,
    /// LDR_DLL_NOTIFICATION_DATA.SizeOfImage.
    pub notification_size: usize,
}

/// x64 and arm64.
pub const BITS64: Layout = Layout {
    teb_stack_base: crate::windows::TEB64_STACK_BASE,
    teb_stack_limit: crate::windows::TEB64_STACK_LIMIT,
    teb_self: 0x30,
    peb_loader_data: 0x18,
    peb_fast_peb_lock: 0x38,
    peb_cross_process_flags: 0x50,
    peb_loader_lock: 0x110,
    loader_initialized: 0x04,
    loader_list: 0x10,
    loader_entry_in_progress: 0x40,
    entry_base: 0x30,
    entry_point: 0x38,
    entry_size: 0x40,
    entry_name_len: 0x48,
    entry_name: 0x50,
    entry_read: 0x58,
    entry_base_name: 0x58,
    entry_flags: 0x68,
    section_owner: 0x10,
    section_size: 0x28,
    thread_teb: 0x08,
    thread_id: 0x18,
    thread_size: 0x30,
    string_text: 0x08,
    notification_name: 0x08,
    notification_base: 0x18,
    notification_size: 0x20,
};

/// x86.
pub const BITS32: Layout = Layout {
    teb_stack_base: crate::windows::TEB32_STACK_BASE,
    teb_stack_limit: crate::windows::TEB32_STACK_LIMIT,
    teb_self: 0x18,
    peb_loader_data: 0x0c,
    peb_fast_peb_lock: 0x1c,
    peb_cross_process_flags: 0x28,
    peb_loader_lock: 0xa0,
    loader_initialized: 0x04,
    loader_list: 0x0c,
    loader_entry_in_progress: 0x24,
    entry_base: 0x18,
    entry_point: 0x1c,
    entry_size: 0x20,
    entry_name_len: 0x24,
    entry_name: 0x28,
    entry_read: 0x2c,
    entry_base_name: 0x2c,
    entry_flags: 0x34,
    section_owner: 0x0c,
    section_size: 0x18,
    thread_teb: 0x04,
    thread_id: 0x0c,
    thread_size: 0x1c,
    string_text: 0x04,
    notification_name: 0x04,
    notification_base: 0x0c,
    notification_size: 0x10,
};

/// The layout of the architecture that this is compiled for.
#[cfg(target_pointer_width = "64")]
pub const NATIVE: Layout = BITS64;
/// The layout of the architecture that this is compiled for.
#[cfg(target_pointer_width = "32")]
pub const NATIVE: Layout = BITS32;

/// The fields of a CONTEXT that the recorder uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ContextLayout {
    /// CONTEXT.ContextFlags.
    pub flags: usize,
    /// Rip, Pc or Eip.
    pub ip: usize,
    /// Rsp, Sp or Esp.
    pub sp: usize,
    /// The general register that the structure names first: Rax, X0, Edi.
    pub first: usize,
    /// Rbp, X29 (Fp), Ebp.
    pub frame: usize,
    /// Size of the structure.
    pub size: usize,
    /// CONTEXT_CONTROL with CONTEXT_INTEGER; on arm64 with CONTEXT_FLOATING_POINT too.
    pub request: u32,
}

/// A CONTEXT of `arch`.
pub const fn context(arch: Arch) -> ContextLayout {
    match arch {
        Arch::X64 => ContextLayout {
            flags: 0x30,
            ip: 0xf8,
            sp: 0x98,
            first: 0x78,
            frame: 0xa0,
            size: 0x4d0,
            request: 0x0010_0003,
        },
        Arch::Arm64 => ContextLayout {
            flags: 0,
            ip: 0x108,
            sp: 0x100,
            first: 0x08,
            frame: 0xf0,
            size: 0x390,
            request: 0x0040_0007,
        },
        Arch::X86 => ContextLayout {
            flags: 0,
            ip: 0xb8,
            sp: 0xc4,
            first: 0x9c,
            frame: 0xb4,
            size: 0x2cc,
            request: 0x0001_0003,
        },
    }
}
