//! Whether a recording has come to a standstill: when its recorder does nothing any more although
//! its process runs.
//!
//! A recorder that works shows it at least once a second, however idle the process is: its writer
//! looks for blocks 100 times a second, and its sampler says between two passes that it waits. What
//! stands still with its process is no fault of the recorder: a process that a debugger has
//! stopped, or that is suspended, does not even run the recorder's watchdog, which comes round 50
//! times a second and waits for nothing.
//!
//! Time is what passes between two looks, and of each at most [`MOST_STEP`]: a machine that was
//! suspended, and an inject that was, have seen nothing meanwhile.

use crate::{status, steps};
use std::fmt::Write as _;
use std::time::Duration;
use stk_schema::control::{
    AgentStatus, RECORDER_THREADS, STATE_RECORDING, STATE_STOPPING, STEP_ENDING, STEP_WRITING, STEPS,
    THREAD_SAMPLER, THREAD_WATCHDOG, THREAD_WRITER, ThreadActivity,
};
use stk_schema::guard::{SAMPLERS, SuspensionWord};

/// How long one of the recorder's threads may stand still.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// The same for a writer within the system's write: disks, and the programs that look into what is
/// written, may take long and recover.
const WRITE_FACTOR: u32 = 10;
/// The most that one look counts for.
const MOST_STEP: Duration = Duration::from_secs(1);
/// A process counts as running if it uses one part in so many of a processor. Reading the memory
/// of one that stands costs it some time, too.
const RUNNING_PART: u32 = 10;

/// What inject sees of a recording at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    pub status: AgentStatus,
    /// The samplers' words: they change with each suspension.
    pub words: [u64; SAMPLERS],
    /// CPU time that the process has used; `None` if it is not known.
    pub cpu: Option<Duration>,
    /// Whether the recorder's watchdog has ended.
    pub watchdog_ended: bool,
}

/// What stands still, and why it is a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stall {
    /// One of the recorder's threads (index in [`RECORDER_THREADS`]), while its watchdog works.
    Thread(usize),
    /// All of them: their watchdog has ended, and the process has not.
    Ended,
    /// All of them, while the process uses the processor.
    Starved,
}

impl Stall {
    /// In words, after "the recording stalled: ".
    pub(crate) fn text(self) -> String {
        match self {
            Stall::Thread(thread) => {
                let name = RECORDER_THREADS.get(thread).unwrap_or(&"thread");
                format!("its {name} stands still, although its watchdog works")
            }
            Stall::Ended => "its threads have ended, although the process has not".to_owned(),
            Stall::Starved => "its threads stand still, although the process runs".to_owned(),
        }
    }
}

/// What was found at a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StallVerdict {
    /// All is well, or it is not known yet.
    Fine,
    /// The whole process stands still. Reported once.
    ProcessStands,
    Stalled(Stall),
}

/// Follows a recording.
#[derive(Debug)]
pub(crate) struct StallWatch {
    limit: Duration,
    last: Option<Sight>,
    /// How long the writer, the sampler and the watchdog have stood still.
    still: [Duration; 3],
    /// CPU time of the process when its watchdog stood for a second at most. What was used between
    /// the last look at which it ran and the moment at which it stopped does not count.
    cpu: Option<Duration>,
    /// Whether it was reported that the process stands still.
    reported: bool,
}

const WATCHED: [usize; 3] = [THREAD_WRITER, THREAD_SAMPLER, THREAD_WATCHDOG];
const WATCHDOG: usize = 2;

impl StallWatch {
    pub(crate) fn new(limit: Duration) -> StallWatch {
        StallWatch { limit, last: None, still: [Duration::ZERO; 3], cpu: None, reported: false }
    }

    /// Takes note of a look, `since` the one before.
    pub(crate) fn look(&mut self, since: Duration, now: &Sight) -> StallVerdict {
        let Some(last) = self.last.replace(*now).filter(|_| is_watched(&now.status)) else {
            self.still = [Duration::ZERO; 3];
            self.cpu = now.cpu;
            return StallVerdict::Fine;
        };
        // What stands with its process has done nothing wrong, and has its whole time after that.
        let stands = !moved(THREAD_WATCHDOG, &last, now);
        for (still, thread) in self.still.iter_mut().zip(WATCHED) {
            if moved(thread, &last, now) {
                *still = Duration::ZERO;
            } else if !stands || thread == THREAD_WATCHDOG {
                *still += since.min(MOST_STEP);
            }
        }
        if self.still[WATCHDOG] <= MOST_STEP {
            self.cpu = now.cpu;
        }
        if self.still[WATCHDOG].is_zero() {
            self.reported = false;
            return self.thread_that_stands(now);
        }
        if self.still[WATCHDOG] < self.limit {
            return StallVerdict::Fine;
        }
        let used = now.cpu.zip(self.cpu).map_or(Duration::ZERO, |(now, then)| now.saturating_sub(then));
        let runs = !used.is_zero() && used * RUNNING_PART >= self.still[WATCHDOG].saturating_sub(MOST_STEP);
        if now.watchdog_ended {
            StallVerdict::Stalled(Stall::Ended)
        } else if runs {
            StallVerdict::Stalled(Stall::Starved)
        } else if std::mem::replace(&mut self.reported, true) {
            StallVerdict::Fine
        } else {
            StallVerdict::ProcessStands
        }
    }

