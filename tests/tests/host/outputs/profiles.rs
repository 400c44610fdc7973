//! Profiles made by hand.

use std::path::PathBuf;
use stk_base::model::{Image, ImageId};
use stk_output::formats::{self, Destination, Format, Options};
use stk_profile::profile::*;
use stk_profile::stack::StopReason;
use stk_schema::Arch;
use stk_schema::event::RunState;
use stk_unwind::{StopKind, Trust};

/// A name of a frame: function, file, line.
pub(crate) type Name<'a> = (&'a str, Option<&'a str>, Option<u32>);

/// Number of the reason "sleep".
const SLEEP: u16 = 1;

/// A profile in the making.
pub(crate) struct Builder {
    pub profile: Profile,
    pub runs: Runs,
}

impl Builder {
    pub(crate) fn new() -> Builder {
        let trace = TraceInfo {
            trace_id: "00112233445566778899aabbccddeeff".into(),
            source: "busy.stk".into(),
            content: None,
            arch: Arch::X64,
            pid: 4404,
            process: "busy.exe".into(),
            host: "lab-7".into(),
            start_utc_ns: 1_700_000_000_123_456_789,
            duration_ns: 10_000_000,
            interval_ns: 1_000_000,
            cpu_source: CpuSource::ThreadTimes,
            metadata: vec![("os.build".into(), "19045".into())],
            complete: true,
            boot_id: 0,
            executable: None,
        };
        Builder { profile: Profile::empty(trace), runs: Runs::default() }
    }

    pub(crate) fn image(&mut self, name: &str, identity_hash: u64) -> ImageId {
        self.profile.images.push(Image {
            path: format!("C:\\lab\\{name}"),
            name: name.into(),
            debug_id: format!("{identity_hash:032X}1"),
            code_id: format!("{:08X}21000", identity_hash as u32),
            pdb_name: String::new(),
            code_view: None,
            time_date_stamp: 0,
            size: 0x21000,
            identity_hash,
        });
        ImageId(self.profile.images.len() as u32 - 1)
    }

    pub(crate) fn module(&mut self, image: ImageId, base: u64, load_ns: Option<u64>, unload_ns: Option<u64>) {
        let instance = self.profile.modules.len() as u64 + 1;
        self.profile.modules.push(ModuleInstance {
            instance,
            image,
            base,
            size: 0x21000,
            load_ns,
            unload_ns,
        });
    }

    pub(crate) fn thread(&mut self, tid: u32, name: &str) -> u32 {
        let instance = self.profile.threads.len() as u64 + 1;
        self.profile.threads.push(ThreadInfo {
            instance,
            tid,
            name: name.into(),
            name_number: 0,
            created_utc_ns: 0,
            start_ns: None,
            exit_ns: None,
            samples: 0,
            active_samples: 0,
            sampling_cpu_ns: 0,
        });
        self.profile.threads.len() as u32 - 1
    }

    pub(crate) fn stop(&mut self, reason: StopReason, module: &str) -> StopId {
        self.profile.stops.push(StopInfo { reason, module: module.into() });
        StopId(self.profile.stops.len() as u16 - 1)
    }

    /// A frame with its names, innermost first; a return address unless its trust is `Context`.
    pub(crate) fn frame(&mut self, place: Placement, trust: Trust, names: &[Name<'_>]) -> FrameId {
        let id = self.profile.frames.intern(FrameKey { place, exact: trust == Trust::Context, trust });
        let symbols = &mut self.profile.symbols;
        assert_eq!(id.0 as usize, symbols.source.len(), "frame made twice");
        for (i, &(function, file, line)) in names.iter().enumerate() {
            let function = symbols.strings.intern(function);
            let file = file.map(|file| symbols.strings.intern(file));
            symbols.named.push(NamedFrame { function, file, line, inline: i + 1 < names.len() });
        }
        symbols.starts.push(symbols.named.len() as u32);
        symbols.source.push(if names[0].1.is_some() { NameSource::Pdb } else { NameSource::None });
        symbols.reason.push(None);
        id
    }

    /// A stack, root first.
    pub(crate) fn stack(&mut self, frames: &[FrameId]) -> NodeId {
        let mut parent = None;
        for &frame in frames {
            parent = Some(self.profile.tree.intern(Node { parent, frame }));
        }
        parent.expect("a stack has frames")
    }

    /// A run of `samples` samples, one millisecond each, that starts at `first_ms`.
    pub(crate) fn run(
        &mut self,
        thread: u32,
        node: Option<NodeId>,
        stop: StopId,
        first_ms: u64,
        samples: u32,
        state: RunState,
    ) {
        let run = Run {
            node,
            stop,
            first_ns: first_ms * 1_000_000,
            last_ns: (first_ms + u64::from(samples) - 1) * 1_000_000,
            weight_ns: u64::from(samples) * 1_000_000,
            samples,
            cpu_ns: if state == RunState::Running { u64::from(samples) * 900_000 } else { 0 },
            state,
            activity: match state {
                RunState::Running => Activity::OnCpu,
                RunState::Waiting => Activity::Waiting(Wait::from_number(SLEEP).expect("a reason")),
                RunState::Unknown => Activity::Unknown,
            },
            flags: RunFlags::default(),
            capture_tag: 0,
        };
        let info = &mut self.profile.threads[thread as usize];
        info.samples += u64::from(samples);
        if state != RunState::Waiting {
            info.active_samples += u64::from(samples);
        }
        self.runs.push(thread, run).expect("push");
    }

    /// Writes the profile to a file of a new folder.
    pub(crate) fn write(&self, format: Format, options: &Options) -> Written {
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join(format.default_name("trace"));
        let destination =
            if format.is_folder() { Destination::Dir(path.clone()) } else { Destination::File(path.clone()) };
        let mut writer = formats::create(format, destination, options).expect("create");
        formats::write(&mut *writer, &self.profile, &self.runs).expect("write");
        if format.is_folder() {
            formats::compact(&path).expect("compacted");
        }
        Written { path, _folder: folder }
    }
}

/// An output file, deleted when this value is dropped.
pub(crate) struct Written {
    pub path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Written {
    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(&self.path).expect("output is UTF-8")
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.text()).expect("output is JSON")
    }
}

