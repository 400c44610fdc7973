//! A call that can be left from deep inside, like C's `setjmp` and `longjmp`. Threads of the target
//! need it if the recorder panics on them, and the walk needs it if it faults.
//!
//! It is written in assembly, because no compiler may assume anything about what the called
//! function had changed when it was left: [`guarded`] saves all nonvolatile registers. Values that
//! the function owned are not dropped.

use core::arch::naked_asm;
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use windows_sys::Win32::System::Threading::GetCurrentThreadId;

/// Where execution continues after a call is left. Written by [`guarded`].
#[repr(C)]
pub(crate) struct ReturnPoint {
    /// Stack pointer.
    pub sp: usize,
    /// Instruction pointer.
    pub ip: usize,
    /// Pointer into the thread's shadow stack; 0 = none.
    shadow: usize,
}

impl ReturnPoint {
    /// A landing that was not written yet.
    pub(crate) const EMPTY: ReturnPoint = ReturnPoint { sp: 0, ip: 0, shadow: 0 };
}

/// A thread's call into the recorder that a panic leaves.
struct Call {
    /// Id of the calling thread; 0 = the place is free.
    thread: AtomicU32,
    /// Calls have ascending numbers. The last one of a thread is its innermost; an earlier one may
    /// belong to a thread that was terminated in its call, and had the same id.
    number: AtomicU64,
    landing: AtomicPtr<ReturnPoint>,
}

impl Call {
    const fn free() -> Call {
        Call {
            thread: AtomicU32::new(0),
            number: AtomicU64::new(0),
            landing: AtomicPtr::new(core::ptr::null_mut()),
        }
    }
}

/// The calls of threads of the target and of the host that are in the recorder now.
static CALLS: [Call; CALLS_AT_ONCE] = [const { Call::free() }; CALLS_AT_ONCE];
/// Each call takes microseconds, unless its thread is not scheduled.
const CALLS_AT_ONCE: usize = 64;
/// Number of the next call.
static NEXT_CALL: AtomicU64 = AtomicU64::new(1);

/// Runs `work` on a thread that is not the recorder's. If it panics, the panic leaves it and the
/// thread continues. True if `work` returned; false if a panic left it, or if as many calls as
/// there is room for are running, and `work` was not run.
pub(crate) fn survive_panic<F: FnOnce()>(work: F) -> bool {
    unsafe extern "system" fn run<F: FnOnce()>(work: *mut c_void) {
        // SAFETY: `survive_panic` passes its `Option`, which it does not touch meanwhile.
        if let Some(work) = unsafe { (*work.cast::<Option<F>>()).take() } {
            work();
        }
    }
    let Some(call) = enter() else { return false };
    let (mut work, mut landing) = (Some(work), ReturnPoint::EMPTY);
    call.landing.store(&raw mut landing, Ordering::Release);
    // SAFETY: `run` has the type of the closure that it gets, and the landing is valid during the
    // call.
    let left = unsafe { guarded(run::<F>, (&raw mut work).cast(), &raw mut landing) };
    call.landing.store(core::ptr::null_mut(), Ordering::Release);
    call.thread.store(0, Ordering::Release);
    left == 0
}

/// Takes a free place for a call of this thread.
fn enter() -> Option<&'static Call> {
    // SAFETY: no preconditions.
    let thread = unsafe { GetCurrentThreadId() };
    // Ids are multiples of four. Threads begin at different places, so that they rarely meet.
    let first = thread as usize / 4;
    let place = |index: usize| CALLS.get((first + index) % CALLS_AT_ONCE);
    let call = (0..CALLS_AT_ONCE)
        .filter_map(place)
        .find(|call| call.thread.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok())?;
    call.number.store(NEXT_CALL.fetch_add(1, Ordering::Relaxed), Ordering::Release);
    Some(call)
}

/// Forgets calls of this thread's id, which a terminated thread with the same id left behind. Each
/// of the recorder's own threads calls this first: a panic there parks the thread.
pub(crate) fn forget_calls() {
    // SAFETY: no preconditions.
    let thread = unsafe { GetCurrentThreadId() };
    for call in CALLS.iter().filter(|call| call.thread.load(Ordering::Acquire) == thread) {
        call.thread.store(0, Ordering::Release);
    }
}

/// Forgets all calls: their threads were terminated in them. The thread that ends the process calls
/// this, when it is the only one left.
pub(crate) fn forget_all_calls() {
    for call in &CALLS {
        call.thread.store(0, Ordering::Release);
    }
}

