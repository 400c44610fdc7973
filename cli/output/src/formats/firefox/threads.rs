//! A thread: its samples and markers. Columns follow each other, so all but the first wait in
//! [`SpooledColumn`]s until the thread ends.

use super::super::column::SpooledColumn;
use super::super::sink::Sink;
use super::super::{OutputError, json};
use super::has_cpu_times;
use super::tables::Tables;
use stk_profile::profile::{MarkInfo, Profile, Run};

/// The types of markers and their fields.
pub(super) const MARKER_SCHEMA: &[u8] = b"\
{\"name\":\"Mark\",\"display\":[\"marker-chart\",\"marker-table\",\"timeline-overview\"],\
\"tableLabel\":\"{marker.data.text}\",\"chartLabel\":\"{marker.data.text}\",\
\"fields\":[{\"key\":\"text\",\"label\":\"Text\",\"format\":\"string\"},\
{\"key\":\"tag\",\"label\":\"Tag\",\"format\":\"string\"}]},\
{\"name\":\"Module\",\"display\":[\"marker-chart\",\"marker-table\"],\
\"tableLabel\":\"{marker.data.path}\",\"chartLabel\":\"{marker.data.path}\",\
\"fields\":[{\"key\":\"path\",\"label\":\"Path\",\"format\":\"file-path\"},\
{\"key\":\"base\",\"label\":\"Address\",\"format\":\"string\"},\
{\"key\":\"debugId\",\"label\":\"Identity\",\"format\":\"string\"}]},\
{\"name\":\"Gap\",\"display\":[\"marker-chart\",\"marker-table\",\"timeline-overview\"],\
\"tableLabel\":\"{marker.name}\",\"chartLabel\":\"{marker.name}\",\"fields\":[]}";

/// The part of a run that is written.
pub(super) struct WrittenRun {
    pub stack: u32,
    pub start_ns: u64,
    pub end_ns: u64,
    pub weight_ns: u64,
}

/// Whether a thread is the first one that is written, and of its process, and its main thread.
#[derive(Clone, Copy)]
pub(super) struct FirstThread {
    pub of_all: bool,
    pub of_process: bool,
    pub is_main: bool,
}

/// A thread that is being written.
pub(super) struct ThreadTable {
    /// Its index in the profile.
    pub thread: u32,
    times: SpooledColumn,
    weights: SpooledColumn,
    /// `None` = the trace has no CPU times.
    cpu: Option<SpooledColumn>,
    rows: u64,
    /// CPU time since the last row.
    cpu_ns: u64,
    /// End of the last run.
    end_ns: u64,
    /// The markers, as JSON.
    markers: Vec<u8>,
}

