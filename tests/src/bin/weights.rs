//! Prints, for programs under Wine, how far stk's profile is from that of Linux' own sampler. It
//! has the requirements of the end-to-end tests (tests/README.md) and needs an idle machine.

use std::process::ExitCode;
use stk_tests::weights::run::{Plan, SUBJECTS, Subject, print};

const USAGE: &str = "usage: weights [--quick] [NAME…]     NAME: cmake, node, busy, mixed, 'hammer: peb', 'hammer: heap', 'hammer: environment'

Records each program at 1 kHz and at 100 Hz, with perf before and after, and prints the total variation between both: per thread between its samples and
perf's, and for all threads together between the CPU time that stk shares out and perf's samples. Fails if a thread that is on CPU all the time, or the
CPU time of all threads, is beyond chance + 2 % by module or + 3 % by 64 KB, or if the CPU time of a thread in `stk stats` is further than 10 %,
and than 0.5 % of the time, from what lies between its time alone (by perf) and its time while it is recorded (by Linux).
  --quick   1 kHz only, 10 s";

fn main() -> ExitCode {
    let (mut quick, mut names) = (false, Vec::new());
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--quick" => quick = true,
            "--help" => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            _ => names.push(argument),
        }
    }
    let chosen: Vec<Subject> =
        SUBJECTS.into_iter().filter(|subject| names.is_empty() || names.contains(&subject.name())).collect();
    if chosen.is_empty() {
        eprintln!("no such program\n{USAGE}");
        return ExitCode::from(2);
    }
    let fast = Plan { rate: 1000, seconds: 12, perf_seconds: 4 };
    let slow = Plan { rate: 100, seconds: 50, perf_seconds: 4 };
    let plans: &[Plan] = if quick { &[fast] } else { &[fast, slow] };
    let mut good = true;
    for &subject in &chosen {
        for &plan in plans {
            match print(subject, plan) {
                Ok(report) => {
                    for thread in report.on_cpu().filter(|thread| !thread.is_true()) {
                        println!("  BEYOND the bound: {}", thread.name);
                        good = false;
                    }
                    if report.cpu.as_ref().is_some_and(|cpu| !cpu.is_true()) {
                        println!("  CPU profile of all threads BEYOND the bound");
                        good = false;
                    }
                    for thread in report.threads.iter().filter(|thread| !thread.has_true_cpu_time()) {
                        println!("  CPU time BEYOND the bound: {}", thread.name);
                        good = false;
                    }
                }
                Err(error) => {
                    println!("{}: {error:#}", subject.name());
                    good = false;
                }
            }
        }
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
