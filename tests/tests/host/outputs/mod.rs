//! Writes the output formats from handmade profiles and reads them back with other readers.

mod activity;
mod chrome;
mod dataset;
mod firefox;
mod flamegraph;
mod folded;
mod mixed;
mod others;
mod parquet;
mod perfetto;
mod pprof;
mod profiles;
mod report;
mod speedscope;
mod stats;
mod wire;
