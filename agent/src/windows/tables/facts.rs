//! Facts for the trace: clock, metadata, the costs of recording, and the losses.

use core::sync::atomic::Ordering;
use stk_schema::Ticks;

use stk_schema::event::{Clock, DropReason, Dropped, Event, Metadata, RateChange, Redaction};
use stk_schema::limits;
use windows_sys::Win32::System::Threading::GetCurrentThreadId;

use super::{TablesRecorder, loader};
use crate::record::modules::Events;
use crate::record::pointers;
use crate::windows::sampler::suspend::SUSPENSIONS;
use crate::windows::shared::priority::power_throttling;
use crate::windows::system::api::{ticks, utc};
use crate::windows::system::host;

/// Milliseconds between reports of losses.
const LOSSES_MS: u64 = 1000;

impl TablesRecorder {
    /// Writes CLOCK: both clocks at the same moment.
    pub(super) fn clock(&mut self) {
        let event = Event::Clock(Clock { time: ticks(), utc: utc(self.api) });
        self.journal.event(&event);
    }

    pub(super) fn metadata(&mut self) {
        let journal = &mut self.journal;
        host::facts(self.api, self.settings.command_line, |key, value| {
            journal.event(&Event::Metadata(Metadata { key: key.as_bytes(), value }));
        });
        if self.settings.check_walks {
            self.fact("recorder.check_walks", b"on");
        }
        if self.settings.unguarded {
            self.fact("recorder.unguarded", b"on");
        }
        for (key, value) in self.settings.options.reported.clone() {
            self.fact(key, &value);
        }
        // Even a trace that ends at once says that it is one.
        if self.settings.pointers_only {
            self.redaction(0);
        }
        let mut texts = self.settings.metadata.split(|&byte| byte == 0);
        while let (Some(key), Some(value)) = (texts.next(), texts.next()) {
            if !key.is_empty() && key.len() + value.len() <= limits::MAX_NAME {
                self.journal.event(&Event::Metadata(Metadata { key, value }));
            }
        }
    }

    pub(super) fn fact(&mut self, key: &str, value: &[u8]) {
        self.journal.event(&Event::Metadata(Metadata { key: key.as_bytes(), value }));
    }

    /// Writes DROPPED for the losses since the last report.
    pub(super) fn losses(&mut self) {
        let now = ticks();
        self.losses_due = now + Ticks(LOSSES_MS * self.settings.ticks_per_ms);
        for (tid, since) in SUSPENSIONS.take_missed() {
            // The watchdog counts the loss, before or after this.
            let thread = self.threads.instance_of(tid).unwrap_or(0);
            let reason = DropReason::NotStopped as u64;
            self.journal.event(&Event::Dropped(Dropped { time: since, reason, thread, count: 1 }));
            self.reported[DropReason::NotStopped as usize] += 1;
        }
        for (reason, reported) in self.reported.iter_mut().enumerate() {
            let lost = self.counters.lost(reason);
            let count = lost.saturating_sub(*reported);
            if count != 0 {
                *reported = lost;
                let event = Event::Dropped(Dropped { time: now, reason: reason as u64, thread: 0, count });
                self.journal.event(&event);
            }
        }
        let zeroed = self.counters.redacted_words.load(Ordering::Relaxed);
        if zeroed != self.redacted_words {
            self.redaction(zeroed - self.redacted_words);
            self.redacted_words = zeroed;
        }
        self.rate();
        self.suspension_costs();
    }

    /// Writes REDACTION for `words` more that were zeroed.
    fn redaction(&mut self, words: u64) {
        let rule = pointers::RULE.as_bytes();
        self.journal.event(&Event::Redaction(Redaction { rule, words }));
    }

    /// Writes RATE_CHANGE if the sampler changed the rate to keep within its share of a processor.
    fn rate(&mut self) {
        let rate = self.counters.rate.load(Ordering::Acquire);
        if rate != self.rate_written {
            self.rate_written = rate;
            let time = Ticks(self.counters.rate_since.load(Ordering::Relaxed));
            let rate_mhz = self.rate_of(rate);
            self.journal.event(&Event::RateChange(RateChange { time, rate_mhz }));
        }
    }