    /// How long a thread (index in [`RECORDER_THREADS`]) has stood still, if it is watched.
    pub(crate) fn still(&self, thread: usize) -> Option<Duration> {
        let index = WATCHED.iter().position(|&watched| watched == thread)?;
        self.still.get(index).copied()
    }

    fn thread_that_stands(&self, now: &Sight) -> StallVerdict {
        for (&still, thread) in self.still.iter().zip(WATCHED) {
            let writes = [STEP_WRITING, STEP_ENDING].contains(&activity(now, thread).step);
            let limit =
                if writes && thread == THREAD_WRITER { self.limit * WRITE_FACTOR } else { self.limit };
            if still >= limit {
                return StallVerdict::Stalled(Stall::Thread(thread));
            }
        }
        StallVerdict::Fine
    }
}

/// Whether a recording with this status must show that it works. Older agents do not; one that has
/// ended, or is paused, need not.
fn is_watched(status: &AgentStatus) -> bool {
    let runs = matches!(status.state, STATE_RECORDING | STATE_STOPPING) && status.paused == 0;
    runs && status.activity[THREAD_WATCHDOG].tid != 0
}

fn activity(sight: &Sight, thread: usize) -> ThreadActivity {
    sight.status.activity.get(thread).copied().unwrap_or_default()
}

/// Whether a thread did something between two looks.
fn moved(thread: usize, last: &Sight, now: &Sight) -> bool {
    let (before, after) = (activity(last, thread), activity(now, thread));
    if (before.rounds, before.tid) != (after.rounds, after.tid) {
        return true;
    }
    match thread {
        // A pass over thousands of threads may take minutes.
        THREAD_SAMPLER => last.words != now.words || last.status.passes != now.status.passes,
        THREAD_WRITER => last.status.bytes != now.status.bytes || last.status.state != now.status.state,
        _ => false,
    }
}

/// What is known of a thread of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ThreadFacts {
    pub tid: u32,
    /// Whether it has ended.
    pub ended: bool,
    /// CPU time.
    pub cpu: Option<Duration>,
    /// The system's number for its state and for the reason why it waits (KTHREAD_STATE,
    /// KWAIT_REASON); Wine has 0.
    pub state: Option<(u32, u32)>,
}

/// A block of the trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LastBlock {
    /// Where it begins in the file.
    pub at: u64,
    pub sequence: u64,
    /// Its kind, in words.
    pub kind: String,
    /// Bytes of the file.
    pub file: u64,
}

/// The report: what each thread of the recorder and of inject does. `headline`: what happened.
pub(crate) fn report(
    headline: &str,
    sight: &Sight,
    watch: &StallWatch,
    threads: &[ThreadFacts],
    last: Option<&LastBlock>,
) -> String {
    let status = &sight.status;
    let mut text = format!("{headline}\n\nThe agent's status\n");
    let _ = writeln!(
        text,
        "  state {}, end reason {}, {} threads, {} modules, {} samples, {} dropped, {} bytes, {} passes, {} ms, error {}: {}",
        status.state,
        status.end_reason,
        status.threads,
        status.modules,
        status.samples,
        status.dropped,
        status.bytes,
        status.passes,
        status.elapsed_ms,
        status.system_error,
        status::message(status)
    );
    text.push_str("\nThe recorder's threads\n");
    for (index, name) in RECORDER_THREADS.iter().enumerate() {
        let ThreadActivity { tid, step, rounds, .. } = activity(sight, index);
        let step = STEPS.get(step as usize).copied().unwrap_or("something that this inject does not know");
        let still = watch
            .still(index)
            .map_or_else(String::new, |still| format!(", stands still for {:.0} s", still.as_secs_f64()));
        let facts = threads.iter().find(|facts| facts.tid == tid);
        let facts = facts.map_or_else(|| ", not found".to_owned(), describe);
        let _ = writeln!(text, "  {name:<16} thread {tid}: {step}, round {rounds}{still}{facts}");
    }
    text.push_str("\nThe samplers' words: thread, sequence, phase (stk_schema::guard)\n");
    for word in sight.words.map(SuspensionWord) {
        let _ = writeln!(text, "  {} {} {}", word.tid(), word.sequence(), word.phase());
    }
    text.push_str("\nThe last whole block of the trace\n");
    match last {
        Some(LastBlock { at, sequence, kind, file }) => {
            let _ = writeln!(text, "  {kind}, sequence {sequence}, at {at} of {file} bytes");
        }
        None => text.push_str("  none, or the file cannot be read\n"),
    }
    text.push_str("\ninject's threads\n");
    text.push_str(&steps::describe());
    text.push_str("\nThe process's threads\n");
    for facts in threads {
        let _ = writeln!(text, "  thread {}{}", facts.tid, describe(facts));
    }
    text
}

