//! What a thread did during each run, and the CPU time of each run.
//!
//! It gets a symbolized profile and its runs as recorded, and gives the runs with their
//! [`Activity`] and with the thread's CPU time shared out among them.
//!
//! ```text
//! waits   the system's functions that wait, and what for
//! cpu     shares the CPU time between two ticks of a thread's clock out among its runs
//! weight  what lists and flame graphs count
//! ```
//!
//! A sample shows where a thread was, not how long it has been there. If its innermost function is
//! a system call and the instruction pointer stands behind the call, the thread is in the system:
//! it waits, or the system works for it. Otherwise it was on a processor, or ready to run.

mod cpu;
mod waits;
mod weight;

pub use waits::{Wait, WaitClass, is_system_library};
pub(super) use weight::Weighing;
pub use weight::{RunWeigher, Weight};

use super::placeholder::BeforeWaits;
use super::{CpuSource, NodeId, Profile, Run, RunFlags, Runs, TreeNode};
use crate::stack::FrameId;
use cpu::{ClockShare, Fit, SamplingCost, ThreadSum};
use rayon::prelude::*;
use std::convert::Infallible;
use std::io;
use std::sync::atomic::{AtomicU16, Ordering};
use stk_schema::Arch;
use stk_schema::event::RunState;
use waits::SystemCall;

/// What a thread did when it was sampled.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Activity {
    /// Ran its own code or the system's in user mode, or was ready to run it.
    OnCpu,
    /// Waited in the system.
    Waiting(Wait),
    /// In another system call, which may work or wait.
    SystemCall,
    /// Not known: there is no stack, or the recorder saw that the thread did not run.
    #[default]
    Unknown,
}

/// An [`Activity`] without what is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ActivityKind {
    Running,
    Waiting,
    SystemCall,
    Unknown,
}

impl ActivityKind {
    /// Short stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            ActivityKind::Running => "running",
            ActivityKind::Waiting => "waiting",
            ActivityKind::SystemCall => "system-call",
            ActivityKind::Unknown => "unknown",
        }
    }
}

impl Activity {
    /// The activity that a stack shows: modules and functions, innermost first. `behind_call`: the
    /// code at the instruction pointer is a return, or not known. `recorded`: the recorder's view.
    pub fn of_stack<'a>(
        frames: impl Iterator<Item = (&'a str, &'a str)>,
        behind_call: bool,
        recorded: RunState,
    ) -> Activity {
        let mut frames = frames.map(|(module, function)| FrameRole::of(module, function)).peekable();
        if frames.peek().is_none() {
            return Activity::Unknown;
        }
        let call = call_of(frames);
        Activity::of_call(call.filter(|_| behind_call), recorded).0
    }

    /// The activity of a thread in this system call, if it is in one, and how well its CPU time
    /// fits it.
    fn of_call(call: Option<(SystemCall, Wait)>, recorded: RunState) -> (Activity, Fit) {
        match call {
            Some((SystemCall::Waits, wait)) => (Activity::Waiting(wait), Fit::Last),
            Some((SystemCall::MayWait, _)) => (Activity::SystemCall, Fit::Maybe),
            Some((SystemCall::Works, _)) => (Activity::SystemCall, Fit::Good),
            None if recorded == RunState::Waiting => (Activity::Unknown, Fit::Last),
            None => (Activity::OnCpu, Fit::Good),
        }
    }

    /// What it is, whatever the thread waits for.
    pub fn kind(self) -> ActivityKind {
        match self {
            Activity::OnCpu => ActivityKind::Running,
            Activity::Waiting(_) => ActivityKind::Waiting,
            Activity::SystemCall => ActivityKind::SystemCall,
            Activity::Unknown => ActivityKind::Unknown,
        }
    }

    /// Short stable name.
    pub fn as_str(self) -> &'static str {
        self.kind().as_str()
    }

    /// What the thread waits for, if it waits.
    pub fn wait(self) -> Option<Wait> {
        match self {
            Activity::Waiting(wait) => Some(wait),
            _ => None,
        }
    }

    /// Number of two bytes, for the temporary file.
    pub fn code(self) -> u16 {
        match self {
            Activity::Unknown => 0,
            Activity::OnCpu => 1,
            Activity::SystemCall => 2,
            Activity::Waiting(wait) => 3 + wait.number(),
        }
    }

    /// The activity with this number.
    pub(super) fn from_code(code: u16) -> Activity {
        match code {
            1 => Activity::OnCpu,
            2 => Activity::SystemCall,
            0 => Activity::Unknown,
            _ => Wait::from_number(code - 3).map_or(Activity::Unknown, Activity::Waiting),
        }
    }
}

