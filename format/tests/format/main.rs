//! The format's tests, one module per subject.

mod common;
mod damage;
mod foreign;
#[expect(unreachable_pub, reason = "it is a public module of the fuzz targets")]
#[path = "../../../tests/fuzz/src/format.rs"]
mod fuzz;
mod hostile;
mod kept;
mod kept_list;
#[expect(unreachable_pub, reason = "it is a public module of the fuzz targets")]
#[path = "../../../tests/fuzz/src/mutated.rs"]
mod mutated;
mod parts;
mod properties;
mod round_trip;
mod seeds;
mod specification;
mod supplement;
