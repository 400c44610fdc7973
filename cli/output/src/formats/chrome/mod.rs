//! Chrome's trace event JSON: `Profile` and `ProfileChunk` events, in the form of V8's sampling
//! profiler. Perfetto, chrome://tracing, DevTools, Firefox Profiler and speedscope read it.
//!
//! speedscope takes any file named `*.chrome.json` for a bare array of events, so the file is one.
//!
//! Times are microseconds since the start of the trace, with fractions.
//!
//! ```text
//! v8           the writer                                   Run -> Stay, ProfileChunk -> text
//! cpu_profile  the chunks of a thread's profile             Stay -> ProfileChunk
//! stacks       the numbers of a profile's nodes             StackSource -> number
//! labels       the texts of nodes
//! ```

mod cpu_profile;
mod labels;
mod stacks;
mod v8;

use super::sink::Sink;
use super::source::exporter;
use super::threads::{busiest_first, track_names, track_of};
use super::{Description, Format, OutputError, json, single};
use stk_profile::profile::{Profile, Run};

pub(super) const FORMAT: Description = Description {
    name: "chrome",
    help: "JSON for Perfetto, chrome://tracing, DevTools",
    suffix: ".chrome.json",
    other_suffixes: &[".trace.json"],
    is_folder: false,
    names_source: true,
    takes_weight: false,
    has_time_line: true,
    create: |to, options| Ok(Box::new(v8::V8::new(single(Format::Chrome, to)?, options.lines))),
};

/// Places the runs of one thread after the other on their track. Two threads may have had the same
/// id, and the last run's weight is an estimate that may extend into the next thread's time.
#[derive(Clone, Copy, Default)]
struct Track {
    thread: Option<u32>,
    pid: u32,
    tid: u32,
    /// End of the time written so far.
    end_ns: u64,
}

/// How to write a run.
struct SliceStep {
    /// End of the previous run, if time without samples follows it. Always `Some` for a new thread.
    gap: Option<u64>,
    start_ns: u64,
}

impl Track {
    /// Where to write a run, or `None` if its time is already covered.
    fn step(&mut self, profile: &Profile, thread: u32, run: &Run) -> Option<SliceStep> {
        let (pid, tid) = (profile.pid_of_thread(thread), profile.threads[thread as usize].tid);
        let previous_end = self.end_ns;
        let new_thread = self.thread != Some(thread);
        let new_track = self.thread.is_none() || (self.pid, self.tid) != (pid, tid);
        let start_ns = if new_track { run.first_ns } else { run.first_ns.max(self.end_ns) };
        let end_ns = run.end_ns();
        if end_ns <= start_ns {
            return None;
        }
        *self = Track { thread: Some(thread), pid, tid, end_ns };
        Some(SliceStep { gap: (new_thread || start_ns > previous_end).then_some(previous_end), start_ns })
    }
}

