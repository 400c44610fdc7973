//! `stk symbols apply`: names in a Parquet dataset for what had none when its traces were
//! converted.

use super::super::values::{choice, default_name};
use super::super::{Exit, Out, Usage, WorkerArgs, note_redirects, pool};
use super::SymbolOptions;
use crate::dataset::is_dataset;
use std::fmt::Write as _;
use std::path::PathBuf;
use stk_base::text::{count, counted, pad, width};
use stk_output::formats::{AppliedModule, apply_symbols};
use stk_schema::text::printable;
use stk_symbols::{Demangle, Symbolizer};

/// Looks up the places that have no name, or that of an export, in the symbols that are available
/// now, by the identities of their modules. Traces are not needed. Names from symbols stay as they
/// are.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk symbols apply lab.parquet -y C:\\build\\symbols
  stk symbols apply lab.parquet --ms-symbols

The names are in the table frames and stay when traces are added. Unchanged are named_pct in
traces, the names in samples of --denormalized, and stacks of x86, whose walk needs PDBs.")]
pub(super) struct ApplyArgs {
    /// Folder of the dataset
    #[arg(value_name = "DATASET")]
    dataset: PathBuf,
    /// How much of a mangled name to show
    #[arg(long, value_parser = choice::<Demangle>(), default_value = default_name::<Demangle>(), value_name = "STYLE", help_heading = "Symbols")]
    demangle: Demangle,
    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    symbols: SymbolOptions,
}

/// Runs the command.
///
/// # Errors
///
/// A usage error, or that the dataset cannot be read or written.
pub(super) fn apply(args: &ApplyArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    if !is_dataset(&args.dataset) {
        let text = format!(
            "{}: is no Parquet dataset: for traces give -y when they are read",
            args.dataset.display()
        );
        return Err(Usage(text).into());
    }
    let symbolizer = Symbolizer::new(args.symbols.store([args.dataset.as_path()]), args.demangle);
    let modules = pool(args.workers.jobs)?.install(|| apply_symbols(&args.dataset, &symbolizer))?;
    note_redirects(symbolizer.store());
    out(&text(&modules))?;
    Ok(Exit::Ok)
}

/// A line a module, and the sum.
fn text(modules: &[AppliedModule]) -> String {
    let columns = modules.iter().map(|module| width(&printable(&module.module))).max().unwrap_or(0);
    let mut text = String::new();
    for module in modules {
        let why = match (&module.file, &module.reason) {
            (Some(file), _) => file.display().to_string(),
            (None, Some(reason)) => reason.clone(),
            (None, None) => "no symbol covers them".to_owned(),
        };
        let _ = writeln!(
            text,
            "{}  {:>9} of {:>9} named  {}",
            pad(&printable(&module.module), columns),
            count(module.named),
            count(module.places),
            printable(&why)
        );
    }
    let sum = |of: fn(&AppliedModule) -> u64| modules.iter().map(of).fold(0, u64::saturating_add);
    let (named, places) = (sum(|module| module.named), sum(|module| module.places));
    let _ = writeln!(text, "{} of {} without one gained a name", count(named), counted(places, "place"));
    text
}