/// Leaves this thread's innermost [`survive_panic`]; returns if there is none.
pub(crate) fn leave_call() {
    // SAFETY: no preconditions.
    let thread = unsafe { GetCurrentThreadId() };
    let own = CALLS.iter().filter(|call| call.thread.load(Ordering::Acquire) == thread);
    let innermost = own.max_by_key(|call| call.number.load(Ordering::Acquire));
    let landing = innermost.map_or(core::ptr::null_mut(), |call| call.landing.load(Ordering::Acquire));
    if !landing.is_null() {
        // SAFETY: the call is this thread's, since its number is the highest of the thread's id and
        // the recorder's own threads forget such calls first. So its frame is still there.
        unsafe { leave(landing) }
    }
}

/// Calls `body(argument)`. Returns 0 if that returned, 1 if it was left through `landing`.
///
/// # Safety
/// `body` must accept `argument`; `landing` must be writable, and is valid until the return.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn guarded(
    body: unsafe extern "system" fn(*mut c_void),
    argument: *mut c_void,
    landing: *mut ReturnPoint,
) -> u32 {
    // 0x20 shadow space, 0xa0 for xmm6 to xmm15, 8 padding; above them eight registers and the
    // return address.
    naked_asm!(
        ".seh_proc {guarded}",
        "push rbp",
        ".seh_pushreg rbp",
        "push rbx",
        ".seh_pushreg rbx",
        "push rsi",
        ".seh_pushreg rsi",
        "push rdi",
        ".seh_pushreg rdi",
        "push r12",
        ".seh_pushreg r12",
        "push r13",
        ".seh_pushreg r13",
        "push r14",
        ".seh_pushreg r14",
        "push r15",
        ".seh_pushreg r15",
        "sub rsp, 0xc8",
        ".seh_stackalloc 0xc8",
        "movaps [rsp + 0x20], xmm6",
        ".seh_savexmm xmm6, 0x20",
        "movaps [rsp + 0x30], xmm7",
        ".seh_savexmm xmm7, 0x30",
        "movaps [rsp + 0x40], xmm8",
        ".seh_savexmm xmm8, 0x40",
        "movaps [rsp + 0x50], xmm9",
        ".seh_savexmm xmm9, 0x50",
        "movaps [rsp + 0x60], xmm10",
        ".seh_savexmm xmm10, 0x60",
        "movaps [rsp + 0x70], xmm11",
        ".seh_savexmm xmm11, 0x70",
        "movaps [rsp + 0x80], xmm12",
        ".seh_savexmm xmm12, 0x80",
        "movaps [rsp + 0x90], xmm13",
        ".seh_savexmm xmm13, 0x90",
        "movaps [rsp + 0xa0], xmm14",
        ".seh_savexmm xmm14, 0xa0",
        "movaps [rsp + 0xb0], xmm15",
        ".seh_savexmm xmm15, 0xb0",
        ".seh_endprologue",
        "mov [r8], rsp",
        "lea rax, [rip + 2f]",
        "mov [r8 + 8], rax",
        // Does nothing if there is no shadow stack.
        "xor eax, eax",
        "rdsspq rax",
        "mov [r8 + 16], rax",
        "mov rax, rcx",
        "mov rcx, rdx",
        "call rax",
        "xor eax, eax",
        "jmp 3f",
        "2:",
        "mov eax, 1",
        "3:",
        "movaps xmm6, [rsp + 0x20]",
        "movaps xmm7, [rsp + 0x30]",
        "movaps xmm8, [rsp + 0x40]",
        "movaps xmm9, [rsp + 0x50]",
        "movaps xmm10, [rsp + 0x60]",
        "movaps xmm11, [rsp + 0x70]",
        "movaps xmm12, [rsp + 0x80]",
        "movaps xmm13, [rsp + 0x90]",
        "movaps xmm14, [rsp + 0xa0]",
        "movaps xmm15, [rsp + 0xb0]",
        "add rsp, 0xc8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rdi",
        "pop rsi",
        "pop rbx",
        "pop rbp",
        "ret",
        ".seh_endproc",
        guarded = sym guarded,
    )
}

