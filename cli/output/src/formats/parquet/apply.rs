//! Names for places that had none when their traces were converted: `stk symbols apply`.
//!
//! Rows with the new names go to files of their own, in `_stk/names`, with the columns of `frames`.
//! Compaction takes them like those of one more part, so that they stay when traces are added.

use super::super::OutputError;
use super::super::lock::FolderLock;
use super::super::source::exporter_of;
use super::AppliedModule;
use super::files::{open_table, read};
use super::part::{self, NAMES, OWN, name_files};
use super::table::{SharedTexts, TableWriter, column, list, nulls};
use super::{compact, dimensions};
use polars::prelude::*;
use rayon::prelude::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use stk_base::files::Below;
use stk_base::model::{Image, function_key, parse_image_id, parse_pdb_id};
use stk_profile::profile::{Category, FrameKind};
use stk_schema::Arch;
use stk_schema::tables;
use stk_symbols::{ModuleKey, ModuleSymbols, Resolution, Source, Symbolizer};
use xxhash_rust::xxh3::xxh3_64;

/// Rows that are read at once, and those of a row group.
const ROWS: usize = 1 << 16;

/// An image of the dataset, and the architecture of its traces.
type DatasetImage = (Image, Arch);

/// A place in an image, as `frames` has it.
#[derive(Clone, Copy)]
struct FrameLocation {
    location: i64,
    rva: u32,
    kind: FrameKind,
}

/// Names places of a dataset that have no name from symbols. Runs in the caller's rayon pool.
pub(super) fn apply(path: &Path, symbolizer: &Symbolizer) -> Result<Vec<AppliedModule>, OutputError> {
    let dataset = &part::dataset(path)?;
    let frames = dataset.join(tables::FRAMES.name);
    if !frames.is_folder().map_err(OutputError::at(&frames.path(), "cannot be read"))? {
        return Err(OutputError::NoTables(path.to_owned()));
    }
    // Names of traces that wait for their tables may be found, too.
    compact::compact(path)?;
    let _lock = FolderLock::of_tables(dataset)?;
    let places = places_of(&frames, |source| matches!(source, "none" | "export"))?;
    let images = images(dataset)?;
    let known = places.iter().filter_map(|(id, places)| Some((*id, images.get(id)?, places)));
    let known: Vec<(i64, &DatasetImage, &Vec<FrameLocation>)> = known.collect();
    let resolved: Vec<ModuleSymbols> =
        known.par_iter().map(|(_, image, places)| resolve(image, symbolizer, places)).collect();
    let mut rows = NewRows::default();
    let mut modules = Vec::with_capacity(known.len());
    for ((id, (image, _), places), symbols) in known.into_iter().zip(&resolved) {
        let named = rows.add(id, image, places, symbols);
        modules.push(AppliedModule {
            module: image.name.clone(),
            debug_id: image.debug_id.clone(),
            places: places.len() as u64,
            named,
            file: symbols.file.clone().filter(|_| named > 0),
            reason: symbols.reason.as_ref().filter(|_| named == 0).map(ToString::to_string),
        });
    }
    modules.sort_by_key(|module| (Reverse(module.named), Reverse(module.places), module.module.clone()));
    if !rows.location.is_empty() {
        rows.keep(dataset)?;
        compact::compact_alone(dataset)?;
    }
    Ok(modules)
}

/// The images of a dataset, and the places in each that its stacks have.
pub(super) fn modules(path: &Path) -> Result<Vec<(Image, u64)>, OutputError> {
    let dataset = &part::dataset(path)?;
    let places = places_of(&dataset.join(tables::FRAMES.name), |_| true)?;
    let images = images(dataset)?.into_iter();
    Ok(images
        .map(|(id, (image, _))| (image, places.get(&id).map_or(0, |places| places.len() as u64)))
        .collect())
}

/// By image: the places whose names are from a wanted source, sorted by RVA.
fn places_of(
    frames: &Below,
    wanted: impl Fn(&str) -> bool,
) -> Result<BTreeMap<i64, Vec<FrameLocation>>, OutputError> {
    let mut places: BTreeMap<i64, Vec<FrameLocation>> = BTreeMap::new();
    for file in part::table_files(frames)? {
        let file = open_table(&file, &tables::FRAMES)?;
        for from in (0..file.rows()).step_by(ROWS) {
            let frame = read(&file, from, ROWS)?;
            let number = |name| frame.column(name)?.i64();
            let text = |name| frame.column(name)?.str();
            let (locations, images, rvas) = (number("location_id")?, number("image_id")?, number("rva")?);
            let (sources, kinds) = (text("name_source")?, text("kind")?);
            for row in 0..frame.height() {
                if !sources.get(row).is_some_and(&wanted) {
                    continue;
                }
                let kind = match kinds.get(row) {
                    Some("runtime") => FrameKind::Runtime,
                    Some("native") => FrameKind::Native,
                    _ => continue,
                };
                let (Some(location), Some(image), Some(rva)) =
                    (locations.get(row), images.get(row), rvas.get(row))
                else {
                    continue;
                };
                let Ok(rva) = u32::try_from(rva) else { continue };
                places.entry(image).or_default().push(FrameLocation { location, rva, kind });
            }
        }
    }
    for places in places.values_mut() {
        places.sort_by_key(|place| place.rva);
        places.dedup_by_key(|place| place.location);
    }
    Ok(places)
}

