//! Tests the agent's side of the mailbox against well-behaved and hostile hosts, played by the
//! test.

use super::*;
use stk_schema::Ticks;

const MS: u64 = 10;
const BASE: u64 = 0x1_8000_0000;

struct NoMemory;

impl Memory for NoMemory {
    fn read(&self, _: u64, _: &mut [u8]) -> bool {
        false
    }
}

#[derive(Default)]
struct NameLog(Vec<(u64, u64, String)>);

impl Events for NameLog {
    fn event(&mut self, event: &Event<'_>) {
        let Event::MethodName(name) = event else { panic!("{event:?}") };
        assert_eq!(name.source, 1);
        self.0.push((name.base, name.size, String::from_utf8(name.name.to_vec()).unwrap()));
    }
}

fn mailbox() -> alloc::boxed::Box<LiveMailbox> {
    let mailbox = alloc::boxed::Box::new(LiveMailbox::empty());
    mailbox.open(0);
    mailbox
}

fn want(address: u64) -> UnnamedCode {
    UnnamedCode {
        instance: 3,
        address,
        base: address & !0xff,
        size: 0x100,
        executed: false,
        precompiled: false,
    }
}

/// Requests the name of one address.
fn asked(address: u64, mailbox: &LiveMailbox) -> Names {
    let mut names = Names::new(mailbox, Arch::X64, MS);
    names.ask_of(BASE, RuntimeKind::Core, mailbox);
    names.want(want(address), &NoMemory);
    assert!(!names.step(mailbox, Ticks(0), false, &NoMemory, &mut NameLog::default()));
    names
}

/// Does what a host does.
fn answer(mailbox: &LiveMailbox, slot: usize, state: u32, base: u64, size: u64, name: &[u8]) {
    let to = &mailbox.slots[slot];
    to.base.store(base, Ordering::Relaxed);
    to.size.store(size, Ordering::Relaxed);
    to.len.store(name.len() as u32, Ordering::Relaxed);
    for (to, byte) in to.name.iter().zip(name) {
        to.store(*byte, Ordering::Relaxed);
    }
    to.state.store(state, Ordering::Relaxed);
}

fn done(mailbox: &LiveMailbox) {
    mailbox.beat.fetch_add(1, Ordering::Relaxed);
    mailbox.host_state.store(HOST_ANSWERS, Ordering::Relaxed);
    mailbox.answer.store(mailbox.request.load(Ordering::Relaxed), Ordering::Release);
}

#[test]
fn an_answer_names_the_region_that_the_host_reports() {
    let mailbox = mailbox();
    let mut names = asked(0x5010, &mailbox);
    assert_eq!(mailbox.runtime.load(Ordering::Relaxed), BASE);
    assert_eq!(mailbox.slots[0].address.load(Ordering::Relaxed), 0x5010);
    assert_eq!(mailbox.count.load(Ordering::Relaxed), 1);
    answer(&mailbox, 0, SLOT_NAMED, 0x4ff0, 0x40, b"App!T.M()");
    let mut out = NameLog::default();
    assert!(
        !names.step(&mailbox, Ticks(1), false, &NoMemory, &mut out),
        "not answered before the number is there"
    );
    done(&mailbox);
    assert!(names.step(&mailbox, Ticks(2), false, &NoMemory, &mut out));
    assert_eq!(out.0, [(0x4ff0, 0x40, "App!T.M()".into())]);
    assert!(!names.step(&mailbox, Ticks(3), false, &NoMemory, &mut out), "once");
}

#[test]
fn gc_info_that_the_host_reports_comes_with_the_code() {
    /// Every byte is the lowest of its address.
    struct Bytes;

    impl Memory for Bytes {
        fn read(&self, address: u64, into: &mut [u8]) -> bool {
            into.iter_mut().zip(address..).for_each(|(byte, address)| *byte = address as u8);
            true
        }
    }

    #[derive(Default)]
    struct Infos(Vec<Vec<u8>>);

    impl Events for Infos {
        fn event(&mut self, event: &Event<'_>) {
            if let Event::MethodBody(body) = event {
                assert_eq!((body.base, body.size, body.code), (0x5000, 4, &[0, 1, 2, 3][..]));
                self.0.push(body.gc_info.to_vec());
            }
        }
    }

    let mailbox = mailbox();
    let mut infos = Infos::default();
    for gc_info in [Some(0x7710), None] {
        let mut names = Names::new(&mailbox, Arch::X86, MS);
        names.ask_of(BASE, RuntimeKind::Core, &mailbox);
        names.want(want(0x5002), &Bytes);
        names.step(&mailbox, Ticks(0), true, &Bytes, &mut infos);
        answer(&mailbox, 0, SLOT_NAMED, 0x5000, 4, b"App!T.M()");
        if let Some(address) = gc_info {
            mailbox.gc_info[0].store(address, Ordering::Relaxed);
        }
        done(&mailbox);
        names.step(&mailbox, Ticks(1), false, &Bytes, &mut infos);
    }
    // The second host leaves the first one's answer where it was.
    assert_eq!(infos.0, [(0x10..0x90).collect(), vec![]]);
}

