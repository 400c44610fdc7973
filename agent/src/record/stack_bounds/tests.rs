//! A fake memory: an address space of runs, each committed, reserved or guarded.

use super::*;
use std::cell::Cell;
use std::vec::Vec;

#[derive(Clone, Copy, PartialEq)]
enum PageKind {
    Committed,
    Guard,
    Reserved,
}

struct FakePages {
    /// Start, end, allocation, kind.
    runs: Vec<(u64, u64, u64, PageKind)>,
    asked: Cell<u32>,
}

impl FakePages {
    fn new(runs: &[(u64, u64, u64, PageKind)]) -> FakePages {
        FakePages { runs: runs.to_vec(), asked: Cell::new(0) }
    }
}

impl Pages for FakePages {
    fn run(&self, address: u64) -> Option<Run> {
        self.asked.set(self.asked.get() + 1);
        let run = self.runs.iter().find(|run| (run.0..run.1).contains(&address))?;
        Some(Run { end: run.1, allocation: run.2, readable: run.3 == PageKind::Committed })
    }
}

const RESERVE: u64 = 0x10_0000;
const BASE: u64 = 0x20_0000;
const LIMIT: u64 = 0x1f_c000;
const ROOM: usize = 8 << 20;

/// A stack as the system makes it: reserved, one guard page, committed up to the base. After it
/// lies another allocation.
fn stack() -> FakePages {
    grown(LIMIT)
}

fn grown(limit: u64) -> FakePages {
    FakePages::new(&[
        (RESERVE, limit - 0x1000, RESERVE, PageKind::Reserved),
        (limit - 0x1000, limit, RESERVE, PageKind::Guard),
        (limit, BASE, RESERVE, PageKind::Committed),
        (BASE, BASE + 0x10_0000, BASE, PageKind::Committed),
    ])
}

fn bounds(limit: u64, base: u64) -> Bounds {
    Bounds { limit, base }
}

fn checked(pages: &FakePages, seen: Bounds) -> CheckedBounds {
    let mut checked = CheckedBounds::default();
    checked.check(pages, seen);
    checked
}

#[test]
fn checked_bounds_are_copied_plainly_and_checked_once() {
    let (pages, seen) = (stack(), bounds(LIMIT, BASE));
    let mut known = checked(&pages, seen);
    let asked = pages.asked.get();
    known.check(&pages, seen);
    assert_eq!(pages.asked.get(), asked);
    let plan = plan(BASE - 0x103, seen, &known, ROOM, 8);
    assert_eq!(plan, Plan { start: BASE - 0x108, zeros: 0, careful: 0, plain: 0x108, base: BASE });
}

#[test]
fn bounds_must_enclose_one_committed_piece_of_one_allocation() {
    let pages = stack();
    for (why, seen) in [
        ("StackBase = ~0, as some runtimes write", bounds(LIMIT, !7)),
        ("StackLimit = 0", bounds(0, BASE)),
        ("empty", bounds(0, 0)),
        ("upside down", bounds(BASE, LIMIT)),
        ("the guard page is inside", bounds(LIMIT - 0x1000, BASE)),
        ("two allocations", bounds(LIMIT, BASE + 0x1000)),
        ("nothing is there", bounds(0x50_0000, 0x60_0000)),
    ] {
        let known = checked(&pages, seen);
        let plan = plan(BASE - 0x100, seen, &known, ROOM, 8);
        let expected = Plan { start: BASE - 0x100, careful: 64 << 10, ..Plan::default() };
        assert_eq!(plan, expected, "{why}");
    }
}

#[test]
fn unchecked_bounds_are_copied_by_system_call_up_to_a_limit() {
    let seen = bounds(LIMIT, BASE);
    let none = CheckedBounds::default();
    let first = plan(LIMIT + 8, seen, &none, ROOM, 8);
    assert_eq!((first.careful, first.plain, first.base), (0x3ff8, 0, BASE));
    let deep = plan(0x1000_0000, bounds(0x1000_0000, 0x2000_0000), &none, 2 * ROOM, 8);
    assert_eq!((deep.careful, deep.plain), (8 << 20, 0));
    // The checked bounds are those of another stack, as with a fiber.
    let other = checked(&stack(), seen);
    let fiber = plan(0x50_0100, bounds(0x50_0000, 0x50_2000), &other, ROOM, 8);
    assert_eq!((fiber.careful, fiber.plain, fiber.base), (0x1f00, 0, 0x50_2000));
}

