//! `inject --check-walks` and `stk verify --walks`: compares stk's walks with those of the system's
//! own unwinder, made at the same moment.
//!
//! Wine's unwinder is not always right. A difference passes only where `stk verify` proves the
//! reason from the sample itself.

use serde_json::Value;
use stk_tests::recorded::Recorded;
use stk_tests::stk;
use stk_tests::wine::{self, Folder, Inject, Program};

/// The result of `stk verify --walks` for a trace.
pub(crate) struct Walks(Value);

impl Walks {
    #[track_caller]
    pub(crate) fn of(folder: &Folder, trace: &str) -> Walks {
        let ran = stk::run(folder.path(), &["verify", "--walks", "--json", trace]);
        let shown: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| {
            panic!("stk verify --walks {trace}: {error}\n{}{}", ran.stdout, ran.stderr)
        });
        let walks = Walks(shown["traces"][0].clone());
        // Exit code 6 means unexplained differences, and only that.
        let expected = if walks.number("unexplained") == 0 { 0 } else { 6 };
        assert_eq!(ran.code, Some(expected), "{}{}", ran.stdout, ran.stderr);
        walks
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_else(|| panic!("{name} is a number: {}", self.0))
    }

    /// Checks that all walks are counted, that each has its sample, and that none differs without a
    /// proven reason.
    #[track_caller]
    pub(crate) fn explained(&self) -> &Walks {
        assert!(self.number("walks") > 0, "{}", self.0);
        let sum = self.number("equal") + self.number("different") + self.number("discarded");
        assert_eq!((sum, self.number("unmatched")), (self.number("walks"), 0), "{}", self.0);
        assert_eq!(self.number("unexplained"), 0, "{:#}", self.0["classes"]);
        self
    }

    /// Checks that nearly all walks are equal, so that the classes are exceptions.
    #[track_caller]
    fn mostly_equal(&self) {
        let (equal, walks) = (self.number("equal"), self.number("walks") - self.number("discarded"));
        assert!(equal * 100 >= walks * 95, "{equal} of {walks} walks are equal: {:#}", self.0["classes"]);
        // The stacks must be deep, not only leaves.
        assert!(self.number("equal_frames") >= 4 * equal, "{}", self.0);
    }
}

/// Records with walks.
#[track_caller]
fn record(folder: &Folder, target: &[&str]) -> Walks {
    let options = ["--check-walks", "-o", "walks.stk", "-r", "300", "-d", "4s"];
    Inject::record(folder, &[target, &options].concat());
    let recorded = Recorded::open(&folder.file("walks.stk"));
    assert!(recorded.complete && recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert_eq!(recorded.metadata["recorder.check_walks"], "on");
    Walks::of(folder, "walks.stk")
}

#[test]
fn walks_of_busy_are_equal_or_wines_fault() {
    let folder = Folder::new("walks-busy");
    let mut busy = Program::busy(&folder, 9);
    record(&folder, &["--pid", &busy.pid()]).explained().mostly_equal();
    let status = busy.wait();
    assert!(status.success() && busy.output().contains("checksum a9a6d267ba599d58"), "{}", busy.output());
}

#[test]
fn walks_of_cmake_are_equal_or_wines_fault() {
    let folder = Folder::new("walks-cmake");
    let exe = wine::path("STK_FETCH_DIR").join("cmake/cmake/data/bin/cmake.exe");
    let mut cmake = Program::cmake(&folder, &exe);
    record(&folder, &["--name", "cmake.exe"]).explained().mostly_equal();
    assert!(cmake.is_running(), "cmake ended: {}", cmake.output());
}

#[test]
fn walks_of_node_are_equal_or_wines_fault_or_pass_through_compiled_javascript() {
    let folder = Folder::new("walks-node");
    let mut node = Program::node(&folder, 10);
    record(&folder, &["--pid", &node.pid()]).explained();
    let status = node.wait();
    assert!(status.success() && node.output().contains("rounds ok"), "{status}\n{}", node.output());
}

#[test]
fn a_trace_without_walks_is_no_success() {
    let trace = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/traces/busy.stk");
    let ran = stk::run(std::path::Path::new("."), &["verify", "--walks", &trace.display().to_string()]);
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("inject --check-walks"), "{}", ran.stderr);
}
