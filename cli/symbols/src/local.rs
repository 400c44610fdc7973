//! Decides whether a path stays on this machine, without touching anything on another one.
//!
//! Accessing a path below an automount, a mapped drive or a link to a share is enough to contact
//! another machine. So a path is walked part by part, links included. Each part is accessed only
//! once the file system that holds it is known to be local.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Why a path cannot be used as a local one.
#[derive(Debug)]
pub(super) enum PathProblem {
    /// It leads to another machine: the part of the path that does, and what is there.
    Elsewhere { at: PathBuf, what: String },
    /// It does not exist, or the system cannot read it.
    Io(io::Error),
}

/// Limit for the links in a path, the same as in Linux.
const MAX_LINKS: u32 = 40;

/// Folders that were walked, and their paths without links. A run searches for many files in the
/// same folders.
static WALKED: Mutex<BTreeMap<PathBuf, PathBuf>> = Mutex::new(BTreeMap::new());
/// Limit for the folders that are remembered.
const MAX_WALKED: usize = 1 << 12;

/// A path on this machine, with its links resolved.
///
/// # Errors
///
/// When it does not exist, or is not on this machine. Nothing on another machine has been accessed.
pub(super) fn resolve(path: &Path) -> Result<PathBuf, PathProblem> {
    let path = std::path::absolute(path).map_err(PathProblem::Io)?;
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return walk(PathBuf::new(), parts(&path), &elsewhere);
    };
    let walked = || WALKED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = walked().get(folder).cloned();
    let folder = match known {
        Some(known) => known,
        None => {
            let found = walk(PathBuf::new(), parts(folder), &elsewhere)?;
            let mut walked = walked();
            if walked.len() >= MAX_WALKED {
                walked.clear();
            }
            walked.insert(folder.to_path_buf(), found.clone());
            found
        }
    };
    walk(folder, vec![name.to_owned()], &elsewhere)
}

/// Walks from `at`, which is on this machine and free of links, along the parts of `rest`, the last
/// of which comes first. `elsewhere` returns what holds a path, unless that is a local file system.
/// It is called before the path is accessed, and only when everything before the path's last part
/// is known to be local and not a link.
fn walk(
    mut at: PathBuf,
    mut rest: Vec<OsString>,
    elsewhere: &dyn Fn(&Path) -> Option<String>,
) -> Result<PathBuf, PathProblem> {
    let mut links = 0;
    while let Some(part) = rest.pop() {
        let next = if part == ".." { at.parent().unwrap_or(&at).to_path_buf() } else { at.join(&part) };
        // A drive without its root ("C:") is not a path yet.
        if !next.has_root() {
            at = next;
            continue;
        }
        if let Some(what) = elsewhere(&next) {
            return Err(PathProblem::Elsewhere { at: next, what });
        }
        // Roots and drives are not links. Without its root, `\\?\C:` is the disk itself.
        let root = next.file_name().is_none();
        if root || !next.symlink_metadata().map_err(PathProblem::Io)?.file_type().is_symlink() {
            at = next;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(PathProblem::Io(io::Error::other("leads through too many links")));
        }
        // Relative targets continue from `at`. Absolute ones replace it.
        rest.extend(parts(&next.read_link().map_err(PathProblem::Io)?));
    }
    Ok(at)
}

/// The parts of a path, last first.
fn parts(path: &Path) -> Vec<OsString> {
    let here = |part: &Component<'_>| *part != Component::CurDir;
    path.components().rev().filter(here).map(|part| part.as_os_str().to_owned()).collect()
}

#[cfg(target_os = "linux")]
fn elsewhere(path: &Path) -> Option<String> {
    use std::sync::LazyLock;
    use stk_base::files::{look_at, read_within};
    /// Bytes of the table that are read at most: some 150 for each mount.
    const LARGEST: u64 = 64 << 20;
    static MOUNTS: LazyLock<mounts::Mounts> = LazyLock::new(|| {
        let table = look_at(Path::new("/proc/self/mountinfo")).and_then(|file| read_within(file, LARGEST));
        mounts::Mounts::parse(&String::from_utf8_lossy(&table.unwrap_or_default()))
    });
    MOUNTS.elsewhere(path)
}

