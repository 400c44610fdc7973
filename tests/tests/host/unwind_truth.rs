//! Checks the unwinder against true states from a processor emulator, the part in
//! tests/data/unwind. `tests/unwind-truth.sh` checks all of them.

use std::path::PathBuf;
use std::process::Command;

use stk_tests::oracle::{self, Image, Record, piece};
use stk_unwind::{Arch, Registers, Trust};

fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/unwind").join(name)
}

fn check(name: &str, arch: Arch, states: u64) {
    let piece = piece::read(&data(name)).expect("a piece");
    assert_eq!(piece.states.header.arch, arch);
    let score = oracle::score(&piece.image, None, &piece.states).expect("a score");
    assert!(score.states >= states, "{} states", score.states);
    assert_eq!(score.right, score.states, "{:#?}", score.wrong);
}

#[test]
fn x64_states_are_all_right() {
    check("x64-winpty-agent.piece", Arch::X64, 200);
}

#[test]
fn x64_call_chains_are_all_right() {
    check("x64-zmq-chains.piece", Arch::X64, 50);
}

#[test]
fn arm64_states_are_all_right() {
    check("arm64-winpty.piece", Arch::Arm64, 200);
}

#[test]
fn x86_states_are_all_right_and_most_are_proved() {
    check("x86-attach.piece", Arch::X86, 200);
    proved_callers_are_right("x86-attach.piece");
}

/// Of this program, some states have no caller: their functions keep their frame by ebx. None has a
/// wrong one, whatever its trust.
#[test]
fn x86_states_of_a_second_program_have_the_right_caller_or_none() {
    let score = proved_callers_are_right("x86-inject.piece");
    assert!(score.states >= 100 && score.right * 10 >= score.states * 9, "{:?}", score.by_trust);
    let wrong = score.by_trust.iter().filter(|(trust, _)| **trust != "none");
    assert!(wrong.clone().all(|(_, (states, right))| states == right), "{:?}", score.by_trust);
}

fn proved_callers_are_right(name: &str) -> oracle::Score {
    let piece = piece::read(&data(name)).expect("a piece");
    let score = oracle::score(&piece.image, None, &piece.states).expect("a score");
    let proved = Trust::ALL.iter().filter(|trust| trust.is_proved());
    let proved: Vec<(u64, u64)> =
        proved.filter_map(|trust| score.by_trust.get(trust.as_str()).copied()).collect();
    assert!(proved.iter().all(|(states, right)| states == right), "{:?}", score.by_trust);
    let states: u64 = proved.iter().map(|(states, _)| states).sum();
    assert!(states * 10 >= score.states * 9, "{:?}", score.by_trust);
    score
}

/// A state with zeros for all registers and stack words that are no addresses of the image, of the
/// stack or of what the emulator returns to.
fn pointers_only(image: &Image, record: &mut Record) {
    let (sp, len) = (record.registers.sp(), record.stack.len() as u64);
    let (base, size) = (image.base, image.size);
    let returns: Vec<u64> = record.truth.iter().map(|truth| truth.ip).collect();
    let stays = |word: u64| {
        word.wrapping_sub(base) <= size
            || (sp.saturating_sub(4096)..=sp + len).contains(&word)
            || returns.contains(&word)
    };
    let pointer = |word: u64| if stays(word) { word } else { 0 };
    let width = match &mut record.registers {
        Registers::X64(registers) => {
            registers.gpr = registers.gpr.map(pointer);
            8
        }
        Registers::Arm64(registers) => {
            (registers.x, registers.d) = (registers.x.map(pointer), registers.d.map(pointer));
            8
        }
        Registers::X86(registers) => {
            registers.gpr = registers.gpr.map(|value| pointer(value.into()) as u32);
            4
        }
    };
    for bytes in record.stack.chunks_exact_mut(width) {
        let word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        bytes.copy_from_slice(&pointer(word).to_le_bytes()[..width]);
    }
    for truth in &mut record.truth {
        truth.nonvolatile.iter_mut().for_each(|value| *value = pointer(*value));
    }
}

#[test]
fn callers_are_the_same_where_stack_words_are_pointers_only() {
    for name in [
        "x64-winpty-agent.piece",
        "x64-zmq-chains.piece",
        "arm64-winpty.piece",
        "x86-attach.piece",
        "x86-inject.piece",
    ] {
        let mut piece = piece::read(&data(name)).expect("a piece");
        let whole = oracle::score(&piece.image, None, &piece.states).expect("a score");
        let before: Vec<Record> = piece.states.records.clone();
        piece.states.records.iter_mut().for_each(|record| pointers_only(&piece.image, record));
        let changed = before.iter().zip(&piece.states.records).filter(|(old, new)| old.stack != new.stack);
        assert!(changed.count() * 2 > before.len(), "{name}: most stacks hold other words than pointers");
        let pointers = oracle::score(&piece.image, None, &piece.states).expect("a score");
        assert_eq!((pointers.right, pointers.by_trust), (whole.right, whole.by_trust), "{name}");
    }
}

#[test]
fn states_of_another_image_are_refused() {
    let x64 = piece::read(&data("x64-winpty-agent.piece")).expect("a piece");
    let chains = piece::read(&data("x64-zmq-chains.piece")).expect("a piece");
    let arm64 = piece::read(&data("arm64-winpty.piece")).expect("a piece");
    for (image, states) in [(&x64, &chains), (&x64, &arm64)] {
        assert!(oracle::score(&image.image, None, &states.states).is_err());
    }
}

#[test]
fn the_runner_reports_wrong_arguments() {
    let runner = env!("CARGO_BIN_EXE_unwind-truth");
    let usage = Command::new(runner).output().expect("runs");
    assert_eq!(usage.status.code(), Some(2));
    // Neither file is of the expected kind.
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let failure = Command::new(runner).args([manifest, manifest]).output().expect("runs");
    assert_eq!(failure.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failure.stderr).contains("Cargo.toml"));
}
