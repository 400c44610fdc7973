//! The output formats, written from profiles that are made by hand, and read back by other means.

mod chrome;
mod folded;
mod mixed;
mod others;
mod parquet;
mod profiles;
mod speedscope;
mod stats;