impl std::fmt::Display for Activity {
    /// `running`, `waiting (sleep)` and so on.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.wait() {
            Some(wait) => write!(out, "{} ({})", self.as_str(), wait.reason()),
            None => out.write_str(self.as_str()),
        }
    }
}

/// Whether the code at an instruction pointer is a return, as behind a system call's instruction;
/// or is not known.
pub fn is_behind_call(arch: Arch, code: Option<&[u8]>) -> bool {
    let Some(code) = code.filter(|code| !code.is_empty()) else { return true };
    match arch {
        Arch::X64 | Arch::X86 => matches!(code, [0xc3 | 0xc2, ..]),
        Arch::Arm64 => code.starts_with(&[0xc0, 0x03, 0x5f, 0xd6]),
    }
}

/// Gives each run its activity, and shares the CPU time out. Where the recorder could not measure
/// what a suspension costs the suspended thread, takes it out by the sampling cost of the threads
/// that only wait.
pub fn classify(profile: &mut Profile, mut runs: Runs) -> io::Result<Runs> {
    let mut roles = roles(profile);
    let waits = waits(profile, &roles);
    let before = BeforeWaits::new(profile, waits);
    // A placeholder that this adds has no role.
    roles.resize(profile.frames.keys().len(), FrameRole::default());
    let stacks = Stacks::new(profile, roles);
    let cost = match profile.trace.cpu_source {
        CpuSource::ThreadTimes => SamplingCost::of_waiting_threads(&stacks, &runs)?,
        CpuSource::Cycles | CpuSource::None => SamplingCost::default(),
    };
    let share = || ClockShare::new(cost, &before);
    let sampling_ns = match runs.change_held(|runs| stacks.classify_held(runs, share()))? {
        Some(sampling_ns) => sampling_ns,
        None => {
            let mut out = Runs::with_limit(runs.limit());
            let threads = 0..profile.threads.len() as u32;
            let classified = |thread| stacks.classify(thread, &runs, share(), |run| out.push(thread, run));
            let sampling_ns = threads.map(classified).collect::<io::Result<Vec<u64>>>()?;
            out.end()?;
            runs = out;
            sampling_ns
        }
    };
    for (thread, ns) in profile.threads.iter_mut().zip(sampling_ns) {
        thread.sampling_cpu_ns = thread.sampling_cpu_ns.saturating_add(ns);
    }
    Ok(runs)
}

/// The least time of a run whose clock can say what its thread did: ten steps of Wine's clock, six
/// of Windows'.
const CLOCK_DECIDES_NS: u64 = 100_000_000;

/// Whether a stack stood still for long while its thread was on a processor for most of the time.
fn runs_on(run: &Run) -> bool {
    run.weight_ns >= CLOCK_DECIDES_NS && run.cpu_ns > run.weight_ns / 2
}

/// The activity that each stack shows.
struct Stacks<'a> {
    profile: &'a Profile,
    /// By frame.
    roles: Vec<FrameRole>,
    /// By node, once it was requested: in a system call, if the code there says so. A number of
    /// [`stored`]; 0 = not yet known. Whichever thread finds it finds the same.
    calls: Vec<AtomicU16>,
}

/// Runs whose stacks are looked up one right after the other: memory is read for all of them at the
/// same time.
const AT_ONCE: usize = 64;

/// A system call as a number above 0.
fn stored(call: Option<(SystemCall, Wait)>) -> u16 {
    call.map_or(1, |(call, wait)| 2 + call as u16 + 3 * wait.number())
}

/// The system call with this number.
fn load(number: u16) -> Option<(SystemCall, Wait)> {
    let number = number.checked_sub(2)?;
    let call = [SystemCall::Waits, SystemCall::MayWait, SystemCall::Works][usize::from(number % 3)];
    Some((call, Wait::from_number(number / 3).unwrap_or_default()))
}

/// What a frame means for the state of its thread.
#[derive(Clone, Copy, Default)]
struct FrameRole {
    /// The code is the system's.
    system: bool,
    /// The function waits.
    wait: Option<Wait>,
    /// The function is a system call.
    call: Option<SystemCall>,
    /// The function is a language runtime's and waits.
    runtime_wait: Option<Wait>,
}

