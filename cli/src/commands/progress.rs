//! A progress bar on standard error. It is shown only on a terminal, and only for work that takes
//! over a second.

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stk_base::text::count;

/// The progress of some work. Dropping it removes the bar.
#[derive(Debug)]
pub struct Progress {
    counts: Arc<Counts>,
    bar: Option<(Sender<()>, JoinHandle<()>)>,
}

#[derive(Default, Debug)]
struct Counts {
    total: AtomicU64,
    done: AtomicU64,
}

/// How long the bar stays hidden.
const SILENT: Duration = Duration::from_secs(1);

impl Progress {
    /// Work counted in `unit`. [`add_total`](Self::add_total) sets the total.
    pub fn new(unit: &'static str) -> Progress {
        let counts = Arc::new(Counts::default());
        let bar = std::io::stderr().is_terminal().then(|| {
            let (stop, stopped) = channel();
            let counts = counts.clone();
            let show = move || {
                let begun = Instant::now();
                let mut bar = None;
                while stopped.recv_timeout(Duration::from_millis(100)) == Err(RecvTimeoutError::Timeout) {
                    if begun.elapsed() < SILENT {
                        continue;
                    }
                    let bar = bar.get_or_insert_with(|| draw(unit));
                    let total = counts.total.load(Ordering::Relaxed);
                    let done = counts.done.load(Ordering::Relaxed);
                    bar.set_length(total);
                    bar.set_position(done);
                    bar.set_message(pace(done, total, begun.elapsed()));
                }
                if let Some(bar) = bar {
                    bar.finish_and_clear();
                }
            };
            (stop, std::thread::spawn(show))
        });
        Progress { counts, bar }
    }

    /// Work of which no progress is shown.
    pub fn silent() -> Progress {
        Progress { counts: Arc::new(Counts::default()), bar: None }
    }

    /// Adds to the total.
    pub fn add_total(&self, amount: u64) {
        self.counts.total.fetch_add(amount, Ordering::Relaxed);
    }

    /// The counter of the work that is done.
    pub fn done(&self) -> &AtomicU64 {
        &self.counts.done
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.bar.take() {
            drop(stop);
            // The thread only draws, so a panic in it is ignored.
            let _ = thread.join();
        }
    }
}

/// The progress of work on several traces: of one its samples are counted, of more the traces.
#[derive(Debug)]
pub struct TraceProgress {
    bar: Progress,
    /// Takes the samples where traces are counted.
    silent: Option<Progress>,
}

impl TraceProgress {
    /// Of so many traces.
    pub fn new(traces: usize) -> TraceProgress {
        if traces < 2 {
            return TraceProgress { bar: Progress::new("samples"), silent: None };
        }
        let bar = Progress::new("traces");
        bar.add_total(traces as u64);
        TraceProgress { bar, silent: Some(Progress::silent()) }
    }

    /// What counts the samples of a trace.
    pub fn samples(&self) -> &Progress {
        self.silent.as_ref().unwrap_or(&self.bar)
    }

    /// A trace is done.
    pub fn end_trace(&self) {
        if self.silent.is_some() {
            self.bar.done().fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn draw(unit: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let template = format!("{{bar:40}} {{human_pos}} / {{human_len}} {unit}{{msg}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

/// The rate since the beginning, and how long the rest takes at it. The bar's own rate would begin
/// when the bar is shown.
fn pace(done: u64, total: u64, elapsed: Duration) -> String {
    if done == 0 {
        return String::new();
    }
    let seconds = elapsed.as_secs_f64().max(1e-3);
    let rate = done as f64 / seconds;
    let left = total.saturating_sub(done) as f64 / rate;
    let rate = match rate {
        ..1.0 => format!("{rate:.3}"),
        ..10.0 => format!("{rate:.1}"),
        rate => count(rate as u64),
    };
    // Longer than a century is no forecast.
    let left = HumanDuration(Duration::from_secs_f64(left.clamp(0.0, 3e9)));
    format!(", {rate}/s, {left} left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_and_the_time_left_are_those_since_the_beginning() {
        let pace = |done, total, seconds| pace(done, total, Duration::from_secs(seconds));
        assert_eq!(pace(0, 100, 5), "");
        assert_eq!(pace(20, 120, 10), ", 2.0/s, 50 seconds left");
        assert_eq!(pace(50_000, 650_000, 5), ", 10,000/s, 60 seconds left");
        assert_eq!(pace(1, 1001, 600), ", 0.002/s, 7 days left");
        assert_eq!(pace(10, 5, 1), ", 10/s, 0 seconds left", "more than was announced");
    }
}
