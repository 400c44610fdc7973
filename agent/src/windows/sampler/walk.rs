//! Walks a suspended thread with the system's own unwinder, for `--check-walks`: the one exception
//! to the recorder's law.
//!
//! It gets a thread's context and the bounds of its stack, calls RtlLookupFunctionEntry and
//! RtlVirtualUnwind on the sampler's thread, and gives (instruction pointer, stack pointer) per
//! frame, leaf first. It allocates nothing. These things can go wrong:
//! * The lookup may wait for a lock that the suspended thread holds. The watchdog resumes that
//!   thread after 50 ms, and the comparison is discarded (`suspend`).
//! * A register of a frame may point anywhere, or another thread may unmap the module whose tables
//!   are being read. A handler of the agent receives the fault before any handler of the target,
//!   and ends the walk there. A wild frame register could still point into a guard page; this is a
//!   diagnostic.

/// Whether the agent for this processor supports it.
pub(crate) const SUPPORTED: bool = cfg!(target_arch = "x86_64");

/// Most frames of a walk; `stk` has the same limit.
pub(crate) const MAX_FRAMES: usize = 4096;

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use unsupported::SystemUnwinder;
#[cfg(target_arch = "x86_64")]
pub(crate) use x64::SystemUnwinder;

#[cfg(not(target_arch = "x86_64"))]
mod unsupported {
    use stk_schema::event::CheckWalk;

    use crate::windows::system::api::SystemApi;
    use crate::windows::system::context::Context;

    /// There is no unwinder on this architecture.
    pub(crate) enum SystemUnwinder {}

    pub(crate) enum LoaderLock {}

    impl Drop for LoaderLock {
        fn drop(&mut self) {
            match *self {}
        }
    }

    impl SystemUnwinder {
        /// Always `None`.
        pub(crate) fn new(_: &SystemApi) -> Option<SystemUnwinder> {
            None
        }

        /// The same as on x64.
        pub(crate) fn hold_loader(&self) -> Option<LoaderLock> {
            match *self {}
        }

        /// The same as on x64.
        ///
        /// # Safety
        /// None: there is no value to call it on.
        pub(crate) unsafe fn walk(
            &self,
            _: &Context,
            _: usize,
            _: usize,
            _: &dyn Fn() -> bool,
            _: &mut CheckWalk,
        ) {
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
        LdrLockLoaderLock, LdrUnlockLoaderLock, RtlLookupFunctionEntry, RtlVirtualUnwind, SystemApi,
    };
    use crate::windows::system::context::Context;
    use crate::windows::system::landing::{ReturnPoint, guarded};

    /// RtlLookupFunctionEntry and RtlVirtualUnwind, and the handler for faults in them.
    pub(crate) struct SystemUnwinder {
        lookup: RtlLookupFunctionEntry,
        unwind: RtlVirtualUnwind,
        lock: LdrLockLoaderLock,
        unlock: LdrUnlockLoaderLock,
        handler: *mut c_void,
    }

    /// Holds the loader lock until it is dropped.
    pub(crate) struct LoaderLock {
        unlock: LdrUnlockLoaderLock,
        cookie: usize,
    }

    impl Drop for LoaderLock {
        fn drop(&mut self) {
            // SAFETY: the cookie of the lock that this thread took.
            unsafe { (self.unlock)(0, self.cookie) };
        }
    }

    // SAFETY: the handler's registration is a token that any thread may release.
    unsafe impl Send for SystemUnwinder {}

    impl SystemUnwinder {
        /// Finds the functions and registers the handler; dropping this removes the handler.
        pub(crate) fn new(api: &SystemApi) -> Option<SystemUnwinder> {
            let (lookup, unwind) = (api.lookup_function?, api.virtual_unwind?);
            let (lock, unlock) = (api.lock_loader?, api.unlock_loader?);
            // SAFETY: `on_exception` has the type of a handler, and the agent's code stays mapped
            // as long as it is registered.
            let handler = unsafe { AddVectoredExceptionHandler(1, Some(on_exception)) };
            (!handler.is_null()).then(|| SystemUnwinder { lookup, unwind, lock, unlock, handler })
        }

