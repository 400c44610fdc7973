//! `stk symbols list`, `fetch` and `bundle`: the modules of traces.

use super::super::profile_args::warn_of_missing_tables;
use super::super::{
    Exit, Out, Progress, TablesArgs, Usage, guarded, inputs, note, note_redirects, pool, print_error,
    print_message, replace, size, verify, warn,
};
use super::SymbolOptions;
use crate::dataset::is_dataset;
use anyhow::Context;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use stk_base::files::{Below, MayReplace, is_same_file};
use stk_base::model::{Image, file_name};
use stk_base::text::counted;
use stk_output::formats;
use stk_profile::pipeline::load_images;
use stk_profile::profile::{BuildOptions, Placement, build};
use stk_schema::text::printable;
use stk_symbols::index::Origin;
use stk_symbols::{BundleWriter, FoundFile, SymbolStore, is_bundle, symbol_files};

/// Lists modules; looks for symbols on this machine only.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk symbols list app.stk -y C:\\build
  stk symbols list *.stk --json | jq '.modules[] | select(.found == null) | .name'")]
pub(super) struct ListArgs {
    /// Traces: files, patterns such as *.stk, or folders, whose .stk files are taken; or Parquet
    /// datasets
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON: {"version": 1, "modules": [...]}
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tables: TablesArgs,
    #[command(flatten)]
    symbols: SymbolOptions,
}

