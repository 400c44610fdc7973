//! A trace's samples by thread, as the format's own reader returns them.

use crate::recorded::Recorded;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::Path;
use stk_format::{BlockKind, SampleStep, Scratch, Trace};
use stk_schema::Ticks;
use stk_schema::event::Event;
use stk_schema::registers::IP;

/// A module of the trace.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Windows path.
    pub path: String,
    /// Load address.
    pub base: u64,
    /// Bytes.
    pub size: u64,
}

/// A thread of the trace.
#[derive(Clone, Debug, Default)]
pub struct Thread {
    /// Its last name; empty if it has none.
    pub name: String,
    /// Windows thread id.
    pub tid: u32,
    /// Highest address of its stack, exclusive.
    pub stack_base: u64,
    /// Instruction pointers of its samples; a pass that found it unchanged repeats the one before.
    pub ips: Vec<u64>,
}

/// The data of a trace that is compared.
#[derive(Debug)]
pub struct Samples {
    /// Modules, without those that were unloaded.
    pub modules: Vec<Loaded>,
    /// Threads with samples.
    pub threads: Vec<Thread>,
    /// Seconds from the first sample to the last.
    pub seconds: f64,
    /// Samples that were dropped.
    pub dropped: u64,
}

/// Reads a trace.
///
/// # Errors
/// When it cannot be read, or holds a block that is damaged.
pub fn read(path: &Path) -> Result<Samples> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    let trace = Trace::open(&bytes)?;
    let recorded = Recorded::open(path);
    let mut threads: BTreeMap<u64, Thread> = BTreeMap::new();
    let (mut first, mut last) = (Ticks::MAX, Ticks::ZERO);
    let mut scratch = Scratch::new();
    for block in trace.blocks() {
        if block.header.kind != BlockKind::Samples {
            for event in trace.events(block, &mut scratch)? {
                if let Event::ThreadStart(start) = event? {
                    let thread = threads.entry(start.instance).or_default();
                    (thread.tid, thread.stack_base) = (start.tid, start.stack_base);
                }
            }
            continue;
        }
        let mut samples = trace.samples(block, &mut scratch)?;
        while let Some(decoded) = samples.next()? {
            let (thread, ip, ticks, time) = match decoded {
                SampleStep::Sample(sample) => (sample.thread, Some(sample.registers[IP]), 1, sample.time),
                SampleStep::Same(same) => (same.thread, None, same.ticks, same.last),
                SampleStep::Idle(idle) => (idle.thread, None, idle.ticks, idle.last),
                SampleStep::Other(_) => continue,
            };
            (first, last) = (first.min(time), last.max(time));
            let ips = &mut threads.entry(thread).or_default().ips;
            if let Some(ip) = ip.or(ips.last().copied()) {
                ips.extend(std::iter::repeat_n(ip, ticks as usize));
            }
        }
    }
    for (instance, thread) in &mut threads {
        thread.name = recorded.threads.get(instance).map(|known| known.name.clone()).unwrap_or_default();
    }
    let modules = recorded
        .modules
        .values()
        .filter(|module| module.unload == Ticks::MAX)
        .map(|module| Loaded { path: module.path.clone(), base: module.base, size: module.size })
        .collect();
    Ok(Samples {
        modules,
        threads: threads.into_values().filter(|thread| !thread.ips.is_empty()).collect(),
        seconds: recorded.header.nanoseconds(last).saturating_sub(recorded.header.nanoseconds(first)).max(0)
            as f64
            / 1e9,
        dropped: recorded.dropped_samples,
    })
}
