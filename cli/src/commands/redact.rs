//! `stk redact`: copies a trace without the program's data on its stacks.

use super::replace::replaces_own;
use super::values::{Choice, choice};
use super::{Exit, inputs, note, warn};
use anyhow::Context;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use stk_base::files::{MayReplace, is_trace};
use stk_base::map::MappedFile;
use stk_base::text::{count, counted, size};
use stk_output::formats;
use stk_profile::redact::{self, RedactReport, Redactor, Secret};
use stk_profile::trace::TraceFile;

impl Choice for Secret {
    fn choices() -> Vec<(Self, &'static str, &'static str)> {
        let help = |secret: &Secret| match secret {
            Secret::CommandLine => "the command lines of the program and of inject",
            Secret::Host => "the name of the machine",
            Secret::User => r"names of users in paths: C:\Users\NAME becomes C:\Users\user",
        };
        Secret::ALL.iter().map(|secret| (*secret, secret.name(), help(secret))).collect()
    }
}

/// Copies a trace so that its stacks hold no data of the program: every word of a stack, and every
/// register, that is no address becomes zero. Addresses are those of modules, of code made at run
/// time, of stacks and of .NET's methods, as far as the trace knows them. The stacks are walked and
/// named as before.
///
/// What stays, beside names and times: a value that happens to be such an address (of the 47 bits
/// of one, few are), zeros, words of ones, code bytes, thread names, marks and tags; and where .NET
/// describes its Frames, numbers below 64. Exit code 4: the trace is damaged, and the copy has what
/// could be read.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk redact app.stk -o shared.stk
  stk redact app.stk -o shared.stk --drop command-line,host,user
  stk info shared.stk                     says that it is redacted, and by which rules")]
pub(super) struct RedactArgs {
    /// The trace
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The copy
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Drop these too, separated by commas
    #[arg(long, value_parser = choice::<Secret>(), value_name = "WHAT", value_delimiter = ',')]
    drop: Vec<Secret>,
    /// Replace the file OUT if it is there: of traces, only another copy that stk redact made
    #[arg(short, long)]
    force: bool,
}

/// Runs the command.
pub(super) fn run(args: &RedactArgs) -> anyhow::Result<Exit> {
    let path = inputs::trace(&args.file)?;
    let output = &args.output;
    let shown = output.display();
    let may = may_replace(output);
    replaces_own((output, may), args.force, "", |_| false)?;
    let file = TraceFile::open(&path)?;
    let trace = file.read()?;
    let dropped = args.drop.iter().copied().collect();
    let mut redactor = Redactor::new(&trace, &dropped);
    let goal = formats::named_file(output)?;
    let copy = formats::temporary(&goal.parent());
    let mut copy = copy.with_context(|| format!("{shown}: cannot be made"))?;
    let mut buffered = BufWriter::with_capacity(1 << 20, &mut copy);
    let failed = || path.display().to_string();
    let mut report =
        redactor.copy(file.content()?.digest, &mut |bytes| buffered.write_all(bytes)).with_context(failed)?;
    buffered.flush().with_context(|| format!("{shown}: cannot be written"))?;
    drop(buffered);
    let copied = MappedFile::from_file(copy.as_file().try_clone()?)?;
    let copied = TraceFile::of_map(output, copied);
    match redactor.supplement(copied.bytes()) {
        Ok(bytes) => copy.write_all(&bytes).with_context(|| format!("{shown}: cannot be written"))?,
        Err(error) => report.left_out.push(error.to_string()),
    }
    drop(copied);
    let copy = copy.persist(&goal, may).with_context(|| format!("{shown}: cannot be replaced"))?;
    let after = copy.metadata().map_or(0, |found| found.len());
    Ok(print_report(&report, trace.damage.is_empty(), (file.len(), after), output))
}

/// Of traces, only a copy that stk redact made is replaced.
fn may_replace(output: &Path) -> MayReplace {
    let is_copy = || {
        let file = TraceFile::of_map(output, MappedFile::look_at(output).ok()?);
        Some(redact::is_copy(&file.read().ok()?))
    };
    match is_trace(output) && is_copy() == Some(true) {
        true => MayReplace::RedactedTrace,
        false => MayReplace::NoTrace,
    }
}

/// Says what was done.
fn print_report(report: &RedactReport, whole: bool, (before, after): (u64, u64), output: &Path) -> Exit {
    for sentence in &report.left_out {
        warn(&format!("left out: {sentence}"));
    }
    if report.unknown_events > 0 {
        warn(&format!("left out: {} of unknown types", counted(report.unknown_events, "event")));
    }
    let (words, kept) = (counted(report.words, "word"), count(report.kept));
    let texts =
        if report.texts > 0 { format!(", {} dropped", counted(report.texts, "text")) } else { String::new() };
    note(&format!(
        "{}: {words} zeroed, {kept} addresses kept{texts}; {} instead of {}",
        output.display(),
        size(after),
        size(before)
    ));
    if whole && report.left_out.is_empty() { Exit::Ok } else { Exit::Damaged }
}
