//! The examples of the specification, code by code. Offsets are instructions.

use super::*;
use crate::Trust;
use crate::arm64::rule::{self, Arm64FullRule, Arm64Slot};
use crate::engine::{CodeAddress, Position};
use crate::{Arch, ImageTables};

const FUNCTION: u32 = 0x1000;

/// An image with one function at 1000h, described by `data` and an optional record at 4000h.
fn image(data: u32, record: &[u32], codes: &[u8]) -> ImageTables {
    let directory = [FUNCTION, data].map(u32::to_le_bytes).concat();
    let mut bytes: Vec<u8> = record.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend_from_slice(codes);
    let mut builder =
        ImageTables::new(Arch::Arm64, 0x8000).range(0x3000, directory).exception_directory(0x3000, 8);
    if !bytes.is_empty() {
        builder = builder.range(0x4000, bytes);
    }
    builder.build()
}

/// A record of `len` instructions with these codes and one epilogue per (start, index).
fn record(len: u32, epilogues: &[(u32, u32)], codes: &[u8]) -> ImageTables {
    let words = codes.len().div_ceil(4) as u32;
    let mut head = vec![len | (epilogues.len() as u32) << 22 | words << 27];
    head.extend(epilogues.iter().map(|(start, index)| start | index << 22));
    let mut padded = codes.to_vec();
    padded.resize(words as usize * 4, 0xe3);
    image(0x4000, &head, &padded)
}

fn at(image: &ImageTables, instruction: u32) -> Result<Arm64FullRule, Fault> {
    rule::compile(&CodeAddress {
        image,
        rva: FUNCTION + instruction * 4,
        position: Position::Context,
        code: None,
    })
}

fn sp(offset: i64) -> Arm64Slot {
    Arm64Slot { from_fp: false, offset }
}

fn fp(offset: i64) -> Arm64Slot {
    Arm64Slot { from_fp: true, offset }
}

/// A saved register: x19 to x30 and d8 to d15.
fn x(full: &Arm64FullRule, register: usize) -> Option<Arm64Slot> {
    full.saved[register - 19]
}

fn d(full: &Arm64FullRule, register: usize) -> Option<Arm64Slot> {
    full.saved[register - 8 + 12]
}

#[test]
fn example_1_packed_and_chained() {
    // str x19,[sp,#-10h]!; sub sp,sp,#810h; stp fp,lr,[sp]; mov fp,sp
    let image = image(0x4161_01ed, &[], &[]);
    let body = at(&image, 20).expect("a rule");
    assert_eq!(body.sp, fp(0x820));
    assert_eq!((x(&body, 29), x(&body, 30), x(&body, 19)), (Some(fp(0)), Some(fp(8)), Some(fp(0x810))));
    // The prologue, one instruction after the other.
    assert_eq!(at(&image, 0).expect("a rule"), Arm64FullRule::leaf(Trust::UnwindInfo));
    let one = at(&image, 1).expect("a rule");
    assert_eq!((one.sp, x(&one, 19), x(&one, 30)), (sp(0x10), Some(sp(0)), None));
    let two = at(&image, 2).expect("a rule");
    assert_eq!((two.sp, x(&two, 19), x(&two, 30)), (sp(0x820), Some(sp(0x810)), None));
    let three = at(&image, 3).expect("a rule");
    assert_eq!((three.sp, x(&three, 30)), (sp(0x820), Some(sp(8))));
    // The epilogue: ldp fp,lr; add sp; ldr x19,[sp],#10h; ret. It has no mov sp,fp.
    let len = 492 / 4;
    let load = at(&image, len - 4).expect("a rule");
    assert_eq!((load.sp, x(&load, 30)), (sp(0x820), Some(sp(8))));
    let add = at(&image, len - 3).expect("a rule");
    assert_eq!((add.sp, x(&add, 30), x(&add, 19)), (sp(0x820), None, Some(sp(0x810))));
    let load = at(&image, len - 2).expect("a rule");
    assert_eq!((load.sp, x(&load, 19)), (sp(0x10), Some(sp(0))));
    assert_eq!(at(&image, len - 1).expect("a rule"), Arm64FullRule::leaf(Trust::UnwindInfo));
}

