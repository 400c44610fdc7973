//! How recordings begin, end and fail in the target, and what the trace records of it.

use stk_schema::Ticks;
use stk_schema::event::{EndReason, ThreadFlags};
use stk_tests::recorded::{Recorded, Thread};
use stk_tests::wine::{self, Folder, Inject, Program};

/// busy's last line in every undisturbed run (examples/busy/README.md).
const UNDISTURBED: &str = "checksum a9a6d267ba599d58";

#[track_caller]
fn ends_undisturbed(busy: &mut Program) {
    let status = busy.wait();
    let output = busy.output();
    assert!(
        status.success() && output.contains(UNDISTURBED) && !output.contains("WRONG"),
        "{status}\n{output}"
    );
}

#[test]
fn ten_recordings_of_one_process_with_one_copy_of_the_agent() {
    // Ten recordings take 5 s, and many times that on a loaded machine.
    if !ten_recordings(15) {
        assert!(ten_recordings(120), "busy ended before");
    }
}

/// Records a busy of that many seconds ten times; false if it ended before, undisturbed.
#[track_caller]
fn ten_recordings(seconds: u32) -> bool {
    let folder = Folder::new("ten");
    let mut busy = Program::busy(&folder, seconds);
    let mut agents = Vec::new();
    for number in 0..10 {
        let trace = format!("{number}.stk");
        let finished = Inject::try_record(&folder, &["--pid", &busy.pid(), "-o", &trace, "-d", "250ms"]);
        if !busy.is_running() {
            ends_undisturbed(&mut busy);
            return false;
        }
        finished.expect(0);
        let recorded = Recorded::open(&folder.file(&trace));
        assert!(recorded.complete && recorded.damage.is_empty(), "{trace}: {:?}", recorded.damage);
        assert!(!recorded.samples.is_empty(), "{trace} holds no sample");
        let (reason, ..) = recorded.end.clone().expect("a complete trace has an END");
        assert_eq!(reason, EndReason::Duration as u64, "{trace}");
        let loaded: Vec<u64> = recorded.modules_named("agent.dll").iter().map(|module| module.base).collect();
        let [agent] = loaded[..] else { panic!("{trace}: one agent.dll was expected: {loaded:x?}") };
        agents.push(agent);
    }
    agents.dedup();
    assert_eq!(agents.len(), 1, "the agent moved: {agents:x?}");
    ends_undisturbed(&mut busy);
    true
}