/// Continues at the landing, after removing the return addresses above it from the shadow stack.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn leave(landing: *const ReturnPoint) -> ! {
    naked_asm!(
        "xor eax, eax",
        "rdsspq rax",
        "test rax, rax",
        "jz 3f",
        "mov rdx, [rcx + 16]",
        "sub rdx, rax",
        "shr rdx, 3",
        // Removes at most 255 at once.
        "2:",
        "test rdx, rdx",
        "jz 3f",
        "mov eax, 255",
        "cmp rdx, rax",
        "cmovb rax, rdx",
        "incsspq rax",
        "sub rdx, rax",
        "jmp 2b",
        "3:",
        "mov rsp, [rcx]",
        "jmp qword ptr [rcx + 8]",
    )
}

/// The same for x86.
#[cfg(target_arch = "x86")]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn guarded(
    body: unsafe extern "system" fn(*mut c_void),
    argument: *mut c_void,
    landing: *mut ReturnPoint,
) -> u32 {
    // Above the four registers and the return address: body, argument, landing. `body` removes its
    // argument from the stack.
    naked_asm!(
        "push ebp",
        "push ebx",
        "push esi",
        "push edi",
        "mov ecx, [esp + 28]",
        "mov [ecx], esp",
        "lea eax, [2f]",
        "mov [ecx + 4], eax",
        "push dword ptr [esp + 24]",
        "call dword ptr [esp + 24]",
        "xor eax, eax",
        "jmp 3f",
        "2:",
        "mov eax, 1",
        "3:",
        "pop edi",
        "pop esi",
        "pop ebx",
        "pop ebp",
        "ret",
    )
}

/// Continues at the landing. No 32-bit process of Windows has a shadow stack.
#[cfg(target_arch = "x86")]
#[unsafe(naked)]
unsafe extern "C" fn leave(landing: *const ReturnPoint) -> ! {
    naked_asm!("mov ecx, [esp + 4]", "mov esp, [ecx]", "jmp dword ptr [ecx + 4]")
}

/// The same for arm64.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn guarded(
    body: unsafe extern "system" fn(*mut c_void),
    argument: *mut c_void,
    landing: *mut ReturnPoint,
) -> u32 {
    naked_asm!(
        ".seh_proc {guarded}",
        "stp x29, x30, [sp, #-160]!",
        ".seh_save_fplr_x 160",
        "stp x19, x20, [sp, #16]",
        ".seh_save_regp x19, 16",
        "stp x21, x22, [sp, #32]",
        ".seh_save_regp x21, 32",
        "stp x23, x24, [sp, #48]",
        ".seh_save_regp x23, 48",
        "stp x25, x26, [sp, #64]",
        ".seh_save_regp x25, 64",
        "stp x27, x28, [sp, #80]",
        ".seh_save_regp x27, 80",
        "stp d8, d9, [sp, #96]",
        ".seh_save_fregp d8, 96",
        "stp d10, d11, [sp, #112]",
        ".seh_save_fregp d10, 112",
        "stp d12, d13, [sp, #128]",
        ".seh_save_fregp d12, 128",
        "stp d14, d15, [sp, #144]",
        ".seh_save_fregp d14, 144",
        ".seh_endprologue",
        "mov x9, sp",
        "adr x10, 2f",
        "stp x9, x10, [x2]",
        "mov x8, x0",
        "mov x0, x1",
        "blr x8",
        "mov w0, #0",
        "b 3f",
        "2:",
        "mov w0, #1",
        "3:",
        ".seh_startepilogue",
        "ldp d14, d15, [sp, #144]",
        ".seh_save_fregp d14, 144",
        "ldp d12, d13, [sp, #128]",
        ".seh_save_fregp d12, 128",
        "ldp d10, d11, [sp, #112]",
        ".seh_save_fregp d10, 112",
        "ldp d8, d9, [sp, #96]",
        ".seh_save_fregp d8, 96",
        "ldp x27, x28, [sp, #80]",
        ".seh_save_regp x27, 80",
        "ldp x25, x26, [sp, #64]",
        ".seh_save_regp x25, 64",
        "ldp x23, x24, [sp, #48]",
        ".seh_save_regp x23, 48",
        "ldp x21, x22, [sp, #32]",
        ".seh_save_regp x21, 32",
        "ldp x19, x20, [sp, #16]",
        ".seh_save_regp x19, 16",
        "ldp x29, x30, [sp], #160",
        ".seh_save_fplr_x 160",
        ".seh_endepilogue",
        "ret",
        ".seh_endproc",
        guarded = sym guarded,
    )
}

/// Continues at the landing.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C" fn leave(landing: *const ReturnPoint) -> ! {
    naked_asm!("ldp x9, x10, [x0]", "mov sp, x9", "br x10")
}