#[test]
fn example_2_full_with_mirrored_epilogue() {
    // stp x19,x20,[sp,#-10h]!; stp fp,lr,[sp,#-90h]!; mov fp,sp … mov sp,fp; ldp fp,lr,[sp],#90h;
    // ldp x19,x20,[sp],#10h; ret
    let image = image(0x4000, &[0x1040_003d, 0x0000_0038, 0xe422_91e1, 0xe422_91e1], &[]);
    let body = at(&image, 20).expect("a rule");
    assert_eq!((body.sp, x(&body, 19), x(&body, 20)), (fp(0xa0), Some(fp(0x90)), Some(fp(0x98))));
    assert_eq!((x(&body, 29), x(&body, 30)), (Some(fp(0)), Some(fp(8))));
    let first = at(&image, 1).expect("a rule");
    assert_eq!((first.sp, x(&first, 19), x(&first, 30)), (sp(0x10), Some(sp(0)), None));
    assert_eq!(at(&image, 56).expect("a rule"), body);
    let popped = at(&image, 58).expect("a rule");
    assert_eq!((popped.sp, x(&popped, 19), x(&popped, 30)), (sp(0x10), Some(sp(0)), None));
    assert_eq!(at(&image, 59).expect("a rule"), Arm64FullRule::leaf(Trust::UnwindInfo));
    assert_eq!(at(&image, 60).expect("a rule"), body, "the epilogue has ended");
}

#[test]
fn example_3_variadic_and_unchained() {
    // sub sp,sp,#50h; stp x19,lr,[sp]; four homes … ldp x19,lr,[sp]; add sp,sp,#50h; ret
    let image = image(0x4000, &[0x1840_0012, 0x0100_000f, 0xe3e3_e3e3, 0xe405_00d6, 0xe405_00d6], &[]);
    let body = at(&image, 8).expect("a rule");
    assert_eq!((body.sp, x(&body, 19), x(&body, 30)), (sp(0x50), Some(sp(0)), Some(sp(8))));
    assert_eq!(at(&image, 1).expect("a rule").saved[11], None, "lr is not stored yet");
    assert_eq!(at(&image, 3).expect("a rule"), body, "homing changes nothing");
    let add = at(&image, 16).expect("a rule");
    assert_eq!((add.sp, x(&add, 30)), (sp(0x50), None));
    assert_eq!(at(&image, 17).expect("a rule"), Arm64FullRule::leaf(Trust::UnwindInfo));
}

