//! Regular expressions for names, and what they say of a frame.

use crate::profile::Category;
use regex::{Regex, RegexBuilder};
use std::str::FromStr;
use stk_base::model::is_thread_start;

/// A regular expression that does not compile, in a sentence.
#[derive(Clone, Debug, thiserror::Error)]
#[error("is not a regular expression: {0}")]
pub struct PatternError(String);

/// Bytes that a compiled pattern may take. How long a name takes grows with them, and names are of
/// others.
const MOST_BYTES: usize = 256 << 10;
/// Bytes in which a pattern keeps what it has found out on the way.
const MOST_KNOWN: usize = 16 << 20;

fn compile(text: &str, ignore_case: bool) -> Result<Regex, PatternError> {
    RegexBuilder::new(text)
        .case_insensitive(ignore_case)
        .size_limit(MOST_BYTES)
        .dfa_size_limit(MOST_KNOWN)
        .build()
        .map_err(|error| {
            // A syntax error has the pattern with a caret in its first lines, and its cause in the
            // last.
            let text = error.to_string();
            let cause = text.lines().last().unwrap_or_default().trim();
            PatternError(cause.strip_prefix("error: ").unwrap_or(cause).to_owned())
        })
}

/// A pattern for names of modules and threads, whose case does not matter.
#[derive(Clone, Debug)]
pub struct NamePattern(Regex);

impl NamePattern {
    pub fn is_match(&self, name: &str) -> bool {
        self.0.is_match(name)
    }

    /// The pattern as it was given.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for NamePattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<NamePattern, PatternError> {
        compile(text, true).map(NamePattern)
    }
}

/// A pattern for functions. One with `!` is also looked for in `module!function`, the module with
/// and without its extension, as it is written and in lower case.
#[derive(Clone, Debug)]
pub struct FunctionPattern {
    regex: Regex,
    with_module: bool,
}

impl FunctionPattern {
    /// The pattern as it was given.
    pub fn as_str(&self) -> &str {
        self.regex.as_str()
    }

    /// Whether it fits the name of a frame.
    pub fn is_match(&self, name: &FrameName<'_>) -> bool {
        self.regex.is_match(name.function) || self.with_module && self.is_match_in_module(name)
    }

    fn is_match_in_module(&self, name: &FrameName<'_>) -> bool {
        let function = match name.has_module {
            true => name.function.split_once('!').map(|(_, function)| function),
            false => Some(name.function),
        };
        let Some(function) = function.filter(|_| !name.module.is_empty()) else { return false };
        let lower = name.module.to_lowercase();
        let stem = |module: &str| module.rsplit_once('.').map_or(module, |(stem, _)| stem).to_owned();
        let modules = [name.module.to_owned(), stem(name.module), stem(&lower), lower];
        modules.iter().any(|module| self.regex.is_match(&format!("{module}!{function}")))
    }
}

impl FromStr for FunctionPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<FunctionPattern, PatternError> {
        let regex = compile(text, false)?;
        Ok(FunctionPattern { regex, with_module: text.contains('!') })
    }
}

/// A name of a frame: the function itself, or one inlined into it.
#[derive(Clone, Copy, Debug)]
pub struct FrameName<'a> {
    /// As outputs show it.
    pub function: &'a str,
    /// Whether that begins with the module: `app.exe!fn_1040`.
    pub has_module: bool,
    /// File name of the module; empty if it is in none.
    pub module: &'a str,
    pub category: Category,
}

bitflags::bitflags! {
    /// What the patterns say of a frame, or of the frames of a stack together.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Marks: u8 {
        /// In one of the modules asked for.
        const MODULE = 1;
        /// One of the functions asked for.
        const FUNCTION = 2;
        /// To focus on.
        const FOCUS = 4;
        /// Its samples are ignored.
        const IGNORE = 8;
        /// Where stacks begin.
        const ROOT = 16;
        /// Left out of stacks.
        const HIDE = 32;
        /// One of the system's functions that threads begin in.
        const START = 64;
    }
}

/// Patterns that choose samples by their frames, and frames. In each list, one match is enough.
#[derive(Clone, Default, Debug)]
pub struct FramePatterns {
    /// Samples with a frame in such a module; empty = all.
    pub modules: Vec<NamePattern>,
    /// Samples with such a frame; empty = all.
    pub functions: Vec<FunctionPattern>,
    /// The same, beside `functions`.
    pub focus: Vec<FunctionPattern>,
    /// Samples without such a frame.
    pub ignore: Vec<FunctionPattern>,
    /// Stacks begin at the outermost such frame. Samples without one are left out.
    pub root: Vec<FunctionPattern>,
    /// Such frames are left out of stacks.
    pub hide: Vec<FunctionPattern>,
    /// Frames of the system and of language runtimes are left out.
    pub my_code: bool,
    /// The system's functions that threads begin in are left out at the root.
    pub skip_thread_start: bool,
}

