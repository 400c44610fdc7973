//! What the recorder's threads share, and how they meet without waiting for each other.

pub mod events;
pub mod exclusive;
pub mod pace;
pub mod state;
