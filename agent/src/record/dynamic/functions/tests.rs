//! Tests code that appears and disappears in a fake process, and the events that report it.

use super::super::entry::tests::{IMAGE, Pieces, function};
use super::*;
use alloc::format;
use alloc::string::String;
use alloc::vec;
use stk_schema::Ticks;

const MS: u64 = 10;
/// `push rbx; sub rsp,20h`.
const INFO: [u8; 8] = [0x01, 5, 2, 0, 5, 0x32, 1, 0x30];

/// A process whose code appears and disappears.
#[derive(Default)]
struct World {
    memory: Pieces,
    /// Registered entries: first address, last, address of the entry.
    tables: Vec<(u64, u64, u64)>,
    asked: usize,
    fault: bool,
}

struct CountedTables<'a>(&'a [(u64, u64, u64)], &'a mut usize, bool);

impl Tables for CountedTables<'_> {
    fn lookup(&mut self, address: u64) -> Lookup {
        *self.1 += 1;
        if self.2 {
            return Lookup::Fault;
        }
        let found = self.0.iter().find(|(first, last, _)| (*first..*last).contains(&address));
        found.map_or(Lookup::None, |(_, _, entry)| Lookup::Found { entry: *entry, image_base: IMAGE })
    }
}

impl World {
    /// Puts code of `len` bytes of `fill` at an RVA, with an entry.
    fn compile(&mut self, rva: u32, len: u32, fill: u8) {
        self.memory.0.insert(IMAGE + u64::from(rva), vec![fill; len as usize]);
        let entry = 0x9000 + u64::from(rva);
        self.memory.0.insert(entry, function(rva, rva + len, 0x10_0000));
        self.memory.0.insert(IMAGE + 0x10_0000, INFO.to_vec());
        self.tables.retain(|(first, last, _)| {
            IMAGE + u64::from(rva + len) <= *first || *last <= IMAGE + u64::from(rva)
        });
        self.tables.push((IMAGE + u64::from(rva), IMAGE + u64::from(rva + len), entry));
    }
}

#[derive(Default)]
struct FunctionLog(Vec<String>);

impl Events for FunctionLog {
    fn event(&mut self, event: &Event<'_>) {
        self.0.push(match event {
            Event::CodeAdd(add) => format!(
                "add {} kind {} at {:#x}+{:#x} t{} unwind {} code {}x{:02x}",
                add.instance,
                add.kind,
                add.base.wrapping_sub(IMAGE),
                add.size,
                add.time.0,
                add.unwind.len(),
                add.code.len(),
                add.code.first().copied().unwrap_or(0),
            ),
            Event::CodeRemove { instance, time } => format!("remove {instance} t{}", time.0),
            other => format!("{other:?}"),
        });
    }
}

struct Rig {
    world: World,
    functions: CodeFunctions,
    shared: Arc<Shared>,
    log: FunctionLog,
}

impl Rig {
    fn new() -> Rig {
        let shared = Shared::new();
        let ids = Arc::new(AtomicU64::new(7));
        Rig {
            world: World::default(),
            functions: CodeFunctions::new(Arch::X64, ids, shared.clone(), MS),
            shared,
            log: FunctionLog::default(),
        }
    }

    fn see(&mut self, rva: u64, time: u64, executed: bool) -> Vec<String> {
        let World { memory, tables, asked, fault } = &mut self.world;
        let sighting = CodeSample { inside: IMAGE + rva, time: Ticks(time), executed };
        self.functions.sighted(sighting, &mut CountedTables(tables, asked, *fault), memory, &mut self.log);
        core::mem::take(&mut self.log.0)
    }
}

#[test]
fn a_function_is_looked_up_once_for_all_of_its_addresses() {
    let mut rig = Rig::new();
    rig.world.compile(0x1000, 0x80, 0xcc);
    assert_eq!(rig.see(0x1010, 5, false), ["add 7 kind 1 at 0x1000+0x80 t5 unwind 8 code 128xcc"]);
    for rva in 0x1000..0x1080 {
        assert!(rig.see(rva, 6, true).is_empty());
    }
    assert_eq!(rig.world.asked, 1);
    assert!(rig.see(0x1010, 5 + FRESH_MS * MS, false).is_empty(), "unchanged");
    assert_eq!(rig.world.asked, 2);
    assert_eq!(rig.shared.activity.added(), 1);
}

