//! Moves a whole trace to where it belongs: copied under another name, read back, compared,
//! renamed; only then is the local file deleted.

use crate::failure::Failure;
use crate::file_identity::FileIdentity;
use crate::record::delivery::{self, Digest, Route};
use crate::windows::output::{self, IfThere, Output};
use crate::windows::supplement;
use crate::windows::system;
use std::fs::File;
use std::io::{self, Seek as _};
use std::path::{Path, PathBuf};

/// The route of a trace that the user wants at `wanted`.
///
/// # Errors
/// A sentence for the user: there is a file at its goal and there is no `force`, or
/// the folder is none.
pub(crate) fn route(wanted: PathBuf, move_to: Option<&Path>, force: bool) -> Result<Route, Failure> {
    check_folder(move_to)?;
    let route = local_route(wanted, move_to)?;
    if let Some(goal) = route.goal.as_deref().filter(|goal| !force && goal.symlink_metadata().is_ok()) {
        return Err(Failure::failed(output::exists(goal)));
    }
    Ok(route)
}

/// The same without a look at where the trace is moved to, which may be a share that does not
/// answer.
///
/// # Errors
/// A sentence for the user, when a path is none.
pub(crate) fn local_route(wanted: PathBuf, move_to: Option<&Path>) -> Result<Route, Failure> {
    let fail = |error: io::Error| Failure::failed(format!("{}: {error}", wanted.display()));
    let remote = system::is_remote(&std::path::absolute(&wanted).map_err(fail)?);
    let move_to = move_to.map(std::path::absolute).transpose().map_err(fail)?;
    Ok(Route::new(wanted, remote, move_to.as_deref(), &std::env::temp_dir(), &unique()))
}

/// Checks that the folder of `--move-to` is there.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn check_folder(move_to: Option<&Path>) -> Result<(), Failure> {
    match move_to.filter(|folder| !folder.is_dir()) {
        Some(folder) => {
            Err(Failure::failed(format!("--move-to {}: there is no such folder", folder.display())))
        }
        None => Ok(()),
    }
}

/// Moves the trace.
///
/// # Errors
/// A sentence for the user that says where the trace is.
pub(crate) fn run(local: &Path, identity: FileIdentity, goal: &Path, force: bool) -> Result<(), Failure> {
    try_move(local, identity, goal, force).map_err(|error| {
        Failure::failed(format!(
            "the trace could not be moved to {}: {error}; it is kept at {}",
            goal.display(),
            local.display()
        ))
    })
}

fn try_move(local: &Path, identity: FileIdentity, goal: &Path, force: bool) -> io::Result<()> {
    let mut file = supplement::open_trace(local)?;
    if output::identity(&file).differs_from(identity) {
        return Err(io::Error::other("another file has taken its place"));
    }
    file.rewind()?;
    let name = goal.file_name().unwrap_or_default().to_string_lossy();
    let part = goal.with_file_name(format!("{name}.{}.part", unique()));
    let output =
        Output::open(&part, IfThere::Refuse).map_err(|failure| io::Error::other(failure.to_string()))?;
    let digest = output.copy_from(&mut file)?;
    let placed = read_back(&part, digest).and_then(|()| place(&part, goal, force));
    if let Err(error) = placed {
        // The copy is not wanted. The original stays.
        let _ = system::delete(&part);
        return Err(error);
    }
    drop(file);
    system::delete(local).or_else(|error| {
        crate::messages::say(&format!("the local file {} could not be deleted: {error}", local.display()));
        Ok(())
    })
}

/// Gives the copy its name. `force`: a trace of that name gets another, any other file is replaced.
fn place(part: &Path, goal: &Path, force: bool) -> io::Result<()> {
    if !force || !output::may_be_trace(goal) {
        return system::rename(part, goal, force);
    }
    let old = output::set_aside(goal)?;
    let placed = system::rename_new(part, goal);
    if placed.is_ok() {
        output::say_set_aside(&old);
    } else {
        // If this fails, the trace remains under its other name.
        let _ = system::rename_new(&old, goal);
    }
    placed
}

/// Compares a copy with what was copied.
fn read_back(part: &Path, wanted: Digest) -> io::Result<()> {
    let copied = delivery::copy(&mut File::open(part)?, &mut io::sink())?;
    if copied != wanted {
        let text = format!("the copy differs ({} of {} bytes)", copied.len, wanted.len);
        return Err(io::Error::other(text));
    }
    Ok(())
}

/// Part of a name that no other file has.
fn unique() -> String {
    stk_schema::text::hex(&crate::uuid::random()[..4])
}
