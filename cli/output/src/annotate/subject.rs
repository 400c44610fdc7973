//! What is annotated: functions, or all functions of a source file.

use crate::stats::names_module;
use std::collections::BTreeMap;
use stk_profile::profile::FrameName;
use stk_profile::profile::{
    Category, Function, FunctionId, FunctionPattern, Functions, PatternError, Profile,
};

/// A function, or a file with its functions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CodeSubject {
    pub function: Option<String>,
    pub module: String,
    pub file: Option<String>,
    /// No other part of the list has one of these.
    pub functions: Vec<FunctionId>,
}

/// The lists of parts that a text names: files whose paths end in it; else functions of exactly
/// that name; else functions that it matches as a regular expression. For instructions, the
/// functions of files are a second list.
pub(super) fn parts(
    profile: &Profile,
    functions: &Functions,
    what: &str,
    by_function: bool,
) -> Result<Vec<Vec<CodeSubject>>, PatternError> {
    let files = files(profile, functions, what);
    if !files.is_empty() {
        let of_files = || files.values().flatten().map(|id| part(functions, *id)).collect();
        let of_file = |(file, functions): (&&str, &Vec<FunctionId>)| CodeSubject {
            function: None,
            module: String::new(),
            file: Some((*file).to_owned()),
            functions: functions.clone(),
        };
        let whole: Vec<CodeSubject> = files.iter().map(of_file).collect();
        return Ok(if by_function { vec![whole, of_files()] } else { vec![whole] });
    }
    let list = || (0..).map(FunctionId).zip(functions.list());
    let is_named = |function: &Function| function.name == what || function.name_in_module == what;
    let exact: Vec<CodeSubject> =
        list().filter(|(_, function)| is_named(function)).map(|(id, _)| part(functions, id)).collect();
    if !exact.is_empty() {
        return Ok(vec![exact]);
    }
    let pattern: FunctionPattern = what.parse()?;
    let is_chosen = |function: &Function| {
        pattern.is_match(&FrameName {
            function: &function.name_in_module,
            has_module: names_module(&function.name_in_module, &function.module),
            module: &function.module,
            // Patterns of functions do not look at whose code it is.
            category: Category::Unknown,
        })
    };
    Ok(vec![list().filter(|(_, function)| is_chosen(function)).map(|(id, _)| part(functions, id)).collect()])
}

fn part(functions: &Functions, id: FunctionId) -> CodeSubject {
    let Function { name_in_module, module, file, .. } = &functions.list()[id.0 as usize];
    // Without a source file, the module is its file.
    let file = file.clone().filter(|file| file != module);
    CodeSubject { function: Some(name_in_module.clone()), module: module.clone(), file, functions: vec![id] }
}

/// The source files whose paths end in a text, each with its functions.
fn files<'a>(profile: &Profile, functions: &'a Functions, what: &str) -> BTreeMap<&'a str, Vec<FunctionId>> {
    let mut found: BTreeMap<&str, Vec<FunctionId>> = BTreeMap::new();
    for (id, function) in (0..).map(FunctionId).zip(functions.list()) {
        // A module stands for the file of a function without one.
        let file = function.file.as_deref().filter(|file| *file != function.module);
        if let Some(file) = file.filter(|file| profile.symbols.strings.holds(file) && ends_in(file, what)) {
            found.entry(file).or_default().push(id);
        }
    }
    found
}

/// Whether the last names of a path are those of another one, whatever their case and separators.
fn ends_in(path: &str, end: &str) -> bool {
    let is_separator = |c| c == '/' || c == '\\';
    let mut names = path.rsplit(is_separator);
    let mut ends = end.rsplit(is_separator).filter(|name| !name.is_empty()).peekable();
    ends.peek().is_some() && ends.all(|end| names.next().is_some_and(|name| name.eq_ignore_ascii_case(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_by_their_last_names() {
        let path = r"C:\src\busy/leaf_loops.cpp";
        for end in ["leaf_loops.cpp", "LEAF_LOOPS.CPP", r"busy\leaf_loops.cpp", "c:/src/busy/leaf_loops.cpp"]
        {
            assert!(ends_in(path, end), "{end}");
        }
        for end in ["", "/", "loops.cpp", "src/leaf_loops.cpp", "D:/src/busy/leaf_loops.cpp"] {
            assert!(!ends_in(path, end), "{end}");
        }
    }
}