#[test]
fn every_save_code() {
    let body = |codes: &[u8]| at(&record(100, &[], codes), 50).expect("a rule");
    // save_r19r20_x 10h, save_fplr 18h, save_fplr_x 20h.
    let full = body(&[0x22, 0xe4]);
    assert_eq!((full.sp, x(&full, 19), x(&full, 20)), (sp(0x10), Some(sp(0)), Some(sp(8))));
    let full = body(&[0x43, 0xe4]);
    assert_eq!((full.sp, x(&full, 29), x(&full, 30)), (sp(0), Some(sp(0x18)), Some(sp(0x20))));
    let full = body(&[0x83, 0xe4]);
    assert_eq!((full.sp, x(&full, 29), x(&full, 30)), (sp(0x20), Some(sp(0)), Some(sp(8))));
    // save_regp x21,x22,[sp,#10h]; save_regp_x x21,x22,[sp,#-20h]!
    let full = body(&[0xc8, 0x82, 0xe4]);
    assert_eq!((full.sp, x(&full, 21), x(&full, 22)), (sp(0), Some(sp(0x10)), Some(sp(0x18))));
    let full = body(&[0xcc, 0x83, 0xe4]);
    assert_eq!((full.sp, x(&full, 21), x(&full, 22)), (sp(0x20), Some(sp(0)), Some(sp(8))));
    // save_reg x27,[sp,#8]; save_reg_x x27,[sp,#-10h]!
    let full = body(&[0xd2, 0x01, 0xe4]);
    assert_eq!((full.sp, x(&full, 27), x(&full, 28)), (sp(0), Some(sp(8)), None));
    let full = body(&[0xd5, 0x01, 0xe4]);
    assert_eq!((full.sp, x(&full, 27)), (sp(0x10), Some(sp(0))));
    // save_lrpair x23,lr,[sp,#10h]
    let full = body(&[0xd6, 0x82, 0xe4]);
    assert_eq!((x(&full, 23), x(&full, 30), x(&full, 24)), (Some(sp(0x10)), Some(sp(0x18)), None));
    // save_fregp d10,d11,[sp,#10h]; save_fregp_x d10,d11,[sp,#-20h]!; save_freg d9,[sp,#8];
    // save_freg_x d9,[sp,#-10h]!
    let full = body(&[0xd8, 0x82, 0xe4]);
    assert_eq!((full.sp, d(&full, 10), d(&full, 11)), (sp(0), Some(sp(0x10)), Some(sp(0x18))));
    let full = body(&[0xda, 0x83, 0xe4]);
    assert_eq!((full.sp, d(&full, 10), d(&full, 11)), (sp(0x20), Some(sp(0)), Some(sp(8))));
    let full = body(&[0xdc, 0x41, 0xe4]);
    assert_eq!((full.sp, d(&full, 9), d(&full, 10)), (sp(0), Some(sp(8)), None));
    let full = body(&[0xde, 0x21, 0xe4]);
    assert_eq!((full.sp, d(&full, 9)), (sp(0x10), Some(sp(0))));
    // x28 goes with fp.
    let full = body(&[0xca, 0x40, 0xe4]);
    assert_eq!((x(&full, 28), x(&full, 29), d(&full, 8)), (Some(sp(0)), Some(sp(8)), None));
}

#[test]
fn every_allocation_code() {
    let body = |codes: &[u8]| at(&record(100, &[], codes), 50).expect("a rule").sp;
    assert_eq!(body(&[0x1f, 0xe4]), sp(0x1f0));
    assert_eq!(body(&[0xc1, 0x01, 0xe4]), sp(0x1010));
    assert_eq!(body(&[0xe0, 0x01, 0x00, 0x01, 0xe4]), sp(0x10_0010));
    // add_fp: fp is 20h above sp.
    assert_eq!(body(&[0xe2, 0x04, 0x04, 0xe4]), fp(0x40 - 0x20));
}

#[test]
fn save_next_adds_the_pairs_above() {
    // stp x19,x20,[sp,#-40h]!; stp x21,x22,[sp,#10h]; stp x23,x24,[sp,#20h]
    let image = record(100, &[], &[0xe6, 0xe6, 0x28, 0xe4]);
    let full = at(&image, 50).expect("a rule");
    assert_eq!(full.sp, sp(0x40));
    for (register, offset) in [(19, 0), (20, 8), (21, 0x10), (22, 0x18), (23, 0x20), (24, 0x28)] {
        assert_eq!(x(&full, register), Some(sp(offset)), "x{register}");
    }
    let partial = at(&image, 2).expect("a rule");
    assert_eq!((partial.sp, x(&partial, 21), x(&partial, 23)), (sp(0x40), Some(sp(0x10)), None));
    // After the last integer pair come the vector registers.
    let full = at(&record(100, &[], &[0xe6, 0xca, 0x02, 0xe4]), 50).expect("a rule");
    assert_eq!((x(&full, 27), d(&full, 8), d(&full, 9)), (Some(sp(0x10)), Some(sp(0x20)), Some(sp(0x28))));
}

#[test]
fn save_any_reg() {
    let body = |codes: &[u8]| at(&record(100, &[], codes), 50).expect("a rule");
    // str x19,[sp,#18h]; stp x20,x21,[sp,#20h]; stp q8,q9,[sp,#-40h]!
    assert_eq!(x(&body(&[0xe7, 0x13, 0x03, 0xe4]), 19), Some(sp(0x18)));
    assert_eq!(x(&body(&[0xe7, 0x54, 0x02, 0xe4]), 21), Some(sp(0x28)));
    let full = body(&[0xe7, 0x68, 0x83, 0xe4]);
    assert_eq!((full.sp, d(&full, 8), d(&full, 9)), (sp(0x40), Some(sp(0)), Some(sp(0x10))));
}

