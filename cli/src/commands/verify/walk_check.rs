//! `stk verify --walks`: compares our walks with those of the system's own unwinder.

use crate::commands::{Exit, Out, Progress, TablesArgs, each_trace};
use std::path::{Path, PathBuf};
use stk_output::traces::Traces;
use stk_output::walk_check::{WalksJson, text};
use stk_profile::image::{ImageSearch, load_images};
use stk_profile::walk_check::compare;

/// Compares the walks of all traces and prints the result.
pub(super) fn run(
    files: &[PathBuf],
    tables: &TablesArgs,
    json: bool,
    pool: &rayon::ThreadPool,
    progress: &Progress,
    out: Out<'_>,
) -> anyhow::Result<Exit> {
    let mut document = Traces::new(1);
    let exit = each_trace(files, out, |path| {
        let (shown, verdict) = pool.install(|| one(path, tables, progress))?;
        Ok((if json { document.next(&shown)? } else { text(&shown) }, verdict))
    })?;
    if json {
        out(&document.end())?;
    }
    Ok(exit)
}

fn one(path: &Path, tables: &TablesArgs, progress: &Progress) -> anyhow::Result<(WalksJson, Exit)> {
    let file = tables.open(path)?;
    let mut trace = file.read()?;
    tables.give(&mut trace);
    progress.add_total(trace.sample_blocks().count() as u64);
    let images = load_images(&trace, &ImageSearch::NOWHERE);
    let found = compare(&trace, &images, progress.done());
    if found.walks == 0 && found.explicit.samples == 0 {
        anyhow::bail!(
            "{}: holds no walks of the system's unwinder, nor explicit Frames of .NET: record with inject --check-walks",
            trace.source
        );
    }
    let exit = if trace.lost_blocks || !found.damage.is_empty() {
        Exit::Damaged
    } else if found.unexplained() > 0 || found.explicit.unexplained() > 0 {
        Exit::Difference
    } else {
        Exit::Ok
    };
    Ok((WalksJson::new(&trace, &found), exit))
}
