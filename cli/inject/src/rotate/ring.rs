//! Which finished files of a recording there are, and the deletion of the oldest.

use std::collections::VecDeque;
use std::path::PathBuf;

/// A finished file of the recording.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RingFile {
    pub path: PathBuf,
    /// The trace's UUID: a file of this name with another one is not the recording's.
    pub uuid: [u8; 16],
}

/// What came of deleting a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Deletion {
    /// It is deleted.
    Done,
    /// There is no such file any more.
    Gone,
    /// Another file has its name. That file stays.
    NotOurs,
    /// Not now, for this reason.
    Failed(String),
}

/// The finished files of a recording, oldest first.
#[derive(Debug)]
pub(crate) struct Ring {
    /// Most finished files; `None` = all are kept.
    most: Option<usize>,
    files: VecDeque<RingFile>,
    /// Files that could not be deleted yet.
    stuck: Vec<RingFile>,
    /// Files that were deleted.
    pub deleted: u64,
}

impl Ring {
    /// A ring of `keep` files, the one that is being written included; 0 = all are kept.
    pub(crate) fn new(keep: u32) -> Ring {
        let most = (keep != 0).then(|| keep as usize - 1);
        Ring { most, files: VecDeque::new(), stuck: Vec::new(), deleted: 0 }
    }

    /// The finished files that are kept.
    pub(crate) fn files(&self) -> impl DoubleEndedIterator<Item = &RingFile> {
        self.files.iter()
    }

    /// Files that should be deleted and could not be.
    pub(crate) fn stuck(&self) -> &[RingFile] {
        &self.stuck
    }

    /// Adds the file that was finished last. `writing`: whether another file is being written.
    /// Deletes the oldest files that are too many, and those that could not be deleted before.
    /// Returns the messages for the user: each file that cannot be deleted once.
    pub(crate) fn add(
        &mut self,
        file: RingFile,
        writing: bool,
        mut delete: impl FnMut(&RingFile) -> Deletion,
    ) -> Vec<String> {
        self.files.push_back(file);
        let mut said = Vec::new();
        let deleted = &mut self.deleted;
        let mut remove = |file: &RingFile, is_new: bool| {
            let name = file.path.display();
            match delete(file) {
                Deletion::Done => *deleted += 1,
                Deletion::Gone => {}
                Deletion::NotOurs => said.push(format!("{name} is another file now: it is not deleted")),
                Deletion::Failed(reason) => {
                    if is_new {
                        said.push(format!("{name} cannot be deleted: {reason}; it is tried again"));
                    }
                    return false;
                }
            }
            true
        };
        self.stuck.retain(|file| !remove(file, false));
        let most = self.most.map_or(usize::MAX, |most| most + usize::from(!writing));
        while self.files.len() > most {
            let Some(oldest) = self.files.pop_front() else { break };
            if !remove(&oldest, true) {
                self.stuck.push(oldest);
            }
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(number: u8) -> RingFile {
        RingFile { path: format!("a.{number}").into(), uuid: [number; 16] }
    }

    fn names(ring: &Ring) -> Vec<String> {
        ring.files().map(|file| file.path.display().to_string()).collect()
    }

    /// A ring to which files 1 to `last` were added while another was being written.
    fn filled(keep: u32, last: u8, delete: &mut dyn FnMut(&RingFile) -> Deletion) -> (Ring, Vec<String>) {
        let mut ring = Ring::new(keep);
        let said = (1..=last).flat_map(|number| ring.add(file(number), true, &mut *delete)).collect();
        (ring, said)
    }

    #[test]
    fn the_oldest_files_go_and_the_one_being_written_counts() {
        let mut deleted = Vec::new();
        let (mut ring, said) = filled(3, 4, &mut |file| {
            deleted.push(file.uuid[0]);
            Deletion::Done
        });
        assert_eq!(names(&ring), ["a.3", "a.4"]);
        assert_eq!((deleted, ring.deleted, said.len()), (vec![1, 2], 2, 0));
        // At the end none is being written.
        ring.add(file(5), false, |_| panic!("three are kept"));
        assert_eq!(names(&ring), ["a.3", "a.4", "a.5"]);
    }

    #[test]
    fn all_files_are_kept_without_a_number_and_none_beside_the_present_one_with_one() {
        let (ring, _) = filled(0, 200, &mut |_| panic!("all are kept"));
        assert_eq!(ring.files().count(), 200);
        let (mut ring, _) = filled(1, 2, &mut |_| Deletion::Done);
        assert_eq!(names(&ring), [""; 0]);
        ring.add(file(3), false, |_| Deletion::Done);
        assert_eq!(names(&ring), ["a.3"]);
    }

    #[test]
    fn undeletable_file_is_reported_once_retried_and_counted() {
        let mut open = true;
        let mut tried = 0;
        let mut ring = Ring::new(2);
        let mut said = Vec::new();
        for number in 1..=5 {
            said.extend(ring.add(file(number), true, |file| {
                tried += u32::from(file.uuid[0] == 1);
                if open && file.uuid[0] == 1 { Deletion::Failed("in use".into()) } else { Deletion::Done }
            }));
        }
        assert_eq!(said, ["a.1 cannot be deleted: in use; it is tried again"]);
        assert_eq!((ring.stuck(), ring.deleted, tried), (&[file(1)][..], 3, 4));
        open = false;
        let said = ring.add(file(6), true, |_| if open { Deletion::Gone } else { Deletion::Done });
        assert_eq!((said.len(), ring.stuck().len(), ring.deleted), (0, 0, 5));
    }

    #[test]
    fn a_file_that_another_program_put_there_stays_and_is_forgotten() {
        let (ring, said) = filled(2, 3, &mut |file| {
            if file.uuid[0] == 1 { Deletion::NotOurs } else { Deletion::Gone }
        });
        assert_eq!(said, ["a.1 is another file now: it is not deleted"]);
        assert_eq!((ring.deleted, ring.stuck().len(), names(&ring)), (0, 0, vec!["a.3".to_owned()]));
    }
}
