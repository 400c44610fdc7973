//! `--rotate`: one recording in a ring of files. When a file is full, what files are called, and
//! which of them are deleted.

mod ring;
mod summary;

pub(crate) use ring::{Deletion, Ring, RingFile};
pub(crate) use summary::RingSummary;

use crate::duration;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use stk_schema::control::{AgentStatus, ROTATION_NONE};
use stk_schema::text::size;

/// The smallest limit of a file: less would hardly hold the events of a program's modules.
pub(crate) const LEAST_BYTES: u64 = 1 << 20;
/// Most bytes below the limit of a file at which the agent ends it; of small ones, a quarter.
const AGENTS_MARGIN: u64 = 16 << 20;
/// Digits of the number in a file's name, at least.
const DIGITS: usize = 4;

/// When the next file begins, and how many files are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Rotation {
    /// Milliseconds of a file; 0 = any time.
    pub every_ms: u32,
    /// Bytes of a file; 0 = any size.
    pub bytes: u64,
    /// Files that are kept, the one that is being written included; 0 = all.
    pub keep: u32,
}

/// The limits of a file, in bytes; 0 = none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileLimits {
    /// The next file begins when this one has so many.
    pub full: u64,
    /// The agent ends the file before it has more.
    pub most: u64,
}

impl FileLimits {
    /// Whether a file could not even hold the events of a program's modules.
    pub(crate) fn are_too_small(&self) -> bool {
        self.most != 0 && self.most < LEAST_BYTES
    }
}

/// What files of a recording hold together, as the agent's status reports it of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FileTotals {
    pub samples: u64,
    pub dropped: u64,
    pub bytes: u64,
    /// Milliseconds; the time between two files does not count.
    pub elapsed_ms: u64,
}

/// The place of a file in its recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FilePlace {
    /// From 1.
    pub index: u32,
    /// The number in its name.
    pub number: u32,
    /// What the files before it hold.
    pub earlier: FileTotals,
}

impl FileTotals {
    /// With those of another file, whose last or present status this is.
    pub(crate) fn with(self, status: &AgentStatus) -> FileTotals {
        FileTotals {
            samples: self.samples.saturating_add(status.samples),
            dropped: self.dropped.saturating_add(status.dropped),
            bytes: self.bytes.saturating_add(status.bytes),
            elapsed_ms: self.elapsed_ms.saturating_add(status.elapsed_ms),
        }
    }
}

impl FilePlace {
    /// The place of the present file by the agent's status; `None` in a recording of one file.
    pub(crate) fn of(status: &AgentStatus) -> Option<FilePlace> {
        let earlier = FileTotals {
            samples: status.earlier_samples,
            dropped: status.earlier_dropped,
            bytes: status.earlier_bytes,
            elapsed_ms: status.earlier_ms,
        };
        let place = FilePlace { index: status.file_index, number: status.file_number, earlier };
        (status.rotation != ROTATION_NONE && status.file_index != 0).then_some(place)
    }
}

impl Rotation {
    /// Whether there is more than one file.
    pub(crate) fn is_on(&self) -> bool {
        self.every_ms != 0 || self.bytes != 0
    }

    /// The limits of the next file. `wanted` is `--max-size` (`None` = not given, 0 = no limit),
    /// `usual` the limit of a recording without it, and `finished` the size of the files before.
    /// `None`: without `keep`, the files have reached the limit of all.
    pub(crate) fn limits(&self, wanted: Option<u64>, usual: u64, finished: u64) -> Option<FileLimits> {
        if self.keep != 0 {
            return Some(self.limits_in_ring(wanted, usual));
        }
        let all = wanted.unwrap_or(usual);
        let left = all.saturating_sub(finished);
        let most = if all == 0 { 0 } else { left };
        (all == 0 || left >= LEAST_BYTES).then_some(FileLimits { full: self.bytes, most })
    }

