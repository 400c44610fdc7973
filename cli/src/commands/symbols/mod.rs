//! `stk symbols`: the sources of the names in traces, the names of single addresses, and names that
//! a dataset gains later.

mod apply;
mod at;
mod lookup;
mod modules;

use super::symbol_options::SymbolOptions;
use super::{Exit, Out, note, size};
use std::path::PathBuf;

/// Arguments of `stk symbols`.
#[derive(clap::Args, Debug)]
pub(super) struct SymbolsArgs {
    #[command(subcommand)]
    command: SymbolsCommand,
}

#[derive(clap::Subcommand, Debug)]
enum SymbolsCommand {
    /// List every module of traces: its identity, the frames that need it, where its symbols are or
    /// why not
    List(modules::ListArgs),
    /// Download the symbols that traces need from the servers of the symbol path
    Fetch(modules::FetchArgs),
    /// Copy the symbols that traces need into a folder, to carry to another machine
    Bundle(modules::BundleArgs),
    /// Name what has no name in a Parquet dataset, when its PDBs come late
    Apply(apply::ApplyArgs),
    /// Say whether a PDB belongs to an image
    Check(lookup::CheckArgs),
    /// Name addresses of an image or a PDB
    Lookup(lookup::LookupArgs),
    /// Name addresses of a trace's process: which module was there, and when
    At(at::AtArgs),
    /// Show what is in the symbol cache, or empty it
    Cache(CacheArgs),
}

/// Shows the folder and what it holds, or empties it.
#[derive(clap::Args, Debug)]
struct CacheArgs {
    /// Show how much there is (the default)
    #[arg(long, conflicts_with = "clear")]
    stats: bool,
    /// Delete all that stk has put there
    #[arg(long)]
    clear: bool,
    /// Folder for symbol indexes and downloads [default: the user's cache folder]
    #[arg(long, value_name = "DIR")]
    symbol_cache: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(args: &SymbolsArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    match &args.command {
        SymbolsCommand::List(args) => modules::list(args, out),
        SymbolsCommand::Fetch(args) => modules::fetch(args, out),
        SymbolsCommand::Bundle(args) => modules::bundle(args),
        SymbolsCommand::Apply(args) => apply::apply(args, out),
        SymbolsCommand::Check(args) => lookup::check(args, out),
        SymbolsCommand::Lookup(args) => lookup::lookup(args, out),
        SymbolsCommand::At(args) => at::at(args, out),
        SymbolsCommand::Cache(args) => cache(args, out),
    }
}

fn cache(args: &CacheArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    let options = SymbolOptions { symbol_cache: args.symbol_cache.clone(), ..SymbolOptions::default() };
    let Some(cache) = options.cache() else {
        anyhow::bail!("the environment names no home folder: name a cache folder with --symbol-cache");
    };
    let folder = cache.root().display();
    if args.clear {
        cache.clear().map_err(|error| anyhow::anyhow!("{folder}: {error}: close what uses it"))?;
        note(&format!("{folder}: emptied"));
        return Ok(Exit::Ok);
    }
    let stats = cache.stats();
    out(&format!(
        "folder     {folder}\nindexes    {} ({})\nstale      {} ({})\ndownloads  {} ({})\nmissing    {} remembered\n",
        stats.indexes,
        size(stats.index_bytes),
        stats.stale,
        size(stats.stale_bytes),
        stats.files,
        size(stats.file_bytes),
        stats.missing,
    ))?;
    Ok(Exit::Ok)
}