#[test]
fn a_target_that_exits_by_itself_leaves_a_sound_trace() {
    let folder = Folder::new("exits");
    // On a loaded machine it takes inject seconds to start.
    let mut busy = Program::busy(&folder, 8);
    let mut inject = Inject::start(&folder, &["--pid", &busy.pid(), "-o", "exits.stk"]);
    inject.wait_until_recording();
    ends_undisturbed(&mut busy);
    inject.finish().expect(0).says("ended with exit code 0").says("exits.stk");
    let recorded = Recorded::open(&folder.file("exits.stk"));
    assert!(recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert!(!recorded.samples.is_empty());
    if let Some((reason, ..)) = recorded.end {
        assert_eq!(reason, EndReason::ProcessExit as u64);
    }
}

#[test]
fn an_agent_that_panics_stops_and_reports_it_and_the_target_continues() {
    let folder = Folder::new("panic");
    let mut busy = Program::busy(&folder, 6);
    let finished = Inject::run(&folder, &["--pid", &busy.pid(), "-o", "panic.stk", "--test-panic"]);
    finished.expect(1).says("the agent failed and has switched itself off").says("busy.exe");
    let recorded = Recorded::open(&folder.file("panic.stk"));
    assert!(recorded.damage.is_empty(), "{:?}", recorded.damage);
    assert!(!recorded.samples.is_empty(), "what was recorded before the panic is lost");
    let (reason, _, _, detail) = recorded.end.expect("the trace says how it ended");
    assert_eq!(reason, EndReason::Panic as u64);
    assert!(!detail.is_empty(), "the trace does not say where the agent panicked");
    // The agent stays off in this process and says why.
    Inject::run(&folder, &["--pid", &busy.pid(), "-o", "again.stk"]).refuses(1, "failed in busy.exe");
    assert!(busy.is_running());
    ends_undisturbed(&mut busy);
}

#[test]
fn every_thread_of_the_target_is_recorded_and_none_of_the_recorder() {
    let folder = Folder::new("threads");
    let mut busy = Program::busy(&folder, 4);
    Inject::record(&folder, &["--pid", &busy.pid(), "-o", "threads.stk", "-d", "2s"]);
    let recorded = Recorded::open(&folder.file("threads.stk"));
    for name in ["main", "recursion", "leaf loops", "größe", "spawner", "plugins", "waiter"] {
        let [thread] = recorded.threads_named(name)[..] else {
            panic!("one thread '{name}': {:?}", recorded.threads)
        };
        assert!(recorded.samples_of(thread).count() > 0, "no sample of '{name}'");
    }
    // Threads that begin and end meanwhile: an instance each, even where the system uses a thread
    // id again.
    let brief = |thread: &&Thread| thread.start > recorded.header.clock_start && thread.exit != Ticks::MAX;
    let brief: Vec<&Thread> = recorded.threads.values().filter(brief).collect();
    assert!(brief.len() > 1, "{} short-lived threads were seen", brief.len());
    assert!(brief.iter().all(|thread| thread.start <= thread.exit), "{brief:?}");
    let agent = recorded.modules_named("agent.dll");
    let [agent] = agent[..] else { panic!("one agent.dll: {agent:?}") };
    let of_recorder = |thread: &u64| recorded.threads[thread].flags.contains(ThreadFlags::RECORDER);
    assert!(
        !recorded.samples.iter().any(|sample| of_recorder(&sample.thread)),
        "a recorder's thread is sampled"
    );
    // The target's threads execute the agent's code only in its DllMain, when they start and end,
    // and in its callback, when they load a module.
    let own: Vec<_> = recorded.samples.iter().filter(|sample| agent.holds(sample.ip, sample.time)).collect();
    for sample in &own {
        let thread = &recorded.threads[&sample.thread];
        let lives_through = thread.flags.contains(ThreadFlags::AT_START) && thread.exit == Ticks::MAX;
        assert!(!lives_through || thread.name == "plugins", "{thread:?} at {:#x} in agent.dll", sample.ip);
    }
    assert!(own.len() * 100 <= recorded.samples.len(), "{} of {} samples", own.len(), recorded.samples.len());
    ends_undisturbed(&mut busy);
}

#[test]
fn modules_are_recorded_with_their_times_and_one_address_belongs_to_two() {
    let folder = Folder::new("modules");
    let busy = Program::busy(&folder, 0);
    Inject::record(&folder, &["--pid", &busy.pid(), "-o", "modules.stk", "-d", "4s"]);
    let recorded = Recorded::open(&folder.file("modules.stk"));
    for name in ["busy.exe", "ntdll.dll", "kernel32.dll"] {
        let found = recorded.modules_named(name);
        let [module] = found[..] else { panic!("one {name}: {found:?}") };
        assert!(module.has_tables(), "{name} has no tables in the trace");
    }
    let (a, b) = (recorded.modules_named("plugin_a.dll"), recorded.modules_named("plugin_ä.dll"));
    assert!(!a.is_empty() && !b.is_empty(), "a plug-in was not seen: {:?}", recorded.modules);
    let shared = a.iter().flat_map(|a| b.iter().map(move |b| (a, b))).filter(|(a, b)| a.base == b.base);
    let mut count = 0;
    for (a, b) in shared {
        assert!(
            a.unload <= b.load || b.unload <= a.load,
            "both at {:#x} at the same time: {a:?} {b:?}",
            a.base
        );
        count += 1;
    }
    assert!(count > 0, "the plug-ins never shared an address: {a:x?} {b:x?}");
}

/// The plug-ins alternate at one address, four times a second. The one loaded when a recording
/// begins is often unloaded before the recorder has read its headers.
#[test]
fn a_module_unloaded_while_a_recording_begins_is_not_taken_for_another() {
    let times = if wine::long() { 30 } else { 10 };
    let folder = Folder::new("goes");
    let busy = Program::busy(&folder, 0);
    let (mut known, mut unknown) = (0, 0);
    for _ in 0..times {
        Inject::record(&folder, &["--pid", &busy.pid(), "-o", "short.stk", "--force", "-d", "150ms"]);
        let recorded = Recorded::open(&folder.file("short.stk"));
        for stem in ["plugin_a", "plugin_ä"] {
            for module in recorded.modules_named(&format!("{stem}.dll")) {
                match &module.pdb {
                    Some(pdb) => assert!(pdb.ends_with(&format!("{stem}.pdb")), "{module:?}"),
                    None => unknown += 1,
                }
                known += usize::from(module.pdb.is_some());
            }
        }
    }
    assert!(known >= times / 2 && unknown * 10 <= known, "{known} with their identity, {unknown} without");
}
