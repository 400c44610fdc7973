//! The CPU time of each thread of a process by Linux' own account, while it is recorded.

use std::collections::BTreeMap;
use std::fs;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How long after the recorder's start the account begins: the recording has begun by then.
const SETTLING: Duration = Duration::from_secs(2);

/// Runs `recording`, which takes `seconds`, and gives the share of the time in it that each Linux
/// thread of `pid` was on CPU.
pub(super) fn during(pid: u32, seconds: u32, recording: impl FnOnce()) -> BTreeMap<u32, f64> {
    let span = Duration::from_secs(seconds.into()).saturating_sub(SETTLING);
    let (ended, end) = mpsc::channel::<()>();
    thread::scope(|scope| {
        let account = scope.spawn(move || {
            thread::sleep(SETTLING);
            let (before, from) = (cpu_times(pid), Instant::now());
            // The recording may end early.
            let _ = end.recv_timeout(span);
            let (after, time) = (cpu_times(pid), from.elapsed().as_nanos() as f64);
            let share =
                |(tid, cpu): (u32, u64)| Some((tid, cpu.checked_sub(*before.get(&tid)?)? as f64 / time));
            after.into_iter().filter_map(share).collect()
        });
        recording();
        drop(ended);
        account.join().unwrap_or_default()
    })
}

/// The CPU time of each thread of `pid` since its start, in nanoseconds.
fn cpu_times(pid: u32) -> BTreeMap<u32, u64> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return BTreeMap::new() };
    threads
        .flatten()
        .filter_map(|thread| {
            let time = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            let tid = thread.file_name().to_str()?.parse().ok()?;
            Some((tid, time.split_whitespace().next()?.parse().ok()?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The Linux thread id of the caller.
    fn own_tid() -> u32 {
        let link = fs::read_link("/proc/thread-self").unwrap();
        link.file_name().unwrap().to_str().unwrap().parse().unwrap()
    }

    #[test]
    fn time_is_counted_for_the_thread_that_works_and_not_for_one_that_waits() {
        let pid = std::process::id();
        let (sender, receiver) = mpsc::channel();
        let (stop, stopped) = mpsc::channel::<()>();
        let sleeper = thread::spawn(move || {
            sender.send(own_tid()).unwrap();
            stopped.recv().is_err()
        });
        let (sleeping, working) = (receiver.recv().unwrap(), own_tid());
        let before = cpu_times(pid);
        while cpu_times(pid)[&working] - before[&working] < 20_000_000 {}
        assert!(cpu_times(pid)[&sleeping] - before[&sleeping] < 10_000_000);
        drop(stop);
        assert!(sleeper.join().unwrap());
    }
}
