//! Perfetto: the rules of its format, and that its weights are the counts of folded stacks.

use super::folded::counts;
use super::profiles::{Builder, busy};
use super::wire::Message;
use std::collections::{BTreeMap, HashMap};
use stk_output::formats::{Format, Options, PerfettoStyle};
use stk_profile::profile::Weight;

/// The packets of a trace.
fn packets(builder: &Builder, weight: Weight) -> Vec<Message> {
    let options = Options { weights: vec![weight], ..Options::default() };
    let bytes = std::fs::read(&builder.write(Format::Perfetto, &options).path).expect("output");
    Message::read(&bytes).messages(1)
}

/// What was interned before a packet: by table and number, the entry.
#[derive(Default)]
struct Interned(HashMap<(u64, u64), Message>);

impl Interned {
    fn add(&mut self, packet: &Message) {
        for data in packet.messages(12) {
            for table in [5, 6, 7, 16, 17, 18, 19, 48] {
                for entry in data.messages(table) {
                    assert!(entry.number(1) > 0, "numbers begin with 1");
                    assert!(self.0.insert((table, entry.number(1)), entry).is_none(), "table {table}");
                }
            }
        }
    }

    fn get(&self, table: u64, id: u64) -> &Message {
        &self.0[&(table, id)]
    }

    /// A call stack's functions, root first.
    fn stack(&self, id: u64) -> Vec<String> {
        let frames = self.get(7, id).numbers(2);
        frames.iter().map(|&frame| self.get(5, self.get(6, frame).number(2)).text(2)).collect()
    }
}

/// A sample: thread id, time, stack, first weight, further weights.
type Sample = (u64, u64, Vec<String>, u64, Vec<u64>);

fn samples(packets: &[Message]) -> Vec<Sample> {
    let mut interned = Interned::default();
    let mut samples = Vec::new();
    for packet in packets {
        interned.add(packet);
        for sample in packet.messages(135) {
            let task = interned.get(48, sample.number(2));
            assert_eq!(task.number(2), 4404);
            let stack = interned.stack(sample.number(6));
            samples.push((task.number(3), packet.number(8), stack, sample.number(11), sample.packed(14)));
        }
    }
    samples
}

#[test]
fn weights_are_the_counts_of_the_folded_stacks() {
    for weight in [Weight::Wall, Weight::Cpu, Weight::Waiting, Weight::Samples] {
        let mut sums: BTreeMap<Vec<String>, u64> = BTreeMap::new();
        for (.., stack, primary, _) in samples(&packets(&busy(), weight)) {
            *sums.entry(stack).or_default() += primary;
        }
        sums.retain(|_, sum| *sum > 0);
        assert_eq!(sums, counts(&busy(), weight), "{weight:?}");
    }
}

#[test]
fn samples_stand_at_their_times_with_their_other_weights() {
    let samples = samples(&packets(&busy(), Weight::Cpu));
    let worker: Vec<(u64, u64, &[u64])> = (samples.iter().filter(|sample| sample.0 == 4))
        .map(|(_, time, _, cpu, others)| (time / 1_000_000, *cpu, &others[..]))
        .collect();
    let ms = 1_000_000;
    assert_eq!(
        worker,
        [
            (0, 1_800_000, &[2 * ms, 2][..]),
            (2, 900_000, &[ms, 1]),
            (3, 1_800_000, &[2 * ms, 2]),
            (5, 900_000, &[ms, 1]),
            (6, 0, &[ms, 1]),
            (7, 0, &[ms, 1]),
            (8, 900_000, &[ms, 1]),
        ]
    );
}

#[test]
fn perf_samples_are_one_packet_for_each_sample_that_counts() {
    let times = |weight| -> Vec<(u64, u64, usize)> {
        let options = Options {
            weights: vec![weight],
            perfetto_style: PerfettoStyle::PerfSamples,
            ..Options::default()
        };
        let bytes = std::fs::read(&busy().write(Format::Perfetto, &options).path).expect("output");
        let mut interned = Interned::default();
        let mut found = Vec::new();
        for packet in Message::read(&bytes).messages(1) {
            interned.add(&packet);
            assert!(packet.messages(135).is_empty());
            for sample in packet.messages(66) {
                assert_eq!(sample.number(2), 4404);
                found.push((
                    sample.number(3),
                    packet.number(8) / 1_000_000,
                    interned.stack(sample.number(4)).len(),
                ));
            }
        }
        found
    };
    let worker =
        [(4, 0, 3), (4, 1, 3), (4, 2, 3), (4, 3, 2), (4, 4, 2), (4, 5, 2), (4, 6, 2), (4, 7, 1), (4, 8, 3)];
    assert_eq!(times(Weight::Cpu), worker);
    let waiter = [(8, 0, 2), (8, 1, 2), (8, 5, 2)];
    assert_eq!(times(Weight::Samples), [&waiter[..], &worker].concat());
    // What it waits for is its root.
    assert_eq!(times(Weight::Waiting), [(8, 0, 3), (8, 1, 3), (8, 5, 3)]);
}

