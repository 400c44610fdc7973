//! Access tokens: a process's user and rights, and whether it may read a file.

use crate::windows::system;
use std::ffi::c_void;
use std::io;
use std::os::windows::io::{AsRawHandle, BorrowedHandle, OwnedHandle};
use std::path::Path;
use std::ptr;
use windows_sys::Win32::Foundation::{ERROR_NOT_ALL_ASSIGNED, GetLastError, LUID, LocalFree};
use windows_sys::Win32::Security::Authorization::{
    ConvertSecurityDescriptorToStringSecurityDescriptorW, ConvertSidToStringSidW,
    ConvertStringSecurityDescriptorToSecurityDescriptorW, GetNamedSecurityInfoW, GetSecurityInfo,
    SDDL_REVISION_1, SE_FILE_OBJECT,
};
use windows_sys::Win32::Security::{
    AccessCheck, AdjustTokenPrivileges, DACL_SECURITY_INFORMATION, DuplicateTokenEx, EqualSid,
    GENERIC_MAPPING, GROUP_SECURITY_INFORMATION, GetSidSubAuthority, GetSidSubAuthorityCount,
    GetTokenInformation, LABEL_SECURITY_INFORMATION, LUID_AND_ATTRIBUTES, LookupAccountSidW,
    LookupPrivilegeValueW, OBJECT_SECURITY_INFORMATION, OWNER_SECURITY_INFORMATION, PRIVILEGE_SET,
    PSECURITY_DESCRIPTOR, SE_PRIVILEGE_ENABLED, SECURITY_ATTRIBUTES, SecurityIdentification,
    TOKEN_ACCESS_MASK, TOKEN_ADJUST_PRIVILEGES, TOKEN_DUPLICATE, TOKEN_INFORMATION_CLASS,
    TOKEN_MANDATORY_LABEL, TOKEN_PRIVILEGES, TOKEN_QUERY, TOKEN_USER, TokenImpersonation,
    TokenIntegrityLevel, TokenIsAppContainer, TokenIsLessPrivilegedAppContainer, TokenPrivileges, TokenUser,
};
use windows_sys::Win32::Storage::FileSystem::{
    CreateDirectoryW, FILE_ALL_ACCESS, FILE_EXECUTE, FILE_GENERIC_EXECUTE, FILE_GENERIC_READ,
    FILE_GENERIC_WRITE, FILE_READ_DATA,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};
use windows_sys::w;

/// An access token that is open for queries.
#[derive(Debug)]
pub(crate) struct Token(OwnedHandle);

