//! The images of a trace, from it and from the places of symbols.

use crate::image::{self, ImageSearch, ModuleImage, SharedImages};
use crate::trace::{BlobPlace, Trace};
use std::collections::HashSet;
use std::path::PathBuf;
use stk_base::model::Image;
use stk_symbols::index::{self, RecordKind, SymbolIndex};
use stk_symbols::pdb::PdbFile;
use stk_symbols::{SymbolStore, pdb_index};
use stk_unwind::x86::X86Tables;

/// Loads the images of a trace. Logs what could not be used.
pub fn load_images(trace: &Trace<'_>, store: &SymbolStore) -> Vec<ModuleImage> {
    load_shared(trace, store, None)
}

/// [`load_images`], of which some are those of traces before.
pub(super) fn load_shared(
    trace: &Trace<'_>,
    store: &SymbolStore,
    shared: Option<&SharedImages>,
) -> Vec<ModuleImage> {
    let elsewhere = ImageSearch {
        file: &|image| find_image(store, image),
        code: &|image| Some(store.find_image_here(&image.path, image.time_date_stamp, image.size)?.path),
        frames: &|image| find_frames(&trace.source, store, image),
    };
    let images = image::load_shared(trace, &elsewhere, shared);
    for (known, record) in images.iter().zip(&trace.timeline.images) {
        for problem in &known.problems {
            log::warn!("{}: {}: {problem}", trace.source, record.image.name);
        }
    }
    images
}

/// How many tables of images a trace names and neither holds nor has in a folder of tables. Stacks
/// may end early for lack of them.
pub fn missing_tables(trace: &Trace<'_>) -> u64 {
    let named = trace.timeline.images.iter().flat_map(|record| &record.tables).map(|table| table.hash);
    let missing = named.filter(|&hash| trace.blobs.place_of(hash) == BlobPlace::Nowhere);
    missing.collect::<HashSet<_>>().len() as u64
}

/// Searches for the image file of a module if the trace lacks its unwind data.
fn find_image(store: &SymbolStore, image: &Image) -> Option<PathBuf> {
    if image.code_id.is_empty() {
        return None;
    }
    let found = store.find_image(&image.path, image.time_date_stamp, image.size).found;
    log::debug!("{}: the trace carries no unwind data of it; file: {}", image.name, found.is_some());
    found.map(|found| found.path)
}

/// The frame records in the PDB of an x86 module: FrameData, FPO and the extents of functions.
fn find_frames(source: &str, store: &SymbolStore, image: &Image) -> Option<X86Tables> {
    let (guid, age) = image.code_view?;
    let found = store.find_pdb(&image.pdb_name, &guid, age, &image.path).found?;
    let problem = |error: &dyn std::fmt::Display| {
        log::warn!("{source}: {}: {}: frame records: {error}", image.name, found.path.display());
    };
    let records = PdbFile::open(&found.file).and_then(|pdb| pdb.frame_records());
    let records = records.inspect_err(|error| problem(error)).ok()?;
    let index = pdb_index(store, &found.path, &found.file, true).inspect_err(|reason| problem(reason)).ok();
    let functions: Vec<std::ops::Range<u32>> = index.iter().flat_map(procedures).collect();
    let (data, fpo) = (records.frame_data.len(), records.fpo.len());
    log::debug!("{source}: {}: {data} FrameData records, {fpo} FPO records", image.name);
    Some(X86Tables::new(records.frame_data, records.fpo).with_functions(functions))
}

/// Extents of the functions whose size the PDB states.
fn procedures(index: &SymbolIndex) -> impl Iterator<Item = std::ops::Range<u32>> + '_ {
    let sized = |range: &index::Range<'_>| range.kind == RecordKind::Procedure;
    index.ranges().filter(sized).map(|range| range.start..range.end)
}
