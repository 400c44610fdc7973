//! inject.exe: loads agent.dll into a Windows process and controls the recording.
//!
//! inject works in this order: it finds the process, checks everything that it can check without
//! changing it (rights, architecture, policies, the DLL's exports, the output), opens the output,
//! loads the agent with a remote `LoadLibraryW`, calls `stk_agent_start` with a duplicated handle
//! of the output, and then only reads the agent's status until the recording ends. It also answers
//! the agent's requests for names that the runtime in the process does not give. It never suspends,
//! reads or walks the target's threads: that is the agent's work. Only `stop --unload` reads their
//! instruction pointers, once the agent's own threads have ended.
//!
//! The portable half is tested on every host:
//!
//! * [`access`]: access to another process's memory that the system refuses for a moment.
//! * [`args`]: the command line.
//! * [`duration`]: `10`, `10s`, `1m30s`.
//! * [`old_names`]: names for traces that give way to new ones.
//! * [`options`]: options that the agent gets as texts.
//! * [`rotation`]: a ring of files of one recording.
//! * [`pattern`]: output names such as `%n-%p-%t.stk`.
//! * [`exports`]: functions of the system in the target's own images.
//! * [`image`]: architecture, exports and identity of a DLL, from its file or its loaded image.
//! * [`blocker`]: programs that may have blocked the agent.
//! * [`complete`]: adds data that the agent could not read in time.
//! * [`delivery`]: where a trace is written, and where it is moved to.
//! * [`companion`]: the other build of inject, for processes of another architecture.
//! * [`refusal`]: which architectures and access tokens allow a recording, and the message if they
//!   do not.
//! * [`policy`]: which mitigation policies keep agent.dll out.
//! * [`stall`]: whether a recording has come to a standstill.
//! * [`status`]: the status line.
//! * [`steps`]: what each of inject's own threads does.
//! * [`trace_summary`]: the summary of a trace.
//! * [`flight`]: traces of the last files of a ring.
//! * [`guard`]: when to resume a thread that a dead recorder holds.
//! * [`label`]: labels that the user gives a trace.
//! * [`list`]: the table and the JSON of `inject ps`.
//! * [`messages`]: inject's messages on standard error, made printable.
//! * [`name_pattern`]: names of programs, plain or as regular expressions.
//! * [`names`]: requests and answers in the agent's mailbox for names.
//! * [`quiet`]: whether a thread can be in the agent that is to leave.
//! * [`readiness`]: whether a process that inject has started is initialised.
//! * [`held`]: files and threads that another program holds for a moment.
//! * [`file_identity`]: which file it is, whatever its name.
//! * [`page_cache`]: pages of another process's memory, remembered for a moment.
//! * [`runtime`]: a .NET runtime's data on its data access library.
//! * [`symbol_path`]: where that library may lie on the debuggers' symbol path.
//! * [`uuid`]: the identity of a trace.
//! * [`doctor`]: the verdicts of `inject doctor` on this system.
//! * [`failure`]: errors with their exit codes.
//!
//! `windows` (on Windows only) holds everything that calls the system.
#![cfg_attr(not(windows), allow(dead_code, unused_imports, reason = "only `windows` uses the rest"))]

mod access;
mod args;
mod blocker;
mod companion;
mod complete;
mod delivery;
mod doctor;
mod duration;
mod exports;
mod failure;
mod file_identity;
mod flight;
mod guard;
mod held;
mod image;
mod label;
mod list;
mod messages;
mod name_pattern;
mod names;
mod old_names;
mod options;
mod page_cache;
mod pattern;
mod policy;
mod quiet;
mod readiness;
mod refusal;
mod rotation;
mod runtime;
mod stall;
mod status;
mod steps;
mod symbol_path;
mod trace_summary;
mod trust;
mod uuid;
#[cfg(windows)]
mod windows;

/// Runs inject with the process's own command line and returns its exit code.
pub fn main() -> i32 {
    let action = match args::parse(std::env::args_os()) {
        Ok(action) => action,
        Err(error) => {
            // A closed pipe is not a failure: the reader has seen enough.
            let _ = error.print();
            return error.exit_code();
        }
    };
    run(action)
}

#[cfg(windows)]
fn run(action: args::Action) -> i32 {
    windows::run(action)
}

#[cfg(not(windows))]
fn run(_: args::Action) -> i32 {
    let failure = failure::Failure::usage(
        "inject records Windows processes and runs on Windows (or under Wine) only: build it for x86_64-pc-windows-gnu",
    );
    eprintln!("inject: {}", stk_schema::text::printable_lines(&failure.to_string()));
    failure.code()
}
