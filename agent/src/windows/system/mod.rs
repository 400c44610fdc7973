//! The system as every thread of the recorder calls it: functions, memory, threads, files, facts.

pub mod api;
pub mod context;
pub mod files;
pub mod heap;
pub mod host;
pub mod memory;
pub mod pages;
pub mod panic;
pub mod peb;
pub mod random;
pub mod text;
pub mod thread;