#[test]
fn a_fragment_undoes_its_functions_prologue_too() {
    // Region 2 of the specification's shrink wrapping: save_regp x21,x22,[sp,#e0h]; end_c; set_fp;
    // save_regp x19,x20,[sp,#f0h]; save_fplr_x 100h; end.
    let codes = [0xc8, 0x9c, 0xe5, 0xe1, 0xc8, 0x1e, 0x9f, 0xe4];
    let image = record(100, &[(90, 0)], &codes);
    let body = at(&image, 50).expect("a rule");
    assert_eq!((body.sp, x(&body, 30), x(&body, 19)), (fp(0x100), Some(fp(8)), Some(fp(0xf0))));
    assert_eq!(x(&body, 21), Some(sp(0xe0)));
    // In its prologue x21 is not stored yet, while the function's own is done.
    let start = at(&image, 0).expect("a rule");
    assert_eq!((start.sp, x(&start, 21), x(&start, 19)), (fp(0x100), None, Some(fp(0xf0))));
    // One instruction into the epilogue x21 and x22 are restored.
    assert_eq!(x(&at(&image, 91).expect("a rule"), 21), None);
}

#[test]
fn a_packed_fragment_has_neither_prologue_nor_epilogue() {
    // Flag 2, 100h bytes, chained, frame of 20h.
    let image = image(2 | 0x40 << 2 | 3 << 21 | 2 << 23, &[], &[]);
    let body = at(&image, 32).expect("a rule");
    assert_eq!((body.sp, x(&body, 30)), (fp(0x20), Some(fp(8))));
    assert_eq!(at(&image, 0).expect("a rule"), body);
    assert_eq!(at(&image, 63).expect("a rule"), body);
}

#[test]
fn signed_return_addresses_are_marked() {
    // pacibsp; stp fp,lr,[sp,#-10h]!; mov fp,sp
    let image = record(100, &[], &[0xe1, 0x81, 0xfc, 0xe4]);
    assert!(at(&image, 50).expect("a rule").signed);
    assert!(!at(&image, 0).expect("a rule").signed);
    // Packed, CR = 2.
    let image = self::image(1 | 0x40 << 2 | 2 << 21 | 2 << 23, &[], &[]);
    assert!(at(&image, 32).expect("a rule").signed);
    assert!(!at(&image, 0).expect("a rule").signed);
    assert!(at(&image, 1).expect("a rule").signed);
    assert!(!at(&image, 63).expect("a rule").signed, "at the return it is authenticated");
}

#[test]
fn packed_saves_are_laid_out_as_specified() {
    // RegI = 3, CR = 1: stp x19,x20,[sp,#-40h]!; stp x21,lr,[sp,#10h]; RegF = 1: stp
    // d8,d9,[sp,#20h]; 10h more below.
    let data = 1 | 0x40 << 2 | 1 << 13 | 3 << 16 | 1 << 21 | 4 << 23;
    let full = at(&image(data, &[], &[]), 32).expect("a rule");
    assert_eq!(full.sp, sp(0x40));
    let saved = [x(&full, 19), x(&full, 20), x(&full, 21), x(&full, 30), d(&full, 8), d(&full, 9)];
    assert_eq!(saved, [0x10, 0x18, 0x20, 0x28, 0x30, 0x38].map(|offset| Some(sp(offset))));
    // Homed arguments take 40h bytes more above them.
    let homed = at(&image(data | 1 << 20 | 8 << 23, &[], &[]), 32).expect("a rule");
    assert_eq!((homed.sp, x(&homed, 19)), (sp(0xc0), Some(sp(0x50))));
}

