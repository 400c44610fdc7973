//! Several traces on one time line, through the program: traces made by hand, and kept ones.

use crate::support::{Ran, command, kept};
use serde_json::Value;
use std::path::Path;
use stk_format::FileHeader;
use stk_schema::event::{Event, Metadata, ThreadFlags, ThreadStart};
use stk_schema::{Arch, Os, Ticks};
use stk_tests::chrome::{self, CpuProfile};
use stk_tests::synth::{Parts, TraceBuilder};
use stk_tests::traces;
use stk_tests::traces::{TestImage, in_function};

const APP: u64 = 0x1_4000_0000;
const STACK: u64 = 0x20_0000;
/// Ticks a second.
const FREQUENCY: u64 = 10_000_000;
const MS: u64 = FREQUENCY / 1000;
/// Time of day when the machine started.
const BOOT_UTC: u64 = 1_700_000_000_000_000_000;

/// A recording of a process: when it began, on the machine's counter, and what a clock says that is
/// wrong by so many milliseconds.
struct Recording {
    host: &'static str,
    pid: u32,
    uuid: u8,
    start_ms: u64,
    clock_wrong_ms: u64,
    /// Which of the threads that had the id 7 it is: each was created at another time.
    thread: u64,
    /// Milliseconds after its start at which its one thread is sampled in the function of this
    /// number.
    samples: &'static [(u64, u32)],
}

impl Recording {
    fn builder(&self) -> TraceBuilder {
        let mut header = FileHeader::new(Arch::X64, Os::Windows, [self.uuid; 16], FREQUENCY);
        header.clock_start = Ticks(self.start_ms * MS);
        header.utc_start = BOOT_UTC + (self.start_ms + self.clock_wrong_ms) * 1_000_000;
        header.process_created = BOOT_UTC + u64::from(self.pid);
        header.pid = self.pid;
        header.rate_mhz = 1_000_000;
        header.boot_id = BOOT_UTC / 60_000_000_000;
        TraceBuilder::with_header(header)
    }

