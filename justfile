# The everyday commands, for `just` (https://just.systems). Each calls cargo or a script that does the same without just.

# Lists these commands.
default:
    @just --list --unsorted

# Formats everything. cargo fmt does not see modules that a macro declares.
format:
    cargo fmt --all
    rustfmt --edition 2024 cli/output/src/formats/*.rs cli/output/src/formats/*/mod.rs

# Lints of stk and what it uses, without Parquet: for daily work.
check:
    cargo clippy -p stk --no-default-features --all-targets -- -D warnings

# The tests that need no Windows program.
test *arguments:
    ./tests/run.sh --host-only {{ arguments }}

# Every test, under Wine too: `just e2e`, `just e2e core`, `just e2e worlds --long`.
e2e *arguments:
    ./tests/run.sh {{ arguments }}

# What must pass before a change is taken: `just ci`, `just ci core`.
ci *arguments:
    .ci/run {{ arguments }}

# A benchmark beside its peers: `just bench symbols FILE.pdb`; format, unwind, reuse, symbols.
bench name *files:
    cargo bench -p stk-benches --bench {{ name }} -- {{ files }}

# What recording costs the recorded program: `just overhead --runs 5 --only cmake`.
overhead *arguments:
    benches/overhead.sh {{ arguments }}

# A thousand different traces through `stk batch`, with kills: `just batch --traces 100`.
batch *arguments:
    benches/batch.sh {{ arguments }}

# Questions to a dataset of a thousand traces: `just dataset --keep FOLDER`.
dataset *arguments:
    benches/dataset.sh {{ arguments }}

# The archives for Windows, in target/release-zip.
release:
    ./release.sh

# Fuzz targets, a minute each: `just fuzz symbols_pdb`; all of them without a name.
fuzz *targets:
    tests/fuzz/run.sh {{ targets }}