impl Token {
    /// The token of a process.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn of(process: BorrowedHandle) -> io::Result<Token> {
        open(process, TOKEN_QUERY).map(Token)
    }

    /// The token of this inject.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn own() -> io::Result<Token> {
        Token::of(own_process())
    }

    /// Whether both are the same user's; `None` if unknown.
    pub(crate) fn same_user(&self, other: &Token) -> Option<bool> {
        let (a, b) = (information(&self.0, TokenUser)?, information(&other.0, TokenUser)?);
        // SAFETY: both SIDs lie within their buffers, which live.
        Some(unsafe { EqualSid(a.sid(), b.sid()) != 0 })
    }

    /// Its user as `DOMAIN\\name`.
    pub(crate) fn user_name(&self) -> Option<String> {
        user_name(&information(&self.0, TokenUser)?)
    }

    /// Its user's SID as a string.
    pub(crate) fn user_sid(&self) -> Option<String> {
        let user = information(&self.0, TokenUser)?;
        let mut text = ptr::null_mut();
        // SAFETY: the SID lies within its buffer, which lives; the result has room. The system
        // makes a zero-terminated string, which is freed after it was copied.
        unsafe {
            if ConvertSidToStringSidW(user.sid(), &mut text) == 0 {
                return None;
            }
            let len = (0..).take_while(|&index| *text.add(index) != 0).count();
            let copy = String::from_utf16_lossy(std::slice::from_raw_parts(text, len));
            LocalFree(text.cast());
            Some(copy)
        }
    }

    /// Integrity level: 0x2000 medium, 0x3000 high (elevated), 0x4000 system; 0 if unknown.
    pub(crate) fn integrity(&self) -> u32 {
        let Some(label) = information(&self.0, TokenIntegrityLevel) else { return 0 };
        // SAFETY: the SID lies within its buffer, which lives; the last sub-authority exists, since
        // the label has at least one.
        unsafe {
            let count = *GetSidSubAuthorityCount(label.sid());
            if count == 0 { 0 } else { *GetSidSubAuthority(label.sid(), u32::from(count) - 1) }
        }
    }

    /// Whether it is that of an AppContainer.
    pub(crate) fn is_app_container(&self) -> bool {
        self.flag(TokenIsAppContainer)
    }

    /// Whether it is that of a less privileged AppContainer.
    pub(crate) fn is_less_privileged(&self) -> bool {
        self.flag(TokenIsLessPrivilegedAppContainer)
    }

    /// Whether it holds SeDebugPrivilege, enabled or not: an administrator's.
    pub(crate) fn may_debug(&self) -> bool {
        let (Some(held), Some(debug)) = (information(&self.0, TokenPrivileges), debug_privilege()) else {
            return false;
        };
        // SAFETY: the system filled the buffer as TOKEN_PRIVILEGES, a count and as many elements;
        // those beyond the buffer, which it would have refused to fill, are cut.
        unsafe {
            let privileges = held.0.as_ptr().cast::<TOKEN_PRIVILEGES>();
            let first = (&raw const (*privileges).Privileges).cast::<LUID_AND_ATTRIBUTES>();
            let room = (size_of_val(&held.0[..]) - size_of::<u32>()) / size_of::<LUID_AND_ATTRIBUTES>();
            (0..((*privileges).PrivilegeCount as usize).min(room)).any(|index| {
                let held = first.add(index).read_unaligned().Luid;
                (held.LowPart, held.HighPart) == (debug.LowPart, debug.HighPart)
            })
        }
    }

    fn flag(&self, class: TOKEN_INFORMATION_CLASS) -> bool {
        information(&self.0, class).is_some_and(|bytes| bytes.first_chunk() == Some(&1u32.to_le_bytes()))
    }
}

/// Whether the process's user may read and execute the file at `path`; `None` if unknown. Takes
/// AppContainers into account.
pub(crate) fn may_read(process: BorrowedHandle, path: &Path) -> Option<bool> {
    let token = open(process, TOKEN_QUERY | TOKEN_DUPLICATE).ok()?;
    let mut identity = ptr::null_mut();
    // SAFETY: the token is open and the result has room.
    let duplicated = unsafe {
        let (from, kind) = (token.as_raw_handle(), TokenImpersonation);
        DuplicateTokenEx(from, TOKEN_QUERY, ptr::null(), SecurityIdentification, kind, &mut identity)
    };
    if duplicated == 0 {
        return None;
    }
    // SAFETY: the handle is fresh.
    let identity = unsafe { system::own(identity) }.ok()?;
    const WHAT: OBJECT_SECURITY_INFORMATION = OWNER_SECURITY_INFORMATION
        | GROUP_SECURITY_INFORMATION
        | DACL_SECURITY_INFORMATION
        | LABEL_SECURITY_INFORMATION;
    let descriptor = Descriptor::of(path, WHAT)?;
    let mapping = GENERIC_MAPPING {
        GenericRead: FILE_GENERIC_READ,
        GenericWrite: FILE_GENERIC_WRITE,
        GenericExecute: FILE_GENERIC_EXECUTE,
        GenericAll: FILE_ALL_ACCESS,
    };
    let mut privileges = [PRIVILEGE_SET::default(); 4];
    let mut size = size_of_val(&privileges) as u32;
    let (mut granted, mut allowed) = (0, 0);
    // SAFETY: the descriptor and token live; every result has the room that is passed.
    let asked = unsafe {
        AccessCheck(
            descriptor.0,
            identity.as_raw_handle(),
            FILE_READ_DATA | FILE_EXECUTE,
            &mapping,
            privileges.as_mut_ptr(),
            &mut size,
            &mut granted,
            &mut allowed,
        )
    };
    (asked != 0).then_some(allowed != 0)
}

