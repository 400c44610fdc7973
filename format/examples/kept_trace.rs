//! The program that made `tests/data/format-v1.1.stk`, and, as it was in version 1.0,
//! `format-v1.stk`. It prints a trace that holds every event and every flag of the format.
//!
//! Use `cargo run -p stk-format --example kept_trace > new.stk` for the next version. A released
//! version's file is never made again.

#[path = "../tests/format/kept_list.rs"]
mod kept_list;

use std::io::Write;
use stk_format::{BlockBuffer, BlockKind, CpuUnit, FileHeader, RawSample, SampleEncoder, ThreadImage};
use stk_schema::event::{Clock, End, Event, RunState};
use stk_schema::registers::RegisterSet;
use stk_schema::{Arch, Os, Ticks};
use stk_tests::synth::TraceWriter;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut header = FileHeader::new(Arch::X64, Os::Windows, *b"format vers. 1.1", 10_000_000);
    header.clock_start = Ticks(100);
    header.utc_start = 1_700_000_000_000_000_000;
    header.process_created = 1_699_999_999_000_000_000;
    header.pid = 4404;
    header.rate_mhz = 1_000_000;
    header.boot_id = 99;
    header.cpu_unit = CpuUnit::Cycles;
    let mut writer = TraceWriter::new(Vec::new(), &header)?;
    writer.events(
        BlockKind::State,
        Ticks(100),
        [Event::Clock(Clock { time: Ticks(100), utc: header.utc_start })],
    )?;
    for (kind, first, events) in kept_list::blocks().into_iter().chain([kept_list::reserved()]) {
        writer.events(kind, Ticks(first), events)?;
    }

    let mut encoder = SampleEncoder::new();
    let mut block = BlockBuffer::new(1 << 20, &header)?;
    let mut image = ThreadImage::new(64, 8)?;
    encoder.begin(&mut block, Ticks(200));
    let registers = kept_list::registers(0x7ff6_0000_1234, 0x1f_ffe0);
    let stack: Vec<u8> = [1u64, 2, 3, 4].iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut sample = sample_of(201, &registers, &stack);
    sample.code = Some(&[0x48, 0x89, 0xc3]);
    sample.cpu = Some(1000);
    sample.state = RunState::Running;
    encoder.sample(&mut block, &mut image, &sample)?;
    encoder.same(&mut block, &mut image, Ticks(202), RunState::Waiting)?;
    encoder.same(&mut block, &mut image, Ticks(203), RunState::Waiting)?;
    encoder.flush_idle(&mut block, &mut image)?;
    let changed: Vec<u8> = [1u64, 9, 3, 4].iter().flat_map(|word| word.to_le_bytes()).collect();
    let extra = [(0x7000u64, &b"beside the stack"[..])];
    let mut sample = sample_of(204, &registers, &changed);
    sample.cpu = Some(1500);
    sample.tag = Some(42);
    sample.tables_pending = true;
    sample.context_reply = Some(0x1000_0000);
    sample.extra = &extra;
    encoder.sample(&mut block, &mut image, &sample)?;
    writer.block(&block)?;

    encoder.begin(&mut block, Ticks(209));
    encoder.same(&mut block, &mut image, Ticks(209), RunState::Running)?;
    image.note_cpu(1800);
    encoder.flush_idle(&mut block, &mut image)?;
    for event in kept_list::beside_samples() {
        block.push(&event)?;
    }
    let mut sample = sample_of(220, &registers, &changed[..16]);
    sample.stack_start = 0x1f_ffe0;
    sample.cpu = Some(2000);
    encoder.sample(&mut block, &mut image, &sample)?;
    image.note_cpu(2100);
    encoder.last_cpu(&mut block, &mut image, Ticks(230))?;
    writer.block(&block)?;

    let file =
        writer.finish(&End { time: Ticks(300), reason: 1, samples: 6, dropped: 12, detail: b"done" })?;
    std::io::stdout().write_all(&file)?;
    Ok(())
}

/// A plain sample of thread 5, to be changed by the caller.
fn sample_of<'a>(time: u64, registers: &'a [u64], stack: &'a [u8]) -> RawSample<'a> {
    RawSample {
        thread: 5,
        time: Ticks(time),
        set: RegisterSet::X64,
        registers,
        stack_base: 0x20_0000,
        stack_start: 0x20_0000 - stack.len() as u64,
        stack,
        code: None,
        cpu: None,
        state: RunState::Unknown,
        tag: None,
        tables_pending: false,
        context_reply: None,
        extra: &[],
    }
}