/// Downloads each PDB once. Exit code 1 if a server fails, or if no symbols are available in
/// the end; that a server has no such file is no failure.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk symbols fetch app.stk --ms-symbols
  stk symbols fetch lab/*.stk -y srv*D:\\symbols*https://symbols.example.org")]
pub(super) struct FetchArgs {
    /// Traces: files, patterns such as *.stk, or folders, whose .stk files are taken; or Parquet
    /// datasets
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Downloads at once
    #[arg(short, long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    #[command(flatten)]
    tables: TablesArgs,
    #[command(flatten)]
    symbols: SymbolOptions,
}

/// Writes a symbol store, as a folder or as one .tar.zst file: name it with -y on the other
/// machine.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk symbols bundle app.stk -o app-symbols.tar.zst
  stk convert app.stk --to speedscope -y app-symbols.tar.zst")]
pub(super) struct BundleArgs {
    /// Traces: files, patterns such as *.stk, or folders, whose .stk files are taken; or Parquet
    /// datasets
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Folder, or .tar.zst file, to write. What is in the folder stays; a file is replaced, unless
    /// it is a trace or an input
    #[arg(short, long, value_name = "PATH")]
    output: PathBuf,
    #[command(flatten)]
    tables: TablesArgs,
    #[command(flatten)]
    symbols: SymbolOptions,
}

/// A module that occurs in some of the traces.
struct TraceModule {
    image: Image,
    /// Distinct frames in it, over all traces.
    frames: u64,
}

#[derive(Serialize)]
struct ListDocument {
    version: u32,
    modules: Vec<ModuleRow>,
}

#[derive(Serialize)]
struct ModuleRow {
    name: String,
    path: String,
    code_id: String,
    pdb: String,
    debug_id: String,
    frames: u64,
    /// `pdb`, `dwarf` or `coff` (the image itself); `None` if nothing was found.
    source: Option<&'static str>,
    found: Option<PathBuf>,
    /// The index of its PDB in the symbol cache, if the PDB was not found: names come from it.
    index: Option<PathBuf>,
    reason: Option<String>,
}

pub(super) fn list(args: &ListArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    let mut options = args.symbols.clone();
    options.offline = true;
    let (files, named) = traces_and_datasets(&args.files);
    let store = store(&options, &files);
    let (modules, exit) = modules_of(&files, &args.tables, &store);
    let exit = exit.worse(named);
    let (listed, exit) = each(&modules, exit, |module| listed(module, &store));
    if args.json {
        let document = ListDocument { version: 1, modules: listed };
        out(&(serde_json::to_string_pretty(&document)? + "\n"))?;
        return Ok(exit);
    }
    let mut text = String::new();
    for module in &listed {
        let wants = if module.debug_id.is_empty() { "no PDB named" } else { &module.debug_id };
        let frames = counted(module.frames, "frame");
        let _ = writeln!(text, "{}  {frames}  {wants}", printable(&module.name));
        let shown = |path: &Path| path.display().to_string();
        let from = match (&module.found, &module.index) {
            (Some(path), _) => shown(path),
            (None, Some(index)) => format!("{} (the index of its PDB, in the symbol cache)", shown(index)),
            (None, None) => module.reason.clone().unwrap_or_else(|| "not found".to_owned()),
        };
        let _ = writeln!(text, "    {}", printable(&from));
    }
    out(&text)?;
    Ok(exit)
}

pub(super) fn fetch(args: &FetchArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    let (files, named) = traces_and_datasets(&args.files);
    let store = store(&args.symbols, &files);
    if store.path().urls().next().is_none() {
        return Err(
            Usage("no symbol server is named: use -y srv*https://… or --ms-symbols".to_owned()).into()
        );
    }
    let (mut modules, exit) = modules_of(&files, &args.tables, &store);
    let exit = exit.worse(named);
    let progress = Progress::new("bytes");
    let seen: Mutex<HashMap<String, (u64, u64)>> = Mutex::default();
    let on_bytes = |name: &str, got: u64, all: Option<u64>| {
        let mut seen = seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (last, total) = seen.entry(name.to_owned()).or_default();
        if let Some(all) = all.filter(|&all| all > *total) {
            progress.add_total(all - *total);
            *total = all;
        }
        progress.done().fetch_add(got.saturating_sub(*last), Ordering::Relaxed);
        *last = got;
    };
    modules.retain(|module| module.image.code_view.is_some());
    let (results, exit) = pool(Some(args.jobs))?
        .install(|| each(&modules, exit, |module| (module, symbol_files(&module.image, &store, &on_bytes))));
    drop(progress);
    note_redirects(&store);
    let mut text = String::new();
    let mut missing = 0;
    for (module, symbols) in &results {
        match symbols.found() {
            Some((found, _)) => drop(writeln!(text, "{}", printable(&found.path.display().to_string()))),
            None => {
                missing += 1;
                print_message(&format!("{}: {}", module.image.name, symbols.why_not(&module.image)));
            }
        }
    }
    out(&text)?;
    let offline = if args.symbols.offline { "; --offline: no server was contacted" } else { "" };
    let (found, all) = (results.len() - missing, results.len());
    note(&format!("symbols of {found} of {all} modules are available{offline}"));
    let failed = results.iter().any(|(_, symbols)| symbols.server_failed());
    let nothing = missing == results.len() && missing != 0;
    Ok(if failed || nothing { exit.worse(Exit::Failure) } else { exit })
}

pub(super) fn bundle(args: &BundleArgs) -> anyhow::Result<Exit> {
    let (traces, named) = traces_and_datasets(&args.files);
    replace::check(&args.output)?;
    let store = store(&args.symbols, &traces);
    let (modules, exit) = modules_of(&traces, &args.tables, &store);
    let exit = exit.worse(named);
    // By name and identity, so that a file that several modules share is written once, and the
    // order is always the same.
    let mut files: BTreeMap<(String, String), FoundFile> = BTreeMap::new();
    let (found, exit) =
        each(&modules, exit, |module| (module, symbol_files(&module.image, &store, &|_, _, _| {})));
    for (module, symbols) in found {
        let reason = match &symbols.index {
            Some(_) => {
                "only the index of its PDB is available, in the symbol cache: a bundle takes the PDB".into()
            }
            None => symbols.why_not(&module.image),
        };
        match symbols.into_file(&module.image) {
            Some((name, identity, file)) => drop(files.entry((name, identity.to_string())).or_insert(file)),
            None => print_message(&format!("{}: {reason}", module.image.name)),
        }
    }
    note_redirects(&store);
    let shown = args.output.display();
    if is_bundle(&args.output) {
        write(&formats::named_file(&args.output)?, |out| {
            let mut bundle = BundleWriter::new(out);
            files.iter().try_for_each(|((name, id), found)| bundle.add(name, id, &found.file))?;
            bundle.finish().map(drop)
        })
        .with_context(|| shown.to_string())?;
    } else {
        let folder = Below::make(&args.output).with_context(|| shown.to_string())?;
        for ((name, id), found) in &files {
            let target = folder.join(name).join(id).join(name);
            // Symbols that were found in this folder are there already.
            if !is_same_file(&found.path, &target.path()) {
                write(&target, |out| out.write_all(&found.file))
                    .with_context(|| target.path().display().to_string())?;
            }
        }
    }
    let bytes = files.values().map(|found| found.file.len() as u64).sum();
    note(&format!("{shown}: {}, {}", counted(files.len() as u64, "symbol file"), size(bytes)));
    Ok(exit)
}

/// Writes a file of a bundle so that it appears whole or not at all.
fn write(at: &Below, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> std::io::Result<()> {
    at.parent().make_folder()?;
    let mut file = formats::temporary(&at.parent())?;
    write(&mut file)?;
    file.as_file().sync_data()?;
    file.persist(at, MayReplace::NoTrace).map(drop)
}

/// The results of `work` for each module. Several run at once. A panic is that module's failure: it
/// is reported, and the module is left out.
fn each<'a, T: Send>(
    modules: &'a [TraceModule],
    exit: Exit,
    work: impl Fn(&'a TraceModule) -> T + Sync,
) -> (Vec<T>, Exit) {
    let work = |module: &'a TraceModule| guarded(Path::new(&module.image.path), || Ok(work(module)));
    let results: Vec<anyhow::Result<T>> = modules.par_iter().map(work).collect();
    let count = results.len();
    let found = results.into_iter().filter_map(|result| result.inspect_err(print_error).ok());
    let found: Vec<T> = found.collect();
    let exit = if found.len() < count { exit.worse(Exit::Failure) } else { exit };
    (found, exit)
}

fn store(options: &SymbolOptions, traces: &[PathBuf]) -> SymbolStore {
    options.store(traces.iter().map(PathBuf::as_path))
}

fn listed(module: &TraceModule, store: &SymbolStore) -> ModuleRow {
    let image = &module.image;
    let symbols = symbol_files(image, store, &|_, _, _| {});
    let found = symbols.found();
    ModuleRow {
        name: image.name.clone(),
        path: image.path.clone(),
        code_id: image.code_id.clone(),
        pdb: file_name(&image.pdb_name).to_owned(),
        debug_id: image.debug_id.clone(),
        frames: module.frames,
        source: match found.map(|(_, origin)| origin) {
            Some(Origin::Pdb) => Some("pdb"),
            Some(Origin::Dwarf) => Some("dwarf"),
            Some(Origin::Coff | Origin::Exports) => Some("coff"),
            None => symbols.index.is_some().then_some("pdb"),
        },
        found: found.map(|(found, _)| found.path.clone()),
        index: symbols.index.clone(),
        reason: found.is_none().then(|| symbols.why_not(image)),
    }
}

/// All modules of the traces, each image once, those with the most frames first.
fn modules_of(traces: &[PathBuf], tables: &TablesArgs, store: &SymbolStore) -> (Vec<TraceModule>, Exit) {
    let progress = Progress::new("samples");
    merged(traces, |path| match is_dataset(path) {
        true => Ok((of_dataset(path)?, Exit::Ok)),
        false => read(path, tables, store, &progress),
    })
}

/// The traces that arguments name, and the datasets.
fn traces_and_datasets(named: &[PathBuf]) -> (Vec<PathBuf>, Exit) {
    let (datasets, others): (Vec<_>, Vec<_>) = named.iter().cloned().partition(|path| is_dataset(path));
    let (traces, exit) = inputs::traces(&others);
    (datasets.into_iter().chain(traces).collect(), exit)
}

/// The modules of a dataset, by its tables.
fn of_dataset(path: &Path) -> anyhow::Result<Vec<TraceModule>> {
    let modules = formats::dataset_modules(path)?.into_iter();
    Ok(modules.map(|(image, frames)| TraceModule { image, frames }).collect())
}

/// The modules that `read` returns for each trace, merged. A trace that cannot be read is reported
/// and skipped.
fn merged(
    traces: &[PathBuf],
    read: impl Fn(&Path) -> anyhow::Result<(Vec<TraceModule>, Exit)>,
) -> (Vec<TraceModule>, Exit) {
    let mut modules: BTreeMap<(String, u64), TraceModule> = BTreeMap::new();
    let mut exit = Exit::Ok;
    for path in traces {
        match guarded(path, || read(path)) {
            Ok((found, ending)) => {
                exit = exit.worse(ending);
                for TraceModule { image, frames } in found {
                    let key = (image.path.clone(), image.identity_hash);
                    modules.entry(key).or_insert(TraceModule { image, frames: 0 }).frames += frames;
                }
            }
            Err(error) => {
                exit = exit.worse(verify::exit_of(&error));
                print_error(&error);
            }
        }
    }
    let mut modules: Vec<TraceModule> = modules.into_values().collect();
    modules.sort_by(|a, b| b.frames.cmp(&a.frames).then_with(|| a.image.path.cmp(&b.image.path)));
    (modules, exit)
}

/// The modules of a trace. Damage in it is reported.
fn read(
    path: &Path,
    tables: &TablesArgs,
    store: &SymbolStore,
    progress: &Progress,
) -> anyhow::Result<(Vec<TraceModule>, Exit)> {
    let file = tables.open(path)?;
    let mut trace = file.read()?;
    tables.give(&mut trace);
    progress.add_total(trace.samples());
    warn_of_missing_tables(&trace);
    let images = load_images(&trace, store);
    let (profile, _) = build(&trace, &images, &BuildOptions::default(), progress.done())?;
    let damage = &profile.losses.damaged_blocks;
    damage.iter().for_each(|damage| warn(&format!("{}: {damage}", trace.source)));
    let damaged = trace.lost_blocks || !damage.is_empty();
    let mut frames = vec![0u64; profile.images.len()];
    for key in profile.frames.keys() {
        if let Placement::Image(image, _) = key.place {
            frames[image.0 as usize] += 1;
        }
    }
    let modules = profile.images.into_iter().zip(frames).map(|(image, frames)| TraceModule { image, frames });
    Ok((modules.collect(), if damaged { Exit::Damaged } else { Exit::Ok }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(path: &str) -> TraceModule {
        TraceModule { image: Image { path: path.to_owned(), ..Image::default() }, frames: 1 }
    }

    #[test]
    fn a_panic_in_one_trace_of_several_loses_only_that_trace() {
        let traces = ["a.stk", "b.stk", "c.stk"].map(PathBuf::from);
        let (modules, exit) = merged(&traces, |path| match path.to_str() {
            Some("b.stk") => panic!("out of range"),
            name => Ok((vec![module(name.unwrap_or_default())], Exit::Ok)),
        });
        let paths: Vec<&str> = modules.iter().map(|module| module.image.path.as_str()).collect();
        assert_eq!((paths, exit), (vec!["a.stk", "c.stk"], Exit::Failure));
    }

    #[test]
    fn a_panic_over_one_module_loses_only_that_module() {
        let modules = ["a.dll", "b.dll", "c.dll"].map(module);
        let (found, exit) = each(&modules, Exit::Ok, |module| match module.image.path.as_str() {
            "b.dll" => panic!("out of range"),
            path => path,
        });
        assert_eq!((found, exit), (vec!["a.dll", "c.dll"], Exit::Failure));
    }
}
