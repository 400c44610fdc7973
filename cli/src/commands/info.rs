//! `stk info`: what was recorded.

use super::{Exit, Out, TablesArgs, TzArgs, each_trace, inputs};
use std::path::PathBuf;
use stk_output::info::document::VERSION;
use stk_output::info::table::TraceTable;
use stk_output::info::{facts, text};
use stk_output::traces::Traces;

/// Says what a trace holds, without walking its stacks. Of several traces: one line each, and
/// their sum.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk info app.stk
  stk info app.stk --all --tz local
  stk info lab                                  a line for each trace in the folder lab
  stk info --json *.stk | jq '.traces[].samples'")]
pub(super) struct InfoArgs {
    /// Traces: files, patterns such as *.stk, or folders, whose .stk files are taken
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON, as schema/info.schema.json describes it
    #[arg(long)]
    json: bool,
    /// List modules, threads, kinds of blocks and functions without names; of several traces,
    /// everything about each
    #[arg(short, long)]
    all: bool,
    #[command(flatten)]
    tables: TablesArgs,
    #[command(flatten)]
    tz: TzArgs,
}

pub(super) fn run(args: &InfoArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    let (files, exit) = inputs::traces(&args.files);
    let mut document = Traces::new(VERSION);
    let mut first = true;
    let mut table = TraceTable::new(args.tz.tz);
    let in_table = files.len() > 1 && !args.all && !args.json;
    let exit = exit.worse(each_trace(&files, out, |path| {
        let file = args.tables.open(path)?;
        let mut trace = file.read()?;
        args.tables.give(&mut trace);
        let info = facts::of(&trace, file.len());
        let ending = if info.damage.is_empty() { Exit::Ok } else { Exit::Damaged };
        let text = match () {
            () if args.json => document.next(&info)?,
            () if in_table => {
                table.add(&info);
                String::new()
            }
            () => text::of(&info, args.all, args.tz.tz),
        };
        let gap = if args.json || in_table || std::mem::take(&mut first) { "" } else { "\n" };
        Ok((format!("{gap}{text}"), ending))
    })?);
    if args.json {
        out(&document.end())?;
    } else if in_table {
        out(&table.text())?;
    }
    Ok(exit)
}