/// By frame: its role.
fn roles(profile: &Profile) -> Vec<FrameRole> {
    let role = |index: usize| {
        let frame = FrameId(index as u32);
        let names = profile.symbols.names(frame);
        let name = names.last().map_or("", |name| profile.symbols.strings.get(name.function));
        FrameRole::of(profile.module_name(frame).unwrap_or_default(), name)
    };
    (0..profile.frames.keys().len()).into_par_iter().with_min_len(1 << 10).map(role).collect()
}

/// The stacks that wait if their code says so, each with the innermost caller that is not the
/// system's.
fn waits(profile: &Profile, roles: &[FrameRole]) -> Vec<(NodeId, Option<NodeId>)> {
    let nodes = profile.tree.nodes();
    let is_wait = |role: &FrameRole| role.call == Some(SystemCall::Waits);
    if !roles.iter().any(is_wait) {
        return Vec::new();
    }
    let role = |NodeId(node): NodeId| &roles[nodes[node as usize].frame.0 as usize];
    let stack = |node| std::iter::successors(Some(node), |NodeId(at)| nodes[*at as usize].parent());
    let with_caller = |node| (node, stack(node).find(|node| !role(*node).system));
    let all = (0..nodes.len() as u32).into_par_iter().with_min_len(1 << 14).map(NodeId);
    all.filter(|node| is_wait(role(*node))).map(with_caller).collect()
}

