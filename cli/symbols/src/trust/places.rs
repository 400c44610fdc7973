//! Decides which names and paths from traces, servers and stores this machine may open: nothing
//! outside of a store, and nothing on the network.

use std::path::{Path, PathBuf};
use stk_base::model::file_name;
use stk_schema::windows::is_device_name;

/// The last component of a path, if it can only be the name of a file in a store: traces and
/// servers must not be able to refer to files outside.
pub fn safe_file_name(path: &str) -> Option<&str> {
    let name = file_name(path);
    let bad = |c: char| c.is_control() || matches!(c, '<' | '>' | ':' | '"' | '|' | '?' | '*');
    let dots = name.chars().all(|c| c == '.' || c == ' ');
    // Windows drops dots and spaces at the end of a name.
    let trailing = name.ends_with(['.', ' ']);
    (!name.is_empty()
        && name.len() <= 255
        && !dots
        && !trailing
        && !is_device_name(name)
        && !name.contains(bad))
    .then_some(name)
}

/// The folder of an image, if its recorded path is valid on this machine. Does not access it.
/// Network and device paths in a trace are never opened: opening one is enough to send credentials
/// to whoever wrote the trace.
pub(crate) fn image_folder(image_path: &str) -> Option<PathBuf> {
    local_path(image_path)?.parent().map(Path::to_path_buf)
}

/// The tier of first letters under which a store may keep a file (`ab/abc.pdb/…`): the first two
/// characters of the name, if it begins with a letter, a digit or `_`. So the tier is never `..` or
/// a name with a special meaning for the system.
pub(crate) fn first_tier(name: &str) -> Option<&str> {
    let first = name.chars().next().filter(|&c| c.is_alphanumeric() || c == '_')?;
    let second = name[first.len_utf8()..].chars().next().map_or(0, char::len_utf8);
    safe_file_name(&name[..first.len_utf8() + second])
}

/// A recorded path in the form that this machine opens: a drive path on Windows; elsewhere Wine's
/// `Z:` drive, which is the root, or a Unix path.
pub(crate) fn local_path(recorded: &str) -> Option<PathBuf> {
    let bytes = recorded.as_bytes();
    let drive = bytes.len() > 3
        && bytes[0].is_ascii_alphabetic()
        && bytes[1] == b':'
        && matches!(bytes[2], b'\\' | b'/');
    if recorded.split(['\\', '/']).any(|part| part == "..") {
        return None;
    }
    if cfg!(windows) {
        return drive.then(|| PathBuf::from(recorded));
    }
    if drive && bytes[0].eq_ignore_ascii_case(&b'z') {
        return Some(PathBuf::from(recorded[2..].replace('\\', "/")));
    }
    (bytes.first() == Some(&b'/')).then(|| PathBuf::from(recorded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_leaves_the_store_is_refused() {
        for name in [
            "",
            ".",
            "..",
            "...",
            "a/..",
            r"a\..",
            "C:",
            "C:x.pdb",
            "x.pdb:stream",
            "NUL",
            "nul.pdb",
            "com1.pdb",
            "LPT9",
            "x.pdb.",
            "x.pdb ",
            "a\0b",
            "a*b",
            "CONIN$",
        ] {
            assert_eq!(safe_file_name(name), None, "{name:?}");
        }
        for name in ["x.pdb", "common.pdb", "ntkrnlmp.pdb", "Ü.pdb", ".hidden.pdb", "com.pdb", "a b.pdb"] {
            assert_eq!(safe_file_name(name), Some(name));
        }
    }

    #[test]
    fn network_and_device_paths_of_a_trace_are_never_opened() {
        for path in [r"\\server\share\x.dll", r"\\?\C:\x.dll", r"\\.\pipe\x", r"\Device\x", "x.dll"] {
            assert_eq!(local_path(path), None);
        }
        assert_eq!(local_path(r"C:\a\..\b.dll"), None);
    }

    #[test]
    fn the_first_tier_of_a_store_never_leads_out_of_it() {
        for name in ["..x.pdb", ".hidden.pdb", ". x.pdb", "-x.pdb", "", "a.pdb"] {
            assert_eq!(first_tier(name), None, "{name:?}");
        }
        for (name, tier) in [("busy.pdb", "bu"), ("äö.pdb", "äö"), ("_ctypes.pdb", "_c"), ("7z.dll", "7z")]
        {
            assert_eq!(first_tier(name), Some(tier));
        }
    }

    #[cfg(not(windows))]
    #[test]
    fn wines_root_drive_is_the_root() {
        assert_eq!(local_path(r"Z:\tmp\a b.dll"), Some(PathBuf::from("/tmp/a b.dll")));
        assert_eq!(local_path(r"C:\windows\a.dll"), None);
    }
}
