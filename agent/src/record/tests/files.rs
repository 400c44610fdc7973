//! A recording that continues in other files: together they hold what one file would.

use super::clocks::stated;
use super::*;
use crate::record::files::FileThread;
use crate::record::writer::Writers;
use stk_schema::event::CodeAdd;

/// Passes of a recording of three threads: one changes, one stands still and one spins where it
/// stands. The file changes before each of these passes. Returns the files.
fn recorded(changes: &[u64]) -> Vec<Vec<u8>> {
    const PASSES: u64 = 2_000;
    let mut rig = Rig::new(8);
    for thread in 1..=3 {
        rig.add(thread, 10);
        rig.thread(thread, |fake| fake.cycles = Some(7_000));
    }
    let files = rig.lane.files().clone();
    let mut memories = vec![Memory::default()];
    let mut headers = vec![rig.header];
    let mut writers = Writers::new(Writer::new(&rig.header, 4 << 20, memories[0].clone()).unwrap());
    let end = |rig: &Rig, writers: &mut Writers<Memory>, headers: &[FileHeader]| {
        let number = writers.leave_present();
        let all =
            (rig.counters.samples.load(Ordering::Relaxed), rig.counters.dropped.load(Ordering::Relaxed));
        let (samples, dropped) = rig.lane.files().in_file(number, all.0, all.1);
        let mut block = BlockBuffer::new(64 << 10, &headers[number as usize]).unwrap();
        let (time, reason) = (Ticks(rig.world.borrow().now), EndReason::Stopped as u64);
        let end = End { time, reason, samples, dropped, detail: b"" };
        writers.of(number).unwrap().end(&mut block, end).unwrap();
        writers.close(number);
        rig.lane.files().set_present(number + 1);
    };
    let write = |rig: &Rig, writers: &mut Writers<Memory>| {
        while let Some((file, block)) = rig.lane.take_full() {
            writers.of(file).expect("a file that has not ended").block(&block).unwrap();
            rig.lane.put_back(block);
        }
    };
    for pass in 0..PASSES {
        if changes.contains(&pass) {
            let mut header = rig.header;
            (header.uuid, header.clock_start) = ([pass as u8; 16], Ticks(rig.world.borrow().now));
            memories.push(Memory::default());
            headers.push(header);
            writers.add(Writer::new(&header, 4 << 20, memories.last().unwrap().clone()).unwrap());
            let number = files.begin(&header);
            assert!(!files.is_due(FileThread::Sampler, number - 1), "before the file's state");
            files.state(number, rig.counters.dropped.load(Ordering::Relaxed));
        }
        rig.pass(pass);
        write(&rig, &mut writers);
        if files.turned(FileThread::Sampler) != writers.number() {
            for thread in [FileThread::Tables, FileThread::Code, FileThread::Runtimes] {
                files.turn(thread, files.last());
            }
            assert!(files.all_turned(files.last()));
            end(&rig, &mut writers, &headers);
        }
        rig.thread(1, |fake| {
            fake.registers[IP] += 1;
            fake.cycles = fake.cycles.map(|cycles| cycles + 900_000);
        });
        rig.thread(3, |fake| fake.cycles = fake.cycles.map(|cycles| cycles + 1_000_000));
    }
    rig.sampler.finish();
    write(&rig, &mut writers);
    end(&rig, &mut writers, &headers);
    memories.into_iter().map(|memory| memory.0.take()).collect()
}

/// Looks at threads that a file holds.
fn looks(file: &[u8]) -> u64 {
    let trace = Trace::open(file).unwrap();
    assert!(trace.damage().is_empty(), "{:?}", trace.damage());
    trace.blocks().iter().map(|block| u64::from(block.header.samples)).sum()
}

#[test]
fn files_sum_to_the_looks_and_cpu_time_of_one_file() {
    let one = recorded(&[]);
    let many = recorded(&[1, 2, 500, 501, 900, 1_999]);
    assert_eq!((one.len(), many.len()), (1, 7));
    assert_eq!(many.iter().map(|file| looks(file)).sum::<u64>(), looks(&one[0]));
    for thread in 1..=3 {
        let all: u64 = many.iter().map(|file| stated(file, thread).0).sum();
        assert_eq!(all, stated(&one[0], thread).0, "of thread {thread}");
    }
}

