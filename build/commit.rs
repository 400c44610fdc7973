// The commit of a build, for build scripts: what `--version` shows. A script runs again where the
// sources changed, so no build is repeated for a commit alone, and the text is always true: a
// program that was built before its commit shows the commit below and "with changes".

use std::path::Path;
use std::process::Command;

/// Sets STK_BUILD_COMMIT for the compiler: what STK_COMMIT says, or else git.
///
/// `sources`: what the program is built from, below the repository's folder `root`.
pub(crate) fn emit(root: &Path, sources: &[&str]) {
    println!("cargo::rerun-if-env-changed=STK_COMMIT");
    // A path that does not exist would have the script run at each call of cargo.
    for path in sources.iter().map(|source| root.join(source)).filter(|path| path.exists()) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    let given = std::env::var("STK_COMMIT").ok().filter(|text| !text.is_empty());
    let commit = given.unwrap_or_else(|| described(root, sources));
    println!("cargo::rustc-env=STK_BUILD_COMMIT={commit}");
}

/// Ten digits of the commit, "with changes" where `sources` differ from it, and its date;
/// "unknown commit" where `root` is no checkout of git's.
pub(crate) fn described(root: &Path, sources: &[&str]) -> String {
    from_git(root, sources).unwrap_or_else(|| "unknown commit".to_owned())
}

fn from_git(root: &Path, sources: &[&str]) -> Option<String> {
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").arg("--no-optional-locks").args(arguments).current_dir(root).output();
        let output = output.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    // Not the commit of a repository that the sources were copied into.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    if std::fs::canonicalize(top).ok()? != std::fs::canonicalize(root).ok()? {
        return None;
    }
    // Not %h: how many digits it has differs from clone to clone.
    let commit = git(&["log", "-1", "--format=%H"])?;
    let date = git(&["log", "-1", "--format=%cs"])?;
    let changed = !git(&[&["status", "--porcelain", "--"], sources].concat())?.is_empty();
    Some(format!("{}{}, {date}", commit.get(..10)?, if changed { " with changes" } else { "" }))
}
