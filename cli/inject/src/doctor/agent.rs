//! Compares agent.dll's findings in inject's own process with inject's own knowledge.

use super::{Fact, Verdict};
use stk_schema::selftest::{self, SelfTest};

const GROUP: &str = "agent";

/// The same facts as inject gets them by other means.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct OwnProcessFacts {
    /// Load address of the program.
    pub image_base: u64,
    /// Lowest and one past the highest address of the stack of the thread that ran the test, by
    /// VirtualQuery.
    pub stack: Option<(u64, u64)>,
    /// The name that inject gave to that thread, if it could.
    pub thread_name: Option<String>,
    /// Threads of the process in a Toolhelp snapshot, before and after the test.
    pub threads: Option<(u32, u32)>,
}

/// Judges the findings and returns facts with verdicts.
pub(crate) fn judge(test: &SelfTest, known: &OwnProcessFacts) -> Vec<Fact> {
    let mut facts = features(test);
    facts.extend(peb_lock(test));
    facts.push(loader_lock(test));
    facts.push(Fact::check(
        GROUP,
        "first-module",
        hex(test.first_base),
        test.first_base != 0 && test.first_base == known.image_base && test.image_base == known.image_base,
        "the loader's list does not begin with the program, or PEB.ImageBaseAddress is another",
    ));
    facts.extend(notification(test));
    facts.push(Fact::check(
        GROUP,
        "teb",
        hex(test.teb),
        test.teb != 0 && test.teb == test.teb_queried,
        "NtQueryInformationThread names another TEB than the processor's register",
    ));
    facts.push(stack(test, known));
    facts.push(thread_name(test, known));
    facts.push(threads(test, known));
    facts
}

fn hex(value: u64) -> String {
    format!("{value:#x}")
}

fn features(test: &SelfTest) -> Vec<Fact> {
    [
        (
            "NtGetNextThread",
            selftest::FEATURE_NEXT_THREAD,
            "threads are found by a snapshot of the whole system, which is slow",
        ),
        (
            "LdrRegisterDllNotification",
            selftest::FEATURE_NOTIFICATION,
            "modules are found by polling the loader's list",
        ),
        (
            "QueryThreadCycleTime",
            selftest::FEATURE_CYCLES,
            "CPU time is known only as coarsely as GetThreadTimes tells it",
        ),
        (
            "GetSystemTimePreciseAsFileTime",
            selftest::FEATURE_PRECISE_TIME,
            "the clock is read to 15.6 ms only",
        ),
        (
            "IsWow64Process2",
            selftest::FEATURE_WOW64_2,
            "emulated processes cannot be told on every processor",
        ),
        (
            "NtSetTimerResolution",
            selftest::FEATURE_TIMER_RESOLUTION,
            "without a high-resolution timer the rate is limited to 64 Hz",
        ),
    ]
    .into_iter()
    .map(|(name, bit, without)| {
        let there = test.features & bit != 0;
        Fact::ok(GROUP, name, there).note_if(!there, without)
    })
    .collect()
}

fn peb_lock(test: &SelfTest) -> Vec<Fact> {
    let tid = u64::from(test.tid);
    let place = Fact::check(
        GROUP,
        "peb-lock",
        hex(test.peb_lock),
        test.peb_lock != 0,
        "PEB.FastPebLock is null: this system's PEB is not the one that the recorder knows",
    );
    if test.features & selftest::FEATURE_PEB_LOCK == 0 {
        return vec![place, Fact::unknown(GROUP, "peb-lock-owner", "RtlAcquirePebLock is not exported")];
    }
    let right = test.peb_owner_held == tid && test.peb_owner_before != tid && test.peb_owner_after != tid;
    let owners = Fact::check(
        GROUP,
        "peb-lock-owner",
        format!("{} held by thread {tid}", test.peb_owner_held),
        right,
        "the owner word does not follow the owner: a thread that ends the process cannot be told",
    );
    let recursion = test.peb_lock_words >> 32;
    let words = Fact::check(
        GROUP,
        "peb-lock-recursion",
        recursion,
        recursion == 1,
        "the words at FastPebLock are not those of a critical section that is held once",
    );
    vec![place, owners, words]
}

fn loader_lock(test: &SelfTest) -> Fact {
    let name = "loader-lock-owner";
    if test.loader_lock == 0 {
        return Fact::ok(GROUP, name, serde_json::Value::Null).but(Verdict::Bad, "PEB.LoaderLock is null");
    }
    if test.notified == 0 {
        return Fact::unknown(GROUP, name, "no notification came in which the owner could be read");
    }
    let value = format!("{} in a notification on thread {}", test.loader_owner_notified, test.tid);
    let fact = Fact::ok(GROUP, name, value);
    // No known Windows sends notifications outside the lock. If one did, the owner that the
    // recorder reads would mean less.
    fact.note_if(
        test.loader_owner_notified != u64::from(test.tid),
        "the loader's lock is not held by the thread that loads while it notifies",
    )
}