#[test]
fn each_file_alone_begins_with_keyframes_of_all_threads() {
    for file in recorded(&[700, 1_400]) {
        let stored = read(&file);
        for thread in 1..=3 {
            let first = stored.iter().find_map(|(_, one)| match one {
                StoredSample::Sample { thread: of, .. } if *of == thread => Some(true),
                StoredSample::Same { thread: of, .. } | StoredSample::Idle { thread: of, .. }
                    if *of == thread =>
                {
                    Some(false)
                }
                _ => None,
            });
            assert_eq!(first, Some(true), "thread {thread}");
        }
    }
}

/// The METADATA keys that were written, by file.
fn written(lane: &Lane) -> BTreeMap<u32, Vec<String>> {
    let mut found: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    while let Some((file, block)) = lane.take_full() {
        let header = lane.files().header(file).unwrap();
        let memory = Memory::default();
        let mut writer = Writer::new(&header, event_writer::CAPACITY, memory.clone()).unwrap();
        writer.block(&block).unwrap();
        lane.put_back(block);
        let bytes = memory.0.borrow();
        let trace = Trace::open(&bytes).unwrap();
        let mut scratch = Scratch::new();
        for block in trace.blocks() {
            for event in trace.events(block, &mut scratch).unwrap() {
                match event.unwrap() {
                    Event::Metadata(Metadata { key, .. }) if key != stk_format::HEADER_KEY => {
                        found.entry(file).or_default().push(String::from_utf8_lossy(key).into_owned());
                    }
                    Event::CodeAdd(add) => {
                        found.entry(file).or_default().push(format!("code {:x}", add.base))
                    }
                    _ => {}
                }
            }
        }
    }
    found
}

#[test]
fn events_between_state_and_turn_go_into_both_files() {
    let (mut journal, lane, ..) = journal(8);
    let fact = |journal: &mut EventWriter<NoPace>, key: &[u8]| {
        journal.event(&Event::Metadata(Metadata { key, value: b"" }));
    };
    fact(&mut journal, b"before");
    lane.files().begin(&lane.files().header(0).unwrap());
    journal.begin_next();
    journal.switch(BlockKind::State);
    fact(&mut journal, b"state");
    journal.switch(BlockKind::Meta);
    journal.write_both();
    assert!(journal.writes_both());
    fact(&mut journal, b"both");
    journal.turn();
    fact(&mut journal, b"after");
    journal.flush();
    let expected = [(0, vec!["before", "both"]), (1, vec!["state", "both", "after"])];
    assert_eq!(
        written(&lane),
        expected.map(|(file, keys)| (file, keys.into_iter().map(String::from).collect())).into()
    );
    assert_eq!(journal.file(), 1);
}

#[test]
fn a_journal_that_keeps_restates_in_the_next_file_alone() {
    let (mut journal, lane, ..) = journal(8);
    journal.keep();
    let code = |instance, base| {
        let (time, kind, size, image_base) = (Ticks(5), 1, 16, 0);
        let (function, unwind, code): (&[u8], &[u8], &[u8]) = (&[], &[], &[1, 2]);
        Event::CodeAdd(CodeAdd { instance, time, kind, base, size, image_base, function, unwind, code })
    };
    journal.event(&code(1, 0x1000));
    journal.event(&code(2, 0x2000));
    journal.event(&Event::CodeRemove { instance: 1, time: Ticks(6) });
    for file in 1..3 {
        lane.files().begin(&lane.files().header(0).unwrap());
        journal.turn();
        journal.restate();
        assert_eq!(journal.file(), file);
    }
    let mut all = written(&lane);
    assert_eq!(all.remove(&0).unwrap(), ["code 1000", "code 2000"]);
    assert_eq!(all.into_values().collect::<Vec<_>>(), [["code 2000"], ["code 2000"]]);
}
