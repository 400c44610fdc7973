//! Which threads are sampled (`--threads`).

use alloc::vec::Vec;

use stk_schema::options::MAX_GLOB;

use super::glob;

/// What the filter asks of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadTraits<'a> {
    pub tid: u32,
    /// Whether it is the one that was created first of those found at the start.
    pub is_main: bool,
    /// Its name now; empty without one.
    pub name: &'a [u8],
}

/// One way to choose threads.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    Main,
    Tid(u32),
    /// A pattern of names ([`glob`]).
    Name(Vec<u8>),
}

/// The threads to sample: those that fit any choice, or all.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadFilter {
    /// Empty: all.
    choices: Vec<Choice>,
    all: bool,
}

impl ThreadFilter {
    /// Adds a choice as [`stk_schema::options::THREADS`] writes it. False if it is none.
    pub(crate) fn add(&mut self, text: &str) -> bool {
        let choice = match text.split_once('=') {
            None if text == "all" => {
                self.all = true;
                return true;
            }
            None if text == "main" => Choice::Main,
            Some(("tid", tid)) => match tid.parse() {
                Ok(tid) if tid != 0 => Choice::Tid(tid),
                _ => return false,
            },
            Some(("name", glob)) if (1..=MAX_GLOB).contains(&glob.len()) => {
                Choice::Name(glob.as_bytes().to_vec())
            }
            _ => return false,
        };
        self.choices.push(choice);
        true
    }

    /// Whether every thread is sampled.
    pub(crate) fn takes_all(&self) -> bool {
        self.all || self.choices.is_empty()
    }

    /// Whether this thread is sampled.
    pub(crate) fn takes(&self, thread: &ThreadTraits<'_>) -> bool {
        self.takes_all()
            || self.choices.iter().any(|choice| match choice {
                Choice::Main => thread.is_main,
                Choice::Tid(tid) => *tid == thread.tid,
                Choice::Name(pattern) => !thread.name.is_empty() && glob::fits(pattern, thread.name),
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(choices: &[&str]) -> ThreadFilter {
        let mut filter = ThreadFilter::default();
        for choice in choices {
            assert!(filter.add(choice), "{choice}");
        }
        filter
    }

    fn thread(tid: u32, is_main: bool, name: &str) -> ThreadTraits<'_> {
        ThreadTraits { tid, is_main, name: name.as_bytes() }
    }

    #[test]
    fn without_a_choice_and_with_all_every_thread_is_sampled() {
        for choices in [&[][..], &["all"], &["main", "all"]] {
            assert!(filter(choices).takes_all() && filter(choices).takes(&thread(8, false, "")));
        }
    }

    #[test]
    fn a_thread_that_fits_any_choice_is_sampled() {
        let filter = filter(&["main", "tid=44", "name=worker*"]);
        assert!(!filter.takes_all());
        for taken in [thread(4, true, ""), thread(44, false, "x"), thread(8, false, "Worker 3")] {
            assert!(filter.takes(&taken), "{taken:?}");
        }
        for left in [thread(4, false, ""), thread(45, false, "a worker"), thread(8, false, "pool")] {
            assert!(!filter.takes(&left), "{left:?}");
        }
    }

    #[test]
    fn a_thread_without_a_name_fits_no_pattern_of_names() {
        assert!(!filter(&["name=*"]).takes(&thread(4, true, "")));
    }

    #[test]
    fn a_choice_that_is_none_is_refused() {
        for text in ["", "mains", "tid=", "tid=0", "tid=x", "name=", "name", "pid=4", "tid=4294967296"] {
            assert!(!ThreadFilter::default().add(text), "{text}");
        }
        assert!(!ThreadFilter::default().add(&["name=", &"a".repeat(MAX_GLOB + 1)].concat()));
    }
}
