//! One program, recorded by perf without stk, then by stk, then by perf again.

use super::account;
#[cfg(feature = "analysis")]
use super::compare::weighed_variation;
use super::compare::{Variation, variation};
use super::perf::{self, Pointers};
use super::place::{Granularity, Place, Places};
use super::trace::{self, Thread};
use crate::stk;
use crate::wine::{self, Folder, Inject, Net, Program};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// perf's rate in samples a second.
const PERF_RATE: u32 = 2000;
/// A thread that is on CPU for at least this share of the time counts as always on CPU.
pub const ON_CPU: f64 = 0.95;
/// The widest stack that a thread may have, for the mapping of Linux threads to Windows threads.
const WIDEST_STACK: u64 = 16 << 20;

/// A program to record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Subject {
    /// cmake.exe, interpreting tests/programs/recurse.cmake.
    Cmake,
    /// node.exe, running tests/programs/work.js.
    Node,
    /// examples/busy.
    Busy,
    /// examples/mixed on CoreCLR 10.
    Mixed,
    /// tests/programs/hammers.c, with this argument.
    Hammer(&'static str),
}

/// All of them, in the order of the report.
pub const SUBJECTS: [Subject; 7] = [
    Subject::Cmake,
    Subject::Node,
    Subject::Busy,
    Subject::Mixed,
    Subject::Hammer("peb"),
    Subject::Hammer("heap"),
    Subject::Hammer("environment"),
];

/// Duration and rate of sampling.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// stk's rate in samples a second.
    pub rate: u32,
    /// Seconds that stk records.
    pub seconds: u32,
    /// Seconds that perf records, before and again after.
    pub perf_seconds: u32,
}

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The program.
    pub subject: Subject,
    /// How it was sampled.
    pub plan: Plan,
    /// Threads with samples from both samplers, the busiest first.
    pub threads: Vec<ThreadReport>,
    /// Samples that the recorder dropped.
    pub dropped: u64,
    /// The CPU profile of all threads together; `None` without stk's libraries.
    pub cpu: Option<CpuReport>,
}

/// The CPU profile of all threads, those that mostly sleep included, beside perf's.
#[derive(Debug)]
pub struct CpuReport {
    /// Samples of perf, and those of stk that CPU time was shared out among.
    pub samples: (usize, usize),
    /// Total variation by module, by 64 KB, and by function.
    pub variations: [Variation; 3],
}

impl CpuReport {
    /// As [`ThreadReport::is_true`].
    pub fn is_true(&self) -> bool {
        within_bounds(&self.variations)
    }
}

/// Whether the variation by module and by 64 KB is within chance plus 2 % and 3 %.
fn within_bounds([module, page, _]: &[Variation; 3]) -> bool {
    module.measured <= module.chance + 0.02 && page.measured <= page.chance + 0.03
}

/// What is compared.
const GRANULARITIES: [Granularity; 3] = [Granularity::Module, Granularity::Page64K, Granularity::Function];

/// One thread compared with the oracle.
#[derive(Debug)]
pub struct ThreadReport {
    /// Name or id.
    pub name: String,
    /// Share of the time that it was on CPU, by perf, without the recorder.
    pub on_cpu: f64,
    /// The same while it was recorded, by Linux' own account.
    pub recorded_cpu: f64,
    /// The same, by `stk stats`.
    pub stats_cpu: f64,
    /// Samples of perf and of stk.
    pub samples: (usize, usize),
    /// stk's samples a second.
    pub per_second: f64,
    /// Total variation by module, by 64 KB, and by function.
    pub variations: [Variation; 3],
    /// Share of samples in the system, by perf and by stk.
    pub system: (f64, f64),
}

impl Report {
    /// The threads that are on CPU all the time.
    pub fn on_cpu(&self) -> impl Iterator<Item = &ThreadReport> {
        self.threads.iter().filter(|thread| thread.on_cpu >= ON_CPU)
    }
}

impl ThreadReport {
    /// Whether the CPU time by `stk stats` is within 10 %, or 0.5 % of the time, of what the thread
    /// uses alone and what it uses in the recording, or lies between both: stk takes out what being
    /// sampled costs the thread. What recording adds is overhead, which benches/overhead.sh
    /// measures.
    pub fn has_true_cpu_time(&self) -> bool {
        let (low, high) = (self.on_cpu.min(self.recorded_cpu), self.on_cpu.max(self.recorded_cpu));
        (self.stats_cpu - self.stats_cpu.clamp(low, high)).abs() <= (0.1 * high).max(0.005)
    }

    /// Whether the variation by module and by 64 KB is within chance plus 2 % and 3 %.
    pub fn is_true(&self) -> bool {
        within_bounds(&self.variations)
    }
}

