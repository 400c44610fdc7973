//! Names from the structures of CoreCLR 10.0.9, made by hand at the offsets of its descriptor, and
//! from a real assembly (tests/data/dotnet/lines.dll).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use super::metadata::compressed;
use super::pages::PageCache;
use super::*;
use crate::record::dotnet::descriptor::Descriptor;
use crate::record::dynamic::{Shared, UnnamedCode};
use crate::record::modules::Events;
use crate::record::tests::random;
use stk_schema::Ticks;
use stk_schema::event::{Event, FrameMethod};

const JSON: &[u8] = include_bytes!("../../tests/data/contract-10.0.9.json");
const ASSEMBLY: &[u8] = include_bytes!("../../../../../tests/data/dotnet/lines.dll");

/// Addresses of the structures.
const MAP: u64 = 0x1_4080_0000;
const LEVELS: u64 = 0x2000_0000;
const FRAGMENT: u64 = 0x2100_0000;
const SECTION: u64 = 0x2200_0000;
const NODE: u64 = 0x2300_0000;
const NIBBLES: u64 = 0x2400_0000;
const HEADER: u64 = 0x2500_0000;
const CHUNK: u64 = 0x2600_0000;
const TABLE: u64 = 0x2700_0000;
const ARRAY_TABLE: u64 = 0x2710_0000;
const CLASS: u64 = 0x2800_0000;
const MODULE: u64 = 0x2900_0000;
const PE_ASSEMBLY: u64 = 0x2a00_0000;
const PE_IMAGE: u64 = 0x2b00_0000;
const LAYOUT: u64 = 0x2c00_0000;
const FILE_NAME: u64 = 0x2d00_0000;
const DICTIONARY: u64 = 0x2e00_0000;
const TEXTS: u64 = 0x2f00_0000;
const PRECOMPILED: u64 = 0x3000_0000;
const FUNCTIONS: u64 = 0x3100_0000;
const BUCKETS: u64 = 0x3200_0000;
const THUNKS: u64 = 0x3300_0000;
const IMAGE: u64 = 0x1e74_5000;
/// A code heap, and the code in it.
const HEAP: u64 = 0x7ff8_e09b_0000;
const CODE: u64 = HEAP + 0x2a0;
/// The second MethodDesc of the chunk.
const METHOD: u64 = CHUNK + 24 + 2 * 8;

/// Memory in pieces, which counts the reads.
#[derive(Default)]
struct World {
    pieces: BTreeMap<u64, Vec<u8>>,
    reads: Cell<u32>,
}

impl Memory for World {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        self.reads.set(self.reads.get() + 1);
        let Some((start, piece)) = self.pieces.range(..=address).next_back() else { return false };
        let Ok(at) = usize::try_from(address - start) else { return false };
        let Some(bytes) = at.checked_add(into.len()).and_then(|end| piece.get(at..end)) else { return false };
        into.copy_from_slice(bytes);
        true
    }
}