/// Linux: the file systems and where they are mounted.
#[cfg(target_os = "linux")]
mod mounts {
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::path::{Path, PathBuf};

    /// Types whose files lie on this machine. Others are not accessed unless the user names them:
    /// network file systems, those that mount others on access (autofs), those that a program
    /// implements (fuse), and those that are not storage (proc, sysfs).
    const LOCAL: [&[u8]; 32] = [
        b"aufs",
        b"bcachefs",
        b"btrfs",
        b"ecryptfs",
        b"erofs",
        b"exfat",
        b"ext2",
        b"ext3",
        b"ext4",
        b"f2fs",
        b"fuseblk",
        b"hfs",
        b"hfsplus",
        b"iso9660",
        b"jffs2",
        b"jfs",
        b"minix",
        b"msdos",
        b"nilfs2",
        b"ntfs",
        b"ntfs3",
        b"overlay",
        b"ramfs",
        b"reiserfs",
        b"rootfs",
        b"squashfs",
        b"tmpfs",
        b"ubifs",
        b"udf",
        b"vfat",
        b"xfs",
        b"zfs",
    ];

    /// The mounts of this process.
    pub(super) struct Mounts(Vec<Mount>);

    struct Mount {
        at: PathBuf,
        /// Major and minor number.
        device: Vec<u8>,
        kind: Vec<u8>,
    }

    impl Mounts {
        /// Reads `/proc/self/mountinfo` (proc(5)). Lines that cannot be read are left out.
        pub(super) fn parse(text: &str) -> Mounts {
            Mounts(text.lines().filter_map(Mount::parse).collect())
        }

        /// The type of file system that holds a path, unless it is a local one. The file system of
        /// the root always counts as local.
        pub(super) fn elsewhere(&self, path: &Path) -> Option<String> {
            let Some(mount) = self.of(path) else { return Some("an unknown file system".to_owned()) };
            let root = self.of(Path::new("/")).is_some_and(|root| root.device == mount.device);
            let local = root || LOCAL.contains(&mount.kind.as_slice());
            (!local).then(|| format!("a file system of type {}", String::from_utf8_lossy(&mount.kind)))
        }

        /// The mount that a path is in. Of several with the longest path it is the last, which
        /// hides the others.
        fn of(&self, path: &Path) -> Option<&Mount> {
            let holds = self.0.iter().filter(|mount| path.starts_with(&mount.at));
            holds.max_by_key(|mount| mount.at.as_os_str().len())
        }
    }

    impl Mount {
        /// `id parent major:minor root mount-point options [fields…] - type source options`.
        fn parse(line: &str) -> Option<Mount> {
            let (before, after) = line.split_once(" - ")?;
            let mut fields = before.split(' ').skip(2);
            let device = fields.next()?.into();
            let at = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?.as_bytes())));
            Some(Mount { at, device, kind: after.split(' ').next()?.into() })
        }
    }

    /// Space, tab, newline and backslash are written as a backslash and three octal digits.
    fn unescape(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some((&first, after)) = rest.split_first() {
            let digits = after
                .get(..3)
                .filter(|_| first == b'\\')
                .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
            out.push(digits.unwrap_or(first));
            rest = if digits.is_some() { &after[3..] } else { after };
        }
        out
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// Lines in the format of proc(5), with types named as in the kernel's documentation and
        /// mount(8).
        const TABLE: &str = r"22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
30 27 0:40 / /net rw,relatime shared:9 - autofs -hosts rw,fd=7
31 27 0:41 / /srv/nfs\040share rw,relatime - nfs4 filer:/export rw
32 27 0:42 / /home/me/remote rw,nosuid - fuse.sshfs me@host: rw
33 27 8:1 / /media/stick rw - vfat /dev/sdb1 rw
34 27 254:0 /data /srv/nfs\040share/bind rw - ext4 /dev/vda rw
35 27 0:43 / /media/stick rw - cifs //filer/share rw
36 27 0:44 / /mnt/c rw - 9p C:\134 rw,aname=drvfs
malformed
";

        #[test]
        fn a_path_is_local_if_its_file_system_is_local() {
            let mounts = Mounts::parse(TABLE);
            for path in ["/", "/home/me", "/networks", "/home/me/remote2", "/srv/nfs share/bind/x"] {
                assert_eq!(mounts.elsewhere(Path::new(path)), None, "{path}");
            }
            for (path, kind) in [
                ("/net", "autofs"),
                ("/net/evil.example/share/x.pdb", "autofs"),
                ("/srv/nfs share/x", "nfs4"),
                ("/home/me/remote/x", "fuse.sshfs"),
                ("/proc/self/mem", "proc"),
                ("/media/stick/x.pdb", "cifs"),
                ("/mnt/c/x.pdb", "9p"),
            ] {
                let what = mounts.elsewhere(Path::new(path)).expect(path);
                assert!(what.ends_with(kind), "{path}: {what}");
            }
        }

        #[test]
        fn the_file_system_of_the_root_is_local() {
            let table = "1 0 0:9 / / rw - 9p none rw\n2 1 0:9 /sub /sub rw - 9p none rw\n3 1 0:10 / /x rw - 9p none rw";
            let mounts = Mounts::parse(table);
            assert_eq!(mounts.elsewhere(Path::new("/sub/file")), None);
            assert!(mounts.elsewhere(Path::new("/x/file")).is_some());
        }

        #[test]
        fn without_a_table_nothing_is_local() {
            assert!(Mounts::parse("").elsewhere(Path::new("/home")).is_some());
        }
    }
}