impl ThreadTable {
    pub(super) fn open(
        sink: &mut Sink,
        profile: &Profile,
        tables: &mut Tables,
        thread: u32,
        first: FirstThread,
    ) -> Result<ThreadTable, OutputError> {
        let info = &profile.threads[thread as usize];
        let processes = profile.process_list();
        let process = &processes[profile.process_of_thread(thread) as usize];
        let out = &mut sink.buffer;
        out.extend_from_slice(if first.of_all { b"\n{\"name\":" } else { b",\n{\"name\":" });
        json::string(out, &info.label());
        out.extend_from_slice(b",\"processName\":");
        json::string(out, &process.name);
        out.extend_from_slice(b",\"pid\":");
        json::string(out, &process.pid.to_string());
        out.extend_from_slice(b",\"tid\":");
        json::number(out, info.tid.into());
        out.extend_from_slice(b",\"registerTime\":");
        json::milliseconds(out, info.start_ns.unwrap_or(0));
        out.extend_from_slice(b",\"unregisterTime\":");
        match info.exit_ns {
            Some(ns) => json::milliseconds(out, ns),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(
            b",\"processType\":\"default\",\"processStartupTime\":0,\"processShutdownTime\":null,\
              \"pausedRanges\":[],\"isMainThread\":",
        );
        out.extend_from_slice(if first.is_main { b"true" } else { b"false" });
        out.extend_from_slice(b",\"samples\":{\"stack\":[");
        sink.settle()?;
        Ok(ThreadTable {
            thread,
            times: SpooledColumn::new(),
            weights: SpooledColumn::new(),
            cpu: has_cpu_times(profile).then(SpooledColumn::new),
            rows: 0,
            cpu_ns: 0,
            end_ns: 0,
            markers: markers(profile, tables, thread, first.of_process),
        })
    }

    /// Adds a run.
    pub(super) fn add(&mut self, sink: &mut Sink, row: WrittenRun, run: &Run) -> Result<(), OutputError> {
        if self.rows > 0 && row.start_ns > self.end_ns {
            self.push(sink, None, self.end_ns, 0)?;
        }
        self.push(sink, Some(row.stack), row.start_ns, row.weight_ns)?;
        let mut cpu_ns = run.cpu_ns;
        if run.last_ns > row.start_ns && run.last_ns < row.end_ns {
            // The part that fell before the last sample, if it was used evenly.
            let part = u128::from(cpu_ns) * u128::from(run.last_ns - row.start_ns);
            let part = (part / u128::from(row.end_ns - row.start_ns)) as u64;
            self.cpu_ns = part;
            cpu_ns -= part;
            self.push(sink, Some(row.stack), run.last_ns, 0)?;
        }
        self.cpu_ns = cpu_ns;
        self.end_ns = row.end_ns;
        Ok(())
    }

    fn push(
        &mut self,
        sink: &mut Sink,
        stack: Option<u32>,
        at_ns: u64,
        weight_ns: u64,
    ) -> Result<(), OutputError> {
        if self.rows > 0 {
            sink.put(b",");
        }
        self.rows += 1;
        match stack {
            Some(stack) => json::number(&mut sink.buffer, stack.into()),
            None => sink.put(b"null"),
        }
        self.times.push(|out| json::milliseconds(out, at_ns))?;
        self.weights.push(|out| json::milliseconds(out, weight_ns))?;
        let cpu_ns = std::mem::take(&mut self.cpu_ns);
        if let Some(cpu) = &mut self.cpu {
            cpu.push(|out| json::number(out, cpu_ns))?;
        }
        sink.settle()
    }

    pub(super) fn close(mut self, sink: &mut Sink) -> Result<(), OutputError> {
        if self.rows > 0 {
            // The last run ends here.
            self.push(sink, None, self.end_ns, 0)?;
        }
        sink.put(b"],\n\"time\":[");
        self.times.write(sink)?;
        sink.put(b"],\n\"weight\":[");
        self.weights.write(sink)?;
        sink.put(b"],\"weightType\":\"tracing-ms\"");
        if let Some(cpu) = self.cpu {
            sink.put(b",\n\"threadCPUDelta\":[");
            cpu.write(sink)?;
            sink.put(b"]");
        }
        sink.put(b",\"length\":");
        json::number(&mut sink.buffer, self.rows);
        sink.put(b"},\n\"markers\":");
        sink.buffer.append(&mut self.markers);
        sink.put(b"}");
        sink.settle()
    }
}

/// A marker: a point in time, or a span.
struct Marker {
    time_ns: u64,
    /// Of a span.
    end_ns: Option<u64>,
    name: u64,
    data: Vec<u8>,
}

/// The markers of a thread, as JSON. The first thread of a process has those of the process.
fn markers(profile: &Profile, tables: &mut Tables, thread: u32, is_first: bool) -> Vec<u8> {
    let mut markers: Vec<Marker> = Vec::new();
    let process = profile.process_of_thread(thread);
    for (i, mark) in profile.marks.iter().enumerate() {
        let of_process = is_first && mark.thread.is_none() && profile.process_of_mark(i) == process;
        if mark.thread == Some(thread) || of_process {
            markers.push(Marker {
                time_ns: mark.time_ns,
                end_ns: None,
                name: tables.strings.id("mark"),
                data: mark_data(mark),
            });
        }
    }
    for (i, module) in profile.modules.iter().enumerate().filter(|_| is_first) {
        if profile.process_of_module(i) != process {
            continue;
        }
        let image = &profile.images[module.image.0 as usize];
        for (verb, time) in [("load", module.load_ns), ("unload", module.unload_ns)] {
            let Some(time_ns) = time else { continue };
            let name = tables.strings.id(&format!("{verb} {}", image.name));
            let mut data = b"{\"type\":\"Module\"".to_vec();
            for (key, text) in [
                ("path", image.path.as_str()),
                ("base", &format!("0x{:x}", module.base)),
                ("debugId", &image.debug_id),
            ] {
                field(&mut data, key, text);
            }
            data.push(b'}');
            markers.push(Marker { time_ns, end_ns: None, name, data });
        }
    }
    for (i, gap) in profile.gaps.iter().enumerate().filter(|_| is_first) {
        if profile.process_of_gap(i) == process {
            let name = tables.strings.id(gap.reason);
            let data = b"{\"type\":\"Gap\"}".to_vec();
            markers.push(Marker { time_ns: gap.start_ns, end_ns: Some(gap.end_ns), name, data });
        }
    }
    markers.sort_by_key(|marker| marker.time_ns);
    table(&markers)
}

fn mark_data(mark: &MarkInfo) -> Vec<u8> {
    let mut data = b"{\"type\":\"Mark\"".to_vec();
    field(&mut data, "text", &mark.text);
    field(&mut data, "tag", &mark.tag.to_string());
    data.push(b'}');
    data
}

fn field(out: &mut Vec<u8>, key: &str, text: &str) {
    out.push(b',');
    json::key(out, key);
    json::string(out, text);
}

/// The table of markers, column by column.
fn table(markers: &[Marker]) -> Vec<u8> {
    let mut out = vec![b'{'];
    let mut column = |name: &str, write: &dyn Fn(&mut Vec<u8>, &Marker)| {
        json::key(&mut out, name);
        out.push(b'[');
        for (i, marker) in markers.iter().enumerate() {
            if i > 0 {
                out.push(b',');
            }
            write(&mut out, marker);
        }
        out.extend_from_slice(b"],");
    };
    column("data", &|out, marker| out.extend_from_slice(&marker.data));
    column("name", &|out, marker| json::number(out, marker.name));
    column("startTime", &|out, marker| json::milliseconds(out, marker.time_ns));
    column("endTime", &|out, marker| match marker.end_ns {
        Some(end_ns) => json::milliseconds(out, end_ns),
        None => out.extend_from_slice(b"null"),
    });
    // Instants and intervals, of the first category.
    column("phase", &|out, marker| out.push(if marker.end_ns.is_some() { b'1' } else { b'0' }));
    column("category", &|out, _| out.push(b'0'));
    json::key(&mut out, "length");
    json::number(&mut out, markers.len() as u64);
    out.push(b'}');
    out
}
