//! Reads the trace and the image files for [`complete`](crate::supplement) from disk.

use super::output;
use super::system;
use crate::file_identity::FileIdentity;
use crate::messages;
use crate::supplement::{self, CompletionReport, Disk, DiskFile, FileError, MAX_FILE};
use crate::windows::trust::local::{self, PathRefusal};
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::windows::fs::OpenOptionsExt as _;
use std::os::windows::io::AsRawHandle as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use stk_format::{NoSupplement, OpenError, Trace};
use stk_schema::identity::ContentHash;
use thiserror::Error;
use windows_sys::Win32::Foundation::ERROR_SHARING_VIOLATION;
use windows_sys::Win32::Storage::FileSystem::{
    FILE_BASIC_INFO, FILE_FLAG_OPEN_REPARSE_POINT, FILE_SHARE_DELETE, FILE_SHARE_READ, FILE_TYPE_DISK,
    FileBasicInfo, GetFileInformationByHandleEx, GetFileType,
};

/// How long to wait until an ended process's handle to the trace is closed.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most modules that are named on the console.
const NAMED: usize = 3;
/// 1601-01-01 to 1970-01-01 in units of 100 ns.
const UNIX_EPOCH_100NS: i64 = 116_444_736_000_000_000;

/// Why a trace is not completed.
#[derive(Debug, Error)]
enum TraceError {
    /// The system's reason.
    #[error(transparent)]
    System(#[from] io::Error),
    #[error("another file has taken its place")]
    Replaced,
    #[error(transparent)]
    Unreadable(#[from] OpenError),
    #[error(transparent)]
    NoSupplement(#[from] NoSupplement),
}

/// A recording's settings for images.
#[derive(Clone, Debug)]
pub(crate) struct CompletionRequest {
    /// `EMBED_*`.
    pub embed: u32,
    /// Folder of shared tables.
    pub tables: Option<PathBuf>,
    /// Identity of the trace's file when the agent got it.
    pub trace: FileIdentity,
}

/// Completes the trace at `path`, whose recording has ended. `reports`: prints on stderr what was
/// added and what was not. That it could not be completed is always reported.
pub(crate) fn run(path: &Path, wanted: &CompletionRequest, reports: bool) {
    match try_run(path, wanted) {
        Ok(None) => {}
        Ok(Some(report)) => {
            if reports {
                print_report(&report);
            }
        }
        Err(problem) => messages::say(&messages::not_completed(path, &problem.to_string())),
    }
}

fn print_report(report: &CompletionReport) {
    if report.completed != 0 {
        eprintln!(
            "{} of {} modules that could not be read in time were completed from their image files",
            report.completed, report.lacking
        );
    }
    for (path, reason) in report.left.iter().take(NAMED) {
        messages::say(&messages::no_unwind_data(path, &reason.to_string()));
    }
    if report.left.len() > NAMED {
        eprintln!("... nor for {} others: see stk info", report.left.len() - NAMED);
    }
}

fn try_run(path: &Path, wanted: &CompletionRequest) -> Result<Option<CompletionReport>, TraceError> {
    let mut file = open_trace(path)?;
    if output::identity(&file).differs_from(wanted.trace) {
        return Err(TraceError::Replaced);
    }
    let len = file.metadata()?.len();
    if len == 0 {
        return Ok(None);
    }
    let made = {
        // SAFETY: the mapping lives in this block only, and nobody else can write to the file while
        // it is open here.
        let bytes = unsafe { memmap2::Mmap::map(&file) }?;
        let trace = Trace::open(&bytes)?;
        let cut = len - trace.recorded_len();
        supplement::complete(&trace, wanted.embed, cut, &mut LocalDisk { tables: wanted.tables.as_deref() })
    };
    let Some((addition, report)) = made? else { return Ok(None) };
    file.set_len(addition.keep)?;
    file.seek(SeekFrom::Start(addition.keep))?;
    file.write_all(&addition.bytes)?;
    Ok(Some(report))
}

/// Opens the trace exclusively. An ended process may still hold it for a moment.
pub(crate) fn open_trace(path: &Path) -> io::Result<File> {
    let start = Instant::now();
    let mut options = OpenOptions::new();
    // With this flag a link itself is opened, not its target.
    options.read(true).write(true).share_mode(FILE_SHARE_READ).custom_flags(FILE_FLAG_OPEN_REPARSE_POINT);
    loop {
        match options.open(path) {
            Err(error) if system::code(&error) == ERROR_SHARING_VIOLATION && start.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(20));
            }
            opened => return opened,
        }
    }
}

struct LocalDisk<'a> {
    tables: Option<&'a Path>,
}

impl Disk for LocalDisk<'_> {
    fn read(&mut self, path: &str) -> Result<DiskFile, FileError> {
        let path = local(path)?;
        let fail = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => FileError::Missing,
            _ => FileError::Unreadable(error.to_string()),
        };
        let options =
            OpenOptions::new().read(true).share_mode(FILE_SHARE_READ | FILE_SHARE_DELETE).open(&path);
        let file = options.map_err(fail)?;
        // SAFETY: the handle is open.
        let is_disk = unsafe { GetFileType(file.as_raw_handle()) } == FILE_TYPE_DISK;
        let metadata = file.metadata().map_err(fail)?;
        if !is_disk || !metadata.is_file() {
            return Err(FileError::NotRegular);
        }
        if metadata.len() > MAX_FILE {
            return Err(FileError::TooLarge);
        }
        let changed = changed(&file).map_err(fail)?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE).read_to_end(&mut bytes).map_err(fail)?;
        Ok(DiskFile { bytes, changed })
    }

    fn put(&mut self, hash: ContentHash, bytes: &[u8]) -> bool {
        let Some(folder) = self.tables else { return false };
        output::store_once(&folder.join(format!("{hash}.tbl")), bytes)
    }
}

/// The path, if it stays on the local disks: it has the drive letter of a local disk and no link on
/// the way.
fn local(path: &str) -> Result<PathBuf, FileError> {
    let path = PathBuf::from(path);
    match local::check_without_links(&path) {
        Ok(()) => Ok(path),
        Err(PathRefusal::Place) => Err(FileError::NotLocal),
        Err(PathRefusal::Link) => Err(FileError::Link),
    }
}

/// When the file's content or directory entry was last changed, nanoseconds since the Unix epoch.
fn changed(file: &File) -> io::Result<u64> {
    let mut info = FILE_BASIC_INFO::default();
    // SAFETY: the handle is open; the structure is of the given size.
    let known = unsafe {
        GetFileInformationByHandleEx(
            file.as_raw_handle(),
            FileBasicInfo,
            (&raw mut info).cast(),
            size_of::<FILE_BASIC_INFO>() as u32,
        )
    };
    if known == 0 {
        return Err(io::Error::last_os_error());
    }
    let latest = info.LastWriteTime.max(info.ChangeTime).saturating_sub(UNIX_EPOCH_100NS);
    Ok(u64::try_from(latest).unwrap_or(0).saturating_mul(100))
}