/// First checks for automounts, then asks the system about the file system that holds the path.
#[cfg(target_os = "macos")]
#[allow(unsafe_code)]
fn elsewhere(path: &Path) -> Option<String> {
    use std::os::unix::ffi::OsStrExt;
    if ["/net", "/home", "/Network"].iter().any(|automount| path.starts_with(automount)) {
        return Some("an automount".to_owned());
    }
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    let mut found = std::mem::MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the name ends with NUL and lives until the call returns. The system fills in the
    // structure, which is valid with zeros too.
    let flags = unsafe {
        match libc::statfs(name.as_ptr(), found.as_mut_ptr()) {
            0 => found.assume_init().f_flags,
            // A path that does not exist is not on another machine. Opening it reports the error.
            _ => return None,
        }
    };
    (flags & libc::MNT_LOCAL as u32 == 0).then(|| "a file system of another machine".to_owned())
}

#[cfg(not(any(target_os = "linux", target_os = "macos", windows)))]
fn elsewhere(_: &Path) -> Option<String> {
    Some("a file system of which this system does not say whether it is local".to_owned())
}

/// A drive is checked once, at its root. Below it, only links lead to other machines, and those are
/// resolved.
#[cfg(windows)]
#[allow(unsafe_code)]
fn elsewhere(path: &Path) -> Option<String> {
    use std::os::windows::ffi::OsStrExt;
    use std::path::Prefix;
    use windows_sys::Win32::Storage::FileSystem::{GetDriveTypeW, QueryDosDeviceW};
    // Return values of GetDriveTypeW (Microsoft, "GetDriveTypeW function").
    const REMOVABLE: u32 = 2;
    const FIXED: u32 = 3;
    const CDROM: u32 = 5;
    const RAMDISK: u32 = 6;
    let Some(Component::Prefix(prefix)) = path.components().next() else {
        return Some("no drive".to_owned());
    };
    if path.parent().is_some() {
        return None;
    }
    if let Prefix::Disk(letter) | Prefix::VerbatimDisk(letter) = prefix.kind() {
        let name = [u16::from(letter), u16::from(b':'), 0];
        let mut target = [0u16; 1024];
        // SAFETY: the name ends with NUL, and the system writes at most as many characters as the
        // buffer has.
        let len =
            unsafe { QueryDosDeviceW(name.as_ptr(), target.as_mut_ptr(), target.len() as u32) } as usize;
        let target = String::from_utf16_lossy(&target[..len.min(target.len())]).to_ascii_uppercase();
        // `subst` of a share, and the devices behind mapped drives.
        if [r"\??\UNC\", "REDIRECTOR", r"\MUP", "RDPDR"].iter().any(|device| target.contains(device)) {
            return Some("a mapped drive".to_owned());
        }
    } else if !matches!(prefix.kind(), Prefix::Verbatim(name) if name.to_string_lossy().starts_with("Volume{"))
    {
        return Some("a share or a device".to_owned());
    }
    let root = match prefix.kind() {
        Prefix::Disk(letter) | Prefix::VerbatimDisk(letter) => {
            vec![letter.into(), b':'.into(), b'\\'.into(), 0]
        }
        _ => prefix.as_os_str().encode_wide().chain([b'\\'.into(), 0]).collect::<Vec<u16>>(),
    };
    // SAFETY: the name ends with NUL and lives until the call returns.
    match unsafe { GetDriveTypeW(root.as_ptr()) } {
        REMOVABLE | FIXED | CDROM | RAMDISK => None,
        _ => Some("a drive that is not of this machine".to_owned()),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// The result with the folder `net` treated as an automount.
    fn outcome(folder: &Path, path: &str) -> Result<PathBuf, PathProblem> {
        let net = folder.join("net");
        let elsewhere = |path: &Path| path.starts_with(&net).then(|| "autofs".to_owned());
        walk(PathBuf::new(), parts(&folder.join(path)), &elsewhere)
    }

    #[test]
    fn links_are_followed_on_this_machine_only() {
        let folder = tempfile::tempdir().unwrap();
        // The folder's own path must be free of links.
        let folder = folder.path().canonicalize().unwrap();
        std::fs::create_dir_all(folder.join("here/sub")).unwrap();
        // The folder exists, so a walk that accesses it succeeds and the test fails.
        std::fs::create_dir_all(folder.join("net/evil")).unwrap();
        for file in ["here/sub/x.pdb", "net/evil/x.pdb"] {
            std::fs::write(folder.join(file), b"x").unwrap();
        }
        symlink("sub", folder.join("here/link")).unwrap();
        symlink(folder.join("net/evil"), folder.join("here/out")).unwrap();
        symlink("../net/evil/x.pdb", folder.join("here/x.pdb")).unwrap();
        symlink("loop", folder.join("loop")).unwrap();
        let found = outcome(&folder, "here/./link/../sub/x.pdb").unwrap();
        assert_eq!(found, folder.join("here/sub/x.pdb"));
        for path in ["net", "net/evil/x.pdb", "here/out/x.pdb", "here/x.pdb", "here/link/../../net/none"] {
            let outcome = outcome(&folder, path);
            let Err(PathProblem::Elsewhere { at, what }) = outcome else { panic!("{path}: {outcome:?}") };
            assert_eq!((at, what.as_str()), (folder.join("net"), "autofs"), "{path}");
        }
        assert!(matches!(outcome(&folder, "loop/x"), Err(PathProblem::Io(_))));
        let missing = outcome(&folder, "here/none/x").unwrap_err();
        assert!(matches!(missing, PathProblem::Io(error) if error.kind() == io::ErrorKind::NotFound));
    }

    #[test]
    fn file_systems_that_are_not_storage_are_not_read() {
        if cfg!(target_os = "linux") {
            assert!(matches!(resolve(Path::new("/proc/self/mem")), Err(PathProblem::Elsewhere { .. })));
            assert!(resolve(Path::new("/proc/self/cwd/x")).is_err());
        }
        assert!(resolve(Path::new(env!("CARGO_MANIFEST_DIR"))).is_ok());
    }
}

#[cfg(all(test, windows))]
mod tests {
    use super::*;

    #[test]
    fn shares_devices_and_missing_drives_are_not_local() {
        for path in [
            r"\\evil.invalid\share\x.pdb",
            r"\\?\UNC\evil.invalid\share\x",
            r"\\.\pipe\x",
            r"\\?\GLOBALROOT\x",
            r"Q:\x.pdb",
        ] {
            assert!(matches!(resolve(Path::new(path)), Err(PathProblem::Elsewhere { .. })), "{path}");
        }
        let folder = tempfile::tempdir().unwrap();
        assert!(resolve(folder.path()).is_ok());
        assert!(
            resolve(&folder.path().canonicalize().unwrap()).is_ok(),
            "with the prefix of the kernel's names"
        );
    }
}
