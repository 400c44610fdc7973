//! Names for traces that give way to new ones of their name (`--force`).

use std::path::{Path, PathBuf};

/// Most names that are tried.
const MOST: u32 = 10_000;

/// The names for the trace at `path`, in the order in which they are tried: `a.stk.old`,
/// `a.stk.old.2`, `a.stk.old.3` …
pub(crate) fn of(path: &Path) -> impl Iterator<Item = PathBuf> {
    let name = path.file_name().unwrap_or_default().to_owned();
    let path = path.to_owned();
    (1..=MOST).map(move |number| {
        let mut old = name.clone();
        old.push(".old");
        if number > 1 {
            old.push(format!(".{number}"));
        }
        path.with_file_name(old)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_traces_are_numbered_from_the_second_on() {
        let names: Vec<PathBuf> = of(Path::new("x/a.stk")).take(3).collect();
        let expected = ["x/a.stk.old", "x/a.stk.old.2", "x/a.stk.old.3"].map(PathBuf::from);
        assert_eq!(names, expected);
        assert_eq!(of(Path::new("trace")).next(), Some(PathBuf::from("trace.old")));
        assert_eq!(of(Path::new("a")).count(), 10_000);
    }
}