fn describe(facts: &ThreadFacts) -> String {
    let mut text = if facts.ended { ", has ended" } else { ", is there" }.to_owned();
    if let Some(cpu) = facts.cpu {
        let _ = write!(text, ", {:.3} s of CPU time", cpu.as_secs_f64());
    }
    if let Some((state, reason)) = facts.state {
        let _ = write!(text, ", state {state}, wait reason {reason}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::BLANK;
    use stk_schema::control::{STATE_STOPPED, STEP_WAITING};

    const LOOK: Duration = Duration::from_millis(500);

    /// A recording whose threads come round with each look, as far as they are named.
    struct Fake {
        watch: StallWatch,
        sight: Sight,
        looks: u32,
    }

    const ALL: [usize; 3] = WATCHED;

    impl Fake {
        fn new() -> Fake {
            let mut status = AgentStatus { state: STATE_RECORDING, ..BLANK };
            for (thread, activity) in status.activity.iter_mut().enumerate() {
                *activity = ThreadActivity { tid: 100 + thread as u32, step: STEP_WAITING, ..*activity };
            }
            let cpu = Some(Duration::ZERO);
            let sight = Sight { status, words: [0; SAMPLERS], cpu, watchdog_ended: false };
            Fake { watch: StallWatch::new(LIMIT), sight, looks: 0 }
        }

        /// Looks for `seconds`, each time after a change by `work`; the first verdict that is not
        /// fine, and the seconds until then.
        fn run_with(
            &mut self,
            seconds: u32,
            moving: &[usize],
            work: impl Fn(&mut Sight),
        ) -> (StallVerdict, u32) {
            for look in 1..=seconds * 2 {
                for &thread in moving {
                    self.sight.status.activity[thread].rounds += 1;
                }
                work(&mut self.sight);
                self.looks += 1;
                match self.watch.look(LOOK, &self.sight) {
                    StallVerdict::Fine => {}
                    verdict => return (verdict, look / 2),
                }
            }
            (StallVerdict::Fine, seconds)
        }

        fn run(&mut self, seconds: u32, moving: &[usize]) -> (StallVerdict, u32) {
            self.run_with(seconds, moving, |_| {})
        }
    }

    fn stalled(thread: usize) -> StallVerdict {
        StallVerdict::Stalled(Stall::Thread(thread))
    }

    #[test]
    fn a_recorder_that_comes_round_never_stalls() {
        assert_eq!(Fake::new().run(10_000, &ALL).0, StallVerdict::Fine);
    }

    #[test]
    fn a_writer_or_sampler_that_stands_stalls_after_30_s() {
        for thread in [THREAD_WRITER, THREAD_SAMPLER] {
            let mut fake = Fake::new();
            assert_eq!(fake.run(100, &ALL).0, StallVerdict::Fine);
            let others: Vec<usize> = ALL.into_iter().filter(|&other| other != thread).collect();
            assert_eq!(fake.run(29, &others).0, StallVerdict::Fine);
            assert_eq!(fake.run(2, &others).0, stalled(thread));
        }
    }

    #[test]
    fn a_sampler_within_a_long_pass_moves_with_its_word() {
        let mut fake = Fake::new();
        let others = [THREAD_WRITER, THREAD_WATCHDOG];
        assert_eq!(fake.run_with(200, &others, |sight| sight.words[1] += 1).0, StallVerdict::Fine);
        assert_eq!(fake.run(31, &others).0, stalled(THREAD_SAMPLER));
    }

    #[test]
    fn a_write_may_take_five_minutes() {
        let mut fake = Fake::new();
        fake.sight.status.activity[THREAD_WRITER].step = STEP_WRITING;
        let (verdict, seconds) = fake.run(1_000, &[THREAD_SAMPLER, THREAD_WATCHDOG]);
        assert_eq!(verdict, stalled(THREAD_WRITER));
        assert!((299..=301).contains(&seconds), "{seconds}");
    }

    #[test]
    fn a_process_that_stands_still_is_reported_once_and_no_stall() {
        let mut fake = Fake::new();
        fake.run(10, &ALL);
        assert_eq!(fake.run(40, &[]), (StallVerdict::ProcessStands, 30));
        assert_eq!(fake.run(10_000, &[]).0, StallVerdict::Fine);
        // It continues, and what stood with it has its whole time again.
        assert_eq!(fake.run(10, &ALL).0, StallVerdict::Fine);
        assert_eq!(fake.run(40, &[]).0, StallVerdict::ProcessStands);
    }

    #[test]
    fn stall_is_reported_30_s_after_the_process_runs_again() {
        let mut fake = Fake::new();
        fake.run(10, &ALL);
        assert_eq!(fake.run(40, &[]).0, StallVerdict::ProcessStands);
        // The sampler does not come round again.
        let (verdict, seconds) = fake.run(100, &[THREAD_WRITER, THREAD_WATCHDOG]);
        assert_eq!(verdict, stalled(THREAD_SAMPLER));
        assert!(seconds >= 29, "{seconds}");
    }

    #[test]
    fn ended_or_starving_recorder_threads_stall() {
        let mut fake = Fake::new();
        fake.run(10, &ALL);
        fake.sight.watchdog_ended = true;
        assert_eq!(fake.run(40, &[]), (StallVerdict::Stalled(Stall::Ended), 30));

        let mut fake = Fake::new();
        fake.run(10, &ALL);
        let busy = |sight: &mut Sight| sight.cpu = sight.cpu.map(|cpu| cpu + LOOK / 2);
        assert_eq!(fake.run_with(40, &[], busy), (StallVerdict::Stalled(Stall::Starved), 30));

        let mut fake = Fake::new();
        fake.sight.cpu = None;
        assert_eq!(fake.run(40, &[]).0, StallVerdict::ProcessStands);
    }

    #[test]
    fn cpu_time_from_before_a_stop_is_no_sign_of_running() {
        let mut fake = Fake::new();
        let busy = |sight: &mut Sight| sight.cpu = sight.cpu.map(|cpu| cpu + 4 * LOOK);
        fake.run_with(10, &ALL, busy);
        // It ran until shortly before this look.
        assert_eq!(fake.run_with(1, &[], busy).0, StallVerdict::Fine);
        let read = |sight: &mut Sight| sight.cpu = sight.cpu.map(|cpu| cpu + LOOK / 50);
        assert_eq!(fake.run_with(40, &[], read).0, StallVerdict::ProcessStands);
        assert_eq!(fake.run_with(10_000, &[], read).0, StallVerdict::Fine);
    }

    #[test]
    fn a_clock_that_jumps_counts_one_second_a_look() {
        let mut fake = Fake::new();
        fake.run(10, &ALL);
        for _ in 0..29 {
            let sight = fake.sight;
            assert_eq!(fake.watch.look(Duration::from_secs(3600), &sight), StallVerdict::Fine);
        }
        let mut fake = Fake::new();
        fake.sight.status.activity[THREAD_WATCHDOG].rounds = u32::MAX;
        assert_eq!(fake.watch.look(LOOK, &fake.sight), StallVerdict::Fine);
        fake.sight.status.activity[THREAD_WATCHDOG].rounds = 0;
        assert_eq!(fake.watch.look(LOOK, &fake.sight), StallVerdict::Fine);
    }

    #[test]
    fn paused_ended_and_older_recordings_do_not_stall() {
        let changes: [fn(&mut Sight); 3] = [
            |sight| sight.status.paused = 1,
            |sight| sight.status.state = STATE_STOPPED,
            |sight| sight.status.activity = BLANK.activity,
        ];
        for change in changes {
            let mut fake = Fake::new();
            fake.run(10, &ALL);
            change(&mut fake.sight);
            assert_eq!(fake.run(10_000, &[]).0, StallVerdict::Fine);
        }
    }

    #[test]
    fn the_report_says_what_each_thread_does() {
        let mut fake = Fake::new();
        fake.run(10, &ALL);
        fake.run(40, &[THREAD_SAMPLER, THREAD_WATCHDOG]);
        fake.sight.words[0] = SuspensionWord::new(77, 9, 3).0;
        let threads = [ThreadFacts { tid: 100, ended: true, cpu: None, state: None }];
        let last = LastBlock { at: 128, sequence: 4, kind: "Samples".to_owned(), file: 500 };
        let text = report("It stalled.", &fake.sight, &fake.watch, &threads, Some(&last));
        for line in [
            "It stalled.\n",
            "  writer           thread 100: waits, round 20, stands still for 30 s, has ended\n",
            "  tables           thread 102: waits, round 0, not found\n",
            "  77 9 3\n",
            "  Samples, sequence 4, at 128 of 500 bytes\n",
            "  thread 100, has ended\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }
}
