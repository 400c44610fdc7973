//! Clocks of threads: what a thread uses is stated, wherever it stands.

use super::*;

/// CPU time that the events of a thread state, and its passes that are stored as IDLE, by state.
pub(super) fn stated(file: &[u8], thread: u64) -> (u64, BTreeMap<u8, u64>) {
    let trace = Trace::open(file).unwrap();
    let mut scratch = Scratch::new();
    let (mut cpu, mut idle) = (0, BTreeMap::new());
    for block in trace.blocks().iter().filter(|block| block.header.kind == BlockKind::Samples) {
        let mut samples = trace.samples(block, &mut scratch).unwrap();
        while let Some(decoded) = samples.next().unwrap() {
            match decoded {
                SampleStep::Sample(sample) if sample.thread == thread => cpu += sample.cpu_delta.unwrap_or(0),
                SampleStep::Same(same) if same.thread == thread => cpu += same.cpu_delta.unwrap_or(0),
                SampleStep::Idle(span) if span.thread == thread => {
                    *idle.entry(span.state as u8).or_default() += span.ticks;
                }
                SampleStep::Other(Event::ThreadCpu(more)) if more.thread == thread => cpu += more.cpu,
                _ => {}
            }
        }
    }
    (cpu as u64, idle)
}

/// Milliseconds of a recording: longer than three blocks.
const SPAN: u64 = 3_500;

/// Passes of [`SPAN`] over thread 1, which spins without a change of its registers.
fn spinning(gains: impl Fn(&mut FakeThread)) -> Rig {
    let mut rig = Rig::new(8);
    rig.add(1, 10);
    rig.thread(1, &gains);
    for ms in 0..SPAN {
        rig.pass(ms);
        rig.thread(1, &gains);
        rig.write();
    }
    rig
}

/// A clock in units of 100 ns that steps by 10 ms, of a thread that spins.
fn steps(thread: &mut FakeThread) {
    let ran = thread.capture_cycles;
    thread.capture_cycles += 1;
    thread.cpu_time = Some(1_000 + ran / 10 * 100_000);
}

#[test]
fn a_spinner_with_a_coarse_clock_runs_and_has_all_its_time() {
    let rig = spinning(steps);
    let last = rig.world.borrow().threads[&1].cpu_time.unwrap();
    let (cpu, idle) = stated(&rig.finish(), 1);
    assert_eq!(cpu, last - 1_000);
    let passes: u64 = idle.values().sum();
    assert!(passes > SPAN / 2, "{idle:?}");
    assert!(idle[&(RunState::Running as u8)] * 100 >= passes * 99, "{idle:?}");
}

#[test]
fn a_spinner_with_cycle_counts_runs_and_has_all_its_time() {
    let rig = spinning(|thread| thread.cycles = Some(thread.cycles.unwrap_or(0) + 3_000_000));
    let last = rig.world.borrow().threads[&1].cycles.unwrap();
    let (cpu, idle) = stated(&rig.finish(), 1);
    assert_eq!(cpu, last - 3_000_000);
    assert_eq!(idle.keys().collect::<Vec<_>>(), [&(RunState::Running as u8)]);
}

#[test]
fn a_thread_that_ends_has_what_it_used_after_its_last_pass() {
    let mut rig = spinning(steps);
    rig.thread(1, |thread| thread.cpu_time = Some(900_000_000));
    rig.remove(1);
    rig.add(2, 10);
    rig.pass(SPAN);
    let (cpu, _) = stated(&rig.finish(), 1);
    assert_eq!(cpu, 900_000_000 - 1_000);
}

/// Wine's clock of a thread that has ended shows nothing.
#[test]
fn a_clock_that_ends_with_its_thread_takes_nothing_back() {
    let mut rig = spinning(steps);
    let last = rig.world.borrow().threads[&1].cpu_time.unwrap();
    rig.thread(1, |thread| thread.cpu_time = Some(0));
    rig.remove(1);
    rig.pass(SPAN);
    let (cpu, _) = stated(&rig.finish(), 1);
    // Its last reading was at most two steps of the clock before.
    assert!((last - 1_000 - 200_000..=last - 1_000).contains(&cpu), "{cpu} of {last}");
}
