//! The walk of a suspended thread by the system's own unwinder, for `--check-walks`: the one
//! exception to the recorder's law.
//!
//! It gets a thread's context and the bounds of its stack, calls RtlLookupFunctionEntry and
//! RtlVirtualUnwind for it on the sampler's thread, and gives (instruction pointer, stack pointer)
//! per frame, leaf first. Nothing is allocated. What can go wrong, and what is done about it:
//! * the lookup waits for a lock that the suspended thread holds: the watchdog resumes that thread
//!   after 50 ms, and the comparison is discarded (`suspend`);
//! * a register of a frame points anywhere, or another thread unmaps the module whose tables are
//!   being read: the fault comes to a handler of the agent's own before any of the target's, and
//!   ends the walk there. A wild frame register could still point into a guard page: this is a
//!   diagnostic.

/// Whether the agent for this processor can do it.
pub const SUPPORTED: bool = cfg!(target_arch = "x86_64");

/// Most frames of a walk, as `stk` walks them.
pub const MAX_FRAMES: usize = 4096;

#[cfg(not(target_arch = "x86_64"))]
pub use unsupported::SystemUnwinder;
#[cfg(target_arch = "x86_64")]
pub use x64::SystemUnwinder;

#[cfg(not(target_arch = "x86_64"))]
mod unsupported {
    use stk_schema::event::CheckWalk;

    use crate::windows::system::api::Api;
    use crate::windows::system::context::Context;

    /// There is none.
    pub enum SystemUnwinder {}

    /// Never held.
    pub enum LoaderLock {}

    impl Drop for LoaderLock {
        fn drop(&mut self) {
            match *self {}
        }
    }

    impl SystemUnwinder {
        /// Never found.
        pub fn new(_: &Api) -> Option<SystemUnwinder> {
            None
        }

        /// As for x64.
        pub fn hold_loader(&self) -> Option<LoaderLock> {
            match *self {}
        }

