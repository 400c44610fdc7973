//! Gives `stk --version` its commit and its features.

#[path = "../build/commit.rs"]
mod commit;

/// What stk is built from.
const SOURCES: [&str; 10] = [
    "cli/src",
    "cli/Cargo.toml",
    "cli/base/src",
    "cli/output/src",
    "cli/profile/src",
    "cli/symbols/src",
    "cli/unwind/src",
    "format/src",
    "schema/src",
    "Cargo.lock",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../build/commit.rs");
    commit::emit(std::path::Path::new(".."), &SOURCES);
    let features = [("CARGO_FEATURE_PARQUET", "parquet"), ("CARGO_FEATURE_SWIFT", "swift")];
    let has = features.iter().filter(|(variable, _)| std::env::var_os(variable).is_some());
    let names: Vec<&str> = has.map(|(_, name)| *name).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    println!("cargo::rustc-env=STK_BUILD_FEATURES={names}");
}