    /// With `keep`, each file gets the same share of what all may have, so that no file has to be
    /// deleted early.
    fn limits_in_ring(&self, wanted: Option<u64>, usual: u64) -> FileLimits {
        let all = match wanted {
            Some(all) => all,
            // The two options limit the ring together.
            None if self.bytes != 0 => 0,
            None => usual,
        };
        if all == 0 {
            let over = if wanted.is_none() { self.bytes + (self.bytes / 8).max(LEAST_BYTES) } else { 0 };
            return FileLimits { full: self.bytes, most: over };
        }
        let most = all / u64::from(self.keep);
        // The end of a file takes some room, and the agent ends a file of itself before it is full:
        // the next one begins before that.
        let share = most - most / 8 - (most / 4).min(AGENTS_MARGIN);
        FileLimits { full: if self.bytes == 0 { share } else { share.min(self.bytes) }, most }
    }
}

/// The name of the file with this number: `a.0001.stk` of `a.stk`.
pub(crate) fn numbered(path: &Path, number: u32) -> PathBuf {
    let (stem, extension) = parts(path);
    path.with_file_name(format!("{stem}.{number:0DIGITS$}{extension}"))
}

/// The number of a file of this name, if [`numbered`] could have named it so.
pub(crate) fn number_of(path: &Path, name: &OsStr) -> Option<u32> {
    let (stem, extension) = parts(path);
    let digits = name.to_str()?.strip_prefix(&stem)?.strip_prefix('.')?.strip_suffix(&extension)?;
    let is_number = digits.len() >= DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

/// A path's file name up to its extension, and the extension with its dot.
fn parts(path: &Path) -> (String, String) {
    let text = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let extension = path.extension().map(|extension| format!(".{}", extension.to_string_lossy()));
    (text(path.file_stem()), extension.unwrap_or_default())
}

/// `each of 60.0 s or 256.0 MiB; the last 10 of them are kept`, for a message. `limits` are those
/// of the first file.
pub(crate) fn describe(rotation: &Rotation, limits: FileLimits) -> String {
    let time = (rotation.every_ms != 0).then(|| duration::show(rotation.every_ms.into()));
    let bytes = (limits.full != 0).then(|| size(limits.full));
    let each: Vec<String> = time.into_iter().chain(bytes).collect();
    let kept = match rotation.keep {
        0 if limits.most != 0 => format!("all of them are kept, {} together at most", size(limits.most)),
        0 => "all of them are kept".to_owned(),
        1 => "only the one that is being written is kept".to_owned(),
        keep => format!("the last {keep} of them are kept"),
    };
    format!("each of {}; {kept}", each.join(" or "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn rotation(bytes: u64, keep: u32) -> Rotation {
        Rotation { every_ms: 60_000, bytes, keep }
    }

    #[test]
    fn the_number_stands_before_the_extension_and_grows_beyond_four_digits() {
        let name = |path: &str, number| numbered(Path::new(path), number).to_string_lossy().into_owned();
        assert_eq!(name("a.stk", 1), "a.0001.stk");
        assert_eq!(name("a.b.stk", 12_345), "a.b.12345.stk");
        assert_eq!(name("a", 7), "a.0007");
        let inside = numbered(Path::new("folder").join("a.stk").as_path(), 2);
        assert_eq!(inside, Path::new("folder").join("a.0002.stk"));
    }

    #[test]
    fn a_number_is_found_in_names_of_the_same_recording_only() {
        let found = |name: &str| number_of(Path::new("x/a.stk"), OsStr::new(name));
        assert_eq!(found("a.0001.stk"), Some(1));
        assert_eq!(found("a.12345.stk"), Some(12_345));
        for other in
            ["a.stk", "a.1.stk", "b.0001.stk", "a.0001.stk.part", "a.00x1.stk", "a.+001.stk", "a-1.stk"]
        {
            assert_eq!(found(other), None, "{other}");
        }
        assert_eq!(number_of(Path::new("a"), OsStr::new("a.0003")), Some(3));
        assert_eq!(found("a.99999999999.stk"), None, "no number of 32 bits");
    }

    #[test]
    fn without_keep_all_files_share_the_limit_and_the_recording_ends_there() {
        let by_size = rotation(4 * MIB, 0);
        let limits = |wanted, finished| by_size.limits(wanted, 100 * MIB, finished);
        assert_eq!(limits(None, 0), Some(FileLimits { full: 4 * MIB, most: 100 * MIB }));
        assert_eq!(limits(Some(10 * MIB), 4 * MIB), Some(FileLimits { full: 4 * MIB, most: 6 * MIB }));
        assert_eq!(limits(Some(10 * MIB), 9 * MIB + 1), None, "less than a file needs");
        assert_eq!(limits(Some(10 * MIB), 11 * MIB), None);
        assert_eq!(limits(Some(0), 1 << 50), Some(FileLimits { full: 4 * MIB, most: 0 }));
    }

    #[test]
    fn with_keep_each_file_gets_its_share_of_the_limit() {
        let ring = |bytes, keep, wanted| {
            rotation(bytes, keep).limits(wanted, 400 * MIB, u64::MAX).expect("a ring never ends")
        };
        // By time alone, the usual limit of a recording is that of the ring.
        assert_eq!(ring(0, 4, None), FileLimits { full: 84 * MIB - 100 * MIB / 8, most: 100 * MIB });
        // Size and number limit it.
        assert_eq!(ring(800 * MIB, 4, None), FileLimits { full: 800 * MIB, most: 900 * MIB });
        assert_eq!(ring(2 * MIB, 4, None), FileLimits { full: 2 * MIB, most: 3 * MIB });
        assert_eq!(ring(800 * MIB, 4, Some(80 * MIB)).most, 20 * MIB);
        assert_eq!(ring(2 * MIB, 4, Some(80 * MIB)), FileLimits { full: 2 * MIB, most: 20 * MIB });
        assert_eq!(ring(2 * MIB, 4, Some(0)), FileLimits { full: 2 * MIB, most: 0 });
        assert_eq!(ring(0, 4, Some(0)), FileLimits { full: 0, most: 0 });
    }

    #[test]
    fn a_ring_on_a_disk_that_is_nearly_full_has_too_small_files() {
        // 30 MiB, a tenth of 300, for 50 files.
        let limits = |bytes, keep| rotation(bytes, keep).limits(None, 30 * MIB, 0).expect("a ring");
        assert!(limits(0, 50).are_too_small() && !limits(0, 30).are_too_small());
        // The user has said how large they are, or that they have no limit.
        assert!(!limits(MIB, 50).are_too_small());
        assert!(!FileLimits { full: 0, most: 0 }.are_too_small());
    }

    #[test]
    fn a_ring_never_exceeds_its_limit() {
        for keep in 1..20 {
            for wanted in [20 * MIB, 77 * MIB, 1 << 32] {
                let limits = rotation(0, keep).limits(Some(wanted), 0, 0).expect("a ring");
                assert!(limits.most * u64::from(keep) <= wanted && limits.full < limits.most);
            }
        }
    }

    #[test]
    fn the_message_says_when_files_change_and_how_many_stay() {
        let text = describe(&rotation(0, 10), FileLimits { full: 7 * MIB, most: 8 * MIB });
        assert_eq!(text, "each of 60.0 s or 7.0 MiB; the last 10 of them are kept");
        let text = describe(&rotation(0, 0), FileLimits { full: 0, most: 0 });
        assert_eq!(text, "each of 60.0 s; all of them are kept");
        let text = describe(&rotation(0, 0), FileLimits { full: 0, most: 4 << 30 });
        assert_eq!(text, "each of 60.0 s; all of them are kept, 4.0 GiB together at most");
    }
}
