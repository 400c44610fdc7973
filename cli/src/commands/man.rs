//! `stk man`: manual pages, from the description of the command line.

use super::{Exit, Out};
use anyhow::Context;
use std::path::{Path, PathBuf};

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
///
/// # Errors
///
/// That a page cannot be written.
pub(super) fn run(args: &ManArgs, program: clap::Command, out: Out<'_>) -> anyhow::Result<Exit> {
    match &args.folder {
        Some(folder) => write(folder, program).with_context(|| folder.display().to_string())?,
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(program.disable_help_subcommand(true)).render(&mut page)?;
            out(&String::from_utf8_lossy(&page))?;
        }
    }
    Ok(Exit::Ok)
}

fn write(folder: &Path, program: clap::Command) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(program, folder)
}