/// An awkward name: quotes, backslashes, control characters, separators that JavaScript once took
/// for line ends, characters beyond the Basic Multilingual Plane.
pub(crate) const AWKWARD: &str = "größe \"q\" \\ \u{1}\t\n\u{7f}\u{2028} 😀";

/// Two threads of a program with recursion, inlining, a DLL whose address another one has later, a
/// gap, an incomplete stack and a lost one.
///
/// ```text
/// thread 8 "größe…": waits in main > wait for 0..2 ms; gap 2..5; waits 5..6
/// thread 4 "": 0..2 main > fib > fib, 2..3 main > fib (inlined: mix),
///              3..5 main > plugin_run [plugin_a.dll], 5..6 main > plugin_run [plugin_ä.dll],
///              6..7 no-unwind-data in plugin_ä.dll: plugin_run, 7..8 stack lost,
///              8..9 main > fib > fib (at other addresses)
/// ```
pub(crate) fn busy() -> Builder {
    let mut b = Builder::new();
    let exe = b.image("busy.exe", 0x1001);
    let a = b.image("plugin_a.dll", 0x1002);
    let umlaut = b.image("plugin_ä.dll", 0x1003);
    b.module(exe, 0x1_4000_0000, None, None);
    b.module(a, 0x1_8000_0000, Some(2_500_000), Some(4_900_000));
    b.module(umlaut, 0x1_8000_0000, Some(4_950_500), None);

    let complete = b.stop(StopReason::COMPLETE, "");
    let no_data = b.stop(StopReason::Walk(StopKind::NoUnwindData), "plugin_ä.dll");
    let lost = b.stop(StopReason::StackLost, "");

    let waiter = b.thread(8, AWKWARD);
    let worker = b.thread(4, "");

    let src = Some("C:\\src\\busy.cpp");
    let main = b.frame(Placement::Image(exe, 0x1010), Trust::UnwindInfo, &[("main", src, Some(10))]);
    let main_b = b.frame(Placement::Image(exe, 0x1020), Trust::UnwindInfo, &[("main", src, Some(12))]);
    let wait = b.frame(Placement::Image(exe, 0x1100), Trust::Context, &[("wait", src, Some(20))]);
    let fib_outer = b.frame(Placement::Image(exe, 0x1210), Trust::UnwindInfo, &[("fib", src, Some(31))]);
    let fib_leaf = b.frame(Placement::Image(exe, 0x1200), Trust::Context, &[("fib", src, None)]);
    // No line row covers this address, so no file is known either.
    let fib_other = b.frame(Placement::Image(exe, 0x1204), Trust::Context, &[("fib", None, None)]);
    let fib_mix = b.frame(
        Placement::Image(exe, 0x1208),
        Trust::Context,
        &[("mix", Some("C:\\src\\mix.hpp"), Some(3)), ("fib", src, Some(33))],
    );
    let run_a = b.frame(
        Placement::Image(a, 0x1000),
        Trust::Context,
        &[("plugin_run", Some("C:\\src\\plugin_a.cpp"), Some(5))],
    );
    let run_b = b.frame(
        Placement::Image(umlaut, 0x1000),
        Trust::Context,
        &[("plugin_run", Some("C:\\src\\plugin_b.cpp"), Some(7))],
    );

    let waits = b.stack(&[main, wait]);
    let deep = b.stack(&[main, fib_outer, fib_leaf]);
    let mixes = b.stack(&[main, fib_mix]);
    // The linker found two more functions with plugin_run's code.
    let twins = ["plugin_stop", AWKWARD].map(|name| b.profile.symbols.strings.intern(name));
    b.profile.symbols.aliases.insert(run_a, twins.into());

    let in_a = b.stack(&[main_b, run_a]);
    let in_b = b.stack(&[main_b, run_b]);
    let cut = b.stack(&[run_b]);
    let deep_again = b.stack(&[main, fib_outer, fib_other]);

    b.run(waiter, Some(waits), complete, 0, 2, RunState::Waiting);
    b.run(waiter, Some(waits), complete, 5, 1, RunState::Waiting);
    b.run(worker, Some(deep), complete, 0, 2, RunState::Running);
    b.run(worker, Some(mixes), complete, 2, 1, RunState::Running);
    b.run(worker, Some(in_a), complete, 3, 2, RunState::Running);
    b.run(worker, Some(in_b), complete, 5, 1, RunState::Running);
    b.run(worker, Some(cut), no_data, 6, 1, RunState::Unknown);
    b.run(worker, None, lost, 7, 1, RunState::Unknown);
    b.run(worker, Some(deep_again), complete, 8, 1, RunState::Running);
    b.profile.marks.push(MarkInfo { time_ns: 1_000_001, thread: Some(worker), tag: 7, text: AWKWARD.into() });
    b
}