fn notification(test: &SelfTest) -> Vec<Fact> {
    let [loaded, told, listed] = test.probe_base;
    if loaded == 0 {
        return vec![Fact::unknown(
            GROUP,
            "probe",
            "the DLL that was to be loaded as a probe could not be loaded",
        )];
    }
    if test.features & selftest::FEATURE_NOTIFICATION == 0 {
        return vec![Fact::unknown(GROUP, "probe", "LdrRegisterDllNotification is missing")];
    }
    let path = |units: &[u16]| {
        let end = units.iter().position(|&unit| unit == 0).unwrap_or(units.len());
        String::from_utf16_lossy(&units[..end])
    };
    let (told_path, listed_path) = (path(&test.notified_path), path(&test.listed_path));
    vec![
        Fact::check(
            GROUP,
            "probe-base",
            hex(told),
            told == loaded && listed == loaded,
            "the notification or the loader's list has another load address than the loader returned",
        ),
        Fact::check(
            GROUP,
            "probe-size",
            test.probe_size[0],
            test.probe_size[0] != 0 && test.probe_size[0] == test.probe_size[1],
            "notification and list have different sizes",
        )
        .in_unit("bytes"),
        Fact::check(
            GROUP,
            "probe-path",
            told_path.as_str(),
            !told_path.is_empty() && told_path.eq_ignore_ascii_case(&listed_path),
            "notification and list have different paths",
        ),
    ]
}

fn stack(test: &SelfTest, known: &OwnProcessFacts) -> Fact {
    let value = format!("{:#x}-{:#x}", test.stack_limit, test.stack_base);
    let Some((low, high)) = known.stack else {
        return Fact::ok(GROUP, "stack-bounds", value).but(Verdict::Unknown, "VirtualQuery failed");
    };
    // The limit is the lowest committed page in use, somewhere in the reserved range. The base is
    // the range's end.
    let right = test.stack_base == high && test.stack_limit >= low && test.stack_limit < high;
    Fact::check(GROUP, "stack-bounds", value, right, "the TEB's bounds are not those of the stack's memory")
}

fn thread_name(test: &SelfTest, known: &OwnProcessFacts) -> Fact {
    let name = "thread-name";
    let Some(given) = &known.thread_name else {
        return Fact::ok(GROUP, name, serde_json::Value::Null)
            .but(Verdict::Note, "SetThreadDescription is missing: threads have no names");
    };
    if test.thread_name_len == u32::MAX {
        return Fact::ok(GROUP, name, serde_json::Value::Null)
            .but(Verdict::Note, "ThreadNameInformation is not implemented: threads have no names");
    }
    let len = (test.thread_name_len as usize).min(test.thread_name.len());
    let read = String::from_utf8_lossy(&test.thread_name[..len]).into_owned();
    let same = read == *given;
    Fact::check(GROUP, name, read, same, "another name was read than was given")
}

