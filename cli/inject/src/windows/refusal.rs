//! Finds why a process cannot be recorded, before anything in it is changed.

use super::system::{self, Procedure};
use crate::image::{self, Image};
use crate::refusal::policy::{self, AgentTraits, Policies};
pub(crate) use crate::refusal::{Machine, Refusal};
use crate::refusal::{TokenComparison, standing};
use crate::trust::{self, IntegrityLevel};
use crate::windows::trust::token::{self, Token};
use std::os::windows::io::{AsRawHandle, BorrowedHandle};
use std::path::Path;
use stk_schema::sddl;
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Threading::{
    PROCESS_PROTECTION_LEVEL_INFORMATION, PROTECTION_LEVEL_NONE, ProcessControlFlowGuardPolicy,
    ProcessDynamicCodePolicy, ProcessImageLoadPolicy, ProcessProtectionLevelInfo, ProcessSignaturePolicy,
    ProcessUserShadowStackPolicy,
};
use windows_sys::core::BOOL;

/// Whether the architectures of process, DLL and this inject fit; `dll` is its path and image.
///
/// # Errors
/// What does not fit.
pub(crate) fn architecture(machine: Machine, dll: Option<(&Path, &Image)>) -> Result<(), Refusal> {
    let name = dll.map(|(path, _)| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy());
    let dll = name.as_deref().zip(dll).map(|(name, (_, image))| (name, image.machine));
    crate::refusal::architecture(image::own_machine(), machine, dll)
}

/// Whether the process's policies admit the DLL. Without a DLL, whether they would block any.
///
/// # Errors
/// The policy that does not admit it.
pub(crate) fn policies(process: BorrowedHandle, dll: Option<(&Path, &Image)>) -> Result<(), Refusal> {
    let library = dll.map(|(path, image)| AgentTraits {
        cet: image.cet,
        guard_cf: image.guard_cf,
        remote: system::is_remote(path),
        low_label: token::sddl(path).is_some_and(|text| sddl::has_low_label(&text)),
    });
    policy::check(&policy_words(process), library.as_ref())
}

/// The mitigation policies of a process.
pub(crate) fn policy_words(process: BorrowedHandle) -> Policies {
    Policies {
        signature: mitigation(process, ProcessSignaturePolicy),
        control_flow_guard: mitigation(process, ProcessControlFlowGuardPolicy),
        shadow_stack: mitigation(process, ProcessUserShadowStackPolicy),
        image_load: mitigation(process, ProcessImageLoadPolicy),
        dynamic_code: mitigation(process, ProcessDynamicCodePolicy),
    }
}

/// Whether the process's user may read the DLL.
///
/// # Errors
/// That it may not, with the command that allows it.
pub(crate) fn readable(process: BorrowedHandle, dll: &Path) -> Result<(), Refusal> {
    if token::may_read(process, dll) != Some(false) {
        return Ok(());
    }
    let shown = dll.display();
    let token = Token::of(process).ok();
    let is = |what: fn(&Token) -> bool| token.as_ref().is_some_and(what);
    let (who, grant) = if is(Token::is_less_privileged) {
        ("runs in a less privileged AppContainer, which".to_owned(), "*S-1-15-2-1:(RX) *S-1-15-2-2:(RX)")
    } else if is(Token::is_app_container) {
        ("runs in an AppContainer, which".to_owned(), "*S-1-15-2-1:(RX)")
    } else {
        let user = token.as_ref().and_then(Token::user_name).unwrap_or_else(|| "another user".to_owned());
        (format!("runs as {user}, who"), "*S-1-1-0:(RX)")
    };
    Err(Refusal::new(
        format!("{who} may not read {shown}"),
        format!("allow it with: icacls \"{shown}\" /grant {grant}"),
    ))
}

/// Why a process may not be opened. `process`: a handle for limited information; `None` if that is
/// denied too.
pub(crate) fn why_denied(process: Option<BorrowedHandle>) -> Refusal {
    let Some(process) = process else {
        return Refusal::new(
            "may not be opened by anybody (it belongs to the system itself)",
            "such a process cannot be recorded",
        );
    };
    let mut facts = facts(process);
    facts.may_debug = false; // inject has tried it without success.
    standing(&facts).err().unwrap_or_else(|| {
        Refusal::new(
            "denies access although it runs as the same user: security software or its own access list blocks it",
            "allow inject.exe in that software, or run inject as administrator",
        )
    })
}

/// The process compared with this inject, from a handle for limited information.
pub(crate) fn facts(process: BorrowedHandle) -> TokenComparison {
    let (theirs, ours) = (Token::of(process).ok(), Token::own().ok());
    let both = theirs.as_ref().zip(ours.as_ref());
    TokenComparison {
        protected: is_protected(process),
        same_user: both.and_then(|(theirs, ours)| theirs.same_user(ours)),
        user: theirs.as_ref().and_then(Token::user_name),
        integrity: theirs.as_ref().map_or(0, Token::integrity),
        own_integrity: ours.as_ref().map_or(0, Token::integrity),
        may_debug: ours.as_ref().is_some_and(Token::may_debug),
    }
}

/// The process's user and rights compared with this inject's.
pub(crate) fn rank(process: BorrowedHandle) -> IntegrityLevel {
    match (Token::of(process), Token::own()) {
        (Ok(theirs), Ok(ours)) => trust::rank(theirs.same_user(&ours), theirs.integrity(), ours.integrity()),
        _ => IntegrityLevel::Below,
    }
}

/// Whether the process is protected (PP or PPL).
pub(crate) fn is_protected(process: BorrowedHandle) -> bool {
    let Some(function) = system::kernel32(c"GetProcessInformation") else { return false };
    type Function =
        unsafe extern "system" fn(HANDLE, i32, *mut PROCESS_PROTECTION_LEVEL_INFORMATION, u32) -> BOOL;
    // SAFETY: this is the documented signature of GetProcessInformation.
    let function = unsafe { std::mem::transmute::<Procedure, Function>(function) };
    let mut info = PROCESS_PROTECTION_LEVEL_INFORMATION { ProtectionLevel: PROTECTION_LEVEL_NONE };
    let size = size_of_val(&info) as u32;
    // SAFETY: the buffer has the size that is passed.
    let known = unsafe { function(process.as_raw_handle(), ProcessProtectionLevelInfo, &mut info, size) };
    known != 0 && info.ProtectionLevel != PROTECTION_LEVEL_NONE
}

/// Flags of a mitigation policy; 0 where the system does not know it.
fn mitigation(process: BorrowedHandle, policy: i32) -> u32 {
    let Some(function) = system::kernel32(c"GetProcessMitigationPolicy") else { return 0 };
    type Function = unsafe extern "system" fn(HANDLE, i32, *mut u32, usize) -> BOOL;
    // SAFETY: this is the documented signature of GetProcessMitigationPolicy; the requested
    // policies are one u32 of flags.
    let function = unsafe { std::mem::transmute::<Procedure, Function>(function) };
    let mut flags = 0u32;
    // SAFETY: the buffer has the size that is passed.
    if unsafe { function(process.as_raw_handle(), policy, &mut flags, size_of::<u32>()) } != 0 {
        flags
    } else {
        0
    }
}

/// Checks everything that can block the agent in an opened process.
///
/// # Errors
/// The first obstacle.
pub(crate) fn check(
    machine: Machine,
    process: BorrowedHandle,
    dll: Option<(&Path, &Image)>,
) -> Result<(), Refusal> {
    architecture(machine, dll)?;
    policies(process, dll)?;
    dll.map_or(Ok(()), |(path, _)| readable(process, path))
}
