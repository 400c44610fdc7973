//! Checks whether other users may write to a folder: symbols from a folder that anybody can write
//! to must not be a default (Windows).
//!
//! The system provides the owner and the access control list of the folder. The code that judges
//! them is portable.

/// An entry of an access control list (Microsoft, "ACE").
#[derive(Clone, PartialEq, Eq, Debug)]
struct AccessEntry {
    /// ACE_HEADER.AceType.
    kind: u8,
    /// ACCESS_MASK.
    mask: u32,
    /// The user or group that it is for, as `S-1-…`.
    sid: String,
}

/// ACCESS_ALLOWED_ACE_TYPE, ACCESS_DENIED_ACE_TYPE, ACCESS_ALLOWED_CALLBACK_ACE_TYPE: the supported
/// types.
const ALLOWED: u8 = 0;
const DENIED: u8 = 1;
const ALLOWED_CALLBACK: u8 = 9;

/// FILE_ADD_FILE, FILE_ADD_SUBDIRECTORY, FILE_DELETE_CHILD, DELETE, WRITE_DAC, WRITE_OWNER,
/// GENERIC_ALL, GENERIC_WRITE (Microsoft, "File access rights constants", "ACCESS_MASK").
const WRITING: u32 = 0x2 | 0x4 | 0x40 | 0x1_0000 | 0x4_0000 | 0x8_0000 | 0x1000_0000 | 0x4000_0000;

/// The system, the administrators, Windows' installer (Microsoft, "Well-known SIDs").
const SYSTEM: [&str; 3] =
    ["S-1-5-18", "S-1-5-32-544", "S-1-5-80-956008885-3418522649-1831038044-1853292631-2271478464"];
/// CREATOR OWNER and OWNER RIGHTS: placeholders for owners. The folder's owner is checked
/// separately.
const OWNERS: [&str; 2] = ["S-1-3-0", "S-1-3-4"];

/// Why users other than `me` and the system may write, if they may. `entries` is `None` if there is
/// no list: then everybody may do anything. Entries that are only inherited by new files in the
/// folder count too. Entries that deny access are not relied on.
fn judge(owner: &str, me: &str, entries: Option<&[AccessEntry]>) -> Option<String> {
    let trusted = |sid: &str| sid == me || SYSTEM.contains(&sid);
    if !trusted(owner) {
        return Some(format!("it belongs to another user ({owner})"));
    }
    let Some(entries) = entries else { return Some("everybody may write there".to_owned()) };
    entries.iter().find_map(|entry| match entry.kind {
        DENIED => None,
        ALLOWED | ALLOWED_CALLBACK => {
            let other = entry.mask & WRITING != 0 && !trusted(&entry.sid) && !OWNERS.contains(&&*entry.sid);
            other.then(|| format!("other users may write there ({})", entry.sid))
        }
        _ => Some("who may write there cannot be told".to_owned()),
    })
}

/// Why users other than this one and the system may write to a folder, if they may or if that
/// cannot be found out.
#[cfg(windows)]
pub(crate) fn others_may_write(folder: &std::path::Path) -> Option<String> {
    match system::security(folder).and_then(|facts| Ok((facts, system::me()?))) {
        Ok(((owner, entries), me)) => judge(&owner, &me, entries.as_deref()),
        Err(error) => Some(format!("who may write there cannot be found out ({error})")),
    }
}

#[cfg(windows)]
#[allow(unsafe_code)]
mod system {
    use super::{ALLOWED, ALLOWED_CALLBACK, AccessEntry};
    use std::io;
    use std::os::windows::ffi::OsStrExt;
    use std::path::Path;
    use std::ptr::{self, null_mut};
    use windows_sys::Win32::Foundation::{CloseHandle, LocalFree};
    use windows_sys::Win32::Security::Authorization::{
        ConvertSidToStringSidW, GetNamedSecurityInfoW, SE_FILE_OBJECT,
    };
    use windows_sys::Win32::Security::{
        ACCESS_ALLOWED_ACE, ACL, DACL_SECURITY_INFORMATION, GetAce, GetTokenInformation,
        OWNER_SECURITY_INFORMATION, PSID, TOKEN_QUERY, TOKEN_USER, TokenUser,
    };
    use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

