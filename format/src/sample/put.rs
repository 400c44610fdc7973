//! The stored form of samples: SLOT, SAMPLE (whole, or with the flag SAME) and IDLE events, as
//! `format/SPEC.md` draws them. The functions append bytes to the block. If there is no room, the
//! caller must cut off the partly written event.

use super::{Extras, Pending, PreviousSample, ThreadImage, Words, flag};
use crate::block::BlockBuffer;
use crate::bytes::{Counter, Cursor, LimitedBuffer, NoRoom, Sink};
use stk_schema::Ticks;
use stk_schema::bytes::leb128;
use stk_schema::event::{Event, Idle, ThreadCpu, kind};
use stk_schema::registers::{IP, MAX_REGISTERS};

/// Writes a SLOT event. From then on `slot` stands for the thread.
pub(super) fn put_slot(out: &mut LimitedBuffer, slot: u32, image: &ThreadImage) -> Result<(), NoRoom> {
    let body = |out: &mut dyn FnMut(u64) -> Result<(), NoRoom>| {
        out(u64::from(slot))?;
        out(image.thread)?;
        out(image.set as u64)
    };
    let mut length = Counter(0);
    body(&mut |value| length.varint(value))?;
    out.varint(kind::SLOT)?;
    out.varint(length.0 as u64)?;
    body(&mut |value| out.varint(value))
}

/// Writes a SAMPLE event; its length is known only when it is written, so the body is moved up to
/// it. Returns the offset and length of its code bytes, if it holds any.
pub(super) fn put_sample(
    block: &mut BlockBuffer,
    image: &mut ThreadImage,
    slot: u32,
    extras: &Extras,
    against: PreviousSample,
) -> Result<Option<(usize, usize)>, NoRoom> {
    let (word, limit) = (block.word(), block.limit());
    let keyframe = against.keyframe;
    let code = extras.code.filter(|code| !block.code_known(image.registers[IP], code));
    let stated = not_zero(image.cpu_stated);
    let cpu = cpu_delta(image).or(stated.and(Some(0)));
    let truncated = image.anchor != image.stack_base || image.captured < image.depth;
    let mut flags = (extras.state as u64) << flag::STATE_SHIFT;
    for (set, bit) in [
        (keyframe, flag::KEYFRAME),
        (code.is_some(), flag::CODE),
        (cpu.is_some(), flag::CPU),
        (truncated, flag::TRUNCATED),
        (extras.tag.is_some(), flag::TRIGGERED),
        (image.tables_pending, flag::TABLES_PENDING),
        (extras.context_reply.is_some(), flag::CONTEXT_REPLY),
        (!extras.extra.is_empty(), flag::EXTRA),
        (image.stack_base == 0, flag::FOREIGN),
        (stated.is_some(), flag::CPU_STATED),
    ] {
        if set {
            flags |= bit;
        }
    }
    let delta = extras.time.0.wrapping_sub(block.sample_time.0) as i64;
    let mut out = LimitedBuffer { buf: &mut block.buf, limit };
    let body = open(&mut out)?;
    out.varint(u64::from(slot))?;
    out.signed(delta)?;
    out.varint(flags)?;
    if let Some(tag) = extras.tag {
        out.varint(tag)?;
    }
    if let Some(cpu) = cpu {
        out.signed(cpu)?;
    }
    if let Some(reply) = extras.context_reply {
        out.varint(u64::from(reply))?;
    }
    put_registers(&mut out, image, against.old, word)?;
    if keyframe {
        out.varint(image.anchor)?;
        // 0 words for a foreign stack, whose base is not known.
        out.varint(image.stack_base.saturating_sub(image.anchor) / word as u64)?;
    }
    out.signed(image.depth as i64 - against.previous as i64)?;
    if truncated {
        out.varint(image.captured as u64)?;
    }
    put_stack(&mut out, image, against.words, word)?;
    let mut code_at = None;
    if let Some(code) = code {
        out.bytes(code)?;
        code_at = Some((out.buf.len() - code.len(), code.len()));
    }
    if !extras.extra.is_empty() {
        out.varint(extras.extra.len() as u64)?;
        for (address, bytes) in extras.extra {
            out.varint(*address)?;
            out.bytes(bytes)?;
        }
    }
    if let Some(stated) = stated {
        out.signed(stated)?;
    }
    let moved = close(&mut out, body);
    Ok(code_at.map(|(at, len)| (at - moved, len)))
}

