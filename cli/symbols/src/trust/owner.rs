//! Whether other users may write to a folder (Windows): symbols from a folder that anybody can
//! write to must not be a default.

use std::io;
use std::os::windows::ffi::OsStrExt;
use std::path::Path;
use std::ptr::null_mut;
use stk_schema::sddl::other_writer;
use windows_sys::Win32::Foundation::{CloseHandle, LocalFree};
use windows_sys::Win32::Security::Authorization::{
    ConvertSecurityDescriptorToStringSecurityDescriptorW, ConvertSidToStringSidW, GetNamedSecurityInfoW,
    SDDL_REVISION_1, SE_FILE_OBJECT,
};
use windows_sys::Win32::Security::{
    DACL_SECURITY_INFORMATION, GetTokenInformation, OWNER_SECURITY_INFORMATION, TOKEN_QUERY, TOKEN_USER,
    TokenUser,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

/// Why users other than this one and the system may write to a folder, if they may or if that is
/// unknown.
pub(crate) fn others_may_write(folder: &Path) -> Option<String> {
    match sddl(folder).and_then(|sddl| Ok((sddl, me()?))) {
        Ok((sddl, me)) => other_writer(&sddl, Some(&me)).map(|who| who.to_string()),
        Err(error) => Some(format!("who may write there is unknown ({error})")),
    }
}

/// The owner and the access control list of a folder, in string form.
#[allow(unsafe_code)]
fn sddl(folder: &Path) -> io::Result<String> {
    const WHAT: u32 = OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION;
    let name: Vec<u16> = folder.as_os_str().encode_wide().chain([0]).collect();
    let (mut descriptor, mut text) = (null_mut(), null_mut());
    // SAFETY: the name ends with NUL. The system writes one pointer to each of the given places;
    // parts that are not requested may be null. The descriptor is freed after its last use.
    unsafe {
        let none = (null_mut(), null_mut(), null_mut(), null_mut());
        let error = GetNamedSecurityInfoW(
            name.as_ptr(),
            SE_FILE_OBJECT,
            WHAT,
            none.0,
            none.1,
            none.2,
            none.3,
            &mut descriptor,
        );
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error as i32));
        }
        let converted = ConvertSecurityDescriptorToStringSecurityDescriptorW(
            descriptor,
            SDDL_REVISION_1,
            WHAT,
            &mut text,
            null_mut(),
        );
        let error = io::Error::last_os_error();
        LocalFree(descriptor);
        if converted == 0 { Err(error) } else { Ok(taken(text)) }
    }
}

/// The SID of the user that this process runs as.
#[allow(unsafe_code)]
fn me() -> io::Result<String> {
    let (mut token, mut text) = (null_mut(), null_mut());
    // A SID has at most 68 bytes; `u64` for the structure's alignment.
    let mut buffer = [0u64; 32];
    let mut len = 0;
    // SAFETY: the token is opened and closed here; the system writes at most the buffer's size, and
    // TOKEN_USER's pointer leads into the buffer, which lives over the last call.
    unsafe {
        if OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &mut token) == 0 {
            return Err(io::Error::last_os_error());
        }
        let size = size_of_val(&buffer) as u32;
        let got = GetTokenInformation(token, TokenUser, buffer.as_mut_ptr().cast(), size, &mut len);
        let error = io::Error::last_os_error();
        CloseHandle(token);
        if got == 0 {
            return Err(error);
        }
        let user = (*buffer.as_ptr().cast::<TOKEN_USER>()).User.Sid;
        match ConvertSidToStringSidW(user, &mut text) {
            0 => Err(io::Error::last_os_error()),
            _ => Ok(taken(text)),
        }
    }
}

/// A text that the system allocated, freed here.
///
/// # Safety
///
/// `text` ends with NUL and has no other owner.
#[allow(unsafe_code)]
unsafe fn taken(text: *mut u16) -> String {
    // SAFETY: the caller's promise.
    unsafe {
        let len = (0..).take_while(|&at| *text.add(at) != 0).count();
        let copy = String::from_utf16_lossy(std::slice::from_raw_parts(text, len));
        LocalFree(text.cast());
        copy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_names_an_owner_a_list_and_a_user() {
        let folder = tempfile::tempdir().unwrap();
        let text = sddl(folder.path()).unwrap();
        assert!(text.starts_with("O:") && text.contains("D:"), "{text}");
        assert!(me().unwrap().starts_with("S-1-5-"));
        assert!(sddl(&folder.path().join("none")).is_err());
    }
}
