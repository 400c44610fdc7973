//! Names that the runtime does not give its own process. The agent asks the host for them through
//! the mailbox (`stk_schema::mailbox`).
//!
//! Takes addresses of dynamic code from the code thread and writes METHOD_NAME events, and on x86
//! METHOD_BODY; and of code in modules that was compiled ahead of time, which no symbol file names.
//! Nothing here waits or calls the system: the runtimes thread calls [`Names::step`] repeatedly.
//! Another process writes the answers, so each is copied out and checked before it is used.

mod bodies;
mod precompiled;

use alloc::collections::VecDeque;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use stk_schema::event::{Event, MethodName, MethodNameSource, RuntimeKind};
use stk_schema::mailbox::{
    HOST_ANSWERS, HOST_CANNOT, HOST_NONE, MAILBOX_VERSION, NAME_BYTES, NameMailbox, NameSlot, SLOT_ASKED,
    SLOT_NAMED, SLOT_NAMELESS, SLOTS,
};
use stk_schema::{Arch, Ticks};

use self::bodies::{Bodies, ReportedMethod};
use self::precompiled::PrecompiledCode;
use crate::record::dynamic::UnnamedCode;
use crate::record::image::Memory;
use crate::record::modules::Events;

/// Most addresses that wait; more are counted and left out.
const MOST_WAITING: usize = 1 << 16;
/// Largest code size that an answer may claim.
const MOST_CODE: u64 = 64 << 20;
/// Milliseconds between requests while the recording runs. Reading the runtime from outside does
/// not disturb it, so requests are more frequent than on the pipe, and a process that exits by
/// itself has its names up to the last request.
const AGAIN_MS: u64 = 1_000;
/// If the host's beat does not change for this long, the host no longer answers: the library hangs,
/// or the host has gone.
const SILENT_MS: u64 = 3_000;
/// A request is given up after this time, whether or not the host's beat changes.
const LATE_MS: u64 = 15_000;
/// How often an address is requested at most, if requests with it are given up.
const MOST_TRIES: u8 = 3;

/// [`NameMailbox`] with atomic fields, which both sides change in place.
#[repr(C)]
pub(crate) struct LiveMailbox {
    size: AtomicU32,
    version: AtomicU32,
    runtime: AtomicU64,
    runtime_kind: AtomicU32,
    request: AtomicU32,
    count: AtomicU32,
    lock: AtomicU32,
    beat: AtomicU32,
    answer: AtomicU32,
    host_state: AtomicU32,
    message_len: AtomicU32,
    message: [AtomicU8; 240],
    slots: [LiveNameSlot; SLOTS],
    gc_info: [AtomicU64; SLOTS],
}

#[repr(C)]
struct LiveNameSlot {
    address: AtomicU64,
    base: AtomicU64,
    size: AtomicU64,
    state: AtomicU32,
    len: AtomicU32,
    name: [AtomicU8; NAME_BYTES],
}

const _: () = {
    assert!(size_of::<LiveMailbox>() == size_of::<NameMailbox>());
    assert!(size_of::<LiveNameSlot>() == size_of::<NameSlot>());
    assert!(core::mem::offset_of!(LiveMailbox, beat) == core::mem::offset_of!(NameMailbox, beat));
    assert!(core::mem::offset_of!(LiveMailbox, slots) == core::mem::offset_of!(NameMailbox, slots));
    assert!(core::mem::offset_of!(LiveMailbox, gc_info) == core::mem::offset_of!(NameMailbox, gc_info));
    assert!(core::mem::offset_of!(LiveNameSlot, name) == core::mem::offset_of!(NameSlot, name));
};

impl LiveMailbox {
    /// All zeros, so that it takes no space in the file. Says that there is no mailbox yet.
    pub(crate) const fn empty() -> LiveMailbox {
        LiveMailbox {
            size: AtomicU32::new(0),
            version: AtomicU32::new(0),
            runtime: AtomicU64::new(0),
            runtime_kind: AtomicU32::new(0),
            request: AtomicU32::new(0),
            count: AtomicU32::new(0),
            lock: AtomicU32::new(0),
            beat: AtomicU32::new(0),
            answer: AtomicU32::new(0),
            host_state: AtomicU32::new(0),
            message_len: AtomicU32::new(0),
            message: [const { AtomicU8::new(0) }; 240],
            slots: [const {
                LiveNameSlot {
                    address: AtomicU64::new(0),
                    base: AtomicU64::new(0),
                    size: AtomicU64::new(0),
                    state: AtomicU32::new(0),
                    len: AtomicU32::new(0),
                    name: [const { AtomicU8::new(0) }; NAME_BYTES],
                }
            }; SLOTS],
            gc_info: [const { AtomicU64::new(0) }; SLOTS],
        }
    }