/// The mask of changed registers and their values.
fn put_registers(
    out: &mut LimitedBuffer,
    image: &ThreadImage,
    old: &[u64; MAX_REGISTERS],
    word: usize,
) -> Result<(), NoRoom> {
    let count = image.set.len();
    let mut mask = 0u64;
    for (i, (now, old)) in image.registers[..count].iter().zip(old).enumerate() {
        mask |= u64::from(now != old) << i;
    }
    out.varint(mask)?;
    while mask != 0 {
        out.put(&image.registers[mask.trailing_zeros() as usize].to_le_bytes()[..word])?;
        mask &= mask - 1;
    }
    Ok(())
}

/// Run lengths, then the changed words; brings the image up to date.
fn put_stack(
    out: &mut LimitedBuffer,
    image: &mut ThreadImage,
    words: Words,
    word: usize,
) -> Result<(), NoRoom> {
    let range = image.last_stack(word);
    let runs = out.buf.len();
    match (words, word) {
        (Words::Captured(now), 8) => put_runs::<8>(out, now, &image.image[range.clone()])?,
        (Words::Captured(now), _) => put_runs::<4>(out, now, &image.image[range.clone()])?,
        (Words::Image, _) => put_zero_runs(out, &image.image[range.clone()], word)?,
    }
    // Reads the run lengths back from the buffer, which saves a second copy.
    let end = out.buf.len();
    let mut at = runs;
    let mut start = range.start;
    while at < end {
        let (changed, same, used) = {
            let mut cursor = Cursor::new(&out.buf[at..end]);
            let pair = (cursor.varint().map_err(|_| NoRoom)?, cursor.varint().map_err(|_| NoRoom)?);
            (pair.0 as usize * word, pair.1 as usize * word, cursor.position())
        };
        at += used;
        if changed > 0 {
            let stop = start + changed;
            if let Words::Captured(now) = words {
                let now = &now[start - range.start..stop - range.start];
                out.put(now)?;
                image.image[start..stop].copy_from_slice(now);
            } else {
                out.put(&image.image[start..stop])?;
            }
        }
        start += changed + same;
    }
    Ok(())
}

/// Alternating run lengths (changed, same) of `now` against `before`, in words of `W` bytes.
fn put_runs<const W: usize>(out: &mut LimitedBuffer, now: &[u8], before: &[u8]) -> Result<(), NoRoom> {
    let len = now.len().min(before.len());
    let (now, before) = (&now[..len], &before[..len]);
    let mut at = 0;
    while at < len {
        let start = at;
        let mut changed;
        loop {
            while at < len && now[at..at + W] != before[at..at + W] {
                at += W;
            }
            changed = at;
            // Compares whole cache lines first, because most of a stack is unchanged.
            while at + 64 <= len && now[at..at + 64] == before[at..at + 64] {
                at += 64;
            }
            while at < len && now[at..at + W] == before[at..at + W] {
                at += W;
            }
            if at == len || at - changed >= LEAST_SAME * W {
                break;
            }
        }
        out.varint(((changed - start) / W) as u64)?;
        out.varint(((at - changed) / W) as u64)?;
    }
    Ok(())
}

/// As [`put_runs`] against an image that is all zero.
fn put_zero_runs(out: &mut LimitedBuffer, now: &[u8], word: usize) -> Result<(), NoRoom> {
    let zero = |at: usize| now[at..at + word].iter().all(|&byte| byte == 0);
    let mut at = 0;
    while at < now.len() {
        let start = at;
        while at < now.len() && !zero(at) {
            at += word;
        }
        let changed = at;
        while at < now.len() && zero(at) {
            at += word;
        }
        out.varint(((changed - start) / word) as u64)?;
        out.varint(((at - changed) / word) as u64)?;
    }
    Ok(())
}

