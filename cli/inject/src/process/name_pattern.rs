//! Names of programs as `--name` and `--wait-for` take them: a file name, or a regular expression.

use crate::record::pattern::program_name;
use regex::{Regex, RegexBuilder};

/// A name of programs, or a pattern of such names. Upper and lower case are the same.
#[derive(Debug)]
pub(crate) enum NamePattern {
    /// A file name without `.exe`, in lower case.
    Plain(String),
    /// A regular expression that the whole file name, with or without `.exe`, must fit.
    Regex(Regex),
}

impl NamePattern {
    /// Reads a pattern. A text without any of `*?+|()[]` is a plain name.
    ///
    /// # Errors
    /// What is wrong with the regular expression.
    pub(crate) fn new(text: &str) -> Result<NamePattern, String> {
        if !text.contains(['*', '?', '+', '|', '(', ')', '[', ']']) {
            return Ok(NamePattern::Plain(program_name(text).to_lowercase()));
        }
        let whole = format!("^(?:{text})$");
        let regex = RegexBuilder::new(&whole).case_insensitive(true).build();
        regex.map(NamePattern::Regex).map_err(|error| format!("it is no regular expression: {error}"))
    }

    /// Whether several processes may be meant.
    pub(crate) fn is_regex(&self) -> bool {
        matches!(self, NamePattern::Regex(_))
    }

    /// Whether a program's file name fits.
    pub(crate) fn fits(&self, name: &str) -> bool {
        match self {
            NamePattern::Plain(wanted) => program_name(name).to_lowercase() == *wanted,
            NamePattern::Regex(regex) => regex.is_match(name) || regex.is_match(program_name(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_fits_with_or_without_exe_in_any_case() {
        let plain = NamePattern::new("Größe.exe").unwrap();
        assert!(!plain.is_regex());
        assert!(plain.fits("größe.EXE") && plain.fits("größe") && !plain.fits("größe2.exe"));
        // A dot alone makes no regular expression of a file name.
        assert!(!NamePattern::new("a.exe").unwrap().fits("abexe"));
    }

    #[test]
    fn a_regular_expression_must_fit_the_whole_name() {
        let regex = NamePattern::new("work(er)?[0-9]*").unwrap();
        assert!(regex.is_regex());
        for (name, fits) in
            [("worker12.exe", true), ("WORK.exe", true), ("coworker.exe", false), ("works.exe", false)]
        {
            assert_eq!(regex.fits(name), fits, "{name}");
        }
        assert!(NamePattern::new(r".*\.exe").unwrap().fits("a.exe"));
        assert!(NamePattern::new("a(").is_err());
    }
}