fn percent(Variation { measured, chance }: Variation) -> String {
    format!("{:.1} % (chance {:.1} %)", 100.0 * measured, 100.0 * chance)
}

impl fmt::Display for CpuReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [module, page, function] = self.variations.map(percent);
        let (oracle, ours) = self.samples;
        write!(
            f,
            "CPU time of all threads: {oracle} samples of perf, {ours} of stk on CPU; total variation by module {module}, by 64 KB {page}, by function {function}"
        )
    }
}

impl fmt::Display for ThreadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [module, page, function] = self.variations.map(percent);
        let (oracle, ours) = self.samples;
        write!(
            f,
            "{}: on CPU {:.1} % by perf, recorded {:.1} % by Linux' account and {:.1} % by stk stats; {oracle} samples of perf, {ours} of stk ({:.0} a second); total variation by module {module}, by 64 KB {page}, \
             by function {function}; in the system {:.1} % by perf, {:.1} % by stk",
            self.name,
            100.0 * self.on_cpu,
            100.0 * self.recorded_cpu,
            100.0 * self.stats_cpu,
            self.per_second,
            100.0 * self.system.0,
            100.0 * self.system.1
        )
    }
}

/// Starts `subject` and records it by both.
///
/// # Errors
/// When perf fails or the trace cannot be read.
pub fn run(subject: Subject, plan: Plan) -> Result<Report> {
    let folder = Folder::new("weights");
    let most = plan.seconds + 2 * plan.perf_seconds + 60;
    let mut program = subject.start(&folder, most);
    // Wait until every part of the program is at work.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let pid = program.linux_pid();
    let mut oracle = perf::record(pid, PERF_RATE, plan.perf_seconds, &folder.file("before.data"))?;
    let (rate, seconds) = (plan.rate.to_string(), format!("{}s", plan.seconds));
    let target = subject.target(&program);
    let target: Vec<&str> = target.iter().map(String::as_str).collect();
    let options = ["-r", &rate, "-d", &seconds, "-o", "weights.stk"];
    let account = account::during(pid, plan.seconds, || {
        Inject::record(&folder, &[&target[..], &options[..]].concat());
    });
    let after = perf::record(pid, PERF_RATE, plan.perf_seconds, &folder.file("after.data"))?;
    for (tid, samples) in after {
        oracle.entry(tid).or_default().extend(samples);
    }
    let unix = perf::unix_ranges(pid)?;
    program.kill();

    let trace = trace::read(&folder.file("weights.stk"))?;
    let cpu = cpu_by_thread(&folder)?;
    let places = Places::new(&trace.modules, unix);
    let perf_samples = f64::from(PERF_RATE * 2 * plan.perf_seconds);
    let mut threads: Vec<ThreadReport> = Vec::new();
    let place = |ip: u64| places.at(ip);
    for (thread, linux_tid, pointers) in pairs(&trace.threads, &oracle, &places) {
        let theirs: Vec<Place> = pointers.iter().map(|pointers| place(pointers.ip)).collect();
        let ours: Vec<Place> = thread.ips.iter().map(|&ip| place(ip)).collect();
        let system = |samples: &[Place]| {
            samples.iter().filter(|&&place| place == Place::System).count() as f64 / samples.len() as f64
        };
        let name =
            if thread.name.is_empty() { format!("thread {}", thread.tid) } else { thread.name.clone() };
        threads.push(ThreadReport {
            name,
            on_cpu: theirs.len() as f64 / perf_samples,
            recorded_cpu: account.get(&linux_tid).copied().unwrap_or(0.0),
            stats_cpu: cpu.get(&thread.tid).copied().unwrap_or(0.0),
            samples: (theirs.len(), ours.len()),
            per_second: ours.len() as f64 / trace.seconds.max(1e-9),
            variations: GRANULARITIES.map(|kind| variation(&places, kind, &theirs, &ours)),
            system: (system(&theirs), system(&ours)),
        });
    }
    threads.sort_by(|a, b| b.on_cpu.total_cmp(&a.on_cpu));
    let all = cpu_of_all(&folder.file("weights.stk"), &places, &oracle)?;
    Ok(Report { subject, plan, threads, dropped: trace.dropped, cpu: all })
}

/// Compares the CPU profile of all threads with all of perf's samples.
#[cfg(feature = "analysis")]
fn cpu_of_all(
    trace: &Path,
    places: &Places,
    oracle: &BTreeMap<u32, Vec<Pointers>>,
) -> Result<Option<CpuReport>> {
    let theirs: Vec<Place> = oracle.values().flatten().map(|pointers| places.at(pointers.ip)).collect();
    let ours = super::cpu::read(trace, places)?;
    let variations =
        GRANULARITIES.map(|kind| weighed_variation(places, kind, &theirs, (&ours.times, ours.samples)));
    Ok(Some(CpuReport { samples: (theirs.len(), ours.samples), variations }))
}

