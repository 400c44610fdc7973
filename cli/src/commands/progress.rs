//! A progress bar on standard error. It is shown only on a terminal, and only for work that takes
//! over a second.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

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
                    bar.set_length(counts.total.load(Ordering::Relaxed));
                    bar.set_position(counts.done.load(Ordering::Relaxed));
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

fn draw(unit: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let template = format!("{{bar:40}} {{human_pos}} / {{human_len}} {unit}, {{per_sec}}, {{eta}} left");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}
