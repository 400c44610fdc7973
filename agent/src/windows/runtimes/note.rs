//! Composes the line about a runtime that the user reads.

use alloc::format;
use alloc::string::String;

use super::answers::AskError;
use super::recorder::{ListedRuntime, RuntimesRecorder};
use crate::record::dotnet::runtime::{has_pipe, is_before_pipe};

/// Adds a part to a note.
fn add(note: &mut String, text: &str) {
    if !(note.is_empty() || note.ends_with("; ")) {
        note.push_str("; ");
    }
    note.push_str(text);
}

impl RuntimesRecorder {
    pub(super) fn note(&self, runtime: &ListedRuntime) -> String {
        if !has_pipe(runtime.kind) {
            return match &self.names {
                Some(names) => format!("this runtime has no diagnostics pipe; {names}"),
                None => "this runtime has no diagnostics pipe: its methods have no names".into(),
            };
        }
        let answers = &self.answers;
        let mut note = String::new();
        if runtime.second {
            note.push_str("a second runtime: the process has one diagnostics pipe, and which of them answers is not known; ");
        }
        match (answers.whole, answers.error) {
            (0, _) if self.asking => {
                note.push_str("its methods were being listed for the first time when the recording ended");
                return note;
            }
            (0, None) => note.push_str("its methods were not listed"),
            (0, Some(_)) => {}
            (times, _) => {
                let plural = if times == 1 { "" } else { "s" };
                note.push_str(&format!("methods listed {times} time{plural} ({} KB)", answers.bytes >> 10));
            }
        }
        if answers.cut != 0 {
            add(&mut note, &format!("cut off {} times", answers.cut));
        }
        if self.asking {
            add(&mut note, "being listed again when the recording ended");
            return note;
        }
        if let Some(error) = answers.error {
            if error == AskError::Absent && is_before_pipe(&runtime.version) {
                add(&mut note, "this runtime has no diagnostics pipe (.NET Core 3.0 and later have one)");
            } else {
                add(&mut note, &error.text(self.names.is_some()));
            }
            if let Some(names) = &self.names {
                add(&mut note, names);
            }
        }
        note
    }
}