    /// A rate in millionths of the nominal one, in millihertz.
    pub(super) fn rate_of(&self, millionths: u64) -> u32 {
        (u64::from(self.settings.rate_mhz) * millionths / 1_000_000).max(1) as u32
    }

    /// Writes the cost of a suspension, and the rate of cycles, once they are measured.
    pub(super) fn suspension_costs(&mut self) {
        let counters = self.counters.clone();
        if self.costs_written || !counters.calibrated.load(Ordering::Acquire) {
            return;
        }
        self.costs_written = true;
        for (key, value) in [
            ("recorder.suspension_cycles_p50", &counters.suspension_cycles_p50),
            ("recorder.suspension_cycles_p95", &counters.suspension_cycles_p95),
            ("recorder.cycles_per_second", &counters.cycles_per_second),
            ("recorder.suspension_ns_p50", &counters.suspension_ns_p50),
            ("recorder.suspension_ns_p95", &counters.suspension_ns_p95),
        ] {
            let value = value.load(Ordering::Relaxed);
            if value != 0 {
                self.fact(key, alloc::format!("{value}").as_bytes());
            }
        }
    }

    /// CPU time of the recorder's own threads so far, in nanoseconds.
    pub(super) fn own_cpu_ns(&self) -> u64 {
        let own = self.threads.live().iter().filter(|thread| thread.handle.own);
        own.filter_map(|thread| thread.handle.handle.times()).map(|times| times.cpu * 100).sum()
    }

    /// CPU time of this thread so far, in nanoseconds.
    fn tables_cpu_ns(&self) -> u64 {
        // SAFETY: no preconditions.
        let tid = unsafe { GetCurrentThreadId() };
        let own = self.threads.live().iter().find(|thread| thread.start.tid == tid);
        own.and_then(|thread| thread.handle.handle.times()).map_or(0, |times| times.cpu * 100)
    }

    /// Writes the costs of recording as metadata: those of the file that events go into.
    pub(super) fn measurements(&mut self, own_cpu_ns: u64) {
        let counters = self.counters.clone();
        let tables_cpu_ns = self.tables_cpu_ns();
        let sums = [
            ("recorder.cpu_ns", own_cpu_ns),
            ("recorder.tables_cpu_ns", tables_cpu_ns),
            ("recorder.passes", counters.passes.load(Ordering::Relaxed)),
            ("recorder.pass_ns", counters.pass_ns.load(Ordering::Relaxed)),
            ("recorder.suspensions", counters.suspensions.load(Ordering::Relaxed)),
            ("recorder.suspended_ns", counters.suspended_ns.load(Ordering::Relaxed)),
            ("recorder.held_ns", counters.held_ns.load(Ordering::Relaxed)),
        ];
        for ((key, sum), before) in sums.into_iter().zip(self.measured) {
            self.fact(key, alloc::format!("{}", sum.saturating_sub(before)).as_bytes());
        }
        self.measured = sums.map(|(_, sum)| sum);
        let longest = counters.suspended_max_ns.swap(0, Ordering::Relaxed);
        self.fact("recorder.suspended_max_ns", alloc::format!("{longest}").as_bytes());
        if loader::unrescued() != 0 {
            self.fact("recorder.unread_modules", alloc::format!("{}", loader::unrescued()).as_bytes());
        }
        if self.unlisted.left_out() != 0 {
            self.fact(
                "recorder.unlisted_left_out",
                alloc::format!("{}", self.unlisted.left_out()).as_bytes(),
            );
        }
        if let Some(power) = power_throttling() {
            self.fact("recorder.power_throttling", power.as_bytes());
        }
        // Of the whole recording so far, in whatever files.
        let held = counters.held.summary();
        for (key, value) in [
            ("recorder.held_p50_ns", held.p50),
            ("recorder.held_p999_ns", held.p999),
            ("recorder.held_max_ns", held.max),
        ] {
            self.fact(key, alloc::format!("{value}").as_bytes());
        }
    }
}
