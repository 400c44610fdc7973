//! Lines of .NET methods in the kept recording of examples/mixed.

use std::path::Path;
use stk_tests::managed_lines::MixedLines;
use stk_tests::stk::Speedscope;

#[test]
fn managed_frames_of_the_kept_trace_are_on_the_compilers_lines_and_on_those_marked_hot() {
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::copy(traces.join("mixed.stk"), folder.path().join("mixed.stk")).expect("the kept trace");
    let compared = MixedLines::read().compare(&Speedscope::of(folder.path(), "mixed.stk", &traces));
    assert!(compared.right > 50, "{compared:?}");
    assert!(compared.hot["Spin"] > 0 && compared.hot["Shapes"] > 0, "{compared:?}");
}