#[cfg(not(feature = "analysis"))]
fn cpu_of_all(_: &Path, _: &Places, _: &BTreeMap<u32, Vec<Pointers>>) -> Result<Option<CpuReport>> {
    Ok(None)
}

/// The share of the time that each thread was on CPU, by its id, as `stk stats` says.
fn cpu_by_thread(folder: &Folder) -> Result<BTreeMap<u32, f64>> {
    let stats = stk::json(folder.path(), &["stats", "--json", "--top", "0", "weights.stk"]);
    let threads = stats["traces"][0]["threads"].as_array().context("stk stats lists no threads")?;
    let share = |thread: &serde_json::Value| {
        let time = thread["all"]["weight_ns"].as_f64().filter(|time| *time > 0.0)?;
        Some((thread["tid"].as_u64()? as u32, thread["cpu_ns"].as_f64()? / time))
    };
    Ok(threads.iter().filter_map(share).collect())
}

/// Each Windows thread with its Linux thread and that one's samples: of those whose stack pointers
/// are in its stack, the one with the most samples. In the system a thread is on another stack,
/// which shows nothing.
fn pairs<'a>(
    threads: &'a [Thread],
    oracle: &'a BTreeMap<u32, Vec<Pointers>>,
    places: &Places,
) -> Vec<(&'a Thread, u32, &'a Vec<Pointers>)> {
    let owner = |sp: u64| {
        threads
            .iter()
            .enumerate()
            .filter(|(_, thread)| thread.stack_base > sp && thread.stack_base - sp < WIDEST_STACK)
            .min_by_key(|(_, thread)| thread.stack_base)
            .map(|(index, _)| index)
    };
    let mut best: BTreeMap<usize, (u32, &Vec<Pointers>)> = BTreeMap::new();
    for (&tid, pointers) in oracle {
        let mut votes: BTreeMap<usize, usize> = BTreeMap::new();
        pointers
            .iter()
            .filter(|pointers| places.at(pointers.ip) != Place::System)
            .filter_map(|pointers| owner(pointers.sp))
            .for_each(|index| *votes.entry(index).or_default() += 1);
        if let Some((&index, _)) = votes.iter().max_by_key(|(_, votes)| **votes) {
            let entry = best.entry(index).or_insert((tid, pointers));
            if pointers.len() > entry.1.len() {
                *entry = (tid, pointers);
            }
        }
    }
    best.into_iter().map(|(index, (tid, pointers))| (&threads[index], tid, pointers)).collect()
}

impl Subject {
    /// The program's name in reports.
    pub fn name(self) -> String {
        match self {
            Subject::Cmake => "cmake".to_owned(),
            Subject::Node => "node".to_owned(),
            Subject::Busy => "busy".to_owned(),
            Subject::Mixed => "mixed".to_owned(),
            Subject::Hammer(what) => format!("hammer: {what}"),
        }
    }

    fn start(self, folder: &Folder, seconds: u32) -> Program {
        let text = seconds.to_string();
        match self {
            Subject::Cmake => {
                let exe = wine::path("STK_FETCH_DIR").join("cmake/cmake/data/bin/cmake.exe");
                Program::cmake(folder, &exe)
            }
            Subject::Node => Program::node(folder, seconds),
            Subject::Busy => Program::busy(folder, 0),
            Subject::Mixed => Program::mixed(folder, Net::V10, &[&text], &[]),
            Subject::Hammer(what) => {
                let exe = wine::path("STK_HAMMERS");
                Program::ready(folder, folder.path(), &exe, &[what, &text])
            }
        }
    }

    fn target(self, program: &Program) -> [String; 2] {
        match self {
            Subject::Cmake => ["--name".to_owned(), "cmake.exe".to_owned()],
            _ => ["--pid".to_owned(), program.pid()],
        }
    }
}

/// Runs `subject` and prints a line per thread.
///
/// # Errors
/// As [`run`].
pub fn print(subject: Subject, plan: Plan) -> Result<Report> {
    let name = subject.name();
    let report = run(subject, plan).with_context(|| name.clone())?;
    let Plan { rate, seconds, perf_seconds } = plan;
    println!(
        "{name}, {seconds} s at {rate} Hz beside perf (2 x {perf_seconds} s at {PERF_RATE} Hz, unrecorded), {} dropped",
        report.dropped
    );
    for thread in report.threads.iter().filter(|thread| thread.on_cpu > 0.02 || !thread.has_true_cpu_time()) {
        println!("  {thread}");
    }
    if let Some(cpu) = &report.cpu {
        println!("  {cpu}");
    }
    Ok(report)
}