#[test]
fn a_name_is_requested_once_per_function_and_once_per_stub_address() {
    let mut rig = Rig::new();
    rig.world.compile(0x1000, 0x80, 0xcc);
    rig.world.memory.0.insert(IMAGE + 0x3000, vec![0x90; 0x200]);
    for (rva, time) in
        [(0x1010, 5), (0x1020, 6), (0x3100, 7), (0x3100, 8), (0x3110, 9), (0x3110, 9 + 2 * FRESH_MS * MS)]
    {
        rig.see(rva, time, true);
    }
    let mut unnamed = Vec::new();
    for UnnamedCode { address, base, size, .. } in rig.functions.take_unnamed() {
        unnamed.push((address - IMAGE, base - IMAGE, size));
    }
    assert_eq!(unnamed, [(0x1000, 0x1000, 0x80), (0x3100, 0x3100, 1), (0x3110, 0x3110, 1)]);
}

#[test]
fn replaced_code_is_a_new_instance_from_the_sample_that_showed_it() {
    let mut rig = Rig::new();
    rig.world.compile(0x1000, 0x40, 0xaa);
    rig.world.compile(0x1040, 0x40, 0xab);
    rig.see(0x1001, 1, true);
    rig.see(0x1041, 2, true);
    let later = FRESH_MS * MS + 2;
    // Same address and size, other code.
    rig.world.compile(0x1000, 0x40, 0xbb);
    assert_eq!(
        rig.see(0x1001, later, true),
        [format!("remove 7 t{later}"), format!("add 9 kind 1 at 0x1000+0x40 t{later} unwind 8 code 64xbb")]
    );
    // One function in place of two.
    rig.world.compile(0x1000, 0x60, 0xdd);
    let again = 2 * later;
    let seen = rig.see(0x1050, again, true);
    assert_eq!(seen[..2], [format!("remove 9 t{again}"), format!("remove 8 t{again}")]);
    assert_eq!(seen[2], format!("add 10 kind 1 at 0x1000+0x60 t{again} unwind 8 code 96xdd"));
    assert_eq!(rig.functions.known(), 1);
}

#[test]
fn code_without_its_entry_ends_and_becomes_a_stub_if_still_executed() {
    let mut rig = Rig::new();
    rig.world.compile(0x1000, 0x400, 0x90);
    rig.see(0x1200, 1, true);
    rig.world.tables.clear();
    let later = FRESH_MS * MS + 1;
    assert_eq!(rig.see(0x1200, later, false), [format!("remove 7 t{later}")], "a word that follows no call");
    assert_eq!(
        rig.see(0x1200, later, true),
        [format!("add 8 kind 4 at 0x11c0+0x80 t{later} unwind 0 code 128x90")]
    );
}

#[test]
fn stubs_have_their_bytes_before_and_after_and_never_overlap() {
    let mut rig = Rig::new();
    let code: Vec<u8> = (0..=255).cycle().take(0x1000).collect();
    rig.world.memory.0.insert(IMAGE + 0x1000, code);
    assert_eq!(rig.see(0x1100, 1, true), ["add 7 kind 4 at 0x10c0+0x80 t1 unwind 0 code 128xc0"]);
    assert!(rig.see(0x1130, 2, true).is_empty(), "inside the first");
    assert_eq!(rig.see(0x1150, 2, true), ["add 8 kind 4 at 0x1140+0x50 t2 unwind 0 code 80x40"]);
    assert_eq!(rig.see(0x10b0, 2, true), ["add 9 kind 4 at 0x1070+0x50 t2 unwind 0 code 80x70"]);
    // At the ends of the readable memory.
    assert_eq!(rig.see(0x1004, 2, true), ["add 10 kind 4 at 0x1000+0x44 t2 unwind 0 code 68x00"]);
    assert_eq!(rig.see(0x1ffe, 2, true), ["add 11 kind 4 at 0x1fbe+0x42 t2 unwind 0 code 66xbe"]);
    assert!(rig.see(0x3000, 2, true).is_empty(), "nothing there");
}

