//! Checks that samples show where a program spends its time. Compares stk with Linux' own sampler
//! on the same threads of the same Wine process.
//!
//! Under Wine a thread of a Windows program is a Linux thread, and images lie at the addresses that
//! the trace names. So `perf`, which works outside the process, is an oracle for the weights of a
//! profile.
//!
//! * [`perf`]: records with perf; returns the instruction pointers of each Linux thread.
//! * [`trace`]: reads the same from a trace.
//! * [`place`]: finds what lies at an address: a module's function, dynamic code, or the system.
//! * `cpu`: CPU time by place, as stk's analysis shares it out.
//! * `account`: CPU time of each thread while it is recorded, as Linux counts it.
//! * [`compare`]: total variation of two sets of samples, and that of chance alone.
//! * [`run`]: one program, recorded by both.
//!
//! Samples in system calls and on Wine's Unix side are one place, [`place::Place::System`], on both
//! sides.

mod account;
pub mod compare;
#[cfg(feature = "analysis")]
pub mod cpu;
pub mod perf;
pub mod place;
pub mod run;
pub mod trace;
