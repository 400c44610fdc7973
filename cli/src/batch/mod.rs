//! Conversions in processes of their own, with limits of time and memory, and what is known of the
//! outputs of earlier ones.
//!
//! Takes the files of a batch. Returns a [`TraceResult`] for each:
//!
//! ```text
//! protocol   what a batch and its processes say        lines of JSON
//! processes  conversions in processes, with limits     files -> TraceResult
//! record     what an output was made of                output -> Recorded
//! seen       traces that did not change since          file -> Entry
//! ```

mod processes;
mod protocol;
mod record;
mod seen;

pub use processes::{Done, Processes};
pub use protocol::{Answer, Lost, Order, Setup, Stage, TraceResult, TraceStatus};
pub use record::{Record, Recorded};
pub use seen::{Entry, ReadNow, SeenTrace, SeenTraces, SymbolQuery};
