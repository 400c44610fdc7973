//! Output file names with placeholders: `%n` (program name), `%p` (pid), `%h` (host),
//! `%t` (local time), `%%`.

use std::ffi::{OsStr, OsString};
use stk_schema::text::file_name;
use thiserror::Error;

/// The default of `-o`, in the current folder of inject.
pub(crate) const DEFAULT: &str = "%n-%p-%t.stk";

/// Why a pattern cannot be expanded.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub(crate) enum PatternError {
    /// It has a placeholder other than these.
    #[error(
        "'{placeholder}' in '{pattern}' is no placeholder: use %n (name), %p (pid), %h (host), %t (time) or %% (a percent sign)"
    )]
    UnknownPlaceholder {
        /// As it was written.
        placeholder: String,
        pattern: String,
    },
}

/// What the placeholders stand for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Values<'a> {
    /// The program's file name without `.exe`.
    pub name: &'a str,
    pub pid: u32,
    /// Name of this machine.
    pub host: &'a str,
    /// Local time, `20260131-235959`.
    pub time: &'a str,
}

/// `pattern` with its placeholders filled in.
///
/// # Errors
/// When a placeholder is none of these.
pub(crate) fn expand(pattern: &OsStr, values: Values) -> Result<OsString, PatternError> {
    let Some(pattern) = pattern.to_str() else {
        // Only a name with an unpaired surrogate gets here. It is used unchanged.
        return Ok(pattern.to_owned());
    };
    let mut name = String::with_capacity(pattern.len() + 32);
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            name.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => name.push_str(values.name),
            Some('p') => name.push_str(&values.pid.to_string()),
            Some('h') => name.push_str(values.host),
            Some('t') => name.push_str(values.time),
            Some('%') => name.push('%'),
            other => {
                let placeholder = other.map_or("%".to_owned(), |c| format!("%{c}"));
                return Err(PatternError::UnknownPlaceholder { placeholder, pattern: pattern.to_owned() });
            }
        }
    }
    Ok(name.into())
}

/// Whether files of this pattern differ for processes that are recorded at the same time.
pub(crate) fn names_each_process(pattern: &OsStr) -> bool {
    pattern.to_str().is_some_and(|pattern| pattern.replace("%%", "").contains("%p"))
}

/// The file name in `path` without a final `.exe`.
pub(crate) fn program_name(path: &str) -> &str {
    let name = file_name(path);
    match name.len().checked_sub(4) {
        Some(stem)
            if name.is_char_boundary(stem) && name[stem..].eq_ignore_ascii_case(".exe") && stem > 0 =>
        {
            &name[..stem]
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: Values = Values { name: "größe", pid: 4404, host: "LAB7", time: "20260131-235959" };

    #[test]
    fn the_default_holds_name_pid_and_time() {
        let name = expand(OsStr::new(DEFAULT), VALUES).expect("the default is well formed");
        assert_eq!(name, "größe-4404-20260131-235959.stk");
    }

    #[test]
    fn a_name_without_placeholders_stays() {
        assert_eq!(expand(OsStr::new(r"C:\träces\a.stk"), VALUES).expect("plain"), r"C:\träces\a.stk");
        assert_eq!(expand(OsStr::new("100%%.stk"), VALUES).expect("escaped"), "100%.stk");
        assert_eq!(expand(OsStr::new("%h-%p.stk"), VALUES).expect("host"), "LAB7-4404.stk");
    }

    #[test]
    fn only_the_pid_names_each_process() {
        for (pattern, apart) in [(DEFAULT, true), ("%n-%t.stk", false), ("%%p.stk", false)] {
            assert_eq!(names_each_process(OsStr::new(pattern)), apart, "{pattern}");
        }
    }

    #[test]
    fn unknown_placeholders_are_refused() {
        let error = expand(OsStr::new("a-%x.stk"), VALUES).expect_err("unknown");
        assert!(error.to_string().contains("%x"), "{error}");
        assert!(expand(OsStr::new("a%"), VALUES).is_err());
    }

    #[test]
    fn program_names_lose_folder_and_exe_only() {
        assert_eq!(program_name(r"C:\bin\Busy.EXE"), "Busy");
        assert_eq!(program_name("app"), "app");
        assert_eq!(program_name(r"Z:\x/größe.exe"), "größe");
        assert_eq!(program_name("a.dll"), "a.dll");
        assert_eq!(program_name(".exe"), ".exe");
        assert_eq!(program_name("日本"), "日本");
    }
}