/// The images of all traces, by their ids.
fn images(dataset: &Below) -> Result<HashMap<i64, DatasetImage>, OutputError> {
    let mut arches: HashMap<String, Arch> = HashMap::new();
    for file in files_by_date(dataset, &tables::TRACES)? {
        let frame = read(&open_table(&file, &tables::TRACES)?, 0, usize::MAX)?;
        let (ids, names) = (frame.column("trace_id")?.str()?, frame.column("arch")?.str()?);
        for (id, name) in ids.iter().zip(names) {
            let arch = match name {
                Some("arm64") => Arch::Arm64,
                Some("x86") => Arch::X86,
                _ => Arch::X64,
            };
            arches.extend(id.map(|id| (id.to_owned(), arch)));
        }
    }
    let mut images = HashMap::new();
    for file in files_by_date(dataset, &tables::MODULES)? {
        let file = open_table(&file, &tables::MODULES)?;
        for from in (0..file.rows()).step_by(ROWS) {
            let frame = read(&file, from, ROWS)?;
            let ids = frame.column("image_id")?.i64()?;
            let text = |name| frame.column(name)?.str();
            let (traces, names, paths) = (text("trace_id")?, text("name")?, text("path")?);
            let (debug_ids, code_ids, pdb_names) = (text("debug_id")?, text("code_id")?, text("pdb_name")?);
            for row in 0..frame.height() {
                let Some(id) = ids.get(row) else { continue };
                images.entry(id).or_insert_with(|| {
                    let of = |texts: &StringChunked| texts.get(row).unwrap_or_default().to_owned();
                    let (debug_id, code_id) = (of(debug_ids), of(code_ids));
                    let (time_date_stamp, size) = parse_image_id(&code_id).unwrap_or_default();
                    let image = Image {
                        name: of(names),
                        path: of(paths),
                        code_view: parse_pdb_id(&debug_id),
                        debug_id,
                        code_id,
                        pdb_name: of(pdb_names),
                        time_date_stamp,
                        size,
                        identity_hash: id as u64,
                    };
                    (image, arches.get(traces.get(row).unwrap_or_default()).copied().unwrap_or(Arch::X64))
                });
            }
        }
    }
    Ok(images)
}

/// The files of a table whose rows belong to traces.
fn files_by_date(dataset: &Below, table: &tables::ParquetTable) -> Result<Vec<Below>, OutputError> {
    let folder = dataset.join(table.name);
    let mut files = Vec::new();
    for date in part::names(&folder)?.into_iter().filter(|name| name.starts_with(part::DATE)) {
        files.extend(part::table_files(&folder.join(date))?);
    }
    Ok(files)
}

fn resolve((image, arch): &DatasetImage, symbolizer: &Symbolizer, places: &[FrameLocation]) -> ModuleSymbols {
    let rvas: Vec<u32> = places.iter().map(|place| place.rva).collect();
    symbolizer.resolve(&ModuleKey::of(image, *arch), &rvas)
}

/// Rows of `frames` with names, column by column.
#[derive(Default)]
struct NewRows {
    location: Vec<i64>,
    inline_index: Vec<i64>,
    inlined: Vec<bool>,
    function: Vec<String>,
    function_id: Vec<Option<i64>>,
    function_rva: Vec<Option<i64>>,
    function_key: Vec<i64>,
    file: Vec<Option<String>>,
    line: Vec<Option<i64>>,
    module: Vec<String>,
    debug_id: Vec<Option<String>>,
    image_id: Vec<i64>,
    rva: Vec<i64>,
    kind: Vec<&'static str>,
    category: Vec<&'static str>,
    name_source: Vec<&'static str>,
    aliases: Vec<Vec<String>>,
    resolved_by: Vec<String>,
}

