//! Runs the stored inputs of the format's fuzz targets, `tests/fuzz/seeds`: what reached new code
//! of the reader when the targets ran for an hour.

use crate::fuzz;
use std::fs;
use std::path::Path;

/// Runs all inputs of a target. It panics if one is not answered as the target says.
fn run(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/seeds").join(target);
    let inputs = fs::read_dir(&folder).expect("the folder of the inputs");
    let mut count = 0;
    for input in inputs {
        let path = input.expect("an entry").path();
        check(&fs::read(&path).expect("an input"));
        count += 1;
    }
    assert!(count >= 20, "{count} inputs in {}", folder.display());
}

#[test]
fn stored_inputs_of_open_are_read_or_refused() {
    run("format_open", fuzz::open);
}

#[test]
fn stored_inputs_of_event_are_decoded_or_refused() {
    run("format_event", fuzz::event);
}

#[test]
fn stored_inputs_of_samples_are_decoded_or_refused() {
    run("format_samples", fuzz::samples);
}

#[test]
fn stored_inputs_of_mutation_leave_other_blocks_readable() {
    run("format_mutation", fuzz::mutation);
}