impl FramePatterns {
    /// Whether they choose among samples.
    pub fn pick_samples(&self) -> bool {
        !self.modules.is_empty()
            || [&self.functions, &self.focus, &self.ignore, &self.root].iter().any(|list| !list.is_empty())
    }

    /// Whether they leave frames out of stacks.
    pub fn leave_out_frames(&self) -> bool {
        !self.hide.is_empty() || !self.root.is_empty() || self.my_code || self.skip_thread_start
    }

    /// What they say of a frame with this name.
    pub fn marks(&self, name: &FrameName<'_>) -> Marks {
        let mut marks = Marks::empty();
        marks.set(Marks::MODULE, self.modules.iter().any(|pattern| pattern.is_match(name.module)));
        for (mark, list) in [
            (Marks::FUNCTION, &self.functions),
            (Marks::FOCUS, &self.focus),
            (Marks::IGNORE, &self.ignore),
            (Marks::ROOT, &self.root),
            (Marks::HIDE, &self.hide),
        ] {
            marks.set(mark, list.iter().any(|pattern| pattern.is_match(name)));
        }
        if self.my_code && name.category.is_of_others() {
            marks |= Marks::HIDE;
        }
        let is_start = name.category == Category::System && is_thread_start(name.function);
        marks.set(Marks::START, self.skip_thread_start && is_start);
        marks
    }

    /// Whether each list takes a stack whose frames have these marks together: modules, functions,
    /// focus, ignore, root.
    pub fn fits(&self, stack: Marks) -> [bool; 5] {
        [
            self.modules.is_empty() || stack.contains(Marks::MODULE),
            self.functions.is_empty() || stack.contains(Marks::FUNCTION),
            self.focus.is_empty() || stack.contains(Marks::FOCUS),
            !stack.contains(Marks::IGNORE),
            self.root.is_empty() || stack.contains(Marks::ROOT),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name<'a>(module: &'a str, function: &'a str) -> FrameName<'a> {
        FrameName { function, has_module: false, module, category: Category::User }
    }

    fn is_match(pattern: &str, name: FrameName<'_>) -> bool {
        pattern.parse::<FunctionPattern>().unwrap().is_match(&name)
    }

    #[test]
    fn functions_match_by_their_case_and_modules_without_it() {
        assert!(is_match("work", name("app.exe", "do_work")));
        assert!(!is_match("Work", name("app.exe", "do_work")));
        assert!(is_match("(?i)Work", name("app.exe", "do_work")));
        assert!("NTDLL".parse::<NamePattern>().unwrap().is_match("ntdll.dll"));
    }

    #[test]
    fn only_a_pattern_with_an_exclamation_mark_sees_the_module() {
        let function = name("KERNEL32.DLL", "WaitForSingleObject");
        for pattern in ["KERNEL32!Wait", "KERNEL32.DLL!Wait", "^kernel32!Wait.*Object$", "^kernel32.dll!W"] {
            assert!(is_match(pattern, function), "{pattern}");
        }
        for pattern in ["KERNEL32", "^kernel!", "user32!Wait", "!Sleep"] {
            assert!(!is_match(pattern, function), "{pattern}");
        }
        assert!(is_match("user32!Get|kernel32!Wait", function), "each alternative has a module of its own");
    }

    #[test]
    fn a_name_that_begins_with_its_module_has_it_once() {
        let named = FrameName { has_module: true, ..name("app.exe", "app.exe!fn_1040") };
        for pattern in ["^app.exe!fn_1040$", "^app!fn_1040$", "fn_1040"] {
            assert!(is_match(pattern, named), "{pattern}");
        }
        assert!(!is_match("app.exe!app.exe", named));
        let offset = FrameName { has_module: true, ..name("app.exe", "app.exe+0x12") };
        assert!(!is_match("app.exe!", offset));
    }

    #[test]
    fn a_wrong_pattern_is_reported_in_one_line() {
        let wrong = "a(b".parse::<FunctionPattern>().unwrap_err().to_string();
        assert_eq!(wrong, "is not a regular expression: unclosed group");
        // The second one took 19 s on 1,500 long names.
        for large in [r"(\w{1000}){1000}", "(a{1,200}){1,200}b"] {
            let large = large.parse::<NamePattern>().unwrap_err().to_string();
            assert!(large.starts_with("is not a regular expression: ") && !large.contains('\n'), "{large}");
        }
    }
}