/// The security descriptor of the file or folder at `path` as a string: owner, access list and
/// mandatory label; `None` if it cannot be read.
pub(crate) fn sddl(path: &Path) -> Option<String> {
    Descriptor::of(path, SHOWN)?.text()
}

/// As [`sddl`], but of an open file or folder, even if its name leads elsewhere now. The handle
/// needs READ_CONTROL.
pub(crate) fn sddl_of(file: BorrowedHandle) -> Option<String> {
    Descriptor::of_open(file, SHOWN)?.text()
}

/// The parts that the string contains.
const SHOWN: OBJECT_SECURITY_INFORMATION =
    OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION | LABEL_SECURITY_INFORMATION;

/// A security descriptor made by the system, freed on drop.
pub(crate) struct Descriptor(PSECURITY_DESCRIPTOR);

impl Descriptor {
    /// The descriptor with this string form.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn from_sddl(sddl: &str) -> io::Result<Descriptor> {
        let text = system::wide(sddl.as_ref());
        let mut made = ptr::null_mut();
        // SAFETY: the text is zero-terminated and the result has room; its size is not asked for.
        let ok = unsafe {
            ConvertStringSecurityDescriptorToSecurityDescriptorW(
                text.as_ptr(),
                SDDL_REVISION_1,
                &mut made,
                ptr::null_mut(),
            )
        };
        if ok == 0 { Err(io::Error::last_os_error()) } else { Ok(Descriptor(made)) }
    }

    /// The attributes of what is made with it; valid as long as `self`.
    pub(crate) fn attributes(&self) -> SECURITY_ATTRIBUTES {
        SECURITY_ATTRIBUTES {
            nLength: size_of::<SECURITY_ATTRIBUTES>() as u32,
            lpSecurityDescriptor: self.0,
            bInheritHandle: 0,
        }
    }

    /// Makes a folder with it.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn make_folder(&self, path: &Path) -> io::Result<()> {
        let name = system::wide(&system::long(path));
        // SAFETY: the name is zero-terminated; the attributes and their descriptor live through the
        // call.
        match unsafe { CreateDirectoryW(name.as_ptr(), &self.attributes()) } {
            0 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    fn of(path: &Path, what: OBJECT_SECURITY_INFORMATION) -> Option<Descriptor> {
        let name = system::wide(path.as_os_str());
        let (mut descriptor, none) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the path is zero-terminated and the result has room; parts that are not requested
        // may be null.
        let failed = unsafe {
            GetNamedSecurityInfoW(
                name.as_ptr(),
                SE_FILE_OBJECT,
                what,
                none,
                none,
                ptr::null_mut(),
                ptr::null_mut(),
                &mut descriptor,
            )
        };
        (failed == 0 && !descriptor.is_null()).then_some(Descriptor(descriptor))
    }

    fn of_open(file: BorrowedHandle, what: OBJECT_SECURITY_INFORMATION) -> Option<Descriptor> {
        let (mut descriptor, none) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the handle is open and the result has room; parts that are not requested may be
        // null.
        let failed = unsafe {
            GetSecurityInfo(
                file.as_raw_handle(),
                SE_FILE_OBJECT,
                what,
                none,
                none,
                ptr::null_mut(),
                ptr::null_mut(),
                &mut descriptor,
            )
        };
        (failed == 0 && !descriptor.is_null()).then_some(Descriptor(descriptor))
    }

    /// The parts in [`SHOWN`] as a string.
    fn text(&self) -> Option<String> {
        let (mut text, mut len) = (ptr::null_mut(), 0);
        // SAFETY: the descriptor lives and both results have room.
        let converted = unsafe {
            ConvertSecurityDescriptorToStringSecurityDescriptorW(
                self.0,
                SDDL_REVISION_1,
                SHOWN,
                &mut text,
                &mut len,
            )
        };
        if converted == 0 {
            return None;
        }
        // SAFETY: the system made a string of `len` units, which is freed after it was copied.
        unsafe {
            let copy = String::from_utf16_lossy(std::slice::from_raw_parts(text, len as usize));
            LocalFree(text.cast());
            Some(copy.trim_end_matches('\0').to_owned())
        }
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the system allocated it for this process, and this is its only owner.
        unsafe { LocalFree(self.0) };
    }
}

