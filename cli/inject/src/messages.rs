//! inject's messages on standard error.
//!
//! Names of processes and files, text from the agent's memory and the system's answers come from
//! outside. Each is made printable before it becomes part of a sentence, so that none can control
//! the terminal or begin a line of its own.

use std::fmt::Display;
use std::path::Path;
use stk_schema::text::printable;

/// Prints one line.
pub(crate) fn say(text: &str) {
    eprintln!("{}", printable(text));
}

/// A process in a sentence: `app.exe (pid 4404)`.
pub(crate) fn process(name: &str, pid: u32) -> String {
    format!("{} (pid {pid})", printable(name))
}

/// A file's path in a sentence.
pub(crate) fn file(path: &Path) -> String {
    printable(&path.to_string_lossy()).into_owned()
}

/// The message that a recording has begun.
pub(crate) fn recording(process: &dyn Display, trace: &Path) -> String {
    format!("recording {process} to {}", file(trace))
}

/// The closing line: the trace and its contents.
pub(crate) fn trace(path: &Path, contents: &str) -> String {
    format!("{}: {contents}", file(path))
}

/// The message that a trace is not where it was made.
pub(crate) fn lost(trace: &Path, why: &str) -> String {
    format!("the trace {} was lost while it was recorded: {why}", file(trace))
}

/// The message that nothing could be added to a trace after its end.
pub(crate) fn not_completed(trace: &Path, problem: &str) -> String {
    format!("inject: {} was not completed: {}", file(trace), printable(problem))
}

/// The message that a module has no unwind data.
pub(crate) fn no_unwind_data(module: &str, reason: &str) -> String {
    format!("no unwind data for {}: {}", printable(module), printable(reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clears the screen, begins a line, reverses the writing direction.
    const HOSTILE: &str = "a\u{1b}[2J\nb\u{202e}.exe";
    const SHOWN: &str = r"a\u{1b}[2J\u{a}b\u{202e}.exe";

    #[test]
    fn a_hostile_process_name_is_escaped() {
        assert_eq!(process(HOSTILE, 7), format!("{SHOWN} (pid 7)"));
        let text = recording(&process(HOSTILE, 7), Path::new("x.stk"));
        assert_eq!(text, format!("recording {SHOWN} (pid 7) to x.stk"));
    }

    #[test]
    fn a_hostile_file_name_is_escaped() {
        let path = Path::new(HOSTILE);
        assert_eq!(file(path), SHOWN);
        assert_eq!(recording(&"x.exe (pid 7)", path), format!("recording x.exe (pid 7) to {SHOWN}"));
        assert_eq!(trace(path, "12 samples"), format!("{SHOWN}: 12 samples"));
    }

    #[test]
    fn system_messages_are_escaped() {
        let text = not_completed(Path::new(HOSTILE), HOSTILE);
        assert_eq!(text, format!("inject: {SHOWN} was not completed: {SHOWN}"));
    }

    #[test]
    fn a_hostile_module_path_is_escaped() {
        assert_eq!(no_unwind_data(HOSTILE, HOSTILE), format!("no unwind data for {SHOWN}: {SHOWN}"));
    }
}
