//! Why a process cannot be recorded, found out before it is touched.

use super::process::{self, Process};
use super::system;
use crate::image::{self, Image};
pub use crate::refusal::{Machine, Refusal};
use std::ffi::c_void;
use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle, BorrowedHandle, OwnedHandle};
use std::path::Path;
use std::ptr;
use windows_sys::Win32::Foundation::{ERROR_NOT_ALL_ASSIGNED, GetLastError, HANDLE, LUID, LocalFree};
use windows_sys::Win32::Security::Authorization::{
    GetEffectiveRightsFromAclW, GetNamedSecurityInfoW, SE_FILE_OBJECT, TRUSTEE_IS_SID,
    TRUSTEE_IS_WELL_KNOWN_GROUP, TRUSTEE_W,
};
use windows_sys::Win32::Security::{
    ACL, AdjustTokenPrivileges, CreateWellKnownSid, DACL_SECURITY_INFORMATION, EqualSid, GetSidSubAuthority,
    GetSidSubAuthorityCount, GetTokenInformation, LUID_AND_ATTRIBUTES, LookupAccountSidW,
    LookupPrivilegeValueW, SE_PRIVILEGE_ENABLED, TOKEN_ADJUST_PRIVILEGES, TOKEN_INFORMATION_CLASS,
    TOKEN_MANDATORY_LABEL, TOKEN_PRIVILEGES, TOKEN_QUERY, TOKEN_USER, TokenIntegrityLevel,
    TokenIsAppContainer, TokenUser, WinBuiltinAnyPackageSid,
};
use windows_sys::Win32::Storage::FileSystem::{FILE_EXECUTE, FILE_READ_DATA};
use windows_sys::Win32::System::Threading::{
    GetCurrentProcess, OpenProcessToken, PROCESS_PROTECTION_LEVEL_INFORMATION, PROTECTION_LEVEL_NONE,
    ProcessProtectionLevelInfo, ProcessSignaturePolicy, ProcessUserShadowStackPolicy,
};
use windows_sys::core::BOOL;
use windows_sys::w;

/// Whether the architectures of process, DLL and this inject fit; `dll` is its path and image.
///
/// # Errors
/// What does not fit.
pub fn architecture(machine: Machine, dll: Option<(&Path, &Image)>) -> Result<(), Refusal> {
    let name = dll.map(|(path, _)| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy());
    let dll = name.as_deref().zip(dll).map(|(name, (_, image))| (name, image.machine));
    crate::refusal::architecture(image::own_machine(), machine, dll)
}

/// Whether policies of the process let the DLL in; without a DLL, what would keep out any.
///
/// # Errors
/// The policy that does not.
pub fn policies(process: BorrowedHandle, dll: Option<(&Path, &Image)>) -> Result<(), Refusal> {
    const SIGNED_ONLY: u32 = 1 | 2 | 4; // MicrosoftSignedOnly, StoreSignedOnly, MitigationOptIn
    const BLOCK_NON_CET: u32 = 1 << 5; // BlockNonCetBinaries
    // A policy against dynamic code is no obstacle: neither inject nor the agent makes code.
    if mitigation(process, ProcessSignaturePolicy) & SIGNED_ONLY != 0 {
        return Err(Refusal::new(
            "loads only DLLs signed by Microsoft or the Store (a code integrity policy), which agent.dll is not",
            "start the program without that policy to record it",
        ));
    }
    if mitigation(process, ProcessUserShadowStackPolicy) & BLOCK_NON_CET != 0
        && !dll.is_some_and(|(_, image)| image.cet)
    {
        return Err(Refusal::new(
            "loads only DLLs built for shadow stacks (CET), which agent.dll is not",
            "use an agent.dll linked with /CETCOMPAT, or start the program without that policy",
        ));
    }
    if let Some((path, _)) = dll
        && is_app_container(process)
        && readable_by_app_containers(path) == Some(false)
    {
        let path = path.display();
        return Err(Refusal::new(
            format!("runs in an AppContainer, which may not read {path}"),
            format!("allow it with: icacls \"{path}\" /grant *S-1-15-2-1:(RX)"),
        ));
    }
    Ok(())
}

/// Why the process may not be opened.
pub fn why_denied(pid: u32) -> Refusal {
    let Ok(handle) = process::open_limited(pid) else {
        return Refusal::new(
            "may not be opened by anybody (it belongs to the system itself)",
            "such a process cannot be recorded",
        );
    };
    let process = handle.as_handle();
    if is_protected(process) {
        return Refusal::new(
            "is a protected process: Windows lets no program into it, not even an administrator's",
            "it cannot be recorded",
        );
    }
    let (theirs, ours) = (token(process).ok(), token(own_process()).ok());
    if let (Some(theirs), Some(ours)) = (&theirs, &ours) {
        if let (Some(their_user), Some(our_user)) =
            (information(theirs, TokenUser), information(ours, TokenUser))
            && !same_user(&their_user, &our_user)
        {
            let user = user_name(&their_user)
                .map_or("another user".to_owned(), |name| format!("another user ({name})"));
            return Refusal::new(format!("runs as {user}"), "run inject as that user or as administrator");
        }
        if integrity(theirs) > integrity(ours) {
            return Refusal::new("runs elevated", "run inject as administrator");
        }
    } else if theirs.is_none() {
        return Refusal::new("runs as another user", "run inject as that user or as administrator");
    }
    Refusal::new(
        "denies access although it runs as the same user: security software or its own access list blocks it",
        "allow inject.exe in that software, or run inject as administrator",
    )
}

