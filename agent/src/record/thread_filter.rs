//! Which threads are sampled (`--threads`).

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use stk_schema::options::MAX_GLOB;
use stk_schema::typed::fits;

/// What the filter asks of a thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadTraits<'a> {
    pub tid: u32,
    /// Whether it is the recording's [`MainThread`].
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
                Choice::Name(pattern) => !thread.name.is_empty() && fits(pattern, thread.name, true),
            })
    }
}

/// The thread that `--threads main` means. It stays the same in all files of a recording.
pub(crate) struct MainThread {
    /// 0 = not chosen yet.
    tid: AtomicU32,
    /// When the system created it, nanoseconds since the Unix epoch.
    created: AtomicU64,
}

/// A live thread, of which one may be the main thread.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub instance: u64,
    pub tid: u32,
    /// When the system created it, nanoseconds since the Unix epoch.
    pub created: u64,
}

impl MainThread {
    /// Not chosen yet.
    pub(crate) const fn new() -> MainThread {
        MainThread { tid: AtomicU32::new(0), created: AtomicU64::new(0) }
    }

    /// Has the next call of [`MainThread::among`] choose anew.
    pub(crate) fn forget(&self) {
        self.tid.store(0, Ordering::Relaxed);
    }

    /// Instance of the main thread, if it is among these. The first call chooses it: the one that
    /// was created first.
    pub(crate) fn among(&self, threads: impl Iterator<Item = Candidate> + Clone) -> Option<u64> {
        if self.tid.load(Ordering::Relaxed) == 0 {
            let first = threads.clone().min_by_key(|thread| (thread.created, thread.instance))?;
            self.created.store(first.created, Ordering::Relaxed);
            self.tid.store(first.tid, Ordering::Relaxed);
        }
        let (tid, created) = (self.tid.load(Ordering::Relaxed), self.created.load(Ordering::Relaxed));
        let mut threads = threads;
        threads.find(|thread| thread.tid == tid && thread.created == created).map(|thread| thread.instance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_thread_is_the_oldest_one_and_stays_it_in_the_next_file() {
        let candidate = |instance, tid, created| Candidate { instance, tid, created };
        let main = MainThread::new();
        assert_eq!(main.among([].into_iter()), None);
        let first = [candidate(1, 8, 50), candidate(2, 4, 40), candidate(3, 12, 40)];
        assert_eq!(main.among(first.into_iter()), Some(2));
        // The next file counts instances anew and may list the threads in another order.
        assert_eq!(main.among([candidate(1, 12, 40), candidate(2, 4, 40)].into_iter()), Some(2));
        // It has ended: no other thread takes its place, not even one with its id.
        assert_eq!(main.among([candidate(1, 12, 40), candidate(2, 4, 90)].into_iter()), None);
        main.forget();
        assert_eq!(main.among([candidate(1, 12, 40), candidate(2, 4, 90)].into_iter()), Some(1));
    }

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
