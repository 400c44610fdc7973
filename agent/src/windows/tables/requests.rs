//! Requests of hosts: marks, pauses. No thread of the target has a part in them.

use stk_schema::Ticks;
use stk_schema::event::{Event, Mark, RateChange};
use stk_schema::requests::{
    REQUEST_FILE, REQUEST_MARK, REQUEST_PAUSE, REQUEST_RESUME, RESULT_DONE, RESULT_ENDED, RESULT_UNKNOWN,
    RESULT_WAS_SO,
};

use super::TablesRecorder;
use crate::record::modules::Events;
use crate::record::requests::HostRequest;
use crate::windows::shared::events::WAKE_SAMPLER;
use crate::windows::shared::state::{REQUESTS, SIGNALS, note_flight_trigger};
use crate::windows::system::api::ticks;

/// Milliseconds that a host waits for an answer: no request is older.
const PATIENCE_MS: u64 = 10_000;

impl TablesRecorder {
    /// Carries out the request that waits, if there is one. A pause is answered when the sampler
    /// has confirmed it; until then no other request is looked at.
    pub(super) fn requests(&mut self) {
        self.pauses();
        if !SIGNALS.pauses.settled() {
            return;
        }
        if let Some(request) = self.pausing.take() {
            REQUESTS.answer(&request, RESULT_DONE);
        }
        if self.offered.is_some() {
            return;
        }
        let Some(request) = REQUESTS.next() else { return };
        match request.kind {
            REQUEST_MARK => {
                self.mark(&request);
                REQUESTS.answer(&request, RESULT_DONE);
            }
            REQUEST_PAUSE | REQUEST_RESUME => {
                if SIGNALS.pauses.want(request.kind == REQUEST_PAUSE) {
                    self.pausing = Some(request);
                    WAKE_SAMPLER.signal();
                } else {
                    REQUESTS.answer(&request, RESULT_WAS_SO);
                }
            }
            REQUEST_FILE => {
                if let Some(result) = self.next_file(&request) {
                    REQUESTS.answer(&request, result);
                }
            }
            _ => REQUESTS.answer(&request, RESULT_UNKNOWN),
        }
    }

    /// The last requests: a mark is still written; nothing is paused any more.
    pub(super) fn end_requests(&mut self) {
        self.pauses();
        self.end_offer();
        if let Some(request) = self.pausing.take() {
            REQUESTS.answer(&request, RESULT_ENDED);
        }
        if let Some(request) = REQUESTS.next()
            && request.kind == REQUEST_MARK
        {
            self.mark(&request);
            REQUESTS.answer(&request, RESULT_DONE);
        }
        REQUESTS.end();
    }

    /// Writes a MARK of the process.
    fn mark(&mut self, request: &HostRequest) {
        let now = ticks();
        let earliest = now.saturating_sub(Ticks(PATIENCE_MS * self.settings.ticks_per_ms));
        let time = if (earliest..=now).contains(&request.time) { request.time } else { now };
        let text = request.text().as_bytes();
        self.journal.event(&Event::Mark(Mark { time, thread: 0, tag: 0, text }));
        note_flight_trigger();
    }

    /// Writes that the sampler began to rest, or resumed: RATE_CHANGE to 0, or back.
    fn pauses(&mut self) {
        let (changes, time) = SIGNALS.pauses.changes();
        if changes == self.pauses_written {
            return;
        }
        self.pauses_written = changes;
        let rate_mhz = if changes % 2 == 1 { 0 } else { self.rate_now() };
        self.journal.event(&Event::RateChange(RateChange { time, rate_mhz }));
    }

    /// The rate at which threads are sampled while the recording is not paused.
    fn rate_now(&self) -> u32 {
        match self.rate_written {
            0 => self.settings.rate_mhz,
            rate => self.rate_of(rate),
        }
    }
}