/// Whether this inject runs with more rights than the process (at a higher integrity level), or that cannot be told.
pub fn outranks(process: BorrowedHandle) -> bool {
    match (token(process), token(own_process())) {
        (Ok(theirs), Ok(ours)) => integrity(&ours) > integrity(&theirs),
        _ => true,
    }
}

/// Integrity levels of the process and of inject; `None` if they cannot be told. See [`integrity`].
pub fn integrity_levels(process: BorrowedHandle) -> Option<(u32, u32)> {
    let (theirs, ours) = (token(process).ok()?, token(own_process()).ok()?);
    Some((integrity(&theirs), integrity(&ours)))
}

/// Enables SeDebugPrivilege, which administrators have, and which opens other users' processes; false without it.
pub fn enable_debug_privilege() -> bool {
    let mut token = ptr::null_mut();
    // SAFETY: the pseudo handle of this process needs no closing; the result has room.
    let opened = unsafe {
        OpenProcessToken(own_process().as_raw_handle(), TOKEN_ADJUST_PRIVILEGES | TOKEN_QUERY, &mut token)
    };
    if opened == 0 {
        return false;
    }
    // SAFETY: the token handle is fresh.
    let Ok(token) = (unsafe { system::own(token) }) else { return false };
    let mut luid = LUID::default();
    // SAFETY: the name is zero-terminated, the result has room.
    if unsafe { LookupPrivilegeValueW(ptr::null(), w!("SeDebugPrivilege"), &mut luid) } == 0 {
        return false;
    }
    let privileges = TOKEN_PRIVILEGES {
        PrivilegeCount: 1,
        Privileges: [LUID_AND_ATTRIBUTES { Luid: luid, Attributes: SE_PRIVILEGE_ENABLED }],
    };
    // SAFETY: the token is open for this; the struct holds the one privilege that it counts. The function succeeds even
    // when the privilege was not assigned, and tells so by the last error.
    unsafe {
        AdjustTokenPrivileges(token.as_raw_handle(), 0, &privileges, 0, ptr::null_mut(), ptr::null_mut()) != 0
            && GetLastError() != ERROR_NOT_ALL_ASSIGNED
    }
}

/// Whether the process runs in an AppContainer.
pub fn is_app_container(process: BorrowedHandle) -> bool {
    let Ok(token) = token(process) else { return false };
    information(&token, TokenIsAppContainer)
        .is_some_and(|bytes| bytes.first_chunk() == Some(&1u32.to_le_bytes()))
}

/// Whether the process is protected (PP or PPL).
pub fn is_protected(process: BorrowedHandle) -> bool {
    let Some(function) = system::kernel32(c"GetProcessInformation") else { return false };
    type Function =
        unsafe extern "system" fn(HANDLE, i32, *mut PROCESS_PROTECTION_LEVEL_INFORMATION, u32) -> BOOL;
    // SAFETY: this is the documented signature of GetProcessInformation.
    let function = unsafe { std::mem::transmute::<unsafe extern "system" fn() -> isize, Function>(function) };
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
    // SAFETY: this is the documented signature of GetProcessMitigationPolicy; the policies asked for are one u32 of flags.
    let function = unsafe { std::mem::transmute::<unsafe extern "system" fn() -> isize, Function>(function) };
    let mut flags = 0u32;
    // SAFETY: the buffer has the size that is passed.
    if unsafe { function(process.as_raw_handle(), policy, &mut flags, size_of::<u32>()) } != 0 {
        flags
    } else {
        0
    }
}

fn own_process() -> BorrowedHandle<'static> {
    // SAFETY: the pseudo handle of this process is valid as long as the process, and needs no closing.
    unsafe { BorrowedHandle::borrow_raw(GetCurrentProcess()) }
}

fn token(process: BorrowedHandle) -> io::Result<OwnedHandle> {
    let mut token = ptr::null_mut();
    // SAFETY: the result has room.
    if unsafe { OpenProcessToken(process.as_raw_handle(), TOKEN_QUERY, &mut token) } == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the token handle is fresh.
    unsafe { system::own(token) }
}