#[test]
fn only_the_new_part_of_a_grown_stack_is_copied_by_system_call() {
    let known = checked(&stack(), bounds(LIMIT, BASE));
    let seen = bounds(LIMIT - 0x3000, BASE);
    let deep = plan(LIMIT - 0x2000, seen, &known, ROOM, 8);
    assert_eq!(deep, Plan { start: LIMIT - 0x2000, zeros: 0, careful: 0x2000, plain: 0x4000, base: BASE });
    // The stack pointer is back in the range that was checked.
    let back = plan(BASE - 0x100, seen, &known, ROOM, 8);
    assert_eq!((back.careful, back.plain), (0, 0x100));
    // After the next check it is copied plainly.
    let mut known = known;
    known.check(&grown(LIMIT - 0x3000), seen);
    let deep = plan(LIMIT - 0x2000, seen, &known, ROOM, 8);
    assert_eq!((deep.careful, deep.plain), (0, 0x6000));
}

#[test]
fn an_untouched_frame_below_the_limit_reads_as_zeros() {
    let seen = bounds(LIMIT, BASE);
    let known = checked(&stack(), seen);
    let below = plan(LIMIT - 0x800, seen, &known, ROOM, 8);
    assert_eq!(below, Plan { start: LIMIT - 0x800, zeros: 0x800, careful: 0, plain: 0x4000, base: BASE });
    // Farther below lies another stack.
    let foreign = plan(LIMIT - 0x4000, seen, &known, ROOM, 8);
    assert_eq!((foreign.zeros, foreign.careful, foreign.plain, foreign.base), (0, 64 << 10, 0, 0));
}

#[test]
fn a_stack_pointer_outside_of_the_bounds_is_a_foreign_stack() {
    let seen = bounds(LIMIT, BASE);
    let known = checked(&stack(), seen);
    for sp in [BASE, BASE + 0x1234, 0x8000, 0xc0_0000_1000] {
        let plan = plan(sp, seen, &known, ROOM, 8);
        assert_eq!(plan, Plan { start: sp & !7, careful: 64 << 10, ..Plan::default() }, "{sp:#x}");
    }
}

#[test]
fn no_plan_exceeds_the_buffer() {
    let seen = bounds(LIMIT, BASE);
    let known = checked(&stack(), seen);
    for known in [known, CheckedBounds::default()] {
        for sp in [LIMIT - 0x1000, LIMIT - 8, LIMIT, LIMIT + 0x3ff8, BASE + 8, 3] {
            for room in [0, 8, 0x7ff, 0x1800, 1 << 16] {
                let plan = plan(sp, seen, &known, room, 8);
                let total = plan.zeros + plan.careful + plan.plain;
                assert!(total <= room, "{sp:#x} {room:#x} {plan:?}");
                assert!([plan.zeros, plan.careful, plan.plain].iter().all(|part| part % 8 == 0), "{plan:?}");
                assert!(plan.base == 0 || plan.start + total as u64 <= plan.base, "{plan:?}");
            }
        }
    }
}

#[test]
fn careful_copies_end_at_guard_pages_and_allocations() {
    let pages = stack();
    assert_eq!(readable(&pages, BASE - 0x100, 0x1000), 0x100);
    assert_eq!(readable(&pages, BASE - 0x100, 0x80), 0x80);
    assert_eq!(readable(&pages, LIMIT - 0x800, 0x4000), 0);
    assert_eq!(readable(&pages, BASE, 0x1000), 0x1000);
    assert_eq!(readable(&pages, u64::MAX - 7, 0x1000), 0);
}