impl<'a> Stacks<'a> {
    fn new(profile: &'a Profile, roles: Vec<FrameRole>) -> Stacks<'a> {
        let known = |role: &FrameRole| if role.call.is_none() { stored(None) } else { 0 };
        let known: Vec<u16> = roles.iter().map(known).collect();
        let call = |node: &TreeNode| AtomicU16::new(known[node.frame.0 as usize]);
        let calls = profile.tree.nodes().par_iter().with_min_len(1 << 14).map(call).collect();
        Stacks { profile, roles, calls }
    }

    /// Gives the runs of a thread their activities and CPU times. Returns what its samples cost it,
    /// in nanoseconds.
    fn classify_held(&self, runs: &mut Vec<Run>, mut share: ClockShare<'_>) -> u64 {
        self.add(runs, 0, &mut share);
        share.end(runs);
        if share.inserts() {
            let mut all = Vec::with_capacity(runs.len());
            let Ok(()) = share.take(runs, |run| {
                all.push(run);
                Ok::<(), Infallible>(())
            });
            *runs = all;
        }
        share.sampling_ns()
    }

    /// Calls `each` with the classified runs of a thread, and returns what its samples cost it, in
    /// nanoseconds.
    fn classify(
        &self,
        thread: u32,
        runs: &Runs,
        mut share: ClockShare<'_>,
        mut each: impl FnMut(Run) -> io::Result<()>,
    ) -> io::Result<u64> {
        let mut held = Vec::new();
        runs.for_threads([thread], |batch| {
            let first = held.len();
            held.extend_from_slice(batch.runs);
            self.add(&mut held, first, &mut share);
            share.take(&mut held, &mut each)
        })?;
        share.end(&mut held);
        share.take(&mut held, &mut each)?;
        Ok(share.sampling_ns())
    }

    /// Gives runs from one on their activities, and adds them to those that share CPU time.
    fn add(&self, runs: &mut [Run], first: usize, share: &mut ClockShare<'_>) {
        let mut fits = Vec::with_capacity(AT_ONCE);
        for first in (first..runs.len()).step_by(AT_ONCE) {
            fits.extend(runs[first..].iter_mut().take(AT_ONCE).map(|run| {
                let (activity, fit) = self.of(run);
                run.activity = activity;
                fit
            }));
            for (at, fit) in (first..).zip(fits.drain(..)) {
                share.add(&mut runs[..=at], fit);
            }
        }
    }

    /// A run's activity, and how well the thread's CPU time fits it.
    fn of(&self, run: &Run) -> (Activity, Fit) {
        let Some(node) = run.node else { return (Activity::Unknown, Fit::Last) };
        let is_behind_call = run.flags.contains(RunFlags::BEHIND_CALL);
        let call = match is_behind_call.then(|| self.call(node)).flatten() {
            // A call that waits also works: in the kernel, or by trying again and again.
            Some((SystemCall::Waits, wait)) if runs_on(run) => Some((SystemCall::Works, wait)),
            call => call,
        };
        Activity::of_call(call, run.state)
    }

    fn call(&self, node: NodeId) -> Option<(SystemCall, Wait)> {
        let known = &self.calls[node.0 as usize];
        match known.load(Ordering::Relaxed) {
            0 => {
                let found = self.find_call(node);
                known.store(stored(found), Ordering::Relaxed);
                found
            }
            number => load(number),
        }
    }

    fn find_call(&self, node: NodeId) -> Option<(SystemCall, Wait)> {
        let nodes = self.profile.tree.nodes();
        let stack = std::iter::successors(Some(node), |node| nodes[node.0 as usize].parent());
        call_of(stack.map(|node| self.roles[nodes[node.0 as usize].frame.0 as usize]))
    }
}

impl SamplingCost {
    /// The cost that the threads show which wait in nearly all of their samples.
    fn of_waiting_threads(stacks: &Stacks<'_>, runs: &Runs) -> io::Result<SamplingCost> {
        let sums = runs.map_threads(|thread| {
            let mut sum = ThreadSum::default();
            runs.for_threads([thread], |batch| {
                for run in batch.runs {
                    sum.add(run, matches!(stacks.of(run).0, Activity::Waiting(_)));
                }
                Ok::<(), io::Error>(())
            })?;
            Ok::<ThreadSum, io::Error>(sum)
        })?;
        Ok(SamplingCost::of_threads(sums))
    }
}

impl FrameRole {
    fn of(module: &str, function: &str) -> FrameRole {
        if !waits::is_system_library(module) {
            return FrameRole { runtime_wait: waits::runtime_wait(function), ..FrameRole::default() };
        }
        FrameRole {
            system: true,
            wait: Wait::of(function),
            call: waits::system_call(module, function),
            runtime_wait: None,
        }
    }
}

/// Frames of a language runtime around the system's in which its own waits are looked for.
const RUNTIME_FRAMES: usize = 8;

/// The system call of a stack, innermost frame first, and what it waits for: by the outermost
/// function that waits among the system's frames around it, or among the runtime's around those.
fn call_of(mut stack: impl Iterator<Item = FrameRole>) -> Option<(SystemCall, Wait)> {
    let leaf = stack.next()?;
    let call = leaf.call?;
    let mut wait = leaf.wait;
    let mut outside = 0;
    for frame in stack {
        if frame.system && outside == 0 {
            wait = frame.wait.or(wait);
            continue;
        }
        outside += 1;
        if frame.runtime_wait.is_some() || outside == RUNTIME_FRAMES {
            wait = frame.runtime_wait.or(wait);
            break;
        }
    }
    Some((call, wait.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(stack: &[(&str, &str)]) -> String {
        Activity::of_stack(stack.iter().copied(), true, RunState::Unknown).to_string()
    }

    #[test]
    fn system_calls_are_stored_as_numbers() {
        let mut numbers = vec![0, stored(None)];
        assert_eq!(load(stored(None)), None);
        for call in [SystemCall::Waits, SystemCall::MayWait, SystemCall::Works] {
            for wait in Wait::all() {
                numbers.push(stored(Some((call, wait))));
                assert_eq!(load(stored(Some((call, wait)))), Some((call, wait)));
            }
        }
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "no two are the same");
    }

    #[test]
    fn the_outermost_wait_of_the_system_or_of_the_runtime_around_it_is_the_reason() {
        let system = [
            ("ntdll.dll", "NtWaitForAlertByThreadId"),
            ("ntdll.dll", "RtlSleepConditionVariableSRW"),
            ("kernelbase.dll", "SleepConditionVariableSRW"),
        ];
        assert_eq!(reason(&system), "waiting (condition variable)");
        let own = [&system[..], &[("app.exe", "worker"), ("kernel32.dll", "WaitForSingleObject")]].concat();
        assert_eq!(reason(&own), "waiting (condition variable)");
        let runtime = [
            ("ntdll.dll", "NtWaitForSingleObject"),
            ("kernelbase.dll", "WaitForSingleObjectEx"),
            ("coreclr.dll", "CLREventBase::Wait"),
            ("coreclr.dll", "WKS::GCHeap::WaitUntilGCComplete"),
            ("coreclr.dll", "Thread::RareDisablePreemptiveGC"),
            ("app.dll", "App.Main()"),
        ];
        assert_eq!(reason(&runtime), "waiting (garbage collection)");
        assert_eq!(reason(&runtime[..3]), "waiting (single object)");
    }
}