        /// Takes the loader lock if it is free. The lookup needs it: if the suspended thread owned
        /// it or were next in line for it, all would wait. It must be held from before the
        /// suspension until after the resumption.
        pub(crate) fn hold_loader(&self) -> Option<LoaderLock> {
            const TRY_ONLY: u32 = 2;
            const ACQUIRED: u32 = 1;
            let (mut disposition, mut cookie) = (0, 0);
            // SAFETY: writes the two results; it waits for nothing.
            let status = unsafe { (self.lock)(TRY_ONLY, &mut disposition, &mut cookie) };
            (status >= 0 && disposition == ACQUIRED).then(|| LoaderLock { unlock: self.unlock, cookie })
        }

        /// Walks the thread with this context while `held` returns true, and fills `into`.
        ///
        /// # Safety
        /// `limit..base` must be the committed stack of the thread, which must be suspended. Only
        /// one walk may run at a time.
        pub(crate) unsafe fn walk(
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

    /// The arguments of [`run`]. It owns nothing, so a fault leaves nothing to drop.
    struct Job<'a> {
        unwinder: &'a SystemUnwinder,
        context: Context,
        limit: u64,
        base: u64,
        held: &'a dyn Fn() -> bool,
        into: &'a mut CheckWalk,
    }

    /// The walk itself. A fault ends it without returning, so nothing in it may need to be dropped.
    unsafe extern "system" fn run(job: *mut c_void) {
        // SAFETY: `walk` passes its job, which nothing else touches meanwhile.
        let job = unsafe { &mut *job.cast::<Job<'_>>() };
        let frames = &mut job.into.frames;
        let context = &mut job.context.0;
        // A caller has made a call, so it is no leaf; but code that an exception interrupted can be
        // one.
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
            // SAFETY: it may read any memory; a fault ends the walk.
            let function = unsafe { (job.unwinder.lookup)(ip, &mut image, null_mut()) };
            if !function.is_null() {
                // SAFETY: as above: the function's entry and unwind info are read like in the call
                // below.
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

    /// Whether the function's prologue is that of a trap: its first operation, stored last, is
    /// UWOP_PUSH_MACHFRAME.
    ///
    /// # Safety
    /// `function` must be the lookup's result for `image`; faults must be handled.
    unsafe fn pushes_machine_frame(image: u64, function: *const u32) -> bool {
        const PUSH_MACHFRAME: u8 = 10;
        // SAFETY: the third word of RUNTIME_FUNCTION locates UNWIND_INFO: the number of codes, two
        // bytes each, lies at 2, the codes at 4; by the caller's promise.
        unsafe {
            let info = (image + u64::from(function.add(2).read_unaligned())) as *const u8;
            let codes = usize::from(info.add(2).read());
            codes != 0 && info.add(4 + 2 * (codes - 1) + 1).read() & 15 == PUSH_MACHFRAME
        }
    }

    /// The landing at which the sampler continues after a fault.
    struct LandingPlace(UnsafeCell<ReturnPoint>);

    // SAFETY: only the thread that GUARDED names writes and reads it.
    unsafe impl Sync for LandingPlace {}

    static LANDING: LandingPlace = LandingPlace(UnsafeCell::new(ReturnPoint::EMPTY));
    /// The thread whose faults belong to the walk; 0 = none.
    static GUARDED: AtomicU32 = AtomicU32::new(0);

    /// Sends a fault of the walk to its landing. All other exceptions go to the target.
    unsafe extern "system" fn on_exception(info: *mut EXCEPTION_POINTERS) -> i32 {
        let guarded = GUARDED.load(Ordering::Acquire);
        // SAFETY: no preconditions.
        if guarded == 0 || guarded != unsafe { GetCurrentThreadId() } {
            return EXCEPTION_CONTINUE_SEARCH;
        }
        // SAFETY: the system passes a record and a context that are valid during the call.
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
        // SAFETY: this is the guarded thread, and `guarded` wrote the landing before any
        // instruction could fault.
        let landing = unsafe { &*LANDING.0.get() };
        context.Rip = landing.ip as u64;
        context.Rsp = landing.sp as u64;
        EXCEPTION_CONTINUE_EXECUTION
    }
}