#[test]
fn the_first_packet_says_what_the_rest_needs() {
    let packets = packets(&busy(), Weight::Cpu);
    assert_eq!((packets[0].number(13), packets[0].number(87)), (1, 1), "state cleared, first packet");
    assert!(packets[1..].iter().all(|packet| packet.number(13) == 2), "the others need the state");
    assert!(packets.iter().all(|packet| packet.number(10) == 1), "one sequence");
    let clocks: Vec<(u64, u64)> = (packets[0].messages(6)[0].messages(1).iter())
        .map(|clock| (clock.number(1), clock.number(2)))
        .collect();
    assert_eq!(clocks, [(6, 0), (1, 1_700_000_000_123_456_789)]);
    let defaults = &packets[0].messages(59)[0].messages(100)[0];
    let counters = |field| -> Vec<(String, u64)> {
        defaults.messages(field).iter().map(|counter| (counter.text(2), counter.number(3))).collect()
    };
    assert_eq!(defaults.text(1), "stk");
    assert_eq!(counters(2), [("CPU time".to_owned(), 1)]);
    let followers = [("time, waits included".to_owned(), 1), ("samples taken".to_owned(), 9)];
    assert_eq!(counters(3), followers);
}

#[test]
fn process_threads_modules_and_marks_have_names() {
    let packets = packets(&busy(), Weight::Cpu);
    let tracks: Vec<Message> = packets.iter().flat_map(|packet| packet.messages(60)).collect();
    let process = &tracks[0].messages(3)[0];
    assert_eq!((process.number(1), process.text(6)), (4404, "busy.exe".to_owned()));
    assert!(process.text(8).starts_with("stk "), "the source");
    let names: Vec<(u64, String)> = (tracks[1..].iter())
        .map(|track| (track.messages(4)[0].number(2), track.messages(4)[0].text(5)))
        .collect();
    let awkward = r#"größe "q" \ \u{1}\u{9}\u{a}\u{7f}\u{2028} 😀 (8)"#;
    assert_eq!(names, [(4, "thread 4".to_owned()), (8, awkward.to_owned())]);
    let events: Vec<(u64, String)> = (packets.iter())
        .flat_map(|packet| packet.messages(11).into_iter().map(|event| (packet.number(8), event.text(23))))
        .collect();
    let mark = r#"größe "q" \ \u{1}\u{9}\u{a}\u{7f}\u{2028} 😀"#;
    let expected = [
        (2_500_000, "load plugin_a.dll"),
        (4_900_000, "unload plugin_a.dll"),
        (4_950_500, "load plugin_ä.dll"),
        (1_000_001, mark),
    ];
    assert_eq!(events, expected.map(|(time, name)| (time, name.to_owned())));
}

#[test]
fn frames_have_their_module_place_and_line() {
    let packets = packets(&busy(), Weight::Cpu);
    let mut interned = Interned::default();
    packets.iter().for_each(|packet| interned.add(packet));
    let frame = |name: &str| {
        let frames = interned.0.iter().filter(|((table, _), _)| *table == 6).map(|(_, frame)| frame);
        let mut found = frames.filter(|frame| interned.get(5, frame.number(2)).text(2) == name);
        let frame = found.next().expect("the frame");
        let mapping = interned.get(19, frame.number(3));
        let path = interned.get(17, mapping.number(7)).text(2);
        let source = interned.get(18, frame.number(5)).text(2);
        (path, mapping.number(4), frame.number(4), source, frame.number(6), frame.number(7))
    };
    let expected = (r"C:\lab\busy.exe".to_owned(), 0x1_4000_0000, 0x1208, r"C:\src\mix.hpp".to_owned(), 3, 1);
    assert_eq!(frame("mix"), expected, "inlined");
    let (path, base, rva, ..) = frame("plugin_run [plugin_ä.dll]");
    assert_eq!((path.as_str(), base, rva), (r"C:\lab\plugin_ä.dll", 0x1_8000_0000, 0x1000));
}