fn threads(test: &SelfTest, known: &OwnProcessFacts) -> Fact {
    let fact = Fact::ok(GROUP, "threads", test.threads);
    match known.threads {
        None => fact.but(Verdict::Unknown, "the Toolhelp snapshot failed"),
        Some((before, after)) if test.threads < before.min(after) => fact.but(
            Verdict::Bad,
            format!("Toolhelp finds {before} to {after}: threads would be missing in a recording"),
        ),
        Some((before, after)) if test.threads > before.max(after) => fact.but(
            Verdict::Note,
            format!("Toolhelp finds {before} to {after}: threads that have ended are found too"),
        ),
        Some(_) => fact,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use selftest::{FEATURE_NOTIFICATION, FEATURE_PEB_LOCK};

    fn good() -> (SelfTest, OwnProcessFacts) {
        let mut test = SelfTest::new(&[]);
        test.features = u32::MAX;
        test.tid = 44;
        (test.peb_lock, test.loader_lock) = (0x7ff0, 0x7ff8);
        test.peb_owner_held = 44;
        test.peb_lock_words = 1 << 32 | 0xffff_fffe;
        test.loader_owner_notified = 44;
        (test.first_base, test.image_base) = (0x1_4000_0000, 0x1_4000_0000);
        (test.modules, test.notified) = (9, 1);
        test.probe_base = [0x18_0000; 3];
        test.probe_size = [0x8000; 2];
        for (to, unit) in test.notified_path.iter_mut().zip("C:\\v.dll".encode_utf16()) {
            *to = unit;
        }
        test.listed_path = test.notified_path;
        (test.stack_limit, test.stack_base) = (0x9000, 0x1_0000);
        (test.teb, test.teb_queried) = (0x7000, 0x7000);
        test.threads = 3;
        test.thread_name_len = 4;
        test.thread_name[..4].copy_from_slice(b"name");
        let known = OwnProcessFacts {
            image_base: 0x1_4000_0000,
            stack: Some((0x8000, 0x1_0000)),
            thread_name: Some("name".to_owned()),
            threads: Some((3, 3)),
        };
        (test, known)
    }

    /// The facts that are not ok when `change` is applied to correct input.
    fn spoilt(change: impl FnOnce(&mut SelfTest, &mut OwnProcessFacts)) -> Vec<(String, Verdict)> {
        let (mut test, mut known) = good();
        change(&mut test, &mut known);
        let facts = judge(&test, &known).into_iter().filter(|fact| fact.verdict != Verdict::Ok);
        facts.map(|fact| (fact.name, fact.verdict)).collect()
    }

    fn one(name: &str, verdict: Verdict) -> Vec<(String, Verdict)> {
        vec![(name.to_owned(), verdict)]
    }

    #[test]
    fn all_facts_of_an_expected_system_are_ok() {
        assert_eq!(spoilt(|_, _| {}), []);
    }

    #[test]
    fn each_wrong_word_is_found() {
        use Verdict::{Bad, Note, Unknown};
        assert_eq!(spoilt(|t, _| t.peb_lock = 0), one("peb-lock", Bad));
        assert_eq!(spoilt(|t, _| t.peb_owner_held = 0), one("peb-lock-owner", Bad));
        // A word that always holds this thread's id is not an owner word.
        assert_eq!(spoilt(|t, _| t.peb_owner_after = 44), one("peb-lock-owner", Bad));
        assert_eq!(spoilt(|t, _| t.peb_lock_words = 0), one("peb-lock-recursion", Bad));
        assert_eq!(spoilt(|t, _| t.features &= !FEATURE_PEB_LOCK), one("peb-lock-owner", Unknown));
        assert_eq!(spoilt(|t, _| t.loader_lock = 0), one("loader-lock-owner", Bad));
        assert_eq!(spoilt(|t, _| t.loader_owner_notified = 1), one("loader-lock-owner", Note));
        assert_eq!(spoilt(|t, _| t.first_base += 1), one("first-module", Bad));
        assert_eq!(spoilt(|t, _| t.image_base = 0), one("first-module", Bad));
        assert_eq!(spoilt(|t, _| t.probe_base[1] = 0), one("probe-base", Bad));
        assert_eq!(spoilt(|t, _| t.probe_base[2] = 0), one("probe-base", Bad));
        assert_eq!(spoilt(|t, _| t.probe_size[1] += 1), one("probe-size", Bad));
        assert_eq!(spoilt(|t, _| t.listed_path[0] = 66), one("probe-path", Bad));
        assert_eq!(spoilt(|t, _| t.teb_queried += 8), one("teb", Bad));
        assert_eq!(spoilt(|t, _| t.stack_base -= 8), one("stack-bounds", Bad));
        assert_eq!(spoilt(|t, _| t.stack_limit = 0x7fff), one("stack-bounds", Bad));
        assert_eq!(spoilt(|_, k| k.stack = None), one("stack-bounds", Unknown));
        assert_eq!(spoilt(|t, _| t.thread_name[0] = b'x'), one("thread-name", Bad));
        assert_eq!(spoilt(|t, _| t.thread_name_len = u32::MAX), one("thread-name", Note));
        assert_eq!(spoilt(|_, k| k.thread_name = None), one("thread-name", Note));
        assert_eq!(spoilt(|t, _| t.threads = 2), one("threads", Bad));
        assert_eq!(spoilt(|t, _| t.threads = 4), one("threads", Note));
    }

    #[test]
    fn a_missing_notification_is_reported() {
        let without = spoilt(|t, _| {
            t.features &= !FEATURE_NOTIFICATION;
            t.notified = 0;
        });
        assert!(without.contains(&("LdrRegisterDllNotification".to_owned(), Verdict::Note)), "{without:?}");
        assert!(without.contains(&("probe".to_owned(), Verdict::Unknown)), "{without:?}");
        let silent = spoilt(|t, _| (t.notified, t.probe_base[1], t.probe_size[0]) = (0, 0, 0));
        assert!(silent.contains(&("probe-base".to_owned(), Verdict::Bad)), "{silent:?}");
    }
}
