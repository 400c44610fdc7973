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
//! Its subjects are folders of one name in two places: here the portable half, which is tested on
//! every host, and in `windows` (on Windows only) what calls the system:
//!
//! * [`record`]: one recording: outputs and their names, labels, options, standstills, the guard.
//! * [`launch`]: programs that inject starts, their children, copies of inject.
//! * [`flight`]: traces of the last files of a ring.
//! * [`rotate`]: a ring of files of one recording. Its other half is in `windows::record`, which
//!   changes the files.
//! * [`dac`]: names from a .NET runtime's data access library.
//! * [`doctor`]: the verdicts of `inject doctor` on this system.
//! * [`process`]: other processes: access, names, threads, memory.
//! * [`trust`]: which paths, code, links and files an inject with higher rights trusts.
//!
//! Beside them:
//!
//! * [`args`]: the command line.
//! * [`companion`]: the other build of inject, for processes of another architecture.
//! * [`duration`]: `10`, `10s`, `1m30s`.
//! * [`exports`]: functions of the system in the target's own images.
//! * [`failure`]: errors with their exit codes.
//! * [`file_identity`]: which file it is, whatever its name.
//! * [`handler_drain`]: whether a thread can be in the handler of the agent that is to leave.
//! * [`held`]: files and threads that another program holds for a moment.
//! * [`image`]: architecture, exports and identity of a DLL, from its file or its loaded image.
//! * [`list`]: the table and the JSON of `inject ps`.
//! * [`messages`]: inject's messages on standard error, made printable.
//! * [`refusal`]: why a process cannot be recorded, and what may have blocked the agent.
//! * [`status`]: the status line.
//! * [`steps`]: what each of inject's own threads does.
//! * [`supplement`]: adds data that the agent could not read in time.
//! * [`trace_summary`]: the summary of a trace.
//! * [`uuid`]: the identity of a trace.
#![cfg_attr(not(windows), allow(dead_code, unused_imports, reason = "only `windows` uses the rest"))]

mod args;
mod companion;
mod dac;
mod doctor;
mod duration;
mod exports;
mod failure;
mod file_identity;
mod flight;
mod handler_drain;
mod held;
mod image;
mod launch;
mod list;
mod messages;
mod process;
mod record;
mod refusal;
mod rotate;
mod status;
mod steps;
mod supplement;
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
