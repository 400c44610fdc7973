//! Which outputs that are there already are replaced.

use crate::output::{SourceMark, source_mark};
use anyhow::bail;
use std::fmt::Display;
use std::path::Path;

/// What was done with an output that stk had made of the same recording.
pub(super) const REPLACED: &str = "replaced stk's own output";

/// Whether an output is replaced that stk made of the same recording: `ours` knows that by its
/// mark. Another file is replaced if the user says so (`force`), or if it is empty. `traces`: what
/// the output is made of, for the error. `untold`: the format, if its files do not tell their
/// source.
///
/// # Errors
///
/// When another file is there.
pub(super) fn replaces_own(
    output: &Path,
    traces: &dyn Display,
    force: bool,
    untold: Option<&str>,
    ours: impl FnOnce(&SourceMark) -> bool,
) -> anyhow::Result<bool> {
    // Devices and pipes are written to, not replaced. A folder is refused later.
    let Ok(found) = std::fs::metadata(output) else { return Ok(false) };
    if !found.is_file() || found.len() == 0 {
        return Ok(false);
    }
    if source_mark(output).ok().flatten().is_some_and(|mark| ours(&mark)) {
        return Ok(true);
    }
    if force {
        return Ok(false);
    }
    let output = output.display();
    match untold {
        None => {
            bail!("{output}: is there already and is not stk's output of {traces}: --force replaces it")
        }
        Some(format) => bail!(
            "{output}: is there already, and {format} files do not tell their source: --force replaces it"
        ),
    }
}