    /// Prepares the mailbox for a recording: no request is open, and no host is known. `lock`:
    /// handle of the mutex that a host owns while it uses the mailbox.
    pub(crate) fn open(&self, lock: u32) {
        self.lock.store(lock, Ordering::Relaxed);
        self.runtime.store(0, Ordering::Relaxed);
        self.count.store(0, Ordering::Relaxed);
        self.host_state.store(HOST_NONE, Ordering::Relaxed);
        self.message_len.store(0, Ordering::Relaxed);
        self.version.store(MAILBOX_VERSION, Ordering::Relaxed);
        self.size.store(size_of::<LiveMailbox>() as u32, Ordering::Release);
    }

    /// The host's message.
    fn message(&self) -> String {
        let len = (self.message_len.load(Ordering::Acquire) as usize).min(self.message.len());
        let bytes: Vec<u8> = self.message.iter().take(len).map(|byte| byte.load(Ordering::Relaxed)).collect();
        // A host that writes meanwhile mixes texts. Invalid UTF-8 is replaced.
        String::from_utf8_lossy(&bytes).chars().filter(|char| !char.is_control()).collect()
    }
}

/// Counts of requests and their results.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counts {
    /// Addresses handed to the host, each counted once.
    pub asked: u64,
    pub named: u64,
    /// Invalid answers: wrong address, no length, no text.
    pub refused: u64,
    /// Addresses that were requested and not answered in time.
    pub unanswered: u64,
    /// Addresses left out because too many waited.
    pub left_out: u64,
}

/// Code that is to be named.
struct NameRequest {
    code: UnnamedCode,
    /// Requests with it that were given up.
    tries: u8,
}

/// A request that awaits its answer.
struct Flight {
    number: u32,
    wants: Vec<NameRequest>,
    began: Ticks,
    /// The host's beat as last seen, and when it changed.
    beat: u32,
    moved: Ticks,
}

/// Asks the host for names.
pub(crate) struct Names {
    ticks_per_ms: u64,
    waiting: VecDeque<NameRequest>,
    flight: Option<Flight>,
    /// No request earlier than this.
    next: Ticks,
    /// The host's beat when the recording began: one that moved since is alive.
    first_beat: u32,
    /// The runtime that the host is to ask: load address and kind.
    runtime: Option<(u64, RuntimeKind)>,
    /// The methods whose code was written.
    bodies: Bodies,
    precompiled: PrecompiledCode,
    pub counts: Counts,
}

impl Names {
    /// Asks nothing until [`Names::ask_of`].
    pub(crate) fn new(mailbox: &LiveMailbox, arch: Arch, ticks_per_ms: u64) -> Names {
        Names {
            ticks_per_ms,
            waiting: VecDeque::new(),
            flight: None,
            next: Ticks::ZERO,
            first_beat: mailbox.beat.load(Ordering::Acquire),
            runtime: None,
            bodies: Bodies::new(arch),
            precompiled: PrecompiledCode::new(arch),
            counts: Counts::default(),
        }
    }

    /// Queues code that has no name yet. `memory` shows whether an address in a module may be that
    /// of a call.
    pub(crate) fn want(&mut self, code: UnnamedCode, memory: &impl Memory) {
        if code.precompiled && !self.precompiled.is_new(&code, memory) {
            return;
        }
        if self.waiting.len() >= MOST_WAITING {
            self.counts.left_out += 1;
        } else {
            self.waiting.push_back(NameRequest { code, tries: 0 });
        }
    }

    /// From now on, the host is to ask the data access library of the runtime at `base`.
    pub(crate) fn ask_of(&mut self, base: u64, kind: RuntimeKind, mailbox: &LiveMailbox) {
        self.runtime = Some((base, kind));
        mailbox.runtime_kind.store(kind as u32, Ordering::Relaxed);
        mailbox.runtime.store(base, Ordering::Release);
    }

