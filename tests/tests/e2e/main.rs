//! The end-to-end tests: Windows programs that are recorded for real. tests/lib.sh chooses the
//! modules that a machine runs by their names, and runs one test at a time.

mod agent;
mod agent_dll;
mod busy;
mod capture;
mod churn;
mod complete;
mod control;
mod crowd;
mod doctor;
mod dotnet;
mod dotnet32;
#[cfg(feature = "judges")]
mod dotnet32_walks;
mod dynamic;
mod exit;
mod flight;
mod foreign;
mod guard;
mod handover;
mod heaps;
mod hooks;
mod inject;
mod kill;
mod launch;
mod layouts;
mod lifecycle;
mod locks;
mod output;
mod playback;
mod programs;
mod rotate;
mod rust_api;
mod smoke;
mod stk_exe;
mod stress;
mod suspend;
#[cfg(feature = "analysis")]
mod symbols;
mod tables;
mod triggers;
mod unlisted;
mod unload;
mod walks;
mod weights;
mod x86;
