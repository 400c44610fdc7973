//! Checks that samples show where threads spend their time: compares stk with perf on threads that
//! are always on CPU. `weights` (src/bin) measures more programs for a longer time.

use stk_tests::stk;
use stk_tests::weights::run::{ON_CPU, Plan, Report, Subject, print};
use stk_tests::wine::{self, Folder, Inject};

/// Fewer samples than in the measurement. Their bound is wider by the larger effect of chance.
const PLAN: Plan = Plan { rate: 1000, seconds: 6, perf_seconds: 3 };

fn measured(subject: Subject) -> Report {
    print(subject, PLAN).unwrap_or_else(|error| panic!("{error:#}"))
}

/// On a loaded machine no thread is always on CPU. Then the busiest one counts.
fn is_true(subject: Subject) {
    const TRIES: u32 = 3;
    let mut said = Vec::new();
    for _ in 0..TRIES {
        let report = measured(subject);
        let busiest = report.threads.first().expect("a thread that both have sampled");
        assert!(busiest.samples.1 > 100, "{busiest}");
        if report
            .threads
            .iter()
            .filter(|thread| thread.on_cpu >= ON_CPU.min(busiest.on_cpu))
            .all(|thread| thread.is_true())
        {
            return;
        }
        said.push(busiest.to_string());
    }
    panic!("beyond chance + 2 % by module or + 3 % by 64 KB, {TRIES} times:\n{}", said.join("\n"));
}

#[test]
fn a_program_that_reads_its_environment_is_sampled_where_it_works() {
    is_true(Subject::Cmake);
}

#[test]
fn a_program_that_takes_the_peb_lock_all_the_time_is_sampled_where_it_works() {
    is_true(Subject::Hammer("environment"));
}

/// A recorder with passes at even times would meet the program in one half of its periods. They are
/// not whole milliseconds: on a loaded machine the kernel stops a thread at those, in step with it.
#[test]
fn a_program_in_step_with_the_recorder_is_sampled_evenly() {
    const RATE: &str = "700";
    let folder = Folder::new("in-step");
    let exe = wine::windows_path(&wine::compiled(env!("CARGO_TARGET_TMPDIR"), "in_step"));
    let line = ["-r", RATE, "-o", "in_step.stk", "--", &exe, "4", RATE];
    Inject::launch_in(&folder, folder.path(), &line).expect(0);
    let stats = stk::json(folder.path(), &["stats", "--json", "--full", "in_step.stk"]);
    let functions = stats["traces"][0]["functions_by_total"].as_array().expect("a list");
    let cpu_of = |name: &str| {
        let found = functions.iter().find(|function| function["function"] == name);
        found.map_or(0.0, |function| function["total"]["weight_ns"].as_f64().expect("a number"))
    };
    let (first, second) = (cpu_of("first_half"), cpu_of("second_half"));
    let share = first / (first + second);
    wine::measured(&format!("in the first half of its periods: {:.1} %", share * 100.0));
    assert!((0.35..0.65).contains(&share), "{share} in the first half of its periods");
}
