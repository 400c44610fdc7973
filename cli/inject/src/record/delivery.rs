//! Where a trace is written, and where it is moved to when it is whole.
//!
//! A share can stall for seconds, and the agent's buffers hold less than that. So a trace for a
//! share is written to a local disk and moved at the end.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// Where a trace is written and where it belongs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// The file that the agent writes.
    pub local: PathBuf,
    /// Where the file is moved to at the end; `None` = it stays.
    pub goal: Option<PathBuf>,
}

impl Route {
    /// The route of a trace that the user wants at `wanted`, which lies on a share or not. With
    /// `move_to` the user names the folder for the whole trace. `temporary` is a local folder, and
    /// `unique` makes names there differ.
    pub(crate) fn new(
        wanted: PathBuf,
        remote: bool,
        move_to: Option<&Path>,
        temporary: &Path,
        unique: &str,
    ) -> Route {
        let name = wanted.file_name().unwrap_or_default().to_owned();
        let goal = match move_to {
            Some(folder) => folder.join(&name),
            None if remote => wanted.clone(),
            None => return Route { local: wanted, goal: None },
        };
        let local = if remote { temporary.join(beside(unique, &name)) } else { wanted };
        Route { local, goal: Some(goal) }
    }
}

/// `name` with `unique` before it.
fn beside(unique: &str, name: &OsString) -> OsString {
    let mut own = OsString::from(format!("{unique}-"));
    own.push(name);
    own
}

/// Size and hash of a file's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Digest {
    pub len: u64,
    hash: u128,
}

/// Bytes that are copied at once.
const PIECE: usize = 1 << 20;

/// Copies all bytes and returns the digest of what was read.
///
/// # Errors
/// Those of both sides.
pub(crate) fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<Digest> {
    let mut piece = vec![0; PIECE];
    let (mut len, mut hash) = (0, Xxh3::new());
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(Digest { len, hash: hash.digest128() }),
            Ok(read) => {
                hash.update(&piece[..read]);
                to.write_all(&piece[..read])?;
                len += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(wanted: &str, remote: bool, move_to: Option<&str>) -> (String, Option<String>) {
        let route = Route::new(wanted.into(), remote, move_to.map(Path::new), Path::new("tmp"), "77");
        // As a Windows program the test joins with a backslash.
        let text = |path: PathBuf| path.to_string_lossy().replace('\\', "/");
        (text(route.local), route.goal.map(text))
    }

    #[test]
    fn a_trace_for_a_share_is_written_to_a_local_folder_first() {
        assert_eq!(route("here/a.stk", false, None), ("here/a.stk".to_owned(), None));
        assert_eq!(
            route("share/a.stk", true, None),
            ("tmp/77-a.stk".to_owned(), Some("share/a.stk".to_owned()))
        );
    }

    #[test]
    fn a_named_folder_gets_the_trace_under_its_own_name() {
        let moved = |local: &str| (local.to_owned(), Some("goal/a.stk".to_owned()));
        assert_eq!(route("here/a.stk", false, Some("goal")), moved("here/a.stk"));
        assert_eq!(route("share/a.stk", true, Some("goal")), moved("tmp/77-a.stk"));
    }

    #[test]
    fn a_copy_that_differs_in_one_bit_or_in_length_has_another_digest() {
        let bytes: Vec<u8> = (0..3 * PIECE + 5).map(|i| (i * 7) as u8).collect();
        let mut copied = Vec::new();
        let digest = copy(&mut &bytes[..], &mut copied).expect("memory");
        assert_eq!((digest.len, &copied), (bytes.len() as u64, &bytes));
        let of = |bytes: &[u8]| copy(&mut &bytes[..], &mut io::sink()).expect("memory");
        assert_eq!(of(&copied), digest);
        copied[PIECE + 1] ^= 4;
        assert_ne!(of(&copied), digest);
        assert_ne!(of(&bytes[..bytes.len() - 1]), digest);
    }

    #[test]
    fn a_full_disk_is_an_error() {
        let mut room = [0; 10];
        assert!(copy(&mut &[1u8; 11][..], &mut &mut room[..]).is_err());
    }
}