#[test]
fn an_answer_without_bounds_names_the_recorded_region() {
    let mailbox = mailbox();
    let mut names = asked(0x5010, &mailbox);
    answer(&mailbox, 0, SLOT_NAMED, 0, 0, b"T.M()");
    done(&mailbox);
    let mut out = NameLog::default();
    names.step(&mailbox, Ticks(1), false, &NoMemory, &mut out);
    assert_eq!(out.0, [(0x5000, 0x100, "T.M()".into())]);
}

#[test]
fn hostile_answers_are_refused_and_counted() {
    let long = [b'x'; NAME_BYTES];
    let hostile: [(u32, u64, u64, &[u8]); 10] = [
        (SLOT_ASKED, 0, 0, b"App!T.M()"),
        (77, 0, 0, b"App!T.M()"),
        (SLOT_NAMED, 0, 0, b""),
        (SLOT_NAMED, 0, 0, b"\xff\xfe"),
        (SLOT_NAMED, 0, 0, b"two\nlines"),
        (SLOT_NAMED, 0x5011, 0x40, b"begins behind"),
        (SLOT_NAMED, 0x5000, 0x10, b"ends before"),
        (SLOT_NAMED, 1, u64::MAX, b"everything"),
        (SLOT_NAMED, 1, MOST_CODE + 1, b"too large"),
        (SLOT_NAMED, u64::MAX, u64::MAX, b"wraps"),
    ];
    for (state, base, size, name) in hostile {
        let mailbox = mailbox();
        let mut names = asked(0x5010, &mailbox);
        answer(&mailbox, 0, state, base, size, name);
        done(&mailbox);
        let mut out = NameLog::default();
        assert!(!names.step(&mailbox, Ticks(1), false, &NoMemory, &mut out));
        assert!(out.0.is_empty() && names.counts.refused == 1, "{state} {base:#x} {size:#x} {name:?}");
    }
    // A length past the slot's end, and numbers of slots that the agent does not use.
    let mailbox = mailbox();
    let mut names = asked(0x5010, &mailbox);
    answer(&mailbox, 0, SLOT_NAMED, 0, 0, &long);
    mailbox.slots[0].len.store(u32::MAX, Ordering::Relaxed);
    mailbox.count.store(u32::MAX, Ordering::Relaxed);
    answer(&mailbox, 1, SLOT_NAMED, 0, 0, b"nobody asked");
    done(&mailbox);
    let mut out = NameLog::default();
    names.step(&mailbox, Ticks(1), false, &NoMemory, &mut out);
    assert!(out.0.is_empty() && names.counts.refused == 1);
}

#[test]
fn addresses_beyond_one_request_go_into_the_next_at_once() {
    let mailbox = mailbox();
    let mut names = Names::new(&mailbox, Arch::X64, MS);
    for i in 0..SLOTS as u64 + 3 {
        names.want(want(0x1000 * (i + 1)), &NoMemory);
    }
    let mut out = NameLog::default();
    names.step(&mailbox, Ticks(0), true, &NoMemory, &mut out);
    assert_eq!(mailbox.request.load(Ordering::Relaxed), 0, "no request before its subject is known");
    names.ask_of(BASE, RuntimeKind::Framework, &mailbox);
    for round in [SLOTS, 3] {
        names.step(&mailbox, Ticks(1), false, &NoMemory, &mut out);
        assert_eq!(mailbox.count.load(Ordering::Relaxed) as usize, round);
        for slot in 0..round {
            answer(&mailbox, slot, SLOT_NAMED, 0, 0, b"T.M()");
        }
        done(&mailbox);
    }
    names.step(&mailbox, Ticks(1), false, &NoMemory, &mut out);
    assert_eq!(out.0.len(), SLOTS + 3);
    assert_eq!(names.counts, Counts { asked: 67, named: 67, ..Counts::default() });
    assert!(!names.is_busy(&mailbox));
}