/// SeDebugPrivilege, which administrators have and which opens other users' processes. It is
/// enabled until this value is dropped, so inject opens and starts later processes without it.
#[derive(Debug)]
pub(crate) struct DebugPrivilege {
    token: OwnedHandle,
    /// It was enabled before: inject inherited it enabled.
    kept: bool,
}

impl DebugPrivilege {
    /// Enables the privilege; `None` if the token does not have it.
    pub(crate) fn enable() -> Option<DebugPrivilege> {
        let token = open(own_process(), TOKEN_ADJUST_PRIVILEGES | TOKEN_QUERY).ok()?;
        let before = adjust(&token, SE_PRIVILEGE_ENABLED)?;
        Some(DebugPrivilege { token, kept: before & SE_PRIVILEGE_ENABLED != 0 })
    }
}

impl Drop for DebugPrivilege {
    fn drop(&mut self) {
        if !self.kept {
            adjust(&self.token, 0);
        }
    }
}

/// Sets SeDebugPrivilege's attributes. Returns the earlier ones; `None` if the token does not have
/// the privilege.
fn adjust(token: &OwnedHandle, attributes: u32) -> Option<u32> {
    let luid = debug_privilege()?;
    let one = |attributes| TOKEN_PRIVILEGES {
        PrivilegeCount: 1,
        Privileges: [LUID_AND_ATTRIBUTES { Luid: luid, Attributes: attributes }],
    };
    let mut before = one(attributes);
    let mut len = 0;
    // SAFETY: the token is open for this; both structs hold the one privilege that they count, and
    // the size is that of the second. The function succeeds even when the privilege was not
    // assigned; the last error says so.
    let done = unsafe {
        let (size, now) = (size_of_val(&before) as u32, one(attributes));
        AdjustTokenPrivileges(token.as_raw_handle(), 0, &now, size, &mut before, &mut len) != 0
            && GetLastError() != ERROR_NOT_ALL_ASSIGNED
    };
    // The system does not list attributes that did not change.
    done.then(|| if before.PrivilegeCount == 0 { attributes } else { before.Privileges[0].Attributes })
}

fn debug_privilege() -> Option<LUID> {
    let mut luid = LUID::default();
    // SAFETY: the name is zero-terminated, the result has room.
    (unsafe { LookupPrivilegeValueW(ptr::null(), w!("SeDebugPrivilege"), &mut luid) } != 0).then_some(luid)
}

fn own_process() -> BorrowedHandle<'static> {
    // SAFETY: the pseudo handle of this process is valid as long as the process, and needs no
    // closing.
    unsafe { BorrowedHandle::borrow_raw(GetCurrentProcess()) }
}

fn open(process: BorrowedHandle, rights: TOKEN_ACCESS_MASK) -> io::Result<OwnedHandle> {
    let mut token = ptr::null_mut();
    // SAFETY: the result has room.
    if unsafe { OpenProcessToken(process.as_raw_handle(), rights, &mut token) } == 0 {
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
        // SAFETY: the buffer is larger than a TOKEN_USER, aligned for it, and was filled by the
        // system as one.
        unsafe { (*self.0.as_ptr().cast::<TOKEN_USER>()).User.Sid }
    }
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