    fn write(&self, folder: &Path, name: &str) -> String {
        let (mut builder, start) = (self.builder(), self.start_ms * MS);
        if !self.host.is_empty() {
            builder.meta(start, &Event::Metadata(Metadata { key: b"host", value: self.host.as_bytes() }));
        }
        traces::load_system(&mut builder);
        let mut app = TestImage::new(r"C:\lab\app.exe", 4);
        app.exports = vec![("serve", 0), ("work", 1)];
        let instance = app.load(&mut builder, start, APP) + 1;
        let created = BOOT_UTC + self.thread;
        let (start_address, stack_base) = (0, STACK);
        let flags = ThreadFlags::AT_START;
        let time = Ticks(start);
        let ran = ThreadStart { instance, time, tid: 7, flags, start_address, stack_base, created };
        builder.meta(start, &Event::ThreadStart(ran));
        // The same thread: the reader keeps the first event.
        let thread = builder.thread(start, 7, "worker", STACK);
        for &(ms, function) in self.samples {
            let calls = [in_function(APP, function)];
            traces::sample(&mut builder, thread, start + ms * MS, STACK, &calls);
        }
        let path = folder.join(name);
        std::fs::write(&path, builder.finish()).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

const CLIENT: Recording = Recording {
    host: "lab-7",
    pid: 44,
    uuid: 1,
    start_ms: 1_000,
    clock_wrong_ms: 0,
    thread: 1,
    samples: &[(0, 0), (1, 0), (2, 1)],
};

/// Begins 5 ms later, but its clock says 25 ms.
const SERVER: Recording = Recording {
    host: "LAB-7",
    pid: 48,
    uuid: 2,
    start_ms: 1_005,
    clock_wrong_ms: 20,
    thread: 2,
    samples: &[(0, 1), (1, 0)],
};

fn merge(arguments: &[&str]) -> Ran {
    Ran::of(&mut command(&[&["merge"], arguments].concat()))
}

fn merged(arguments: &[&str]) -> (Value, String) {
    let ran = merge(&[arguments, &["-o", "-"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    (serde_json::from_str(&ran.out).unwrap(), ran.error)
}

/// When a function was on a stack: process, thread, begin and end in milliseconds.
fn slices(document: &Value, function: &str) -> Vec<(u64, u64, f64, f64)> {
    let times = |profile: &CpuProfile| {
        let (pid, tid) = (profile.pid, profile.tid);
        let times = profile.times_of(function).into_iter();
        times.map(|(begin, end)| (pid, tid, begin / 1000.0, end / 1000.0)).collect::<Vec<_>>()
    };
    chrome::profiles(document).iter().flat_map(times).collect()
}

fn process_names(document: &Value) -> Vec<(u64, String)> {
    let named = chrome::events(document).iter().filter(|event| event["name"] == "process_name");
    let name = |event: &Value| event["args"]["name"].as_str().unwrap().to_owned();
    named.map(|event| (event["pid"].as_u64().unwrap(), name(event))).collect()
}

#[test]
fn processes_of_a_machine_stand_beside_each_other_by_its_counter() {
    let folder = tempfile::tempdir().unwrap();
    let (client, server) = (CLIENT.write(folder.path(), "a.stk"), SERVER.write(folder.path(), "b.stk"));
    let (document, reported) = merged(&[&server, &client, "--to", "chrome"]);
    assert_eq!(slices(&document, "serve"), [(44, 7, 0.0, 2.0), (48, 7, 6.0, 7.0)]);
    assert_eq!(slices(&document, "work"), [(44, 7, 2.0, 3.0), (48, 7, 5.0, 6.0)]);
    assert_eq!(process_names(&document).iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [44, 48]);
    assert!(
        reported
            .contains("begins at 0.005000 s by the machine's counter (± 100 ns; by the time of day 20.0 ms")
    );
}

#[test]
fn recordings_of_a_process_follow_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let second = Recording { uuid: 3, start_ms: 1_010, samples: &[(0, 1)], ..CLIENT };
    let first = CLIENT.write(folder.path(), "a.stk");
    let second = second.write(folder.path(), "a.1.stk");
    let (document, reported) = merged(&[&second, &first, "--to", "chrome"]);
    assert_eq!(slices(&document, "work"), [(44, 7, 2.0, 3.0), (44, 7, 10.0, 11.0)]);
    assert_eq!(process_names(&document).len(), 1);
    assert!(reported.contains("a.1.stk: continues "), "{reported}");
}

/// The gaps of a document: process, when it began and ended, in milliseconds.
fn gaps(document: &Value) -> Vec<(u64, f64, f64)> {
    let ms = |event: &Value| event["ts"].as_f64().unwrap() / 1000.0;
    let found = chrome::events(document).iter().filter(|event| event["cat"] == "gap");
    let (begins, ends): (Vec<&Value>, Vec<&Value>) = found.partition(|event| event["ph"] == "b");
    let pairs = begins.into_iter().zip(ends);
    pairs.map(|(begin, end)| (begin["pid"].as_u64().unwrap(), ms(begin), ms(end))).collect()
}

#[test]
fn files_of_a_rotated_recording_are_one_process_whose_gaps_have_no_weight() {
    let folder = tempfile::tempdir().unwrap();
    // Its one thread continues; of the third file, another thread has its id.
    let second = Recording { uuid: 3, start_ms: 1_010, samples: &[(1, 1), (2, 1)], ..CLIENT };
    let third = Recording { uuid: 4, start_ms: 1_020, thread: 9, samples: &[(0, 0)], ..CLIENT };
    let files = [
        CLIENT.write(folder.path(), "a.0001.stk"),
        second.write(folder.path(), "a.0002.stk"),
        third.write(folder.path(), "a.0003.stk"),
    ];
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let (document, reported) = merged(&[&files[..], &["--to", "chrome"]].concat());
    assert_eq!(process_names(&document).len(), 1);
    assert_eq!(gaps(&document), [(44, 2.0, 11.0), (44, 12.0, 20.0)]);
    assert_eq!(slices(&document, "work"), [(44, 7, 2.0, 3.0), (44, 7, 11.0, 13.0)]);
    assert!(
        reported.contains("a.0002.stk: continues ") && reported.contains("9.00 ms before it are not"),
        "{reported}"
    );

    let (firefox, _) = merged(&[&files[..], &["--to", "firefox"]].concat());
    let threads = firefox["threads"].as_array().unwrap();
    assert_eq!(threads.len(), 2, "one that two files have, and one that has its id later");
    let markers = |key: &str| threads[0]["markers"][key].as_array().unwrap().clone();
    let spans = markers("phase").into_iter().zip(markers("startTime").into_iter().zip(markers("endTime")));
    let spans =
        spans.filter(|(phase, _)| *phase == 1).map(|(_, (start, end))| (start.as_f64(), end.as_f64()));
    assert_eq!(spans.collect::<Vec<_>>(), [(Some(2.0), Some(11.0)), (Some(12.0), Some(20.0))]);
    let out = folder.path().join("m.perfetto-trace");
    let ran = merge(&[&files[..], &["-o", out.to_str().unwrap()]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.error);
    let named = std::fs::read(out).unwrap().windows(12).filter(|text| text == b"not recorded").count();
    assert_eq!(named, 4, "a beginning and an end of each gap");

    let (part, _) = merged(&[&files[..], &["--to", "chrome", "--from", "3ms", "--until", "15ms"]].concat());
    assert_eq!(gaps(&part), [(44, 3.0, 11.0), (44, 12.0, 15.0)]);
    // A file that is not there is a longer gap.
    let (document, _) = merged(&[files[0], files[2], "--to", "chrome"]);
    assert_eq!(gaps(&document), [(44, 2.0, 20.0)]);
}

#[test]
fn two_processes_of_one_id_stay_apart() {
    let folder = tempfile::tempdir().unwrap();
    let first = CLIENT.write(folder.path(), "a.stk");
    // An id that was free again; the time of its creation is another.
    let other = Recording { uuid: 4, host: "lab-8", start_ms: 2_000, ..CLIENT }.write(folder.path(), "b.stk");
    let refused = merge(&[&first, &other, "-o", "-"]);
    assert_eq!((refused.code, refused.out.as_str()), (Some(1), ""), "{}", refused.error);
    assert!(
        refused.error.contains("--by-time-of-day") && refused.error.contains("lab-8"),
        "{}",
        refused.error
    );
    let (document, reported) = merged(&[&first, &other, "--by-time-of-day"]);
    assert_eq!(slices(&document, "work"), [(44, 7, 2.0, 3.0), (45, 7, 1002.0, 1003.0)]);
    assert!(
        reported.contains("pid 44, shown as 45") && reported.contains("not known to be of the same machine"),
        "{reported}"
    );
}

#[test]
fn a_trace_without_machine_is_refused_and_copies_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let first = CLIENT.write(folder.path(), "a.stk");
    let copy = folder.path().join("copy.stk");
    std::fs::copy(&first, &copy).unwrap();
    let nameless = Recording { host: "", uuid: 5, ..SERVER }.write(folder.path(), "n.stk");
    let refused = merge(&[&first, &nameless, "-o", "-"]);
    assert!(refused.code == Some(1) && refused.error.contains("do not both say"), "{}", refused.error);
    let (document, reported) = merged(&[&first, copy.to_str().unwrap(), "--to", "chrome"]);
    assert_eq!(slices(&document, "work").len(), 1);
    assert!(reported.contains("copy.stk: the same content as"), "{reported}");
}

#[test]
fn times_count_from_the_beginning_of_all() {
    let folder = tempfile::tempdir().unwrap();
    let (client, server) = (CLIENT.write(folder.path(), "a.stk"), SERVER.write(folder.path(), "b.stk"));
    let (document, _) = merged(&[&client, &server, "--from", "2ms", "--until", "6ms"]);
    assert_eq!(slices(&document, "serve"), []);
    assert_eq!(slices(&document, "work"), [(44, 7, 2.0, 3.0), (48, 7, 5.0, 6.0)]);
    let nothing = merge(&[&client, &server, "-o", "-", "--from", "1h"]);
    assert!(nothing.error.contains("no samples are left"), "{}", nothing.error);
}

#[test]
fn every_format_with_a_time_line_has_all_processes() {
    let folder = tempfile::tempdir().unwrap();
    let (client, server) = (CLIENT.write(folder.path(), "a.stk"), SERVER.write(folder.path(), "b.stk"));
    let (firefox, _) = merged(&[&client, &server, "--to", "firefox", "--weight", "wall"]);
    let threads = firefox["threads"].as_array().unwrap();
    let pids: Vec<&str> = threads.iter().map(|thread| thread["pid"].as_str().unwrap()).collect();
    assert_eq!(pids, ["44", "48"]);
    let begins: Vec<f64> =
        threads.iter().map(|thread| thread["samples"]["time"][0].as_f64().unwrap()).collect();
    assert_eq!(begins, [0.0, 5.0]);
    let (speedscope, _) = merged(&[&client, &server, "--to", "speedscope", "--weight", "wall"]);
    let profiles = speedscope["profiles"].as_array().unwrap();
    assert_eq!(profiles.len(), 3, "the sum, and two threads");
    assert_eq!(profiles[2]["startValue"], 5_000_000);
    assert!(profiles[2]["name"].as_str().unwrap().contains("48: worker (7)"), "{}", profiles[2]["name"]);
    let (document, _) = merged(&[&client, &server, "--to", "chrome"]);
    let begun = chrome::events(&document).iter().filter(|event| event["name"] == "Profile");
    let begun: Vec<_> = begun.map(|event| (event["pid"].clone(), event["ts"].as_f64().unwrap())).collect();
    assert_eq!(begun, [(44.into(), 0.0), (48.into(), 5000.0)]);
    for format in ["folded", "parquet", "pprof", "flamegraph"] {
        let refused = merge(&[&client, &server, "--to", format]);
        assert!(refused.code == Some(2) && refused.error.contains("no time line"), "{}", refused.error);
    }
}

#[test]
fn the_same_traces_give_the_same_bytes_and_replace_them() {
    let folder = tempfile::tempdir().unwrap();
    let (client, server) = (CLIENT.write(folder.path(), "a.stk"), SERVER.write(folder.path(), "b.stk"));
    for ending in ["chrome.json", "perfetto-trace", "firefox.json", "speedscope.json.gz"] {
        let out = folder.path().join(format!("m.{ending}"));
        let out = out.to_str().unwrap();
        let mut bytes = Vec::new();
        for (i, order) in [[&client, &server], [&server, &client]].into_iter().enumerate() {
            let ran = merge(&[order[0], order[1], "-j", ["1", "3"][i], "-o", out]);
            assert_eq!(ran.code, Some(0), "{}", ran.error);
            assert_eq!(ran.error.contains("replaced stk's own output"), i == 1, "{}", ran.error);
            bytes.push(std::fs::read(out).unwrap());
        }
        assert_eq!(bytes[0], bytes[1], "{ending}");
        let one = merge(&[&client, "-o", out]);
        assert!(one.code == Some(1) && one.error.contains("--force"), "{}", one.error);
    }
}

#[test]
fn kept_traces_keep_their_weight() {
    let (busy, mixed) = (kept("busy.stk"), kept("mixed.stk"));
    let total = |arguments: &[&str]| -> f64 {
        let output = command(arguments).args(["--to", "speedscope", "-o", "-"]).output().unwrap();
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let weights = document["profiles"][0]["weights"].as_array().unwrap();
        weights.iter().map(|weight| weight.as_f64().unwrap()).sum()
    };
    let (busy, mixed) = (busy.to_str().unwrap(), mixed.to_str().unwrap());
    let apart = total(&["convert", busy]) + total(&["convert", mixed]);
    assert_eq!(total(&["merge", busy, mixed, "--by-time-of-day"]), apart);
}

#[test]
fn samples_of_different_rates_are_not_counted_together() {
    let folder = tempfile::tempdir().unwrap();
    let client = CLIENT.write(folder.path(), "a.stk");
    let slow = folder.path().join("slow.stk");
    let mut parts = Parts::take_apart(&std::fs::read(SERVER.write(folder.path(), "b.stk")).unwrap()).unwrap();
    parts.header.rate_mhz = 500_000;
    std::fs::write(&slow, parts.to_file()).unwrap();
    let slow = slow.to_str().unwrap();
    let refused = merge(&[&client, slow, "--to", "speedscope", "--weight", "samples", "-o", "-"]);
    assert!(refused.code == Some(2) && refused.error.contains("different rates"), "{}", refused.error);
    // None of them has CPU times.
    let (document, reported) = merged(&[&client, slow, "--to", "speedscope"]);
    assert!(reported.contains("counts the time that samples cover"), "{reported}");
    assert!(document["profiles"][0]["name"].as_str().unwrap().contains("time, waits included"));
}

#[test]
fn traces_a_day_apart_are_named_and_can_be_drawn_together() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(crate::support::kept("busy.stk"), folder.path().join("a.stk")).unwrap();
    std::fs::copy(crate::support::kept("mixed.stk"), folder.path().join("b.stk")).unwrap();
    let paths = ["a.stk", "b.stk"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let line = [&paths[0], &paths[1], "--by-time-of-day", "--to", "speedscope", "-o", "-"];
    let apart = merge(&line);
    assert_eq!(apart.code, Some(0), "{}", apart.error);
    assert!(apart.error.contains("--close-gaps takes out the rest"), "{}", apart.error);
    let closed = merge(&[&line[..], &["--close-gaps"]].concat());
    assert!(!closed.error.contains("--close-gaps"), "{}", closed.error);
}
