//! `stk symbols at`: addresses of a trace's process, at a moment or at any.

use super::super::dump::moment_of;
use super::super::{Exit, Out, SymbolArgs, TablesArgs, TzArgs, Usage, guarded, inputs, note_redirects, warn};
use crate::times::{self, TimeArg};
use std::path::{Path, PathBuf};
use stk_output::dump::at::text;
use stk_output::dump::sources::TraceSources;
use stk_profile::trace::beyond_memory;

/// Names addresses of the process that a trace is of. One address may belong to one module for a
/// time and to another later: without --at each is named, with the times between which it was
/// loaded.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk symbols at app.stk 0x7ffa12341010 -y C:\\build
  stk symbols at app.stk 7ffa12341010 --at 1.5s --json

Addresses are looked up as given: of a caller's frame, give the return address − 1. JSON lines:
{\"address\":\"0x…\",\"module\":…,\"path\":…,\"base\":\"0x…\",\"rva\":\"0x…\",\"from_ns\":…,\"until_ns\":…,
\"frames\":[{\"function\":…,\"displacement\":…,\"file\":…,\"line\":…,\"inline\":bool}]}, innermost frame first; from_ns and until_ns are null for what was
there at the recording's start and at its end; module and path are empty for code made at run time, null where
nothing was")]
pub(super) struct AtArgs {
    /// Trace: a file, or a pattern or folder that holds one
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Addresses in hexadecimal
    #[arg(value_name = "ADDRESS", required = true, value_parser = address)]
    addresses: Vec<u64>,
    /// The moment: since the trace's start (1.5s, 250ms), by the clock (03:14:05Z), or with a date
    /// [default: every time]
    #[arg(long, value_name = "TIME", value_parser = times::parse)]
    at: Option<TimeArg>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    symbols: SymbolArgs,
    #[command(flatten)]
    tables: TablesArgs,
    #[command(flatten)]
    tz: TzArgs,
}

fn address(text: &str) -> Result<u64, Usage> {
    let digits = text.strip_prefix("0x").or(text.strip_prefix("0X")).unwrap_or(text);
    u64::from_str_radix(digits, 16)
        .map_err(|_| Usage(format!("{text:?} is no address: give up to 16 hexadecimal digits")))
}

/// Runs the command.
pub(super) fn at(args: &AtArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    let path = inputs::trace(&args.file)?;
    guarded(&path, || of_trace(args, &path, out))
}

fn of_trace(args: &AtArgs, path: &Path, out: Out<'_>) -> anyhow::Result<Exit> {
    let file = args.tables.open(path)?;
    let mut trace = file.read()?;
    args.tables.give(&mut trace);
    let report = |what: &str| warn(&format!("{}: {what}", trace.source));
    trace.damage.iter().for_each(|damage| report(damage));
    let moment = args.at.map(|at| moment_of(at, args.tz.tz, &trace));
    if let Some((_, Some(beside))) = &moment {
        warn(beside);
    }
    let sources = TraceSources::of(&trace, args.symbols.store(path), args.symbols.demangle);
    let time = moment.map(|(time, _)| time);
    let (text, unnamed) = text(&sources.names(), &args.addresses, time, args.json)?;
    out(&text)?;
    note_redirects(sources.symbolizer.store());
    sources.methods.problems.iter().for_each(|problem| report(problem));
    if unnamed > 0 {
        report(&beyond_memory(unnamed, "names", &trace.budget));
    }
    Ok(if trace.lost_blocks || unnamed > 0 { Exit::Damaged } else { Exit::Ok })
}