/// Writes pending passes as a SAMPLE with the flag SAME.
pub(super) fn put_same(
    block: &mut BlockBuffer,
    image: &mut ThreadImage,
    p: &Pending,
    limit: usize,
) -> Result<(), NoRoom> {
    let cpu = cpu_delta(image);
    let mut flags = flag::SAME | (p.state as u64) << flag::STATE_SHIFT;
    if cpu.is_some() {
        flags |= flag::CPU;
    }
    let delta = p.first.0.wrapping_sub(block.sample_time.0) as i64;
    let mut out = LimitedBuffer { buf: &mut block.buf, limit };
    let body = open(&mut out)?;
    out.varint(u64::from(image.slot))?;
    out.signed(delta)?;
    out.varint(flags)?;
    if let Some(cpu) = cpu {
        out.signed(cpu)?;
    }
    out.varint(p.ticks)?;
    out.varint(p.last.0 - p.first.0)?;
    close(&mut out, body);
    block.sample_time = p.first;
    image.cpu_written = image.cpu_now;
    image.cpu_stated = 0;
    Ok(())
}

/// Writes pending passes as an IDLE event.
pub(super) fn put_idle(
    block: &mut BlockBuffer,
    image: &ThreadImage,
    p: &Pending,
    limit: usize,
) -> Result<(), NoRoom> {
    let idle = Idle {
        thread: image.thread,
        ticks: p.ticks,
        first: p.first,
        last: p.last,
        block: image.block,
        state: p.state,
    };
    let base = block.first;
    crate::event::put(&Event::Idle(idle), base, &mut LimitedBuffer { buf: &mut block.buf, limit })
}

/// Writes a THREAD_CPU with the CPU time that is not stated yet, if there is some. Returns whether
/// there is.
pub(super) fn put_cpu(
    block: &mut BlockBuffer,
    image: &mut ThreadImage,
    time: Ticks,
    limit: usize,
) -> Result<bool, NoRoom> {
    let Some(cpu) = unstated_cpu(image) else { return Ok(false) };
    let event = Event::ThreadCpu(ThreadCpu { thread: image.thread, time, cpu });
    let base = block.first;
    crate::event::put(&event, base, &mut LimitedBuffer { buf: &mut block.buf, limit })?;
    image.cpu_stated = image.cpu_stated.wrapping_add(cpu as u64);
    Ok(true)
}

/// CPU time since this thread's last SAMPLE, if it is known and not zero.
fn cpu_delta(image: &ThreadImage) -> Option<i64> {
    not_zero(cpu_since_sample(image)?)
}

/// The part of it that no THREAD_CPU has stated, if it is not zero.
pub(super) fn unstated_cpu(image: &ThreadImage) -> Option<i64> {
    not_zero(cpu_since_sample(image)?.wrapping_sub(image.cpu_stated))
}

fn cpu_since_sample(image: &ThreadImage) -> Option<u64> {
    Some(image.cpu_now?.wrapping_sub(image.cpu_written?))
}

fn not_zero(delta: u64) -> Option<i64> {
    (delta != 0).then_some(delta as i64)
}

/// Unchanged words that end a run of changed ones. In zstd's output a shorter gap costs more than
/// its words (measured on real programs: 2 to 6 % of their stored size).
const LEAST_SAME: usize = 3;
/// Bytes kept for a SAMPLE's length until it is known: enough for 2^28.
const LENGTH_GAP: usize = 4;

/// Starts a SAMPLE event; returns the offset of its body.
fn open(out: &mut LimitedBuffer) -> Result<usize, NoRoom> {
    out.varint(kind::SAMPLE)?;
    out.put(&[0; LENGTH_GAP])?;
    Ok(out.buf.len())
}

/// Writes the length of the event whose body starts at `body`; returns how many bytes the body
/// moved down.
fn close(out: &mut LimitedBuffer, body: usize) -> usize {
    let (length, used) = leb128((out.buf.len() - body) as u64);
    let at = body - LENGTH_GAP;
    out.buf[at..at + used].copy_from_slice(&length[..used]);
    let end = out.buf.len();
    out.buf.copy_within(body..end, at + used);
    out.buf.truncate(end - (LENGTH_GAP - used));
    LENGTH_GAP - used
}