    /// The owner and the access control list of a folder.
    pub(crate) fn security(folder: &Path) -> io::Result<(String, Option<Vec<AccessEntry>>)> {
        let name: Vec<u16> = folder.as_os_str().encode_wide().chain([0]).collect();
        let (mut owner, mut list, mut descriptor): (PSID, *mut ACL, _) = (null_mut(), null_mut(), null_mut());
        // SAFETY: the name ends with NUL. The system writes one pointer to each of the given
        // places.
        let error = unsafe {
            GetNamedSecurityInfoW(
                name.as_ptr(),
                SE_FILE_OBJECT,
                OWNER_SECURITY_INFORMATION | DACL_SECURITY_INFORMATION,
                &mut owner,
                null_mut(),
                &mut list,
                null_mut(),
                &mut descriptor,
            )
        };
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error as i32));
        }
        // SAFETY: `owner` and `list` point into `descriptor`, which is freed only afterwards.
        let facts = unsafe { text(owner).and_then(|owner| Ok((owner, entries(list)?))) };
        // SAFETY: GetNamedSecurityInfoW allocated it for the caller to free.
        unsafe { LocalFree(descriptor) };
        facts
    }

    /// The entries of a list; `None` if there is no list.
    ///
    /// # Safety
    ///
    /// `list` is null or a valid list.
    unsafe fn entries(list: *const ACL) -> io::Result<Option<Vec<AccessEntry>>> {
        if list.is_null() {
            return Ok(None);
        }
        // SAFETY: the caller's promise. GetAce checks the number and gives a pointer into the list;
        // each entry begins with a header, and those of the two types whose further fields are read
        // are laid out as ACCESS_ALLOWED_ACE.
        unsafe {
            let read = |number: u32| {
                let mut entry = null_mut();
                if GetAce(list, number, &mut entry) == 0 {
                    return Err(io::Error::last_os_error());
                }
                let entry = entry.cast::<ACCESS_ALLOWED_ACE>();
                let kind = (*entry).Header.AceType;
                if !matches!(kind, ALLOWED | ALLOWED_CALLBACK) {
                    return Ok(AccessEntry { kind, mask: 0, sid: String::new() });
                }
                let sid = text(ptr::addr_of_mut!((*entry).SidStart).cast())?;
                Ok(AccessEntry { kind, mask: (*entry).Mask, sid })
            };
            (0..u32::from((*list).AceCount)).map(read).collect::<io::Result<Vec<AccessEntry>>>().map(Some)
        }
    }

    /// The user that this process runs as.
    pub(crate) fn me() -> io::Result<String> {
        let mut token = null_mut();
        // A SID has at most 68 bytes; `u64` for the structure's alignment.
        let mut buffer = [0u64; 32];
        let mut len = 0;
        // SAFETY: the token is opened and closed here; the system writes at most the buffer's size,
        // and TOKEN_USER's pointer leads into the buffer, which lives over the last call.
        unsafe {
            if OpenProcessToken(GetCurrentProcess(), TOKEN_QUERY, &mut token) == 0 {
                return Err(io::Error::last_os_error());
            }
            let size = size_of_val(&buffer) as u32;
            let got = GetTokenInformation(token, TokenUser, buffer.as_mut_ptr().cast(), size, &mut len);
            let error = io::Error::last_os_error();
            CloseHandle(token);
            if got == 0 { Err(error) } else { text((*buffer.as_ptr().cast::<TOKEN_USER>()).User.Sid) }
        }
    }

    /// A SID as text.
    ///
    /// # Safety
    ///
    /// `sid` is a valid SID.
    unsafe fn text(sid: PSID) -> io::Result<String> {
        let mut wide = null_mut();
        // SAFETY: the caller's promise. The resulting text ends with NUL, and the caller has to
        // free it.
        unsafe {
            if ConvertSidToStringSidW(sid, &mut wide) == 0 {
                return Err(io::Error::last_os_error());
            }
            let len = (0..).take_while(|&at| *wide.add(at) != 0).count();
            let text = String::from_utf16_lossy(std::slice::from_raw_parts(wide, len));
            LocalFree(wide.cast());
            Ok(text)
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_system_names_an_owner_a_list_and_a_user() {
            let folder = tempfile::tempdir().unwrap();
            let (owner, entries) = security(folder.path()).unwrap();
            assert!(owner.starts_with("S-1-") && me().unwrap().starts_with("S-1-5-"), "{owner}");
            assert!(
                entries.unwrap().iter().all(|entry| entry.kind != ALLOWED || entry.sid.starts_with("S-1-"))
            );
            assert!(security(&folder.path().join("none")).is_err());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: &str = "S-1-5-21-1-2-3-1001";
    const ADMINISTRATORS: &str = "S-1-5-32-544";

    fn allow(sid: &str, mask: u32) -> AccessEntry {
        AccessEntry { kind: ALLOWED, mask, sid: sid.to_owned() }
    }

    #[test]
    fn a_folder_that_only_its_user_and_the_system_may_write_is_trusted() {
        // FILE_ALL_ACCESS, and read and execute for users.
        let list = [
            allow(ME, 0x1f01ff),
            allow("S-1-5-18", 0x1f01ff),
            allow(ADMINISTRATORS, 0x1f01ff),
            allow("S-1-3-0", 0x1000_0000),
            allow("S-1-5-32-545", 0x1200a9),
            AccessEntry { kind: DENIED, mask: 0x1f01ff, sid: "S-1-1-0".to_owned() },
        ];
        assert_eq!(judge(ADMINISTRATORS, ME, Some(&list)), None);
        assert_eq!(judge(ME, ME, Some(&list)), None);
    }

    /// The rights of a folder made in C:\ on a stock system: Authenticated Users may modify
    /// (0x1301bf).
    #[test]
    fn a_folder_made_in_the_root_of_a_stock_system_is_not_trusted() {
        let list = [allow(ADMINISTRATORS, 0x1f01ff), allow("S-1-5-11", 0x1301bf)];
        assert!(judge(ADMINISTRATORS, ME, Some(&list)).unwrap().contains("S-1-5-11"));
    }

    #[test]
    fn each_right_to_change_the_folder_counts() {
        for right in [0x2, 0x4, 0x40, 0x1_0000, 0x4_0000, 0x8_0000, 0x1000_0000, 0x4000_0000] {
            assert!(judge(ME, ME, Some(&[allow("S-1-1-0", right)])).is_some(), "{right:x}");
        }
        assert_eq!(judge(ME, ME, Some(&[allow("S-1-1-0", 0x1200a9)])), None);
    }

    #[test]
    fn another_owner_no_list_and_unknown_entries_are_not_trusted() {
        assert!(judge("S-1-5-21-1-2-3-1002", ME, Some(&[])).is_some());
        assert!(judge(ME, ME, None).is_some());
        let unknown = AccessEntry { kind: 5, mask: 0, sid: String::new() };
        assert!(judge(ME, ME, Some(&[unknown])).is_some());
    }
}
