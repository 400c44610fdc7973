//! What happened in a trace, event by event in time, as `stk events` prints it.
//!
//! ```text
//! filter     which events are wanted             TraceEvent -> bool
//! document   the events in the form of JSON      TraceEvents -> EventsOfTrace
//! text       the events as a table               EventsOfTrace -> text
//! playback   the events with their stacks        TraceEvents -> lines and captures
//! ```

pub mod document;
pub mod filter;
pub mod playback;
pub mod text;
