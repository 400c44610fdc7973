//! `stk symbols list`, `fetch` and `bundle`: the modules of traces.

use super::super::{Exit, Progress, Usage, count, load_images, pool, print, report, size, verify};
use crate::profile::{BuildOptions, Image, Placement, build};
use crate::symbols::{FoundFile, Identity, Search, SymbolOptions, SymbolStore, file_name, safe_file_name};
use crate::trace::TraceFile;
use anyhow::Context;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::Ordering;

/// Lists modules; looks for symbols on this machine only.
#[derive(clap::Args, Debug)]
pub(super) struct ListArgs {
    /// Traces
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON: {"version": 1, "modules": [...]}
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    symbols: SymbolOptions,
}

/// Downloads each PDB once.
#[derive(clap::Args, Debug)]
pub(super) struct FetchArgs {
    /// Traces
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Downloads at once
    #[arg(short, long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=64))]
    jobs: u16,
    #[command(flatten)]
    symbols: SymbolOptions,
}

/// Writes a symbol store: name the folder with -y on the other machine.
#[derive(clap::Args, Debug)]
pub(super) struct BundleArgs {
    /// Traces
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Folder to write
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    symbols: SymbolOptions,
}

/// A module that some of the traces hold.
struct Module {
    image: Image,
    /// Distinct frames in it, over all traces.
    frames: u64,
}

#[derive(Serialize)]
struct Document {
    version: u32,
    modules: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    name: String,
    path: String,
    code_id: String,
    pdb: String,
    debug_id: String,
    frames: u64,
    found: Option<PathBuf>,
    reason: Option<String>,
}

pub(super) fn list(args: &ListArgs) -> anyhow::Result<Exit> {
    let mut options = args.symbols.clone();
    options.offline = true;
    let store = store(&options, &args.files);
    let (modules, exit) = modules(&args.files, &store)?;
    let listed: Vec<Listed> = modules.iter().map(|module| listed(module, &store)).collect();
    if args.json {
        let document = Document { version: 1, modules: listed };
        print(&(serde_json::to_string_pretty(&document)? + "\n"))?;
        return Ok(exit);
    }
    let mut out = String::new();
    for module in &listed {
        let wants = if module.debug_id.is_empty() { "no PDB named" } else { &module.debug_id };
        let _ = writeln!(out, "{}  {} frames  {wants}", module.name, count(module.frames));
        let _ = match (&module.found, &module.reason) {
            (Some(path), _) => writeln!(out, "    {}", path.display()),
            (None, reason) => writeln!(out, "    {}", reason.as_deref().unwrap_or("not found")),
        };
    }
    print(&out)?;
    Ok(exit)
}

pub(super) fn fetch(args: &FetchArgs) -> anyhow::Result<Exit> {
    let store = store(&args.symbols, &args.files);
    if store.path().urls().next().is_none() {
        return Err(
            Usage("no symbol server is named: use -y srv*https://… or --ms-symbols".to_owned()).into()
        );
    }
    let (modules, exit) = modules(&args.files, &store)?;
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
    let wanted: Vec<&Module> = modules.iter().filter(|module| module.image.code_view.is_some()).collect();
    let results: Vec<(&Module, Search)> = pool(Some(args.jobs))?.install(|| {
        wanted
            .par_iter()
            .map(|module| (*module, find(&module.image, &store, &on_bytes).unwrap_or_default()))
            .collect()
    });
    drop(progress);
    let mut out = String::new();
    let mut missing = 0;
    for (module, search) in &results {
        match &search.found {
            Some(found) => drop(writeln!(out, "{}", found.path.display())),
            None => {
                missing += 1;
                eprintln!("stk: {}: {}", module.image.name, why_not(&module.image, search));
            }
        }
    }
    print(&out)?;
    eprintln!("stk: {} of {} PDBs are at hand", results.len() - missing, results.len());
    Ok(exit)
}

