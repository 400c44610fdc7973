//! The time that the measuring thread has spent on a processor.

use std::time::Duration;

/// Time that this thread has spent on a CPU.
#[cfg(unix)]
pub fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Time since the first call. On these systems the benchmark needs an idle machine.
#[cfg(not(unix))]
pub fn cpu_time() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}
