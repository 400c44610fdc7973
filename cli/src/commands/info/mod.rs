//! `stk info`: what was recorded.
//!
//! ```text
//! document   the facts about a trace, in the form of JSON    Info
//! facts      gathers it                                      path -> Info
//! code       code made at run time: its count and its cost   DynamicCode
//! methods    methods of .NET: which of that code has names   Methods
//! text       the facts as text                               Info -> text
//! ```

mod code;
mod document;
mod facts;
mod methods;
mod text;

use super::traces::Traces;
use super::{Exit, Out, TablesArgs, each_trace};
use document::VERSION;
use std::path::PathBuf;

/// Modules, threads and functions that are listed unless `--all` is given.
const LISTED: usize = 40;

/// Says what a trace holds, without decoding its samples.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk info app.stk
  stk info --json *.stk | jq '.traces[].samples'")]
pub(super) struct InfoArgs {
    /// Traces
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON: {\"version\": 1, \"traces\": [...]}
    #[arg(long)]
    json: bool,
    /// List all modules and threads, however many
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    tables: TablesArgs,
}

pub(super) fn run(args: &InfoArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    let mut document = Traces::new(VERSION);
    let mut first = true;
    let exit = each_trace(&args.files, out, |path| {
        let info = facts::of(path, &args.tables)?;
        let text = if args.json { document.next(&info)? } else { text::of(&info, args.all) };
        let gap = if args.json || std::mem::take(&mut first) { "" } else { "\n" };
        let ending = if info.damage.is_empty() { Exit::Ok } else { Exit::Damaged };
        Ok((format!("{gap}{text}"), ending))
    })?;
    if args.json {
        out(&document.end())?;
    }
    Ok(exit)
}
