//! `stk man`: manual pages, from the description of the command line.

use super::{Exit, Out, replace};
use anyhow::Context;
use std::path::{Path, PathBuf};
use stk_base::files::Below;
use stk_output::formats::{Compression, Sink};

/// Writes a page for stk and for each of its commands. Without DIR, prints the page of stk.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk man ~/.local/share/man/man1
  stk man | man -l -")]
pub(super) struct ManArgs {
    /// Folder for the pages: stk.1, stk-stats.1 …; it is made if need be
    #[arg(value_name = "DIR")]
    folder: Option<PathBuf>,
}

/// Runs the command. `program` describes the command line.
pub(super) fn run(args: &ManArgs, program: clap::Command, out: Out<'_>) -> anyhow::Result<Exit> {
    match &args.folder {
        Some(folder) => write(folder, program)?,
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(program.disable_help_subcommand(true)).render(&mut page)?;
            out(&String::from_utf8_lossy(&page))?;
        }
    }
    Ok(Exit::Ok)
}

fn write(folder: &Path, program: clap::Command) -> anyhow::Result<()> {
    replace::check(folder)?;
    let out = Below::make(folder).with_context(|| folder.display().to_string())?;
    let mut program = program.disable_help_subcommand(true);
    program.build();
    write_pages(&out, program)
}

/// Writes the pages of a command and of those below it.
fn write_pages(out: &Below, command: clap::Command) -> anyhow::Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()).cloned() {
        write_pages(out, command)?;
    }
    let page = clap_mangen::Man::new(command);
    let mut sink = Sink::below(out.join(page.get_filename()), Compression::None)?;
    page.render(&mut sink)?;
    sink.finish()?;
    Ok(())
}
