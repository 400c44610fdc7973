//! Which traces go where.

use super::{ConvertArgs, Destination, Format, Usage};
use crate::commands::replace;
use anyhow::Context;
use std::collections::{BTreeMap, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stk_base::files::open_plain;
use stk_format::{FILE_HEADER_LEN, FileHeader};
use stk_output::formats::DatasetIndex;
use stk_schema::windows::is_device_name;

/// What one worker does at a time.
pub(in super::super) enum Task<'a> {
    /// A trace with an output of its own.
    File {
        /// Its place on the command line.
        place: usize,
        /// The trace.
        file: &'a Path,
        /// Where its output goes.
        destination: Destination,
    },
    /// All files of a recording, to a dataset.
    Recording {
        /// The files with their places on the command line.
        files: Vec<(usize, &'a Path)>,
        /// The dataset.
        dataset: Arc<DatasetFolder>,
    },
}

/// A dataset, and what it had before.
pub(in super::super) struct DatasetFolder {
    pub path: PathBuf,
    pub index: DatasetIndex,
}

/// Chooses the destination of each trace.
pub(super) fn tasks<'a>(
    args: &ConvertArgs,
    files: &'a [PathBuf],
    format: Format,
) -> anyhow::Result<Vec<Task<'a>>> {
    let output = args.output.as_deref();
    if output == Some(Path::new("-")) {
        if format.is_folder() {
            return Err(Usage(
                "a Parquet dataset is a folder and cannot go to standard output: name one with -o".into(),
            )
            .into());
        }
        let [file] = files else {
            return Err(
                Usage("only one trace can go to standard output: name a folder with -o".into()).into()
            );
        };
        return Ok(vec![Task::File { place: 0, file, destination: Destination::Stdout }]);
    }
    let one_file = args.denormalized && files.len() == 1 && !output.is_some_and(is_folder);
    if format.is_folder() && !one_file {
        let stem = if let [file] = files { stem(file) } else { "traces".to_owned() };
        let folder = output.map_or_else(|| PathBuf::from(format.default_name(&stem)), Path::to_owned);
        let index = DatasetIndex::open(&folder)?;
        return Ok(recordings(files, &Arc::new(DatasetFolder { path: folder, index }), &|_| None));
    }
    let folder = output.filter(|path| is_folder(path));
    if let ([file], None) = (files, folder) {
        // A dataset has the default name of the format.
        let stem = if one_file { stem(file) + ".samples" } else { stem(file) };
        let destination = match output {
            Some(path) => Destination::File(path.to_owned()),
            None => Destination::InFolder { folder: PathBuf::new(), name: format.default_name(&stem) },
        };
        return Ok(vec![Task::File { place: 0, file, destination }]);
    }
    let folder = match (folder, output) {
        (Some(folder), _) => folder.to_owned(),
        (None, Some(path)) if path.exists() || Format::from_path(path).is_some() => {
            let path = path.display();
            return Err(
                Usage(format!("{path}: several traces need a folder: give one with -o FOLDER/")).into()
            );
        }
        (None, Some(path)) => path.to_owned(),
        (None, None) => PathBuf::from("."),
    };
    std::fs::create_dir_all(&folder).with_context(|| format!("{}: cannot be made", folder.display()))?;
    let mut taken: HashMap<String, u32> = HashMap::new();
    let tasks = files.iter().enumerate().map(|(place, file)| {
        let stem = stem(file);
        // Traces of one name in several folders are numbered, in the order of the command line.
        let n = taken.entry(stem.to_lowercase()).or_default();
        *n += 1;
        let stem = if *n == 1 { stem } else { format!("{stem}-{n}") };
        task_of(&folder, place, file, &stem, format)
    });
    Ok(tasks.collect())
}

/// The task of a trace with an output in a folder.
fn task_of<'a>(folder: &Path, place: usize, file: &'a Path, stem: &str, format: Format) -> Task<'a> {
    let name = format!("{stem}{}", format.suffix());
    let destination = Destination::InFolder { folder: folder.to_owned(), name };
    Task::File { place, file, destination }
}