#[test]
fn arguments_of_a_function_without_saves_are_homed_later() {
    // H = 1, a frame of 50h. CR = 3: stp fp,lr,[sp,#-50h]!; mov fp,sp; the homes; ...; ldp
    // fp,lr,[sp],#50h; ret.
    let data = 1 | 0x10 << 2 | 1 << 20 | 5 << 23;
    let chained = image(data | 3 << 21, &[], &[]);
    let body = at(&chained, 2).expect("a rule");
    assert_eq!((body.sp, x(&body, 29), x(&body, 30)), (fp(0x50), Some(fp(0)), Some(fp(8))));
    assert_eq!(at(&chained, 7).expect("a rule"), body);
    let pushed = at(&chained, 1).expect("a rule");
    assert_eq!((pushed.sp, x(&pushed, 30)), (sp(0x50), Some(sp(8))));
    assert_eq!(at(&chained, 14).expect("a rule"), pushed, "before the ldp");
    assert_eq!(at(&chained, 15).expect("a rule"), Arm64FullRule::leaf(Trust::UnwindInfo));
    // CR = 0: sub sp,sp,#50h; the homes; ...; add sp,sp,#50h; ret.
    let plain = image(data, &[], &[]);
    assert_eq!(at(&plain, 0).expect("a rule"), Arm64FullRule::leaf(Trust::UnwindInfo));
    for instruction in [1, 2, 5, 14] {
        assert_eq!(at(&plain, instruction).expect("a rule").sp, sp(0x50), "{instruction}");
    }
    assert_eq!(at(&plain, 15).expect("a rule"), Arm64FullRule::leaf(Trust::UnwindInfo));
}

#[test]
fn frames_of_scalable_vectors_are_reported_as_such() {
    // alloc_z; save_zreg; save_preg.
    for codes in [&[0xdf, 0x02, 0xe4][..], &[0xe7, 0x00, 0xc1, 0xe4], &[0xe7, 0x14, 0xc1, 0xe4]] {
        assert_eq!(at(&record(100, &[], codes), 50), Err(Fault::ScalableVectors));
    }
}

#[test]
fn large_locals_take_two_allocations() {
    // No registers, a frame of 1ff0h: sub sp,sp,#ff0h; sub sp,sp,#1000h.
    let image = image(1 | 0x40 << 2 | 0x1ff << 23, &[], &[]);
    assert_eq!(at(&image, 0).expect("a rule").sp, sp(0));
    assert_eq!(at(&image, 1).expect("a rule").sp, sp(0xff0));
    assert_eq!(at(&image, 2).expect("a rule").sp, sp(0x1ff0));
}

#[test]
fn damaged_records_are_refused() {
    // Codes without an end; a version of 1; codes that lie outside the record; a reserved code;
    // ARM64EC's.
    assert_eq!(at(&record(100, &[], &[0xe3, 0xe3, 0xe3, 0xe3]), 50), Err(Fault::BadUnwindInfo));
    assert_eq!(
        at(&image(0x4000, &[100 | 1 << 18 | 1 << 27, 0xe4], &[]), 50),
        Err(Fault::UnsupportedVersion(1))
    );
    assert_eq!(at(&image(0x4000, &[100 | 4 << 27, 0xe3e3_e3e3], &[]), 50), Err(Fault::BadUnwindInfo));
    assert_eq!(at(&record(100, &[], &[0xf0, 0xe4]), 50), Err(Fault::BadUnwindInfo));
    assert_eq!(at(&record(100, &[], &[0xeb, 0xe4]), 50), Err(Fault::OtherArchitecture));
    // A frame smaller than its saved registers.
    assert_eq!(at(&image(1 | 0x40 << 2 | 8 << 16, &[], &[]), 50), Err(Fault::BadUnwindInfo));
}

#[test]
fn only_the_innermost_function_keeps_its_caller_in_lr() {
    let image = record(100, &[], &[0x01, 0xe4]);
    let caller = CodeAddress { image: &image, rva: FUNCTION + 200, position: Position::Caller, code: None };
    assert_eq!(rule::compile(&caller), Err(Fault::BadUnwindInfo));
    let outside = |position| rule::compile(&CodeAddress { image: &image, rva: 0x2000, position, code: None });
    assert_eq!(outside(Position::Context), Ok(Arm64FullRule::leaf(Trust::Leaf)));
    assert_eq!(outside(Position::Caller), Err(Fault::NoFunction));
}
