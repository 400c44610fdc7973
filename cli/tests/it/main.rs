//! The one integration test program of `stk`: a module for each subject. What crosses packages is
//! in tests/tests/host. A test belongs to the module of the command or reader that it runs.

#[path = "../../../build/commit.rs"]
#[allow(dead_code)]
mod commit;
#[path = "../../../tests/tests/host/outputs/profiles.rs"]
#[allow(dead_code, unreachable_pub)]
mod profiles;
mod support;

#[cfg(feature = "parquet")]
mod agreement;
mod annotate;
mod cabinet;

mod batch;
mod cli;
#[cfg(feature = "parquet")]
mod dataset;
mod diff;
#[cfg(feature = "parquet")]
mod documents;
mod events;
mod merge;
mod mutations;
mod questions;
mod redact;
mod report;
mod schemas;
mod selection;
mod stacks;
mod standing;
mod symbols_bombs;
mod symbols_bombs_image;
mod symbols_cases;
mod symbols_cli;
mod symbols_damage;
mod symbols_identity;
mod symbols_records;
mod symbols_server;
mod tables;
mod top;
mod trust;
mod windows;
mod words;
