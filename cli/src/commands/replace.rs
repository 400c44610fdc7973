//! Which outputs that are there already are replaced. Every output of every command comes here
//! before anything is done for it.

use anyhow::bail;
use std::path::Path;
use stk_base::files::{MayReplace, check_output};
use stk_output::formats::{SourceMark, source_mark};

/// What was done with an output that stk had made of the same recording.
pub(super) const REPLACED: &str = "replaced stk's own output";

/// Refuses an output that is an input or a trace, whatever `--force` says.
pub(super) fn check(output: &Path) -> anyhow::Result<()> {
    Ok(check_output(output, MayReplace::NoTrace)?)
}

/// Whether an output is replaced that is stk's own by what `ours` finds in it. Another file is
/// replaced if the user says so (`force`), or if it is empty. `what_else`: what another file is
/// not, for the error.
///
/// # Errors
///
/// When another file is there; a usage error as of [`check`].
pub(super) fn replaces_own(
    (output, may): (&Path, MayReplace),
    force: bool,
    what_else: &str,
    ours: impl FnOnce(&Path) -> bool,
) -> anyhow::Result<bool> {
    check_output(output, may)?;
    // Devices and pipes are written to, not replaced. A folder is refused later.
    let Ok(found) = std::fs::metadata(output) else { return Ok(false) };
    if !found.is_file() || found.len() == 0 {
        return Ok(false);
    }
    if ours(output) {
        return Ok(true);
    }
    if force {
        return Ok(false);
    }
    bail!("{}: is there already{what_else}: --force replaces it", output.display())
}

/// Whether the file at `path` says that it was made of what `ours` knows.
pub(super) fn is_made_of(path: &Path, ours: impl FnOnce(&SourceMark) -> bool) -> bool {
    source_mark(path).ok().flatten().is_some_and(|mark| ours(&mark))
}