        /// As for x64.
        ///
        /// # Safety
        /// None: it cannot be called.
        pub unsafe fn walk(&self, _: &Context, _: usize, _: usize, _: &dyn Fn() -> bool, _: &mut CheckWalk) {
            match *self {}
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x64 {
    use core::cell::UnsafeCell;
    use core::ffi::c_void;
    use core::ptr::null_mut;
    use core::sync::atomic::{AtomicU32, Ordering};

    use stk_schema::event::CheckWalk;
    use windows_sys::Win32::Foundation::{
        EXCEPTION_ACCESS_VIOLATION, EXCEPTION_DATATYPE_MISALIGNMENT, EXCEPTION_GUARD_PAGE,
        EXCEPTION_IN_PAGE_ERROR,
    };
    use windows_sys::Win32::System::Diagnostics::Debug::{
        AddVectoredExceptionHandler, EXCEPTION_CONTINUE_EXECUTION, EXCEPTION_CONTINUE_SEARCH,
        EXCEPTION_POINTERS, RemoveVectoredExceptionHandler,
    };
    use windows_sys::Win32::System::Threading::GetCurrentThreadId;

    use crate::windows::system::api::{
        Api, LdrLockLoaderLock, LdrUnlockLoaderLock, RtlLookupFunctionEntry, RtlVirtualUnwind,
    };
    use crate::windows::system::context::Context;
    use crate::windows::system::landing::{Landing, guarded};

    /// RtlLookupFunctionEntry and RtlVirtualUnwind, and the handler for faults in them.
    pub struct SystemUnwinder {
        lookup: RtlLookupFunctionEntry,
        unwind: RtlVirtualUnwind,
        lock: LdrLockLoaderLock,
        unlock: LdrUnlockLoaderLock,
        handler: *mut c_void,
    }

    /// The loader lock, until it is dropped.
    pub struct LoaderLock {
        unlock: LdrUnlockLoaderLock,
        cookie: usize,
    }

    impl Drop for LoaderLock {
        fn drop(&mut self) {
            // SAFETY: the cookie of the lock that this thread took.
            unsafe { (self.unlock)(0, self.cookie) };
        }
    }

    // SAFETY: the handler's registration is a token that any thread may give back.
    unsafe impl Send for SystemUnwinder {}

    impl SystemUnwinder {
        /// Finds the functions and registers the handler, until it is dropped.
        pub fn new(api: &Api) -> Option<SystemUnwinder> {
            let (lookup, unwind) = (api.lookup_function?, api.virtual_unwind?);
            let (lock, unlock) = (api.lock_loader?, api.unlock_loader?);
            // SAFETY: `on_exception` has the type of a handler, and the agent's code stays mapped
            // as long as it is registered.
            let handler = unsafe { AddVectoredExceptionHandler(1, Some(on_exception)) };
            (!handler.is_null()).then(|| SystemUnwinder { lookup, unwind, lock, unlock, handler })
        }

        /// Takes the loader lock, if nobody has it: the lookup needs it, and were the thread to be
        /// suspended its owner or next in line for it, all three would wait. To be held from before
        /// the suspension until after the resumption.
        pub fn hold_loader(&self) -> Option<LoaderLock> {
            const TRY_ONLY: u32 = 2;
            const ACQUIRED: u32 = 1;
            let (mut disposition, mut cookie) = (0, 0);
            // SAFETY: writes the two results; it waits for nothing.
            let status = unsafe { (self.lock)(TRY_ONLY, &mut disposition, &mut cookie) };
            (status >= 0 && disposition == ACQUIRED).then(|| LoaderLock { unlock: self.unlock, cookie })
        }

        /// Walks the thread with this context as long as `held` says that it stands still, and
        /// fills `into`.
        ///
        /// # Safety
        /// `limit..base` must be the committed stack of the thread, which is suspended. One walk at
        /// a time.
        pub unsafe fn walk(
            &self,
            context: &Context,
            limit: usize,
            base: usize,
            held: &dyn Fn() -> bool,
            into: &mut CheckWalk,
        ) {
            let mut job = Job {
                unwinder: self,
                context: Context(context.0),
                limit: limit as u64,
                base: base as u64,
                held,
                into,
            };
            // SAFETY: no preconditions.
            let tid = unsafe { GetCurrentThreadId() };
            // SAFETY: the handler reads the landing only while GUARDED names this thread, and on
            // this thread.
            let faulted = unsafe {
                GUARDED.store(tid, Ordering::Release);
                guarded(run, (&raw mut job).cast(), LANDING.0.get())
            };
            GUARDED.store(0, Ordering::Release);
            if faulted != 0 {
                into.flags |= CheckWalk::FAULT;
            }
        }
    }

    impl Drop for SystemUnwinder {
        fn drop(&mut self) {
            // SAFETY: the registration made in `new`, given back once.
            unsafe { RemoveVectoredExceptionHandler(self.handler) };
        }
    }

    /// What [`run`] needs. It owns nothing: a fault leaves it as it is.
    struct Job<'a> {
        unwinder: &'a SystemUnwinder,
        context: Context,
        limit: u64,
        base: u64,
        held: &'a dyn Fn() -> bool,
        into: &'a mut CheckWalk,
    }

    /// The walk itself. A fault leaves it for good, so that nothing in it may need to be dropped.
    unsafe extern "system" fn run(job: *mut c_void) {
        // SAFETY: `walk` hands over its job, which nobody else touches meanwhile.
        let job = unsafe { &mut *job.cast::<Job<'_>>() };
        let frames = &mut job.into.frames;
        let context = &mut job.context.0;
        // A caller has called, so it is no leaf; but what an exception interrupted can be one.
        let mut can_be_leaf = true;
        while (job.held)() {
            if frames.len() == frames.capacity() {
                job.into.flags |= CheckWalk::FRAME_LIMIT;
                return;
            }
            let (ip, sp) = (context.Rip, context.Rsp);
            frames.push((ip, sp));
            if sp % 8 != 0 || sp < job.limit || sp >= job.base {
                return;
            }
            let mut image = 0;
            // SAFETY: what it reads is its own business; a fault ends the walk.
            let function = unsafe { (job.unwinder.lookup)(ip, &mut image, null_mut()) };
            if !function.is_null() {
                // SAFETY: as above: the function's entry and unwind info are read by the same rules
                // as by the call below.
                can_be_leaf = unsafe { pushes_machine_frame(image, function) };
                let (mut handler_data, mut establisher) = (null_mut(), 0);
                // SAFETY: it reads the stack by the context's registers: `sp` is within the stack,
                // and a fault elsewhere ends the walk.
                unsafe {
                    (job.unwinder.unwind)(
                        0,
                        image,
                        ip,
                        function,
                        context,
                        &mut handler_data,
                        &mut establisher,
                        null_mut(),
                    );
                }
            } else if can_be_leaf {
                can_be_leaf = false;
                // SAFETY: `sp` is an aligned address within the stack.
                context.Rip = unsafe { (sp as *const u64).read() };
                context.Rsp = sp + 8;
            } else {
                return;
            }
            if context.Rip == 0 || context.Rsp <= sp {
                return;
            }
        }
    }

    /// Whether the function's prologue is a trap's: its first operation, stored last, is
    /// UWOP_PUSH_MACHFRAME.
    ///
    /// # Safety
    /// `function` must be what the lookup gave for `image`; faults must be handled.
    unsafe fn pushes_machine_frame(image: u64, function: *const u32) -> bool {
        const PUSH_MACHFRAME: u8 = 10;
        // SAFETY: UNWIND_INFO as the third word of RUNTIME_FUNCTION gives it: the number of codes,
        // two bytes each, lies at 2, the codes at 4; by the caller's promise.
        unsafe {
            let info = (image + u64::from(function.add(2).read_unaligned())) as *const u8;
            let codes = usize::from(info.add(2).read());
            codes != 0 && info.add(4 + 2 * (codes - 1) + 1).read() & 15 == PUSH_MACHFRAME
        }
    }

    /// Where the sampler goes on after a fault.
    struct LandingPlace(UnsafeCell<Landing>);

    // SAFETY: only the thread that GUARDED names writes and reads it.
    unsafe impl Sync for LandingPlace {}

    static LANDING: LandingPlace = LandingPlace(UnsafeCell::new(Landing::EMPTY));
    /// The thread whose faults are the walk's; 0 = none.
    static GUARDED: AtomicU32 = AtomicU32::new(0);

    /// Sends a fault of the walk to its landing; everything else is the target's.
    unsafe extern "system" fn on_exception(info: *mut EXCEPTION_POINTERS) -> i32 {
        let guarded = GUARDED.load(Ordering::Acquire);
        // SAFETY: no preconditions.
        if guarded == 0 || guarded != unsafe { GetCurrentThreadId() } {
            return EXCEPTION_CONTINUE_SEARCH;
        }
        // SAFETY: the system hands over a record and a context, valid during the call.
        let (record, context) = unsafe { (&*(*info).ExceptionRecord, &mut *(*info).ContextRecord) };
        let ours = [
            EXCEPTION_ACCESS_VIOLATION,
            EXCEPTION_IN_PAGE_ERROR,
            EXCEPTION_GUARD_PAGE,
            EXCEPTION_DATATYPE_MISALIGNMENT,
        ];
        if !ours.contains(&record.ExceptionCode) {
            return EXCEPTION_CONTINUE_SEARCH;
        }
        GUARDED.store(0, Ordering::Release);
        // SAFETY: this is the guarded thread, and `guarded` wrote the landing before anything could
        // fault.
        let landing = unsafe { &*LANDING.0.get() };
        context.Rip = landing.ip as u64;
        context.Rsp = landing.sp as u64;
        EXCEPTION_CONTINUE_EXECUTION
    }
}
