//! What is read of an image in the target's memory. inject reads image files the same way, so the
//! code is the format's.

pub use stk_format::image::*;