    /// Stops asking, because the runtime itself answers after all.
    pub(crate) fn stop_asking(&mut self, mailbox: &LiveMailbox) {
        (self.runtime, self.flight) = (None, None);
        self.waiting.clear();
        mailbox.runtime.store(0, Ordering::Release);
    }

    /// Whether the host gets requests.
    pub(crate) fn asks(&self) -> bool {
        self.runtime.is_some()
    }

    /// The kind of the runtime that the requests concern.
    pub(crate) fn runtime(&self) -> Option<RuntimeKind> {
        self.runtime.map(|(_, kind)| kind)
    }

    /// Whether a request is under way.
    pub(crate) fn in_flight(&self) -> bool {
        self.flight.is_some()
    }

    /// Whether a host has looked into the mailbox since the recording began.
    pub(crate) fn host_is_there(&self, mailbox: &LiveMailbox) -> bool {
        mailbox.beat.load(Ordering::Acquire) != self.first_beat
    }

    /// Whether addresses wait for an answer or a request, and the host has not said that it
    /// cannot get names.
    pub(crate) fn is_busy(&self, mailbox: &LiveMailbox) -> bool {
        self.asks()
            && (self.flight.is_some() || !self.waiting.is_empty())
            && mailbox.host_state.load(Ordering::Acquire) != HOST_CANNOT
    }

    /// Does what can be done now: takes answers, and asks what waits, if its time has come or
    /// `at_once`. True if anything was written.
    pub(crate) fn step(
        &mut self,
        mailbox: &LiveMailbox,
        now: Ticks,
        at_once: bool,
        memory: &impl Memory,
        out: &mut impl Events,
    ) -> bool {
        let wrote = self.collect(mailbox, now, memory, out);
        if self.asks() && self.flight.is_none() && !self.waiting.is_empty() && (at_once || now >= self.next) {
            self.send(mailbox, now);
        }
        wrote
    }

    fn send(&mut self, mailbox: &LiveMailbox, now: Ticks) {
        let count = self.waiting.len().min(SLOTS);
        let wants: Vec<NameRequest> = self.waiting.drain(..count).collect();
        for ((want, slot), gc_info) in wants.iter().zip(&mailbox.slots).zip(&mailbox.gc_info) {
            slot.address.store(want.code.address, Ordering::Relaxed);
            slot.state.store(SLOT_ASKED, Ordering::Relaxed);
            slot.len.store(0, Ordering::Relaxed);
            // A host that does not know the field leaves it.
            gc_info.store(0, Ordering::Relaxed);
        }
        mailbox.count.store(count as u32, Ordering::Relaxed);
        let number = match mailbox.request.load(Ordering::Relaxed).wrapping_add(1) {
            0 => 1,
            number => number,
        };
        mailbox.request.store(number, Ordering::Release);
        let beat = mailbox.beat.load(Ordering::Acquire);
        self.counts.asked += wants.iter().filter(|want| want.tries == 0).count() as u64;
        self.flight = Some(Flight { number, wants, began: now, beat, moved: now });
    }

    fn collect(
        &mut self,
        mailbox: &LiveMailbox,
        now: Ticks,
        memory: &impl Memory,
        out: &mut impl Events,
    ) -> bool {
        let Some(flight) = &mut self.flight else { return false };
        if mailbox.answer.load(Ordering::Acquire) != flight.number {
            let beat = mailbox.beat.load(Ordering::Acquire);
            if beat != flight.beat {
                (flight.beat, flight.moved) = (beat, now);
            }
            let since = |time: Ticks| now.saturating_sub(time).0 / self.ticks_per_ms;
            if since(flight.moved) >= SILENT_MS || since(flight.began) >= LATE_MS {
                self.give_up();
                self.next = now + Ticks(AGAIN_MS * self.ticks_per_ms);
            }
            return false;
        }
        let Some(flight) = self.flight.take() else { return false };
        let mut wrote = false;
        for ((want, slot), gc_info) in flight.wants.iter().zip(&mailbox.slots).zip(&mailbox.gc_info) {
            match Answer::read(&want.code, slot) {
                Ok(Some(answer)) => {
                    self.counts.named += 1;
                    if want.code.precompiled && !self.precompiled.named(&want.code, answer.base, answer.size)
                    {
                        continue;
                    }
                    out.event(&Event::MethodName(MethodName {
                        time: now,
                        base: answer.base,
                        size: answer.size,
                        source: MethodNameSource::DataAccess as u64,
                        name: answer.name.as_bytes(),
                    }));
                    if answer.reported && !want.code.precompiled {
                        let gc_info = gc_info.load(Ordering::Relaxed);
                        let method = ReportedMethod { base: answer.base, size: answer.size, gc_info };
                        self.bodies.write(&want.code, &method, now, memory, out);
                    }
                    wrote = true;
                }
                Ok(None) => {}
                Err(BadAnswer) => self.counts.refused += 1,
            }
        }
        // What waits is requested at once: a request holds only so many.
        self.next = if self.waiting.is_empty() { now + Ticks(AGAIN_MS * self.ticks_per_ms) } else { now };
        wrote
    }

