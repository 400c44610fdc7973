//! Measures how late timers are, and how long a thread waits for a processor while all are busy.

use super::helpers::{Helper, Work};
use crate::doctor::timing::Wakeups;
use crate::windows::system::{self, Event, own};
use std::os::windows::io::{AsHandle, AsRawHandle};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use windows_sys::Win32::System::Threading::{
    CREATE_WAITABLE_TIMER_HIGH_RESOLUTION, CreateWaitableTimerExW, GetActiveProcessorCount, SetWaitableTimer,
    TIMER_ALL_ACCESS,
};

/// Timer periods that are measured.
const TIMES: usize = 200;
/// Wake-ups that are measured.
const WAKEUPS: usize = 50;
/// Time limit for each of the two measurements.
const PATIENCE: Duration = Duration::from_secs(3);

/// Measures timers and wake-ups.
pub(super) fn measure() -> Wakeups {
    let (busy, busy_missed) = busy_processors();
    Wakeups { timer_late: timer(), busy, busy_missed }
}

/// Nanoseconds by which each period of 1 ms of a high-resolution timer was late.
fn timer() -> Option<Vec<u64>> {
    // SAFETY: no attributes, no name; the handle is fresh.
    let timer = unsafe {
        own(CreateWaitableTimerExW(
            ptr::null(),
            ptr::null(),
            CREATE_WAITABLE_TIMER_HIGH_RESOLUTION,
            TIMER_ALL_ACCESS,
        ))
    }
    .ok()?;
    let period = Duration::from_millis(1);
    let began = Instant::now();
    let mut late = Vec::new();
    while late.len() < TIMES && began.elapsed() < PATIENCE {
        // Negative: from now, in units of 100 ns.
        let due = -10_000i64;
        let start = Instant::now();
        // SAFETY: the timer is open; no routine is called.
        let set = unsafe { SetWaitableTimer(timer.as_raw_handle(), &due, 0, None, ptr::null(), 0) };
        if set == 0 || !system::wait(timer.as_handle(), 1_000) {
            return None;
        }
        late.push(start.elapsed().saturating_sub(period).as_nanos() as u64);
    }
    Some(late)
}

/// Nanoseconds from SetEvent to the woken thread while every processor spins, and how many wake-ups
/// took over a second.
fn busy_processors() -> (Vec<u64>, u32) {
    // SAFETY: no preconditions; 0xffff stands for all processor groups.
    let processors = unsafe { GetActiveProcessorCount(0xffff) }.clamp(1, 256);
    let spinners: Vec<Option<Helper>> = (0..processors).map(|_| Helper::start(Work::Spin)).collect();
    let began = Instant::now();
    let (mut times, mut missed) = (Vec::new(), 0);
    while times.len() < WAKEUPS && missed < 3 && began.elapsed() < PATIENCE {
        match wake_once(began) {
            Some(time) => times.push(time),
            None => missed += 1,
        }
    }
    drop(spinners);
    (times, missed)
}

fn wake_once(epoch: Instant) -> Option<u64> {
    let (wake, woken) = (Arc::new(Event::new().ok()?), Arc::new(Event::new().ok()?));
    let at = Arc::new(AtomicU64::new(0));
    let (wait_for, tell, time) = (Arc::clone(&wake), Arc::clone(&woken), Arc::clone(&at));
    let thread = std::thread::Builder::new().spawn(move || {
        system::wait(wait_for.handle(), u32::MAX);
        time.store(epoch.elapsed().as_nanos() as u64, Ordering::Release);
        tell.set();
    });
    let thread = thread.ok()?;
    // The thread must wait before it is woken.
    std::thread::sleep(Duration::from_millis(2));
    let start = epoch.elapsed().as_nanos() as u64;
    wake.set();
    let came = system::wait(woken.handle(), 1_000);
    let _ = thread.join();
    came.then(|| at.load(Ordering::Acquire).saturating_sub(start))
}
