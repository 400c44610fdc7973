//! The format's tests, one module per subject.

mod common;
mod damage;
mod foreign;
mod hostile;
mod kept;
mod kept_list;
mod parts;
mod properties;
mod round_trip;
mod specification;
mod supplement;
