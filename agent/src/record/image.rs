//! Reading images in the target's memory. inject reads image files the same way, so the code is in
//! stk-format.

pub(crate) use stk_format::image::*;
