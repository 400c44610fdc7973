//! FrameData programs of x86, evaluated by stk and by DIA's stack walker, on true states of an
//! emulated processor.

use std::path::Path;

use stk_tests::microsoft::{DiaCaller, ImageBytes, Memory, Request, ask};
use stk_tests::oracle::{self, Image, Known, States, Truth, Walk, piece};
use stk_tests::wine;
use stk_unwind::Registers;
use stk_unwind::x86::X86Registers;

fn is(truth: &Truth, caller: &DiaCaller, popped: u16) -> bool {
    let sp = u64::from(caller.sp);
    u64::from(caller.ip) == truth.ip
        && (sp == truth.sp || sp == truth.sp + u64::from(popped))
        && truth.nonvolatile.iter().copied().eq(caller.nonvolatile.map(u64::from))
}

/// How many of the records of [`judge`] each found.
#[derive(Default, Debug)]
struct Tally {
    states: usize,
    /// DIA, by a FrameData record.
    dia: usize,
    /// Ours, of these.
    ours: usize,
    /// Ours without the image, of these, and where ours has no caller then.
    ours_by_record: usize,
    no_caller_by_record: usize,
    /// DIA found a caller that the emulator does not have.
    dia_wrong: usize,
    wrong: Vec<String>,
}

fn judge(name: &str, pdb: &Path, image: &Image, states: &States) -> Tally {
    let registers: Vec<X86Registers> = states
        .records
        .iter()
        .map(|record| match oracle::at(record, image.base) {
            Registers::X86(registers) => registers,
            _ => panic!("{name}: states of x86"),
        })
        .collect();
    let mut memory = Memory::default();
    memory.add(image.base, &ImageBytes::new(&image.tables));
    let mut request = Request::default();
    let records = registers.iter().zip(&states.records).map(|(registers, r)| (registers, r.stack.as_slice()));
    request.memory(&memory).callers(pdb, records);
    let dia = ask(&request).callers(states.records.len());
    let ours = oracle::walks(image, None, states).expect("states of this image");
    // As from a trace with the PDB, but without the image: the records, and code at the instruction
    // pointer.
    let path = ["dll", "exe"].map(|end| pdb.with_extension(end)).into_iter().find(|path| path.exists());
    let path = path.expect("the image is beside its PDB");
    let bare = oracle::load_image(&path, Known::Tables, Some(pdb)).expect("an image");
    let by_record = oracle::walks(&bare, Some(image), states).expect("states of this image");

    let right = |walk: &Walk, truth: &Truth| walk.callers.first().is_some_and(|(caller, _)| caller == truth);
    // Imports of the emulator pop no arguments, so saved registers are not where the records have
    // them: they are compared only with the code.
    let frame = |caller: &Truth| (caller.ip, caller.sp, caller.nonvolatile[1]);
    let mut tally = Tally { states: states.records.len(), ..Tally::default() };
    for (((record, dia), ours), by_record) in states.records.iter().zip(&dia).zip(&ours).zip(&by_record) {
        let truth = &record.truth[0];
        let Some(caller) = dia.filter(|caller| caller.by_record) else { continue };
        if !is(truth, &caller, record.flags) {
            tally.dia_wrong += 1;
            continue;
        }
        tally.dia += 1;
        tally.ours += usize::from(right(ours, truth));
        match by_record.callers.first() {
            None => tally.no_caller_by_record += 1,
            Some((caller, trust)) if !frame(caller).eq(&frame(truth)) && trust.is_proved() => {
                tally.wrong.push(format!("{:#x}: {truth:x?}: by the record {by_record:x?}", record.rva))
            }
            Some(_) => tally.ours_by_record += usize::from(right(by_record, truth)),
        }
        if !right(ours, truth) {
            tally.wrong.push(format!("{:#x}: {truth:x?}: ours {ours:x?}", record.rva));
        }
    }
    println!(
        "{name}: {} states; emulator and DIA's FrameData agree on {}, stk on {} of these, without the image on {} ({} without a \
         caller); DIA differs from the emulator on {}",
        tally.states, tally.dia, tally.ours, tally.ours_by_record, tally.no_caller_by_record, tally.dia_wrong
    );
    tally
}

#[test]
fn frame_data_programs_are_evaluated_as_by_dia() {
    let attach =
        wine::path("STK_FETCH_DIR").join("debugpy/debugpy/_vendored/pydevd/pydevd_attach_to_process");
    let mut agreed = 0;
    for (name, pdb) in [("x86-attach.piece", "attach_x86.pdb"), ("x86-inject.piece", "inject_dll_x86.pdb")] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/unwind").join(name);
        let piece = piece::read(&path).expect("a piece");
        let tally = judge(name, &attach.join(pdb), &piece.image, &piece.states);
        agreed += tally.dia;
        assert!(tally.wrong.is_empty(), "{:#?}", tally.wrong);
    }
    assert!(agreed >= 100, "{agreed}");
}