#[test]
fn an_overwritten_stub_is_a_new_instance() {
    let mut rig = Rig::new();
    rig.world.memory.0.insert(IMAGE + 0x1000, vec![1; 0x1000]);
    rig.see(0x1100, 1, true);
    rig.world.memory.0.insert(IMAGE + 0x1000, vec![2; 0x1000]);
    let later = FRESH_MS * MS + 1;
    assert_eq!(
        rig.see(0x1100, later, true),
        [format!("remove 7 t{later}"), format!("add 8 kind 4 at 0x10c0+0x80 t{later} unwind 0 code 128x02")]
    );
}

#[test]
fn a_stack_word_in_code_without_an_entry_counts_only_after_a_call() {
    let mut rig = Rig::new();
    for (number, call) in [
        &[0xe8u8, 1, 2, 3, 4][..],
        &[0xff, 0xd0],
        &[0x41, 0xff, 0xd3],
        &[0xff, 0x50, 0x18],
        &[0xff, 0x54, 0x24, 0x20],
        &[0xff, 0x15, 1, 2, 3, 4],
        &[0xff, 0x94, 0x24, 1, 2, 3, 4],
    ]
    .into_iter()
    .enumerate()
    {
        let mut code = vec![0x90; 0x200];
        code[0x100 - call.len()..0x100].copy_from_slice(call);
        let rva = 0x1000 * (number as u64 + 1);
        rig.world.memory.0.insert(IMAGE + rva, code);
        assert!(rig.see(rva + 0x1f0, 1, false).is_empty(), "{call:02x?}: no call there");
        assert_eq!(rig.see(rva + 0xff, 1, false).len(), 1, "{call:02x?}");
    }
    assert!(follows_call(&0x9400_0010u32.to_le_bytes(), Arch::Arm64));
    assert!(follows_call(&0xd63f_0100u32.to_le_bytes(), Arch::Arm64));
    assert!(!follows_call(&0xd65f_03c0u32.to_le_bytes(), Arch::Arm64));
}

#[test]
fn the_table_is_bounded_and_forgotten_regions_are_written_again() {
    let mut rig = Rig::new();
    for n in 0..MOST as u32 + 1 {
        rig.world.compile(0x20_0000 + n * 16, 16, 0x90);
        // The fake searches its tables one by one.
        let last = rig.world.tables.split_off(rig.world.tables.len() - 1);
        rig.world.tables = last;
        assert_eq!(rig.see(u64::from(0x20_0000 + n * 16), u64::from(n), true).len(), 1);
        assert!(rig.functions.known() <= MOST);
    }
    assert_eq!(rig.functions.known(), MOST - MOST / 8 + 1);
    assert_eq!(rig.shared.costs.forgotten.load(Ordering::Relaxed), MOST as u64 / 8);
    rig.world.compile(0x20_0000, 16, 0x90);
    assert_eq!(rig.see(0x20_0000, 20_000, true).len(), 1, "the oldest were forgotten, without a CODE_REMOVE");
    assert!(rig.see(u64::from(0x20_0000 + MOST as u32 * 16), 20_000, true).is_empty(), "the latest is known");
}

#[test]
fn a_faulting_lookup_is_counted_leaves_a_stub_and_is_not_repeated() {
    let mut rig = Rig::new();
    rig.world.compile(0x1000, 0x100, 0xcc);
    rig.world.compile(0x2000, 0x100, 0xcc);
    assert_eq!(rig.see(0x2080, 1, true).len(), 1);
    rig.world.fault = true;
    assert_eq!(rig.see(0x1080, 1, true), ["add 8 kind 4 at 0x1040+0x80 t1 unwind 0 code 128xcc"]);
    assert_eq!(rig.shared.costs.faults.load(Ordering::Relaxed), 1);
    let later = FRESH_MS * MS + 1;
    let asked = rig.world.asked;
    assert!(rig.see(0x1080, later, true).is_empty());
    assert_eq!(rig.world.asked, asked);
    // What was known before stays known.
    assert!(rig.see(0x2080, later, true).is_empty());
    assert_eq!(rig.shared.costs.removed.load(Ordering::Relaxed), 0);
}

#[test]
fn an_entry_for_a_whole_code_range_is_recorded_without_code() {
    let mut rig = Rig::new();
    rig.world.compile(0, 0x1_0004, 0x90);
    rig.world.memory.0.insert(IMAGE + 0x10_0000, INFO.to_vec());
    assert_eq!(rig.see(0x8000, 1, false), ["add 7 kind 1 at 0x0+0x10004 t1 unwind 8 code 0x00"]);
}