/// Writes the start of the file and the events beside samples: names, module loads and unloads,
/// gaps, marks. There is a comma before every event but the first.
///
/// The first event has pid, tid, ph and cat. Without them, speedscope does not recognise the form.
fn preamble(sink: &mut Sink, profile: &Profile) -> Result<(), OutputError> {
    let processes = profile.process_list();
    let pid = |process: u32| processes[process as usize].pid;
    sink.put(b"[\n");
    for (i, process) in processes.iter().enumerate() {
        sink.put(if i == 0 { b"" } else { b",\n" });
        sink.put(b"{\"ph\":\"M\",\"cat\":\"__metadata\",\"name\":\"process_name\"");
        address(&mut sink.buffer, process.pid, 0);
        sink.put(b",\"ts\":0,\"args\":{\"name\":");
        json::string(&mut sink.buffer, &process.name);
        // Viewers take the name alone.
        sink.put(b",\"exporter\":");
        json::string(&mut sink.buffer, &exporter(profile));
        sink.put(b"}}");
    }

    let mut names = track_names(profile);
    for (place, &i) in busiest_first(profile).iter().enumerate() {
        let thread = &profile.threads[i as usize];
        let Some(name) = names.remove(&track_of(profile, i)) else { continue };
        let pid = profile.pid_of_thread(i);
        metadata(sink, pid, thread.tid, "thread_name");
        sink.put(b"\"name\":");
        json::string(&mut sink.buffer, &name);
        sink.put(b"}}");
        metadata(sink, pid, thread.tid, "thread_sort_index");
        sink.put(b"\"sort_index\":");
        json::number(&mut sink.buffer, place as u64);
        sink.put(b"}}");
        sink.settle()?;
    }

    for (i, module) in profile.modules.iter().enumerate() {
        let pid = pid(profile.process_of_module(i));
        let image = &profile.images[module.image.0 as usize];
        for (verb, time) in [("load", module.load_ns), ("unload", module.unload_ns)] {
            let Some(time) = time else { continue };
            instant(sink, pid, 0, b"p", "module", time, &format!("{verb} {}", image.name));
            sink.put(b",\"args\":{\"path\":");
            json::string(&mut sink.buffer, &image.path);
            sink.put(b",\"base\":");
            json::string(&mut sink.buffer, &format!("0x{:x}", module.base));
            sink.put(b",\"size\":");
            json::number(&mut sink.buffer, module.size);
            sink.put(b",\"debug_id\":");
            json::string(&mut sink.buffer, &image.debug_id);
            sink.put(b"}}");
            sink.settle()?;
        }
    }
    for (i, gap) in profile.gaps.iter().enumerate() {
        let pid = pid(profile.process_of_gap(i));
        for (phase, time_ns) in [(b"b", gap.start_ns), (b"e", gap.end_ns)] {
            sink.put(b",\n{\"ph\":\"");
            sink.put(phase);
            sink.put(b"\",\"cat\":\"gap\",\"name\":");
            json::string(&mut sink.buffer, gap.reason);
            sink.put(b",\"id\":");
            json::number(&mut sink.buffer, i as u64 + 1);
            address(&mut sink.buffer, pid, 0);
            time(&mut sink.buffer, time_ns);
            sink.put(b",\"args\":{}}");
        }
        sink.settle()?;
    }
    for (i, mark) in profile.marks.iter().enumerate() {
        let pid = pid(profile.process_of_mark(i));
        let name = if mark.text.is_empty() { format!("mark {}", mark.tag) } else { mark.text.clone() };
        match mark.thread {
            Some(thread) => {
                let tid = profile.threads[thread as usize].tid;
                instant(sink, pid, tid, b"t", "mark", mark.time_ns, &name);
            }
            None => instant(sink, pid, 0, b"p", "mark", mark.time_ns, &name),
        }
        sink.put(b",\"args\":{\"tag\":");
        json::number(&mut sink.buffer, mark.tag);
        sink.put(b"}}");
        sink.settle()?;
    }
    Ok(())
}

fn metadata(sink: &mut Sink, pid: u32, tid: u32, name: &str) {
    sink.put(b",\n{\"ph\":\"M\",\"cat\":\"__metadata\",\"name\":");
    json::string(&mut sink.buffer, name);
    address(&mut sink.buffer, pid, tid);
    sink.put(b",\"ts\":0,\"args\":{");
}

fn instant(sink: &mut Sink, pid: u32, tid: u32, scope: &[u8], category: &str, time_ns: u64, name: &str) {
    sink.put(b",\n{\"ph\":\"i\",\"s\":\"");
    sink.put(scope);
    sink.put(b"\",\"cat\":");
    json::string(&mut sink.buffer, category);
    sink.put(b",\"name\":");
    json::string(&mut sink.buffer, name);
    address(&mut sink.buffer, pid, tid);
    time(&mut sink.buffer, time_ns);
}

fn address(out: &mut Vec<u8>, pid: u32, tid: u32) {
    out.extend_from_slice(b",\"pid\":");
    json::number(out, pid.into());
    out.extend_from_slice(b",\"tid\":");
    json::number(out, tid.into());
}

fn time(out: &mut Vec<u8>, ns: u64) {
    out.extend_from_slice(b",\"ts\":");
    json::microseconds(out, ns);
}