#[test]
fn a_request_to_a_silent_host_is_given_up() {
    let mailbox = mailbox();
    let mut names = asked(0x5010, &mailbox);
    assert!(names.is_busy(&mailbox) && !names.host_is_there(&mailbox));
    let mut out = NameLog::default();
    // The host beats twice, and then no more.
    for now in [0, 2_000 * MS, 4_000 * MS] {
        mailbox.beat.fetch_add(1, Ordering::Relaxed);
        names.step(&mailbox, Ticks(now), false, &NoMemory, &mut out);
        assert!(names.is_busy(&mailbox) && names.host_is_there(&mailbox));
    }
    let first = mailbox.request.load(Ordering::Relaxed);
    names.step(&mailbox, Ticks(7_000 * MS), false, &NoMemory, &mut out);
    assert!(!names.in_flight() && names.is_busy(&mailbox), "it is requested again");
    // The late answer is ignored.
    answer(&mailbox, 0, SLOT_NAMED, 0, 0, b"T.M()");
    done(&mailbox);
    names.step(&mailbox, Ticks(7_001 * MS), false, &NoMemory, &mut out);
    assert!(out.0.is_empty());
    for second in 8..30 {
        names.step(&mailbox, Ticks(second * 1_000 * MS), false, &NoMemory, &mut out);
    }
    assert!(!names.is_busy(&mailbox));
    assert_eq!(mailbox.request.load(Ordering::Relaxed), first + 2, "three requests in all");
    assert_eq!((names.counts.asked, names.counts.unanswered), (1, 1));
    assert!(names.note(&mailbox).unwrap().contains("did not answer in time for 1 addresses"));
}

#[test]
fn an_address_whose_request_was_given_up_is_named_by_the_next_answer() {
    let mailbox = mailbox();
    let mut names = asked(0x5010, &mailbox);
    let mut out = NameLog::default();
    for second in 1..=4 {
        names.step(&mailbox, Ticks(second * 1_000 * MS), false, &NoMemory, &mut out);
    }
    assert!(names.in_flight(), "asked again a second after it was given up");
    answer(&mailbox, 0, SLOT_NAMED, 0, 0, b"T.M()");
    done(&mailbox);
    assert!(names.step(&mailbox, Ticks(5_000 * MS), false, &NoMemory, &mut out));
    assert_eq!(out.0.len(), 1);
    names.end();
    let counts = Counts { asked: 1, named: 1, ..Counts::default() };
    assert_eq!(names.counts, counts);
}

#[test]
fn a_request_under_way_at_the_end_counts_as_unanswered() {
    let mailbox = mailbox();
    let mut names = asked(0x5010, &mailbox);
    names.end();
    assert_eq!((names.counts.unanswered, names.is_busy(&mailbox)), (1, false));
}

#[test]
fn a_host_that_beats_but_never_answers_is_given_up() {
    let mailbox = mailbox();
    let mut names = asked(0x5010, &mailbox);
    // Three requests, each given up after 15 s and repeated a second later.
    for second in 0..50 {
        mailbox.beat.fetch_add(1, Ordering::Relaxed);
        names.step(&mailbox, Ticks(second * 1_000 * MS), false, &NoMemory, &mut NameLog::default());
    }
    assert_eq!((names.counts.unanswered, names.in_flight()), (1, false));
}

#[test]
fn the_note_includes_the_hosts_message() {
    let mailbox = mailbox();
    let mut names = Names::new(&mailbox, Arch::X64, MS);
    assert_eq!(names.note(&mailbox), None);
    names.ask_of(BASE, RuntimeKind::Core, &mailbox);
    assert!(names.note(&mailbox).unwrap().contains("no inject was there"));
    mailbox.host_state.store(HOST_CANNOT, Ordering::Relaxed);
    for (to, byte) in mailbox.message.iter().zip(b"mscordaccore.dll is missing\n\xff") {
        to.store(*byte, Ordering::Relaxed);
    }
    mailbox.message_len.store(u32::MAX, Ordering::Relaxed);
    let note = names.note(&mailbox).unwrap();
    assert!(note.contains("mscordaccore.dll is missing\u{fffd}") && !note.contains('\n'), "{note}");
}
