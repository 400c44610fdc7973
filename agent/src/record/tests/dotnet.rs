//! Tests the data contract of CoreCLR 10.0.9, as read from that runtime, on fake memory.

use crate::record::dotnet::descriptor::Descriptor;
use crate::record::dotnet::threads::{Layout, ManagedState, ThreadTable};
use crate::record::image::Memory;
use std::collections::BTreeMap;

const JSON: &[u8] = include_bytes!("data/contract-10.0.9.json");

/// Memory in pieces. Bytes outside of them cannot be read.
#[derive(Default)]
struct Pieces(BTreeMap<u64, Vec<u8>>);

impl Memory for Pieces {
    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let Some((start, piece)) = self.0.range(..=address).next_back() else { return false };
        let at = (address - start) as usize;
        match piece.get(at..at + into.len()) {
            Some(bytes) => into.copy_from_slice(bytes),
            None => return false,
        }
        true
    }
}

impl Pieces {
    fn set(&mut self, address: u64, bytes: &[u8]) {
        let (start, piece) = self.0.range_mut(..=address).next_back().expect("a piece to write into");
        let at = (address - start) as usize;
        piece[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

const DESCRIPTOR: u64 = 0x1_4000_0000;
const STORE_VARIABLE: u64 = 0x1_4010_0000;
const STORE: u64 = 0x2000_0000;
const THREADS: [u64; 3] = [0x3000_0000, 0x3000_1000, 0x3000_2000];

/// A process with three threads: two live, with the system's ids 40 and 44, and a dead one between
/// them. Offsets are those of the .NET 10 x64 runtime: OSId 304, Frame 8, LinkNext 120,
/// ExceptionTracker 360; the store's first link 64; its variable is global 3.
fn process() -> Pieces {
    let mut memory = Pieces::default();
    let pointers = 25u32;
    let mut header = b"DNCCDAC\0".to_vec();
    header.extend_from_slice(&1u32.to_le_bytes());
    header.extend_from_slice(&(JSON.len() as u32).to_le_bytes());
    header.extend_from_slice(&(DESCRIPTOR + 0x1000).to_le_bytes());
    header.extend_from_slice(&pointers.to_le_bytes());
    header.extend_from_slice(&0u32.to_le_bytes());
    header.extend_from_slice(&(DESCRIPTOR + 0x8000).to_le_bytes());
    memory.0.insert(DESCRIPTOR, header);
    memory.0.insert(DESCRIPTOR + 0x1000, JSON.to_vec());
    let mut data = vec![0u8; pointers as usize * 8];
    data[24..32].copy_from_slice(&STORE_VARIABLE.to_le_bytes());
    memory.0.insert(DESCRIPTOR + 0x8000, data);
    memory.0.insert(STORE_VARIABLE, STORE.to_le_bytes().to_vec());
    memory.0.insert(STORE, vec![0; 128]);
    for thread in THREADS {
        memory.0.insert(thread, vec![0; 600]);
    }
    memory.set(STORE + 64, &(THREADS[0] + 120).to_le_bytes());
    for (index, thread) in THREADS.into_iter().enumerate() {
        let next = THREADS.get(index + 1).map_or(STORE + 64, |next| next + 120);
        memory.set(thread + 120, &next.to_le_bytes());
        memory.set(thread + 304, &[40u32, 0, 44][index].to_le_bytes());
    }
    memory.set(THREADS[2], &0x1000u32.to_le_bytes());
    memory.set(THREADS[2] + 4, &1u32.to_le_bytes());
    memory.set(THREADS[2] + 8, &0x7_0000u64.to_le_bytes());
    memory.set(THREADS[2] + 360, &0x7_1000u64.to_le_bytes());
    memory
}

fn layout(memory: &Pieces) -> Layout {
    Layout::new(&Descriptor::read(memory, DESCRIPTOR).expect("a descriptor")).expect("a layout")
}

#[test]
fn the_descriptor_is_read_only_if_no_part_is_missing() {
    let memory = process();
    let descriptor = Descriptor::read(&memory, DESCRIPTOR).expect("a descriptor");
    assert_eq!((descriptor.width, descriptor.json.as_slice()), (8, JSON));
    assert_eq!(descriptor.pointer_data.len(), 25);
    assert_eq!(descriptor.pointer_bytes()[24..32], STORE_VARIABLE.to_le_bytes());
    assert_eq!(descriptor.offset("Thread", "OSId"), Some(304));
    assert_eq!(descriptor.offset("Thread", "LinkNext"), Some(120), "an offset with a type");
    assert_eq!(descriptor.number("RedirectedThreadFrameIdentifier"), Some(3));
    assert_eq!(descriptor.address("ThreadStore"), Some(STORE_VARIABLE));
    for missing in [DESCRIPTOR, DESCRIPTOR + 0x1000, DESCRIPTOR + 0x8000] {
        let mut memory = process();
        memory.0.remove(&missing);
        assert_eq!(Descriptor::read(&memory, DESCRIPTOR), None, "{missing:#x}");
    }
    // A count that no runtime has.
    let mut memory = process();
    memory.set(DESCRIPTOR + 24, &u32::MAX.to_le_bytes());
    assert_eq!(Descriptor::read(&memory, DESCRIPTOR), None);
}

#[test]
fn threads_are_found_by_the_systems_id_and_read_with_it() {
    let memory = process();
    let layout = layout(&memory);
    assert_eq!(layout.threads(&memory), [(40, THREADS[0]), (44, THREADS[2])]);
    let expected = ManagedState {
        address: THREADS[2],
        state: 0x1000,
        preemptive_disabled: 1,
        frame: 0x7_0000,
        exception: 0x7_1000,
    };
    assert_eq!(layout.read(&memory, THREADS[2], 44), Some(expected));
    assert_eq!(layout.read(&memory, THREADS[2], 40), None, "another thread's");
    assert_eq!(layout.read(&memory, 0x9999, 44), None, "freed");
    let table = ThreadTable::new(layout);
    table.refresh(&memory);
    assert_eq!((table.len(), table.find(44), table.find(48)), (2, Some(THREADS[2]), None));
}

#[test]
fn the_walk_of_a_circular_or_broken_list_ends() {
    let mut memory = process();
    let layout = layout(&memory);
    memory.set(THREADS[2] + 120, &(THREADS[0] + 120).to_le_bytes());
    assert_eq!(layout.threads(&memory).len(), 2);
    memory.set(THREADS[1] + 120, &0x9999u64.to_le_bytes());
    assert_eq!(layout.threads(&memory), [(40, THREADS[0])]);
    // Only dead threads, in a circle: they are not remembered, so the limit on their number ends
    // the walk.
    memory.set(THREADS[0] + 304, &0u32.to_le_bytes());
    memory.set(THREADS[1] + 120, &(THREADS[0] + 120).to_le_bytes());
    assert_eq!(layout.threads(&memory), []);
    memory.0.remove(&STORE_VARIABLE);
    assert_eq!(layout.threads(&memory), []);
}

/// An InlinedCallFrame above a RedirectedThreadFrame, in the order of the list: towards the stack's
/// base.
#[test]
fn the_context_of_a_redirected_thread_is_found_outside_of_its_stack() {
    let memory = process();
    let layout = layout(&memory);
    let start = 0x7_0000u64;
    let mut stack = vec![0u8; 0x400];
    let mut set = |at: u64, value: u64| {
        let at = (at - start) as usize;
        stack[at..at + 8].copy_from_slice(&value.to_le_bytes());
    };
    set(start + 0x100, 1); // InlinedCallFrame
    set(start + 0x108, start + 0x200);
    set(start + 0x200, 3); // RedirectedThreadFrame
    set(start + 0x208, u64::MAX);
    set(start + 0x210, 0x5555_0000);
    assert_eq!(layout.outside(start + 0x100, start, &stack, |_| ()), Some(0x5555_0000));
    assert_eq!(layout.outside(u64::MAX, start, &stack, |_| ()), None, "no Frame");
    // On the stack: recorded already.
    let at = 0x210;
    stack[at..at + 8].copy_from_slice(&(start + 0x300).to_le_bytes());
    assert_eq!(layout.outside(start + 0x100, start, &stack, |_| ()), None);
    // A chain that points back at itself.
    stack[0x108..0x110].copy_from_slice(&(start + 0x100).to_le_bytes());
    assert_eq!(layout.outside(start + 0x100, start, &stack, |_| ()), None);
}

#[test]
fn active_inlined_frames_give_the_methods_that_they_call() {
    let memory = process();
    let layout = layout(&memory);
    let start = 0x7_0000u64;
    let mut stack = vec![0u8; 0x400];
    // Identifier, next, Datum (before CallSiteSP), CallSiteSP, CallerReturnAddress of four Frames:
    // active; not active; an indirect call's target; behind a Frame of another kind.
    let frames = [
        (0x100u64, [1, start + 0x180, 0x5550, start, 0x7ff8]),
        (0x180, [1, start + 0x200, 0x6660, start, 0]),
        (0x200, [1, start + 0x280, 0x7771, start, 0x7ff8]),
        (0x280, [7, start + 0x300, 0x8880, start, 0x7ff8]),
        (0x300, [1, u64::MAX, 0x9990, start, 0x7ff8]),
    ];
    for (at, words) in frames {
        for (n, word) in words.into_iter().enumerate() {
            let at = at as usize + 8 * n;
            stack[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    }
    let mut called = Vec::new();
    assert_eq!(layout.outside(start + 0x100, start, &stack, |method| called.push(method)), None);
    assert_eq!(called, [0x5550, 0x9990]);
    // A chain in a circle, and one that leads out of the stack.
    stack[0x188..0x190].copy_from_slice(&(start + 0x100).to_le_bytes());
    called.clear();
    layout.outside(start + 0x100, start, &stack, |method| called.push(method));
    layout.outside(start - 8, start, &stack, |method| called.push(method));
    assert_eq!(called, [0x5550]);
}
