//! The runtime's own view of its threads, through the data contract: which Thread object belongs to
//! a thread of the system, and the few fields of it that belong to a sample.
//!
//! The Thread object lies on a heap, outside of the thread's stack, and can be freed. A plain read
//! while the thread is suspended could fault, and a read that cannot fault is a system call, which
//! the recorder's law forbids at that moment. So the sampler reads the object before the suspension
//! and after the resumption, and keeps the result if both are the same. One error remains possible:
//! between the two reads the thread may push a Frame and pop it again, and be suspended just while
//! it is there. The stored Frame head is then the one below it.

use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use stk_schema::bytes::u32_at;

use super::descriptor::Descriptor;
use super::pointer_at;
use crate::record::image::Memory;

/// Most managed threads that are tracked.
const MAX_THREADS: usize = 1024;
/// Most entries of the runtime's list that are walked, including dead threads.
const MAX_WALKED: usize = 4096;
/// Most bytes of a Thread object up to the last field that is read.
const MAX_SPAN: usize = 2048;
/// Most Frames of a chain that are searched for memory outside the stack.
const MAX_FRAMES: usize = 256;
/// Bytes of an x64 CONTEXT.
pub(crate) const CONTEXT_BYTES: usize = 1232;

/// The runtime's fields that belong to a sample of a managed thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ManagedState {
    /// Address of the Thread object.
    pub address: u64,
    /// Thread::State.
    pub state: u64,
    /// PreemptiveGCDisabled.
    pub preemptive_disabled: u64,
    /// Head of the Frame chain.
    pub frame: u64,
    /// ExceptionTracker.
    pub exception: u64,
}

/// Offsets of the fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    width: usize,
    os_id: usize,
    state: usize,
    preemptive_disabled: usize,
    frame: usize,
    exception: usize,
    link: usize,
    /// Bytes of a Thread object that hold all these fields.
    span: usize,
    /// Address of the variable that points to the ThreadStore.
    store: u64,
    first_link: usize,
    frame_next: usize,
    target_context: usize,
    /// Identifiers of the Frames that keep a CONTEXT outside of themselves.
    resumable: [u64; 2],
    inlined: Option<InlinedOffsets>,
}

/// Offsets of an InlinedCallFrame, which a call of native code pushes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct InlinedOffsets {
    identifier: u64,
    return_address: u64,
    /// The method that is called. Where the descriptor does not have it, it is the field before
    /// CallSiteSP.
    datum: u64,
}

impl InlinedOffsets {
    fn new(descriptor: &Descriptor) -> Option<InlinedOffsets> {
        let field = |name| descriptor.offset("InlinedCallFrame", name);
        let before_sp = || field("CallSiteSP")?.checked_sub(descriptor.width);
        Some(InlinedOffsets {
            identifier: descriptor.number("InlinedCallFrameIdentifier")?,
            return_address: field("CallerReturnAddress")? as u64,
            datum: field("Datum").or_else(before_sp)? as u64,
        })
    }
}

impl Layout {
    /// The layout in `descriptor`; `None` if it lacks a field.
    pub(crate) fn new(descriptor: &Descriptor) -> Option<Layout> {
        let field = |name| descriptor.offset("Thread", name);
        let mut layout = Layout {
            width: descriptor.width,
            os_id: field("OSId")?,
            state: field("State")?,
            preemptive_disabled: field("PreemptiveGCDisabled")?,
            frame: field("Frame")?,
            exception: field("ExceptionTracker")?,
            link: field("LinkNext")?,
            span: 0,
            store: descriptor.address("ThreadStore")?,
            first_link: descriptor.offset("ThreadStore", "FirstThreadLink")?,
            frame_next: descriptor.offset("Frame", "Next")?,
            target_context: descriptor.offset("ResumableFrame", "TargetContextPtr")?,
            resumable: ["ResumableFrameIdentifier", "RedirectedThreadFrameIdentifier"]
                .map(|name| descriptor.number(name).unwrap_or(u64::MAX)),
            inlined: InlinedOffsets::new(descriptor),
        };
        let fields = [
            layout.os_id,
            layout.state,
            layout.preemptive_disabled,
            layout.frame,
            layout.exception,
            layout.link,
        ];
        layout.span = fields.into_iter().max()? + layout.width;
        (layout.span <= MAX_SPAN).then_some(layout)
    }

