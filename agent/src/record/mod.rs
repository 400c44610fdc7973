//! Decides what to record. Portable, so that it is tested on any host with a fake target.
//!
//! ```text
//! sampler      captures -> SAMPLES blocks        (its thread never waits)
//! loader_queue the loader's notifications that wait to be worked off
//! fingerprint  identities that a loader notification keeps
//! rescue       tables of a module that is unmapped before they were read
//! modules      notifications, snapshots -> MODULE_LOAD, MODULE_UNLOAD
//! dynamic      code in no module -> CODE_ADD, CODE_REMOVE
//! held_times   how long threads stood still
//! image        headers, identities, unwind tables, exports, read from memory
//! threads      enumerations -> THREAD_START, THREAD_EXIT, THREAD_NAME
//! event_writer those events and BLOBs -> META, STATE, BLOB blocks
//! restated     what code and runtimes threads wrote, to restate it in the next file
//! files        which file each thread writes for, in a recording of several
//! writer       blocks -> the file
//! cpu_budget   the sampler's share of a processor
//! stack_bounds which part of a stack is copied plainly, and which by system call
//! temporary    names of unfinished files
//! dotnet       facts of a .NET runtime -> RUNTIME_INFO, NETTRACE, MANAGED_THREAD, MEMORY
//! pointers     --stack-words pointers: zeros for the words of a capture that are no addresses
//! code         a cache of code bytes at instruction pointers
//! patience     waits that end by the clock
//! pass_times   when the sampler's passes are due
//! period       how often work is repeated whose cost grows with the process
//! queue        between threads of the target and of the recorder; never waits
//! requests     the mailbox through which hosts ask for marks and pauses
//! c_memory     copies and fills of memory, without a C runtime
//! suspension   who resumes a suspended thread: sampler, watchdog or guard
//! options      options that come as texts
//! thread_filter which threads are sampled
//! exception_filter which exceptions are recorded, and how many a second
//! cpu_trigger  when the process begins to use much CPU time
//! shared       block buffers and counters that the recorder's threads share
//! ```

pub(crate) mod c_memory;
pub(crate) mod code;
pub(crate) mod cpu_budget;
pub(crate) mod cpu_trigger;
pub(crate) mod dotnet;
pub(crate) mod dynamic;
pub(crate) mod event_writer;
pub(crate) mod exception_filter;
pub(crate) mod files;
pub(crate) mod fingerprint;
pub(crate) mod held_times;
pub(crate) mod image;
pub(crate) mod last_modules;
pub(crate) mod loader_queue;
pub(crate) mod modules;
pub(crate) mod options;
pub(crate) mod pass_times;
pub(crate) mod patience;
pub(crate) mod period;
pub(crate) mod pointers;
pub(crate) mod queue;
pub(crate) mod requests;
pub(crate) mod rescue;
pub(crate) mod restated;
pub(crate) mod sampler;
pub(crate) mod shared;
pub(crate) mod stack_bounds;
pub(crate) mod suspension;
pub(crate) mod temporary;
pub(crate) mod thread_filter;
pub(crate) mod threads;
pub(crate) mod unlisted;
pub(crate) mod writer;

#[cfg(all(test, not(windows)))]
mod tests;
