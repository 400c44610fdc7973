//! Continues in the next file. The agent does so without a gap
//! ([`stk_schema::requests::REQUEST_FILE`]); only where it has ended the present file itself,
//! because that is full, a new recording begins.

use super::destination::OpenOutput;
use super::finisher::FileEnding;
use super::ring::{FileUse, Rotating};
use super::session::{End, STOP_MS, Session};
use super::start::{FilePlan, Starter};
use crate::failure::{self, Failure};
use crate::messages::{self, say};
use crate::windows::agent::HOSTS_MS;
use crate::windows::console;
use crate::windows::facts::{self, MetadataEntry};
use crate::windows::system;
use crate::{status, steps};
use stk_schema::control::{ROTATION_STOP, STATE_RECORDING, STATE_STOPPING};
use stk_schema::event::EndReason;

/// How long a process may take to end that no longer runs requests.
const ENDING_MS: u32 = 3_000;

impl Session<'_> {
    /// Continues in the next file. `None`: the recording continues, if not there then in its file.
    ///
    /// # Errors
    /// A sentence for the user, when the recording cannot continue. What was recorded stays.
    pub(super) fn rotate(&mut self) -> Result<Option<End>, Failure> {
        let (record, process) = (self.starter.record, self.starter.process);
        let Some(rotating) = &mut self.rotating else { return Ok(Some(End::ByAgent)) };
        steps::begin(steps::Thread::Main, "continues in the next file");
        // All that takes time comes first.
        let opened = rotating.open(record).and_then(|opened| opened.empty().map(|()| opened));
        let facts = facts::facts(record, process);
        if !self.read_status()? {
            return Ok(Some(End::ProcessEnded));
        }
        if self.running.is_paused() || self.running.status.state == STATE_STOPPING {
            // It was paused meanwhile, and stays in its file; or it is ending, and why comes next.
            self.rotating.iter_mut().for_each(Rotating::take_back_name);
            return Ok(None);
        }
        steps::begin(steps::Thread::Main, "continues in the next file");
        if self.running.status.state == STATE_RECORDING {
            return self.continue_in(opened, facts);
        }
        self.begin_after_end(opened, facts)
    }

    /// Has the agent continue in the next file.
    fn continue_in(
        &mut self,
        opened: Result<OpenOutput, Failure>,
        facts: Vec<MetadataEntry>,
    ) -> Result<Option<End>, Failure> {
        let (record, process) = (self.starter.record, self.starter.process);
        let Some(rotating) = &mut self.rotating else { return Ok(Some(End::ByAgent)) };
        let Some(mut plan) = rotating.plan_next(record, &self.running.status) else {
            self.starter.agent.stop(process, STOP_MS)?;
            let runs = self.read_status()?;
            return Ok(Some(if runs { End::Full } else { End::ProcessEnded }));
        };
        plan.facts = facts;
        plan.facts.extend(rotating.facts_of_next());
        let number = rotating.number();
        let begun = opened.and_then(|opened| {
            Ok(self.starter.continue_in(&opened, &plan, number)?.map(|uuid| (opened, uuid)))
        });
        let why = match begun {
            Ok(Some((opened, uuid))) => {
                self.running.uuid = uuid;
                let present = opened.begin(record, uuid);
                self.path.clone_from(&present.path);
                if let Some(rotating) = &mut self.rotating {
                    rotating.continued_in(self.ending.take(), &present);
                }
                self.ending = Some(present);
                return Ok(None);
            }
            Ok(None) => None,
            Err(failure) => Some(failure),
        };
        // The recording, or the process, has ended meanwhile: the next look shows it.
        if self.read_status()? && self.running.status.state == STATE_RECORDING {
            let why = why.map_or_else(
                || {
                    let said = status::message(&self.running.status);
                    if said.is_empty() { "the agent was not ready for it".to_owned() } else { said }
                },
                |failure| failure.to_string(),
            );
            say(&format!("inject: the recording stays in {}: {why}", messages::file(&self.path)));
        }
        self.rotating.iter_mut().for_each(Rotating::try_later);
        Ok(None)
    }

    /// Begins a recording of the next file, after the agent has ended the present one.
    fn begin_after_end(
        &mut self,
        opened: Result<OpenOutput, Failure>,
        facts: Vec<MetadataEntry>,
    ) -> Result<Option<End>, Failure> {
        let record = self.starter.record;
        let status = self.running.status;
        let previous_end = system::counter();
        if status.rotation == ROTATION_STOP || status.end_reason != EndReason::SizeLimit as u32 {
            return Ok(Some(self.ended_by_agent()));
        }
        let opened = opened.map_err(cannot_continue)?;
        let ending = self.take_ending();
        let Some(rotating) = &mut self.rotating else { return Ok(Some(End::ByAgent)) };
        rotating.leave_before();
        ending.into_iter().for_each(|file| rotating.files.add(file));
        let Some(mut plan) = rotating.next_plan(record, &status) else { return Ok(Some(End::Full)) };
        plan.facts = facts;
        plan.facts.extend(rotating.facts(Some(previous_end)));
        self.begin_file(opened, &plan)
    }

    /// Starts the recording of the next file. `None`: it has begun.
    fn begin_file(&mut self, opened: OpenOutput, plan: &FilePlan) -> Result<Option<End>, Failure> {
        let Starter { process, agent, .. } = &self.starter;
        // Until the file has begun, no other inject has the agent leave or records with it.
        let hosts = agent.take_hosts(process, HOSTS_MS).map_err(cannot_continue)?;
        if !agent.is_loaded(process) {
            return Ok(Some(End::ByAgent));
        }
        if let Some(rotating) = &self.rotating {
            agent.set_file(process, rotating.place());
        }
        self.running = match self.starter.start(&opened, plan) {
            Ok(running) => running,
            Err(_) if self.process_ended() => return Ok(Some(End::ProcessEnded)),
            Err(failure) => return Err(cannot_continue(failure)),
        };
        drop(hosts);
        let present = opened.begin(self.starter.record, self.running.uuid);
        self.path.clone_from(&present.path);
        self.rotating.iter_mut().for_each(|rotating| rotating.begin_file(&present, false));
        self.ending = Some(present);
        Ok(None)
    }

    /// Whether the process has ended, or ends in this moment, so that nothing can be called there.
    fn process_ended(&self) -> bool {
        system::wait(self.starter.process.handle(), ENDING_MS)
    }

    /// What is to happen to the present file, whose recording has ended.
    fn take_ending(&mut self) -> Option<FileEnding> {
        // The guard of ended threads has nothing to do.
        self.running.guarding = None;
        let dropped = self.running.status.dropped;
        self.ending.take().map(|ending| FileEnding { dropped, ..ending })
    }

    /// Whether the end demands a trace of the last seconds. Who ends a recording wants no more of
    /// it; a logoff ends it unwanted.
    pub(super) fn wants_last_trace(&self, end: &End) -> bool {
        let planned = [EndReason::Stopped, EndReason::Duration].map(|reason| reason as u32);
        match end {
            End::Interrupted => console::session_ends(),
            End::Full => false,
            End::ProcessEnded => true,
            End::ByAgent => !planned.contains(&self.running.status.end_reason),
        }
    }

    /// Waits until all files are finished, reports the result and returns the exit code.
    pub(super) fn close_ring(mut self, end: Result<End, Failure>) -> Result<i32, Failure> {
        let last = self.take_ending();
        let Some(mut rotating) = self.rotating.take() else { return end.map(|_| failure::FAILED) };
        rotating.look_at_file(&self.running.status);
        rotating.leave_before();
        let (text, moved) = match rotating.files {
            FileUse::Kept(finisher) => {
                let summary = finisher.finish(last);
                (summary.text(), summary.moved())
            }
            FileUse::Flight(flight) => (flight.text(), Ok(())),
        };
        match end {
            Ok(end) => self.conclude(end, &text).and_then(|code| moved.map(|()| code)),
            Err(failure) => {
                let text = format!("{failure}; what was recorded is in {text}");
                Err(Failure::with_code(failure.code(), text))
            }
        }
    }
}

/// The failure to begin the next file.
fn cannot_continue(failure: Failure) -> Failure {
    let text = format!("the recording ends, since its next file cannot be begun: {failure}");
    Failure::with_code(failure.code(), text)
}