    /// The live threads: pairs of the system's thread id and the Thread object's address. The list
    /// may change while it is read; a walk that fails returns what it found so far.
    pub(crate) fn threads(&self, memory: &impl Memory) -> Vec<(u32, u64)> {
        let mut found = Vec::new();
        let pointer = |address: u64| {
            let mut bytes = [0; 8];
            let bytes = bytes.get_mut(..self.width)?;
            if !memory.read(address, bytes) {
                return None;
            }
            pointer_at(bytes, 0, self.width)
        };
        let Some(store) = pointer(self.store).filter(|&store| store != 0) else { return found };
        let head = store.wrapping_add(self.first_link as u64);
        let mut bytes = vec![0; self.span];
        let mut link = pointer(head).unwrap_or(0);
        for _ in 0..MAX_WALKED {
            if link == 0 || link == head || found.len() == MAX_THREADS {
                break;
            }
            let address = link.wrapping_sub(self.link as u64);
            if !memory.read(address, &mut bytes) {
                break;
            }
            if let Some(tid) = u32_at(&bytes, self.os_id)
                && tid != 0
            {
                if found.contains(&(tid, address)) {
                    break; // in circles
                }
                found.push((tid, address));
            }
            link = pointer_at(&bytes, self.link, self.width).unwrap_or(0);
        }
        found
    }

    /// The fields of the Thread object at `address`, if it still belongs to thread `tid`.
    pub(crate) fn read(&self, memory: &impl Memory, address: u64, tid: u32) -> Option<ManagedState> {
        let mut bytes = [0; MAX_SPAN];
        let bytes = bytes.get_mut(..self.span)?;
        if !memory.read(address, bytes) || u32_at(bytes, self.os_id)? != tid {
            return None;
        }
        Some(ManagedState {
            address,
            state: u64::from(u32_at(bytes, self.state)?),
            preemptive_disabled: u64::from(u32_at(bytes, self.preemptive_disabled)?),
            frame: pointer_at(bytes, self.frame, self.width)?,
            exception: pointer_at(bytes, self.exception, self.width)?,
        })
    }

    /// What the Frames of the chain from `head` refer to. `called` gets the MethodDesc of each
    /// method that managed code is calling by an InlinedCallFrame. Returns the address of the first
    /// CONTEXT that a Frame keeps outside of the captured stack.
    pub(crate) fn outside(
        &self,
        head: u64,
        stack_start: u64,
        stack: &[u8],
        mut called: impl FnMut(u64),
    ) -> Option<u64> {
        let word = |address: u64| {
            pointer_at(stack, usize::try_from(address.checked_sub(stack_start)?).ok()?, self.width)
        };
        let mut context = None;
        let mut frame = head;
        for _ in 0..MAX_FRAMES {
            let Some(identifier) = word(frame) else { break };
            if context.is_none() && self.resumable.contains(&identifier) {
                context = word(frame.wrapping_add(self.target_context as u64));
            }
            if let Some(inlined) = self.inlined.filter(|inlined| inlined.identifier == identifier)
                && word(frame.wrapping_add(inlined.return_address)).is_some_and(|address| address != 0)
                && let Some(datum) = word(frame.wrapping_add(inlined.datum))
                // Bit 0: the target of an indirect call.
                && datum != 0
                && datum.is_multiple_of(self.width as u64)
            {
                called(datum);
            }
            // A chain leads towards the stack's base; anything else is invalid.
            match word(frame.wrapping_add(self.frame_next as u64)) {
                Some(next) if next > frame => frame = next,
                _ => break,
            }
        }
        let context = context.filter(|&context| context != 0)?;
        let inside = context.checked_sub(stack_start).is_some_and(|at| at < stack.len() as u64);
        (!inside).then_some(context)
    }
}

/// Maps threads to their Thread objects. The thread that walks the runtime's list writes it; the
/// sampler reads it. The sampler may miss an entry that is just being changed, or read a stale one:
/// [`Layout::read`] checks the id.
pub(crate) struct ThreadTable {
    layout: Layout,
    len: AtomicUsize,
    entries: alloc::boxed::Box<[(AtomicU32, AtomicU64)]>,
}

impl ThreadTable {
    pub(crate) fn new(layout: Layout) -> ThreadTable {
        let entries = (0..MAX_THREADS).map(|_| (AtomicU32::new(0), AtomicU64::new(0))).collect();
        ThreadTable { layout, len: AtomicUsize::new(0), entries }
    }

    /// The layout of the Thread objects.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Walks the runtime's list.
    pub(crate) fn refresh(&self, memory: &impl Memory) {
        let threads = self.layout.threads(memory);
        for ((tid, address), entry) in threads.iter().zip(&self.entries) {
            if entry.0.load(Ordering::Relaxed) != *tid || entry.1.load(Ordering::Relaxed) != *address {
                entry.0.store(0, Ordering::Release);
                entry.1.store(*address, Ordering::Release);
                entry.0.store(*tid, Ordering::Release);
            }
        }
        self.len.store(threads.len().min(self.entries.len()), Ordering::Release);
    }

    /// Number of known threads.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// Address of the Thread object of thread `tid`.
    pub(crate) fn find(&self, tid: u32) -> Option<u64> {
        let entries = self.entries.get(..self.len())?;
        let entry = entries.iter().find(|entry| entry.0.load(Ordering::Acquire) == tid)?;
        Some(entry.1.load(Ordering::Acquire))
    }
}