pub(super) fn bundle(args: &BundleArgs) -> anyhow::Result<Exit> {
    let store = store(&args.symbols, &args.files);
    let (modules, exit) = modules(&args.files, &store)?;
    let (mut copied, mut bytes) = (0u64, 0u64);
    for module in &modules {
        let Some(search) = find(&module.image, &store, &|_, _, _| {}) else { continue };
        let Some(found) = &search.found else {
            eprintln!("stk: {}: {}", module.image.name, why_not(&module.image, &search));
            continue;
        };
        bytes += copy(&module.image, found, &args.output)?;
        copied += 1;
    }
    eprintln!("stk: {}: {} PDBs, {}", args.output.display(), count(copied), size(bytes));
    Ok(exit)
}

/// Copies a file to its place in a two-tier store.
fn copy(image: &Image, found: &FoundFile, output: &Path) -> anyhow::Result<u64> {
    let (Some(name), Some((guid, age))) = (safe_file_name(&image.pdb_name), image.code_view) else {
        return Ok(0);
    };
    let target = output.join(name).join(Identity::Pdb { guid, age }.to_string()).join(name);
    crate::symbols::write_atomically(&target, |out| std::io::Write::write_all(out, &found.file))
        .with_context(|| target.display().to_string())?;
    Ok(found.file.len() as u64)
}

fn store(options: &SymbolOptions, traces: &[PathBuf]) -> SymbolStore {
    options.store(traces.iter().map(PathBuf::as_path))
}

/// Looks for a module's PDB; nothing if it names none.
fn find(image: &Image, store: &SymbolStore, on_bytes: crate::symbols::server::OnBytes<'_>) -> Option<Search> {
    let (guid, age) = image.code_view?;
    Some(store.find(file_name(&image.pdb_name), Identity::Pdb { guid, age }, &image.path, on_bytes))
}

fn listed(module: &Module, store: &SymbolStore) -> Listed {
    let image = &module.image;
    let search = find(image, store, &|_, _, _| {});
    let reason = match &search {
        None => Some("the image names no PDB (no CodeView record)".to_owned()),
        Some(search) if search.found.is_none() => Some(why_not(image, search)),
        Some(_) => None,
    };
    Listed {
        name: image.name.clone(),
        path: image.path.clone(),
        code_id: image.code_id.clone(),
        pdb: file_name(&image.pdb_name).to_owned(),
        debug_id: image.debug_id.clone(),
        frames: module.frames,
        found: search.and_then(|search| search.found).map(|found| found.path),
        reason,
    }
}

fn why_not(image: &Image, search: &Search) -> String {
    match image.code_view {
        Some((guid, age)) => search.reason(&image.pdb_name, Identity::Pdb { guid, age }).to_string(),
        None => "the image names no PDB (no CodeView record)".to_owned(),
    }
}

/// All modules of the traces, each image once, those with the most frames first.
fn modules(traces: &[PathBuf], store: &SymbolStore) -> anyhow::Result<(Vec<Module>, Exit)> {
    let mut modules: BTreeMap<(String, u64), Module> = BTreeMap::new();
    let mut exit = Exit::Ok;
    let progress = Progress::new("samples");
    for path in traces {
        if let Err(error) = add_modules(path, store, &progress, &mut modules) {
            exit = exit.worse(verify::exit_of(&error));
            report(&error);
        }
    }
    let mut modules: Vec<Module> = modules.into_values().collect();
    modules.sort_by(|a, b| b.frames.cmp(&a.frames).then_with(|| a.image.path.cmp(&b.image.path)));
    Ok((modules, exit))
}

fn add_modules(
    path: &Path,
    store: &SymbolStore,
    progress: &Progress,
    modules: &mut BTreeMap<(String, u64), Module>,
) -> anyhow::Result<()> {
    let file = TraceFile::open(path)?;
    let trace = file.read()?;
    progress.add_total(trace.samples());
    let images = load_images(&trace, store);
    let (profile, _) = build(&trace, &images, &BuildOptions::default(), progress.done())?;
    let mut frames = vec![0u64; profile.images.len()];
    for key in profile.frames.keys() {
        if let Placement::Image(image, _) = key.place {
            frames[image.0 as usize] += 1;
        }
    }
    for (image, frames) in profile.images.into_iter().zip(frames) {
        let key = (image.path.clone(), image.identity_hash);
        modules.entry(key).or_insert(Module { image, frames: 0 }).frames += frames;
    }
    Ok(())
}
