//! How a recording ended, in words and as an exit code.

use super::session::{End, Session};
use crate::failure::{self, Failure};
use crate::messages::say;
use crate::status;
use stk_schema::control::STATE_FAILED;
use stk_schema::event::EndReason;

impl Session<'_> {
    /// Reports how the recording ended and returns the exit code.
    pub(super) fn conclude(&self, end: End, trace: &str) -> Result<i32, Failure> {
        match end {
            // The trace is not the whole one that the exit code of an interruption promises.
            End::Interrupted if self.running.status.end_reason == EndReason::WriteError as u32 => {
                self.report(trace)
            }
            End::Interrupted => {
                say(&format!("interrupted; {trace}"));
                Ok(failure::INTERRUPTED)
            }
            End::ProcessEnded => {
                let code = show_exit_code(self.starter.process.exit_code());
                if self.running.status.state == STATE_FAILED {
                    let message = status::message(&self.running.status);
                    return Err(Failure::failed(format!(
                        "the agent failed ({message}); {} ended with exit code {code}, and what was recorded is in {trace}",
                        self.starter.process
                    )));
                }
                say(&format!("{} ended with exit code {code}; {trace}", self.starter.process));
                Ok(failure::OK)
            }
            End::ByAgent => self.report(trace),
            End::Full => {
                say(&format!("the size limit was reached; {trace}"));
                Ok(failure::OK)
            }
        }
    }

    fn report(&self, trace: &str) -> Result<i32, Failure> {
        let message = status::message(&self.running.status);
        let message = if message.is_empty() { String::new() } else { format!(" ({message})") };
        let reason = self.running.status.end_reason;
        let is = |known: EndReason| reason == known as u32;
        if is(EndReason::Duration) || self.once && is(EndReason::Stopped) {
            say(trace);
        } else if is(EndReason::Stopped) {
            say(&format!("stopped from elsewhere; {trace}"));
        } else if is(EndReason::SizeLimit) {
            say(&format!("the size limit was reached{message}; {trace}"));
        } else if is(EndReason::ProcessExit) {
            say(&format!("{} is ending and has not ended yet; {trace}", self.starter.process));
        } else {
            let cause = if is(EndReason::Watchdog) {
                "the agent's watchdog ended the recording"
            } else if is(EndReason::WriteError) {
                "the agent could not write the trace"
            } else if is(EndReason::Panic) || self.running.status.state == STATE_FAILED {
                "the agent failed and has switched itself off"
            } else {
                "the recording ended for a reason that this inject does not know"
            };
            return Err(Failure::failed(format!(
                "{cause}{message}; {} continues, and what was recorded is in {trace}",
                self.starter.process
            )));
        }
        Ok(failure::OK)
    }
}

/// Shows small codes as numbers and NTSTATUS values in their usual form: `0xC0000005`.
fn show_exit_code(code: u32) -> String {
    if code < 0x8000_0000 { code.to_string() } else { format!("0x{code:08X}") }
}
