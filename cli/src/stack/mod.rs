//! A decoded sample becomes a stack: the one way for profiles, dumps and the comparison of walks.
//!
//! ```text
//! walk  the sample's frames, beyond gaps too, and why there are no more  Sample -> Frame, End
//! ```

mod walk;

pub use walk::{End, StackWalker, StopReason, ThreadStack};