impl NewRows {
    /// Adds the rows of the places that have a name now. Returns how many have.
    fn add(&mut self, id: i64, image: &Image, places: &[FrameLocation], symbols: &ModuleSymbols) -> u64 {
        if symbols.reason.is_some() {
            return 0;
        }
        let mut named = 0;
        for (n, place) in places.iter().enumerate() {
            let found = symbols.get(n).filter(|found| found.source != Source::None);
            if let Some(found) = found.filter(|found| found.frames().len() > 0) {
                self.place(id, image, place, &found);
                named += 1;
            }
        }
        named
    }

    fn place(&mut self, id: i64, image: &Image, place: &FrameLocation, found: &Resolution<'_>) {
        let begin = place.rva.checked_sub(found.displacement);
        let outermost = found.frames().last().map_or("", |frame| frame.function);
        let category = Category::of(place.kind, &image.name, &image.path, outermost).as_str();
        let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        for (at, frame) in found.frames().enumerate() {
            let begin = begin.filter(|_| !frame.inline);
            self.location.push(place.location);
            self.inline_index.push(at as i64);
            self.inlined.push(frame.inline);
            self.function.push(frame.function.to_owned());
            self.function_id.push(begin.map(|begin| function_id(id, begin)));
            self.function_rva.push(begin.map(i64::from));
            self.function_key.push(function_key(&image.name, frame.function));
            self.file.push(frame.file.map(str::to_owned));
            self.line.push(frame.line.map(i64::from));
            self.module.push(image.name.clone());
            self.debug_id.push(some(&image.debug_id));
            self.image_id.push(id);
            self.rva.push(place.rva.into());
            self.kind.push(place.kind.as_str());
            self.category.push(category);
            self.name_source.push(if found.source == Source::Pdb { "pdb" } else { "dwarf" });
            let aliases = || found.aliases().map(str::to_owned).collect();
            self.aliases.push(if frame.inline { Vec::new() } else { aliases() });
            let by = if image.debug_id.is_empty() { &image.code_id } else { &image.debug_id };
            self.resolved_by.push(format!("symbols {by}"));
        }
    }

    /// Adds them to the rows of before.
    fn keep(self, dataset: &Below) -> Result<(), OutputError> {
        let tmp = part::temporary_folder(dataset)?;
        let new = tmp.at().join("new.parquet");
        self.write(&new)?;
        let mut files = name_files(dataset)?;
        files.push(new);
        let folder = tmp.at().join(NAMES);
        part::make_folder(&folder)?;
        dimensions::merge(&tables::FRAMES, &files, &folder, tmp.at())?;
        part::replace_folder(&folder, &dataset.join(OWN).join(NAMES), &tmp.at().join("old"))
    }

    fn write(self, file: &Below) -> Result<(), OutputError> {
        let rows = self.location.len();
        let null = |name: &str| {
            let wanted = tables::FRAMES.columns.iter().find(|column| column.name == name);
            wanted
                .map(|wanted| nulls(wanted, rows))
                .ok_or(OutputError::Order("a column that frames does not have"))
        };
        let mut offsets = vec![0i64];
        let mut aliases: Vec<&str> = Vec::new();
        for of_row in &self.aliases {
            aliases.extend(of_row.iter().map(String::as_str));
            offsets.push(aliases.len() as i64);
        }
        let aliases = column("", aliases).take_materialized_series();
        let by = SharedTexts::new(self.resolved_by.iter().map(String::as_str));
        let frame = DataFrame::new(vec![
            column("location_id", self.location),
            column("portable", vec![true; rows]),
            column("inline_index", self.inline_index),
            column("inlined", self.inlined),
            column("function", self.function),
            column("function_id", self.function_id),
            column("function_rva", self.function_rva),
            column("function_key", self.function_key),
            column("file", self.file),
            column("line", self.line),
            column("module", self.module),
            column("debug_id", self.debug_id),
            column("image_id", self.image_id),
            column("rva", self.rva),
            null("address")?,
            column("kind", self.kind),
            column("category", self.category),
            column("name_source", self.name_source),
            null("unresolved")?,
            null("tier")?,
            list("aliases", offsets, aliases)?,
            by.column("resolved_by", &(0..rows as IdxSize).collect::<Vec<_>>())?,
        ])?;
        let mut writer = TableWriter::create(file, &tables::FRAMES, &[], exporter_of(None))?;
        for from in (0..rows).step_by(ROWS) {
            writer.write_frame(frame.slice(from as i64, ROWS))?;
        }
        writer.finish().map(drop)
    }
}

/// `function_id` of a function in an image: see [`stk_schema::tables`].
fn function_id(image: i64, begin: u32) -> i64 {
    let mut bytes = b"function:".to_vec();
    bytes.extend_from_slice(&image.to_le_bytes());
    bytes.extend_from_slice(&u64::from(begin).to_le_bytes());
    xxh3_64(&bytes) as i64
}
