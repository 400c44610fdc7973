//! WIP
#![cfg_attr(all(windows, not(test)), no_std)]

extern crate alloc;

pub mod record;

#[cfg(windows)]
mod windows;
