//! What became of the files of a ring, for the closing line.

use crate::failure::Failure;
use crate::trace_summary::TraceSummary;
use crate::{duration, messages};
use std::path::PathBuf;
use stk_schema::text::{count, size};

/// What became of the files of a ring.
#[derive(Clone, Default, Debug)]
pub(crate) struct RingSummary {
    /// Files that were finished.
    pub files: u64,
    /// The contents of all of them together.
    pub held: TraceSummary,
    /// The oldest and the newest file that is kept.
    pub kept: Option<(PathBuf, PathBuf)>,
    /// How many are kept.
    pub kept_files: usize,
    /// Old files that were deleted.
    pub deleted: u64,
    /// Old files that could not be deleted.
    pub stuck: usize,
    /// Files that could not be moved, and stay where they were written.
    pub unmoved: u64,
    /// Files that were deleted before they could be moved.
    pub overrun: u64,
    /// Files that somebody took away while they were recorded.
    pub lost: u64,
}

impl RingSummary {
    /// Adds a file that was finished, with its contents if it could be read. `dropped`: samples
    /// lost by the agent's last status, which knows also of those that could not be written.
    pub(crate) fn add(&mut self, contents: Option<&TraceSummary>, dropped: u64) {
        self.files += 1;
        self.held.dropped += contents.map_or(0, |contents| contents.dropped).max(dropped);
        if let Some(contents) = contents {
            self.held.samples += contents.samples;
            self.held.bytes += contents.bytes;
            self.held.elapsed_ms += contents.elapsed_ms;
        }
    }

    /// `11 files: 1 min 50 s, 45,678 samples, 0 dropped, 3.4 MiB; kept: a.0008.stk to a.0011.stk`.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{}: {}, {} samples, {} dropped, {}",
            files(self.files),
            duration::show(self.held.elapsed_ms),
            count(self.held.samples),
            count(self.held.dropped),
            size(self.held.bytes)
        );
        if let Some((first, last)) = &self.kept {
            text.push_str("; kept: ");
            text.push_str(&messages::file(first));
            if self.kept_files > 1 {
                text.push_str(" to ");
                text.push_str(&messages::file(last));
            }
        }
        for (number, what) in [
            (self.deleted, "deleted, being older"),
            (self.stuck as u64, "could not be deleted"),
            (self.unmoved, "could not be moved"),
            (self.overrun, "deleted before being moved"),
            (self.lost, "lost while recorded"),
        ] {
            if number != 0 {
                text.push_str(&format!("; {} {what}", files(number)));
            }
        }
        text
    }

    /// A failure, if a file is not where it was to be.
    ///
    /// # Errors
    /// How many files were not moved.
    pub(crate) fn moved(&self) -> Result<(), Failure> {
        match self.unmoved + self.overrun + self.lost {
            0 => Ok(()),
            number => Err(Failure::failed(format!(
                "{} of {} are not where they were to be",
                count(number),
                files(self.files + self.overrun)
            ))),
        }
    }
}

fn files(number: u64) -> String {
    if number == 1 { "1 file".to_owned() } else { format!("{} files", count(number)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_says_what_is_kept_and_what_is_not() {
        let mut sum = RingSummary::default();
        assert_eq!(sum.text(), "0 files: 0 s, 0 samples, 0 dropped, 0 B");
        let held = TraceSummary { bytes: 512, samples: 1_000, dropped: 1, elapsed_ms: 1_500, complete: true };
        sum.add(Some(&held), 0);
        (sum.kept, sum.kept_files) = (Some(("a".into(), "a".into())), 1);
        assert_eq!(sum.text(), "1 file: 1.50 s, 1,000 samples, 1 dropped, 512 B; kept: a");
        assert!(sum.moved().is_ok());
        // Of one file more was lost than it reports, and one cannot be read.
        sum.add(Some(&held), 5);
        sum.add(None, 7);
        (sum.kept, sum.kept_files) = (Some(("b\u{1b}".into(), "c".into())), 2);
        (sum.deleted, sum.stuck, sum.unmoved, sum.overrun, sum.lost) = (1, 2, 1, 1, 1);
        let text = sum.text();
        assert!(
            text.starts_with("3 files: 3.00 s, 2,000 samples, 13 dropped, 1.0 KiB; kept: b\\u{1b} to c;"),
            "{text}"
        );
        assert!(
            text.ends_with(
                "; 1 file deleted, being older; 2 files could not be deleted; 1 file could not be moved; \
                 1 file deleted before being moved; 1 file lost while recorded"
            ),
            "{text}"
        );
        let reported = sum.moved().expect_err("some were not moved").to_string();
        assert_eq!(reported, "3 of 4 files are not where they were to be");
    }
}