impl Task<'_> {
    /// Refuses an output that is an input or a trace.
    pub(in super::super) fn check(&self) -> anyhow::Result<()> {
        match self {
            Task::File { destination, .. } => destination.file().map_or(Ok(()), |path| replace::check(&path)),
            Task::Recording { dataset, .. } => replace::check(&dataset.path),
        }
    }

    /// The places of its traces on the command line.
    pub(in super::super) fn places(&self) -> Vec<usize> {
        match self {
            Task::File { place, .. } => vec![*place],
            Task::Recording { files, .. } => files.iter().map(|(place, _)| *place).collect(),
        }
    }
}

/// The dataset that a batch adds to, if its format is one.
pub(in super::super) fn dataset_of_batch(
    out: &Path,
    format: Format,
) -> anyhow::Result<Option<Arc<DatasetFolder>>> {
    let open = || anyhow::Ok(DatasetFolder { path: out.to_owned(), index: DatasetIndex::open(out)? });
    format.is_folder().then(|| open().map(Arc::new)).transpose()
}

/// Chooses the destination of each trace of a batch. Names of outputs do not depend on the other
/// traces: they have a hash of the trace's path. `known`: the UUIDs of files that need not be read.
pub(in super::super) fn tasks_of_batch<'a>(
    out: &Path,
    files: &'a [PathBuf],
    format: Format,
    dataset: Option<&Arc<DatasetFolder>>,
    known: &dyn Fn(usize) -> Option<[u8; 16]>,
) -> Vec<Task<'a>> {
    if let Some(dataset) = dataset {
        return recordings(files, dataset, known);
    }
    let task = |(place, file): (usize, &'a PathBuf)| {
        let path = std::path::absolute(file).unwrap_or_else(|_| file.clone());
        let hash = xxhash_rust::xxh3::xxh3_64(path.as_os_str().as_encoded_bytes());
        task_of(out, place, file, &format!("{}-{:08x}", stem(file), hash as u32), format)
    };
    files.iter().enumerate().map(task).collect()
}

/// The files of each recording, by the UUID in their headers. Those whose headers cannot be read
/// are together. Nothing is read from pipes.
fn recordings<'a>(
    files: &'a [PathBuf],
    dataset: &Arc<DatasetFolder>,
    known: &dyn Fn(usize) -> Option<[u8; 16]>,
) -> Vec<Task<'a>> {
    let mut recordings: BTreeMap<Option<[u8; 16]>, Vec<(usize, &Path)>> = BTreeMap::new();
    for (place, file) in files.iter().enumerate() {
        recordings.entry(known(place).or_else(|| uuid(file))).or_default().push((place, file));
    }
    let mut tasks: Vec<Vec<(usize, &Path)>> = recordings.into_values().collect();
    tasks.sort_by_key(|files| files[0].0);
    tasks.into_iter().map(|files| Task::Recording { files, dataset: dataset.clone() }).collect()
}

/// The UUID in a trace's header.
pub(in super::super) fn uuid(file: &Path) -> Option<[u8; 16]> {
    let mut header = Vec::with_capacity(FILE_HEADER_LEN);
    open_plain(file).ok()?.take(FILE_HEADER_LEN as u64).read_to_end(&mut header).ok()?;
    Some(FileHeader::decode(&header).ok()?.uuid)
}

/// A trace's name without its extension. No output is named like a device of Windows.
fn stem(file: &Path) -> String {
    let stem = file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy();
    if is_device_name(&stem) { format!("{stem}_") } else { stem.into_owned() }
}

/// Whether a path is a folder, or is written like one.
pub(super) fn is_folder(path: &Path) -> bool {
    path.is_dir() || path.as_os_str().to_string_lossy().ends_with(std::path::is_separator)
}
