//! Unwinds Windows stacks from captured bytes.

/// How a frame was found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Trust {
    /// The sampled context itself.
    Context,
}

impl Trust {
    /// Stable short name.
    pub fn as_str(self) -> &'static str {
        match self {
            Trust::Context => "context",
        }
    }
}
