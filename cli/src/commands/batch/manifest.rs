//! Files that list traces, one path a line.

use anyhow::Context;
use std::path::{Path, PathBuf};
use stk_base::files::read_input;

/// Ends of the names of files that list traces.
const ENDINGS: [&str; 2] = ["txt", "lst"];

/// Bytes of the largest list that is read.
const LARGEST: u64 = 256 << 20;

/// The arguments, with those that are lists replaced by what they list.
///
/// # Errors
///
/// When a list cannot be read.
pub(super) fn expanded(named: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for path in named {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if path.is_file() && ENDINGS.contains(&ending) {
            let text = read_input(path, LARGEST).with_context(|| path.display().to_string())?;
            let text = String::from_utf8(text).with_context(|| path.display().to_string())?;
            paths.extend(listed(&text, path.parent().unwrap_or(Path::new(""))));
        } else {
            paths.push(path.clone());
        }
    }
    Ok(paths)
}

/// The paths in a list: one a line, relative to the list's folder. Empty lines, and those that
/// begin with #, are none.
fn listed<'t>(text: &'t str, folder: &'t Path) -> impl Iterator<Item = PathBuf> + 't {
    let lines = text.lines().map(|line| line.trim_end_matches('\r'));
    lines.filter(|line| !line.trim().is_empty() && !line.starts_with('#')).map(|line| folder.join(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_traces_relative_to_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let list = folder.path().join("night.txt");
        std::fs::write(&list, "# of Monday\na.stk\r\n\nsub/b c.stk\n/abs/d.stk\n").unwrap();
        let paths = expanded(&[list, PathBuf::from("e.stk"), PathBuf::from("none.txt")]).unwrap();
        let at = |name: &str| folder.path().join(name);
        let expected =
            [at("a.stk"), at("sub/b c.stk"), "/abs/d.stk".into(), "e.stk".into(), "none.txt".into()];
        assert_eq!(paths, expected);
    }
}