    /// Gives up the request under way. Its addresses are requested again behind all others: the
    /// machine may be busy, or the library slow to open.
    fn give_up(&mut self) {
        for want in self.flight.take().into_iter().flat_map(|flight| flight.wants) {
            let tries = want.tries + 1;
            if tries < MOST_TRIES {
                self.waiting.push_back(NameRequest { tries, ..want });
            } else {
                self.counts.unanswered += 1;
            }
        }
    }

    /// Gives up unanswered requests: the recording ends.
    pub(crate) fn end(&mut self) {
        let asked = self.waiting.iter().filter(|want| want.tries > 0).count();
        let under_way = self.flight.take().map_or(0, |flight| flight.wants.len());
        self.counts.unanswered += (asked + under_way) as u64;
        self.waiting.clear();
    }

    /// One line for the user about the host's answers; `None` if it was not asked.
    pub(crate) fn note(&self, mailbox: &LiveMailbox) -> Option<String> {
        self.runtime?;
        let counts = &self.counts;
        let message = mailbox.message();
        let mut note = match mailbox.host_state.load(Ordering::Acquire) {
            HOST_NONE => return Some("no inject was there to ask the data access library for names".into()),
            HOST_CANNOT => format!("names cannot be had through the data access library: {message}"),
            HOST_ANSWERS => {
                format!("{} of {} addresses named through {message}", counts.named, counts.asked)
            }
            _ if message.is_empty() => "the data access library was not needed".into(),
            _ => format!("the data access library did not answer: {message}"),
        };
        if counts.unanswered != 0 {
            note.push_str(&format!(", which did not answer in time for {} addresses", counts.unanswered));
        }
        for (count, what) in
            [(counts.refused, "answers made no sense"), (counts.left_out, "were too many to ask")]
        {
            if count != 0 {
                note.push_str(&format!("; {count} {what}"));
            }
        }
        Some(note)
    }
}

/// A checked answer.
struct Answer {
    base: u64,
    size: u64,
    /// Whether base and size are the host's.
    reported: bool,
    name: String,
}

/// An answer that fails the checks.
struct BadAnswer;

impl Answer {
    /// The host's answer to `want`, copied once and then checked.
    fn read(want: &UnnamedCode, slot: &LiveNameSlot) -> Result<Option<Answer>, BadAnswer> {
        match slot.state.load(Ordering::Acquire) {
            SLOT_NAMED => {}
            SLOT_NAMELESS => return Ok(None),
            _ => return Err(BadAnswer),
        }
        let len = slot.len.load(Ordering::Relaxed) as usize;
        let bytes: Vec<u8> = slot.name.iter().take(len).map(|byte| byte.load(Ordering::Relaxed)).collect();
        let name = String::from_utf8(bytes).map_err(|_| BadAnswer)?;
        if len == 0 || len > NAME_BYTES || name.chars().any(char::is_control) {
            return Err(BadAnswer);
        }
        let (base, size) = (slot.base.load(Ordering::Relaxed), slot.size.load(Ordering::Relaxed));
        if base == 0 || size == 0 {
            return Ok(Some(Answer { base: want.base, size: want.size, reported: false, name }));
        }
        let holds = want.address.checked_sub(base).is_some_and(|at| at < size);
        if !holds || size > MOST_CODE || base.checked_add(size).is_none() {
            return Err(BadAnswer);
        }
        Ok(Some(Answer { base, size, reported: true, name }))
    }
}

#[cfg(test)]
mod tests;