/// A token's information as the system lays it out, aligned for pointers.
fn information(token: &OwnedHandle, class: TOKEN_INFORMATION_CLASS) -> Option<Information> {
    let mut words = vec![0u64; 64];
    let size = size_of_val(&words[..]) as u32;
    let mut need = 0;
    // SAFETY: pointer and size are those of the vector.
    let ok = unsafe {
        GetTokenInformation(token.as_raw_handle(), class, words.as_mut_ptr().cast(), size, &mut need)
    };
    (ok != 0).then_some(Information(words))
}

struct Information(Vec<u64>);

impl Information {
    fn first_chunk(&self) -> Option<&[u8; 4]> {
        let word: &u64 = self.0.first()?;
        // SAFETY: a u64 holds four bytes and any bytes are valid ones.
        Some(unsafe { &*ptr::from_ref(word).cast() })
    }

    /// The SID that TOKEN_USER and TOKEN_MANDATORY_LABEL begin with a pointer to.
    fn sid(&self) -> *mut c_void {
        const { assert!(size_of::<TOKEN_USER>() == size_of::<TOKEN_MANDATORY_LABEL>()) };
        // SAFETY: the buffer is larger than a TOKEN_USER, aligned for it, and was filled by the system as one.
        unsafe { (*self.0.as_ptr().cast::<TOKEN_USER>()).User.Sid }
    }
}

fn same_user(a: &Information, b: &Information) -> bool {
    // SAFETY: both SIDs lie within their buffers, which live.
    unsafe { EqualSid(a.sid(), b.sid()) != 0 }
}

fn user_name(user: &Information) -> Option<String> {
    let (mut name, mut domain) = ([0u16; 256], [0u16; 256]);
    let (mut name_len, mut domain_len) = (name.len() as u32, domain.len() as u32);
    let mut kind = 0;
    // SAFETY: the SID lies within its buffer; the lengths are those of the arrays.
    let ok = unsafe {
        let (name, domain) = (name.as_mut_ptr(), domain.as_mut_ptr());
        LookupAccountSidW(ptr::null(), user.sid(), name, &mut name_len, domain, &mut domain_len, &mut kind)
    };
    let name = String::from_utf16_lossy(name.get(..name_len as usize)?);
    let domain = String::from_utf16_lossy(domain.get(..domain_len as usize)?);
    (ok != 0).then(|| format!("{domain}\\{name}"))
}

/// Integrity level: 0x2000 medium, 0x3000 high (elevated), 0x4000 system; 0 if unknown.
fn integrity(token: &OwnedHandle) -> u32 {
    let Some(label) = information(token, TokenIntegrityLevel) else { return 0 };
    // SAFETY: the SID lies within its buffer, which lives; the last sub-authority exists, since the label has at least one.
    unsafe {
        let count = *GetSidSubAuthorityCount(label.sid());
        if count == 0 { 0 } else { *GetSidSubAuthority(label.sid(), u32::from(count) - 1) }
    }
}

/// Whether every AppContainer may read and execute the file; `None` if that cannot be told.
fn readable_by_app_containers(path: &Path) -> Option<bool> {
    let mut sid = [0u64; 9]; // SECURITY_MAX_SID_SIZE is 68 bytes
    let mut size = size_of_val(&sid) as u32;
    let name = system::wide(path.as_os_str());
    let mut dacl: *mut ACL = ptr::null_mut();
    let mut descriptor = ptr::null_mut();
    // SAFETY: every result has room; the path is zero-terminated; the ACL lives as long as the descriptor, which is freed
    // after its last use.
    unsafe {
        if CreateWellKnownSid(WinBuiltinAnyPackageSid, ptr::null_mut(), sid.as_mut_ptr().cast(), &mut size)
            == 0
        {
            return None;
        }
        let (none, kind) = (ptr::null_mut(), DACL_SECURITY_INFORMATION);
        let failed = GetNamedSecurityInfoW(
            name.as_ptr(),
            SE_FILE_OBJECT,
            kind,
            none,
            ptr::null_mut(),
            &mut dacl,
            ptr::null_mut(),
            &mut descriptor,
        );
        if failed != 0 {
            return None;
        }
        let trustee = TRUSTEE_W {
            TrusteeForm: TRUSTEE_IS_SID,
            TrusteeType: TRUSTEE_IS_WELL_KNOWN_GROUP,
            ptstrName: sid.as_mut_ptr().cast(),
            ..TRUSTEE_W::default()
        };
        let mut rights = 0;
        let failed = GetEffectiveRightsFromAclW(dacl, &trustee, &mut rights);
        LocalFree(descriptor.cast());
        let needed = FILE_READ_DATA | FILE_EXECUTE;
        (failed == 0).then_some(rights & needed == needed)
    }
}

/// Everything that can keep the agent out of an opened process.
///
/// # Errors
/// The first obstacle.
pub fn check(process: &Process, dll: Option<(&Path, &Image)>) -> Result<(), Refusal> {
    architecture(process.machine(), dll)?;
    policies(process.handle(), dll)
}