impl World {
    fn set(&mut self, address: u64, bytes: &[u8]) {
        let page = address / 4096 * 4096;
        let piece = self.pieces.entry(page).or_insert_with(|| vec![0; 0x4000]);
        let at = (address - page) as usize;
        piece[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn pointer(&mut self, address: u64, value: u64) {
        self.set(address, &value.to_le_bytes());
    }

    /// Replaces a word of the piece at `start`, if it has one there.
    fn replace(&mut self, start: u64, at: u64, value: u64) {
        let piece = self.pieces.get_mut(&start).expect("a piece");
        if let Some(into) = piece.get_mut(at as usize..at as usize + 8) {
            into.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// A process with one jitted method: row `method` of the assembly, in the type of row `class`.
    fn new(class: u32, method: u32) -> World {
        let mut world = World::default();
        let mut image = ASSEMBLY.to_vec();
        image.resize(image.len().next_multiple_of(4096), 0);
        world.pieces.insert(IMAGE, image);
        let mut level = MAP;
        for depth in (0..5u64).rev() {
            let index = CODE >> (17 + 8 * depth) & 0xff;
            let next = if depth == 0 { FRAGMENT } else { LEVELS + 0x1_0000 * depth };
            // Bit 0: the memory below can be freed.
            world.pointer(level + 8 * index, next | (depth & 1));
            level = next;
        }
        for (at, value) in [(8, HEAP), (16, HEAP + 0x1_0000), (24, SECTION), (0, 0)] {
            world.pointer(FRAGMENT + at, value);
        }
        for (at, value) in [(0, HEAP), (8, HEAP + 0x1_0000), (64, 0), (40, NODE), (32, 0)] {
            world.pointer(SECTION + at, value);
        }
        world.set(SECTION + 16, &2u32.to_le_bytes());
        for (at, value) in [(16, HEAP + 0x100), (24, HEAP + 0x8000), (32, HEAP), (40, NIBBLES)] {
            world.pointer(NODE + at, value);
        }
        // 0x2a0: unit 2, nibble 5 of it: 1 + 0 / 4.
        world.set(NIBBLES + 8, &(1u32 << (28 - 4 * 5)).to_le_bytes());
        world.pointer(CODE - 8, HEADER);
        world.pointer(HEADER + 24, METHOD);
        world.set(METHOD, &((method & 0xfff) as u16).to_le_bytes());
        world.set(METHOD + 2, &[2]);
        world.set(METHOD + 6, &[0, 0]);
        world.pointer(CHUNK, TABLE);
        world.set(CHUNK + 18, &((method >> 12) as u16).to_le_bytes());
        world.table(TABLE, class, 0);
        world.pointer(CLASS + 16, TABLE);
        for (at, to) in [(MODULE + 192, PE_ASSEMBLY), (PE_ASSEMBLY + 8, PE_IMAGE), (PE_IMAGE + 128, LAYOUT)] {
            world.pointer(at, to);
        }
        world.pointer(LAYOUT + 8, IMAGE);
        world.set(LAYOUT + 16, &(ASSEMBLY.len() as u32).to_le_bytes());
        world.pointer(MODULE + 184, FILE_NAME);
        let name: Vec<u8> = "lines.dll\0".encode_utf16().flat_map(u16::to_le_bytes).collect();
        world.set(FILE_NAME, &name);
        world
    }

    fn table(&mut self, at: u64, class: u32, flags: u32) {
        self.set(at, &flags.to_le_bytes());
        self.set(at + 8, &(class << 8).to_le_bytes());
        self.pointer(at + 24, MODULE);
        self.pointer(at + 40, CLASS);
    }

    /// Makes the method's code precompiled: three functions, of which the second is a funclet.
    fn precompile(&mut self) {
        self.set(SECTION + 16, &0u32.to_le_bytes());
        self.pointer(SECTION + 32, MODULE);
        self.pointer(MODULE + 608, PRECOMPILED);
        self.pointer(PRECOMPILED + 40, PRECOMPILED);
        self.pointer(PRECOMPILED + 80, FUNCTIONS);
        self.set(PRECOMPILED + 88, &3u32.to_le_bytes());
        self.pointer(PRECOMPILED + 112, THUNKS);
        self.set(THUNKS, &[0x00, 0x01, 0, 0, 0x40, 0, 0, 0]);
        for (index, begin) in [0x200u32, 0x300, 0x400].into_iter().enumerate() {
            self.set(FUNCTIONS + 12 * index as u64, &begin.to_le_bytes());
        }
        self.pointer(PRECOMPILED + 336 + 16, BUCKETS);
        self.set(BUCKETS, &2u32.to_le_bytes());
        // One bucket of two holds both entry points; the other one leads to it.
        for bucket in [BUCKETS + 64, BUCKETS + 128] {
            self.pointer(bucket + 32, 1 << 63);
        }
        let key = HEAP + 0x200;
        self.pointer(BUCKETS + 64 + 8, key);
        self.pointer(BUCKETS + 64 + 40, METHOD >> 1);
    }

    fn name_at(&self, address: u64) -> Option<String> {
        self.reads.set(0);
        let name = name_of_code(contract(), self, &PageCache::default(), address);
        assert!(self.reads.get() <= 2 * MOST_READS);
        name
    }

    #[track_caller]
    fn is_named(&self, expected: &str) {
        assert_eq!(self.name_at(CODE + 5).as_deref(), Some(expected));
    }
}

fn descriptor() -> Descriptor {
    let mut pointer_data = vec![0; 25];
    pointer_data[21] = MAP;
    Descriptor { width: 8, json: JSON.to_vec(), pointer_data }
}

fn contract() -> &'static Contract {
    static CONTRACT: OnceLock<Contract> = OnceLock::new();
    CONTRACT.get_or_init(|| Contract::new(&descriptor()).expect("a contract"))
}

#[test]
fn jitted_methods_have_the_names_of_the_lists() {
    for (class, method, name) in [
        (2, 1, "lines!Lines.Simple.Add(int32,int32)"),
        (
            2,
            2,
            "lines!Lines.Simple.Loop(class System.Collections.Generic.IEnumerable`1<class System.String>)",
        ),
        (2, 3, "lines!Lines.Simple.Choose(class System.String)"),
        (2, 5, "lines!Lines.Simple.Later(int32)"),
        (2, 7, "lines!Lines.Simple..ctor()"),
        (4, 9, "lines!Lines.Simple+<Later>d__5.MoveNext()"),
        (
            4,
            10,
            "lines!Lines.Simple+<Later>d__5.SetStateMachine(class System.Runtime.CompilerServices.IAsyncStateMachine)",
        ),
    ] {
        World::new(class, method).is_named(name);
    }
}

#[test]
fn code_belongs_to_the_last_method_that_starts_before_it() {
    let mut world = World::new(2, 1);
    let name = Some("lines!Lines.Simple.Add(int32,int32)");
    for (address, expected) in
        [(CODE - 1, None), (CODE, name), (CODE + 0x1f, name), (CODE + 0x61, name), (CODE + 0x100, name)]
    {
        assert_eq!(world.name_at(address).as_deref(), expected, "{:#x}", address - HEAP);
    }
    // A unit that the method fills holds its distance.
    world.set(NIBBLES + 12, &(0x2a0u32 + 9).to_le_bytes());
    assert_eq!(world.name_at(HEAP + 0x3ff).as_deref(), name);
    assert_eq!(world.name_at(HEAP + 0x4ff).as_deref(), name, "the unit before says it");
    assert_eq!(world.name_at(HEAP + 0x500), None, "two empty units before");
    assert_eq!(world.name_at(HEAP + 0x8001), None, "beyond the used part");
    let mut linear = contract().clone();
    linear.nibble_map = layout::NibbleMap::Linear;
    world.set(NIBBLES + 12, &[0; 4]);
    let found = name_of_code(&linear, &world, &PageCache::default(), HEAP + 0x4000);
    assert_eq!(found.as_deref(), name);
}

#[test]
fn stubs_have_one_name_and_deleted_ranges_none() {
    let mut world = World::new(2, 1);
    world.pointer(CODE - 8, 15);
    assert_eq!(world.name_at(CODE).as_deref(), Some(STUB), "a stub has its kind in place of a header");
    world.pointer(CODE - 8, 0);
    assert_eq!(world.name_at(CODE), None, "no header yet");
    let mut world = World::new(2, 1);
    world.pointer(SECTION + 64, SECTION);
    assert_eq!(world.name_at(CODE), None);
    let mut world = World::new(2, 1);
    world.set(SECTION + 16, &4u32.to_le_bytes());
    assert_eq!(world.name_at(CODE).as_deref(), Some(STUB), "a list of stubs");
}

#[test]
fn precompiled_code_and_its_funclets_are_named() {
    let mut world = World::new(2, 1);
    world.precompile();
    let name = Some("lines!Lines.Simple.Add(int32,int32)");
    for (rva, expected) in [(0x1ff, None), (0x200, name), (0x2ff, name), (0x310, name), (0x120, None)] {
        assert_eq!(world.name_at(HEAP + rva).as_deref(), expected, "{rva:#x}");
    }
    // Cold parts are not followed.
    world.set(PRECOMPILED + 104, &2u32.to_le_bytes());
    world.pointer(PRECOMPILED + 96, TEXTS);
    world.set(TEXTS, &1u32.to_le_bytes());
    assert_eq!(world.name_at(HEAP + 0x200).as_deref(), name);
    assert_eq!(world.name_at(HEAP + 0x310), None);
}

#[test]
fn generic_types_have_their_arguments() {
    let mut world = World::new(2, 1);
    world.table(TABLE, 2, 0x10);
    world.table(ARRAY_TABLE, 2, 0x8008_0000 | 0x2_0000);
    world.pointer(ARRAY_TABLE + 48, TABLE + 0x1000);
    world.table(TABLE + 0x1000, 4, 0);
    // One dictionary with two arguments; the counts lie before the list.
    world.pointer(TABLE + 48, DICTIONARY + 8);
    world.set(DICTIONARY, &[0, 0, 0, 0, 1, 0, 2, 0]);
    world.pointer(DICTIONARY + 8, DICTIONARY + 0x100);
    world.pointer(DICTIONARY + 0x100, TABLE + 0x1000);
    world.pointer(DICTIONARY + 0x108, ARRAY_TABLE);
    let inner = "Lines.Simple+<Later>d__5";
    world.is_named(&format!("lines!Lines.Simple[{inner},{inner}[]].Add(int32,int32)"));
    // An argument that is the type itself, without end.
    world.pointer(DICTIONARY + 0x100, TABLE);
    assert_eq!(world.name_at(CODE), None);
}

#[test]
fn dynamic_methods_are_named_by_their_stored_signature() {
    let mut world = World::new(2, 1);
    world.set(METHOD + 6, &[7, 0]);
    world.pointer(METHOD + 32, TEXTS);
    world.set(TEXTS, b"IL_STUB_PInvoke\0");
    world.is_named("dynamicClass!IL_STUB_PInvoke");
    let mut signature = vec![0x00, 4, 0x08, 0x21];
    signature.extend_from_slice(&0xe0a6_e168u64.to_le_bytes());
    // void*; uint&[]; a function pointer.
    signature.extend_from_slice(&[0x0f, 0x01, 0x1d, 0x10, 0x09, 0x1b, 0x00, 0x01, 0x01, 0x08]);
    world.pointer(METHOD + 16, TEXTS + 0x100);
    world.set(METHOD + 24, &(signature.len() as u32).to_le_bytes());
    world.set(TEXTS + 0x100, &signature);
    world.is_named(
        "dynamicClass!IL_STUB_PInvoke(pMT: 00000000E0A6E168,void*,unsigned int32&[],fnptr void(int32))",
    );
}

#[test]
fn a_type_and_its_class_must_refer_to_each_other() {
    let mut world = World::new(2, 1);
    world.pointer(CLASS + 16, TABLE + 64);
    assert_eq!(world.name_at(CODE), None);
    // A MethodTable of a shared type points to the one that has the class.
    world.pointer(TABLE + 40, (TABLE + 0x1000) | 1);
    world.table(TABLE + 0x1000, 2, 0);
    world.pointer(CLASS + 16, TABLE + 0x1000);
    world.is_named("lines!Lines.Simple.Add(int32,int32)");
}

#[test]
fn another_version_or_a_missing_field_gives_no_contract() {
    let change = |from: &str, to: &str| {
        let text = String::from_utf8(JSON.to_vec()).unwrap();
        assert!(text.contains(from), "{from}");
        Contract::new(&Descriptor { json: text.replace(from, to).into_bytes(), ..descriptor() })
    };
    assert_eq!(change("\"ExecutionManager\":2", "\"ExecutionManager\":3"), None);
    assert_eq!(change("\"TypeArg\"", "\"Other\""), None);
    let linear = change("\"ExecutionManager\":2", "\"ExecutionManager\":\"c1\"").expect("a contract");
    assert_eq!(linear.nibble_map, layout::NibbleMap::Linear);
    let jitted_only = change("\"CompositeInfo\"", "\"Other\"").expect("a contract");
    assert_eq!(jitted_only.precompiled, None);
    assert_eq!(Contract::new(&Descriptor { width: 4, ..descriptor() }), None);
}

#[test]
fn compressed_numbers_have_one_two_or_four_bytes() {
    assert_eq!(compressed(&[0x7f]), Some((0x7f, 1)));
    assert_eq!(compressed(&[0xae, 0x57]), Some((0x2e57, 2)));
    assert_eq!(compressed(&[0xc0, 0x00, 0x40, 0x00]), Some((0x4000, 4)));
    assert_eq!((compressed(&[]), compressed(&[0x80]), compressed(&[0xff])), (None, None, None));
}

/// Random words, pointers to other structures and to themselves, and damaged metadata.
#[test]
fn memory_that_holds_anything_ends_every_search() {
    let mut random = random(0x9e37_79b9_7f4a_7c15);
    let mut named = 0;
    for round in 0..4_000 {
        let mut world = World::new(2 + round % 3, 1 + round % 12);
        if round % 2 == 0 {
            world.precompile();
        }
        let starts: Vec<u64> = world.pieces.keys().copied().collect();
        for _ in 0..1 + random() % 12 {
            let start = starts[(random() % starts.len() as u64) as usize];
            let at = (random() % if random().is_multiple_of(2) { 0x100 } else { 0x1a00 }) & !7;
            let value = match random() % 4 {
                0 => random(),
                1 => random() & 0xff,
                2 => start + at,
                _ => starts[(random() % starts.len() as u64) as usize] + random() % 0x200,
            };
            world.replace(start, at, value);
        }
        let name = world.name_at(HEAP + 0x200 + random() % 0x300);
        named += usize::from(name.is_some());
        assert!(name.is_none_or(|name| name.len() <= 16 << 10));
    }
    assert!(named > 100, "{named}");
}

/// Keeps the events that were written.
#[derive(Default)]
struct Log(Vec<String>);

impl Events for Log {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::FrameMethod(method) = event {
            let FrameMethod { module, time, kind, address, slot, source, name } = *method;
            assert_eq!((module, kind, slot, source), (7, FrameMethod::DESC, 0, 4));
            let text = String::from_utf8_lossy(name);
            self.0.push(format!("{address:#x} at {}: {text}", time.0));
            return;
        }
        let Event::MethodName(name) = event else { panic!("{event:?}") };
        let text = String::from_utf8_lossy(name.name);
        self.0.push(format!(
            "{:#x}+{} {} at {}: {text}",
            name.base - HEAP,
            name.size,
            name.source,
            name.time.0
        ));
    }
}

#[test]
fn code_without_a_name_is_tried_again_and_then_left_to_others() {
    let (contract, shared) = (contract(), Shared::new());
    let mut world = World::new(2, 1);
    let (mut names, mut log) = (ContractNames::new(1), Log::default());
    let code = UnnamedCode {
        instance: 3,
        address: CODE,
        base: CODE,
        size: 0x60,
        executed: true,
        precompiled: false,
    };
    world.pointer(HEADER + 24, 0);
    names.want(code, Some(contract), &shared);
    names.step(contract, &world, || Ticks(10), false, &shared, &mut log);
    names.step(contract, &world, || Ticks(20), false, &shared, &mut log);
    assert!(log.0.is_empty() && shared.unnamed.pop().is_none());
    world.pointer(HEADER + 24, METHOD);
    names.step(contract, &world, || Ticks(110), false, &shared, &mut log);
    assert_eq!(log.0, ["0x2a0+96 4 at 110: lines!Lines.Simple.Add(int32,int32)"]);

    world.pointer(HEADER + 24, 0);
    names.want(code, Some(contract), &shared);
    names.step(contract, &world, || Ticks(120), false, &shared, &mut log);
    names.step(contract, &world, || Ticks(121), true, &shared, &mut log);
    assert_eq!((log.0.len(), shared.unnamed.pop()), (1, Some(code)));
}

#[test]
fn code_from_before_the_runtime_is_named_once_it_is_found() {
    let (contract, shared) = (contract(), Shared::new());
    let world = World::new(2, 1);
    let (mut names, mut log) = (ContractNames::new(1), Log::default());
    let code = UnnamedCode {
        instance: 3,
        address: CODE,
        base: CODE,
        size: 0x60,
        executed: true,
        precompiled: false,
    };
    names.want(code, None, &shared);
    assert_eq!(shared.unnamed.pop(), Some(code), "the host may name it");
    names.step(contract, &world, || Ticks(10), false, &shared, &mut log);
    assert_eq!(log.0.len(), 1);
}

#[test]
fn frames_method_is_named_again_when_another_takes_its_place() {
    let mut world = World::new(2, 1);
    let (mut frames, mut log) = (FrameMethods::default(), Log::default());
    let mut step = |world: &World, log: &mut Log, time, wanted: &[u64]| {
        let mut wanted = wanted.iter().copied();
        frames.step((contract(), 7), world, Ticks(time), || wanted.next(), log)
    };
    assert!(!step(&world, &mut log, 10, &[METHOD, METHOD, METHOD + 4, 0x10, u64::MAX - 7]));
    let first = format!("{METHOD:#x} at 10: lines!Lines.Simple.Add(int32,int32)");
    assert_eq!(log.0.join(""), first);
    step(&world, &mut log, 20, &[METHOD]);
    assert_eq!(log.0.len(), 1, "known");
    // It cannot be read for a while, then another method is there.
    world.pointer(CHUNK, 0);
    step(&world, &mut log, 30, &[METHOD]);
    assert_eq!(log.0.len(), 1);
    let other = World::new(2, 2);
    step(&other, &mut log, 40, &[METHOD]);
    assert_eq!(log.0.len(), 2, "{:?}", log.0);
    assert!(log.0[1].starts_with(&format!("{METHOD:#x} at 40: lines!Lines.Simple.")), "{}", log.0[1]);
    assert_ne!(log.0[1][log.0[1].find(": ").unwrap()..], first[first.find(": ").unwrap()..]);
    // Many are named in several steps.
    assert!(step(&world, &mut log, 50, &[METHOD + 4; 40]));
}

#[test]
fn methods_are_requested_again_after_seconds() {
    let recent = RecentMethods::new(100);
    assert!(recent.is_due(0x1000, Ticks(1)) && recent.is_due(0x1008, Ticks(1)));
    assert!(!recent.is_due(0x1000, Ticks(500)) && recent.is_due(0x1000, Ticks(501)));
    // 256 places of 8 bytes: the same place.
    assert!(recent.is_due(0x1800, Ticks(502)) && recent.is_due(0x1000, Ticks(503)));
}

/// As `memory_that_holds_anything`, from the MethodDesc on, at random addresses too.
#[test]
fn methods_of_frames_in_any_memory_end_every_search() {
    let mut random = random(0x2545_f491_4f6c_dd1d);
    let mut named = 0;
    for round in 0..4_000 {
        let mut world = World::new(2 + round % 3, 1 + round % 12);
        let starts: Vec<u64> = world.pieces.keys().copied().collect();
        for _ in 0..random() % 8 {
            let start = starts[(random() % starts.len() as u64) as usize];
            let at = (random() % if random().is_multiple_of(2) { 0x40 } else { 0x1a00 }) & !7;
            let value = match random() % 3 {
                0 => random(),
                1 => start + at,
                _ => starts[(random() % starts.len() as u64) as usize] + random() % 0x200,
            };
            world.replace(start, at, value);
        }
        let method = match random() % 3 {
            0 => METHOD,
            1 => starts[(random() % starts.len() as u64) as usize] + random() % 0x200,
            _ => random(),
        };
        world.reads.set(0);
        let name = frames::name_of_method(contract(), &world, &PageCache::default(), method);
        assert!(world.reads.get() <= 2 * MOST_READS);
        named += usize::from(name.is_some());
        assert!(name.is_none_or(|name| name.len() <= 16 << 10));
    }
    assert!(named > 100, "{named}");
}
