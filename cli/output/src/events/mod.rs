//! What happened in a trace, event by event in time, as `stk events` prints it.
//!
//! ```text
//! filter     which events are wanted             TraceEvent -> bool
//! document   the events in the form of JSON      TraceEvents -> EventsOfTrace
//! text       the events as a table               EventsOfTrace -> text
//! ```

pub mod document;
pub mod filter;
pub mod text;
