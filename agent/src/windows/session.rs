//! A recording from start to end: its threads, and how it is stopped.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use stk_format::{BlockBuffer, CpuUnit, FileHeader};
use stk_schema::control::{
    AgentConfig, CONTROL_VERSION, EMBED_FULL, FLAG_CHECK_WALKS, FLAG_ONCE, FLAG_TEST_PANIC, STATE_FAILED,
    STATE_IDLE, STATE_RECORDING, STATE_STOPPED, STATE_STOPPING, StartResult,
};
use stk_schema::event::{DropReason, End, EndReason};
use stk_schema::{Os, limits};
use windows_sys::Win32::Foundation::{CloseHandle, GetLastError, HANDLE, WAIT_OBJECT_0};
use windows_sys::Win32::System::Threading::{
    CREATE_WAITABLE_TIMER_HIGH_RESOLUTION, CreateEventW, CreateThread, CreateWaitableTimerExW,
    GetCurrentProcessId, GetCurrentThread, INFINITE, SetEvent, SetThreadPriority, SetWaitableTimer, Sleep,
    THREAD_PRIORITY_BELOW_NORMAL, THREAD_PRIORITY_HIGHEST, THREAD_PRIORITY_LOWEST,
    THREAD_PRIORITY_TIME_CRITICAL, TIMER_ALL_ACCESS, WaitForMultipleObjects, WaitForSingleObject,
};

use super::api::{self, Api, ticks, utc};
use super::census::{Census, CensusPace, RuntimesLink, Settings};
use super::context::{self, Context};
use super::dotnet::{Runtimes, Shared, Speaker};
use super::dynamic::CodeRecorder;
use super::output::{OutputFile, TablesFolder};
use super::state::{MAILBOX, SIGNALS, STATUS, reset_signals};
use super::suspend::{Rescue, Watch};
use super::target::{OwnProcess, Sampled};
use super::trigger::Triggers;
use super::walk::{self, SystemUnwinder};
use super::{heap, hints, host, panic, text};
use crate::record::dynamic::{self, CodeFunctions};
use crate::record::journal::{self, Journal};
use crate::record::queue::Queue;
use crate::record::sampler::{Accepted, Sampler, Triggered, Wiring};
use crate::record::shared::{Counters, Lane};
use crate::record::writer::{WriteError, Writer};

/// Buffers of the sampler: one being filled, the others on their way.
const SAMPLER_BUFFERS: usize = 4;
/// Buffers of the tables thread.
const CENSUS_BUFFERS: usize = 4;
/// Buffers of the thread that looks up dynamic code.
const CODE_BUFFERS: usize = 2;
/// Buffers of the runtimes thread.
const RUNTIMES_BUFFERS: usize = 2;
/// Most threads whose coming and going can wait for the sampler.
const COMMANDS: usize = 4096;
/// Largest stack of a triggered sample.
const TRIGGERED_BYTES: usize = 1 << 20;
/// Stack sizes of the recorder's threads: reserved, committed as used.
const THREAD_STACK: usize = 512 << 10;

/// A thread may be suspended for this long.
const SUSPENDED_MS: u64 = 100;
/// The system's own unwinder may walk a suspended thread for this long.
const WALKED_MS: u64 = 50;
/// A sampler that does not go on for this long after its thread was resumed is stuck.
const STUCK_MS: u64 = 2_000;
/// Milliseconds between the watchdog's looks.
const WATCH_MS: u32 = 20;
/// The same where walks are checked.
const WATCH_WALKS_MS: u32 = 5;
/// Milliseconds between the writer's looks at its queues.
const WRITE_MS: u32 = 10;
/// Milliseconds between the tables thread's rounds when nothing calls it.
const CENSUS_MS: u32 = 20;
/// Milliseconds between looks at what dynamic code was seen, when nothing calls.
const CODE_MS: u32 = 50;
/// Milliseconds that its lookup may still take after the sampler has ended: a runtime may hold it up for ever.
const CODE_PATIENCE_MS: u64 = 1_000;
/// Milliseconds that reading the tables may still take after the end was asked for ...
const TABLES_MS: u64 = 8_000;
/// ... and that the writer waits for the other threads.
const PATIENCE_MS: u64 = 10_000;
/// Milliseconds that a start waits for the threads of the recording before to leave.
const LEAVE_MS: u32 = 10_000;
/// How often a one-shot recording tries a thread that could not be sampled.
const ONCE_TRIES: u32 = 50;

/// A state that several threads may want: whoever enters alone touches it.
pub struct Exclusive<T> {
    busy: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `enter` lets one thread at a time touch the value.
unsafe impl<T: Send> Sync for Exclusive<T> {}

impl<T> Exclusive<T> {
    pub fn new(value: T) -> Exclusive<T> {
        Exclusive { busy: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Runs `work` on the value, unless another thread is at it: never waits.
    pub fn enter<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: `busy` was false and is true until the end of `work`.
        let result = work(unsafe { &mut *self.value.get() });
        self.busy.store(false, Ordering::Release);
        Some(result)
    }

    /// As [`Exclusive::enter`], also while another thread is inside.
    ///
    /// # Safety
    /// That thread must be gone for good, from a point at which the value was whole.
    unsafe fn enter_for_the_dead<R>(&self, work: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: by the caller's promise nobody else touches the value any more.
        work(unsafe { &mut *self.value.get() })
    }
}

/// One recording.
struct Session {
    api: &'static Api,
    counters: Arc<Counters>,
    sampler_lane: Arc<Lane>,
    census_lane: Arc<Lane>,
    code_lane: Arc<Lane>,
    runtimes_lane: Arc<Lane>,
    dotnet: Arc<Shared>,
    dynamic_code: Arc<dynamic::Shared>,
    triggers: Triggers,
    sampler: Exclusive<Sampler<OwnProcess>>,
    census: Exclusive<Census>,
    code: Exclusive<CodeRecorder>,
    runtimes: Exclusive<Runtimes>,
    writer: Exclusive<Option<Writer<OutputFile>>>,
    /// A buffer that nobody else uses, for the END block.
    last_block: Exclusive<Box<BlockBuffer>>,
    ticks_per_ms: u64,
    started: u64,
    period: u64,
    delay_ms: u32,
    duration_ms: u32,
    once: bool,
    check_walks: bool,
    test_panic: bool,
    ended_event: HANDLE,
    sampler_done: AtomicBool,
    census_done: AtomicBool,
    code_done: AtomicBool,
    runtimes_done: AtomicBool,
    bytes_since_state: AtomicU64,
}

// SAFETY: what is not Sync by itself are handles, which are numbers.
unsafe impl Sync for Session {}
// SAFETY: as above.
unsafe impl Send for Session {}

/// The recording that is under way; owned by the `Arc`s of its threads and kept here as a plain pointer that is
/// cleared before the last of them goes.
static CURRENT: AtomicPtr<Session> = AtomicPtr::new(null_mut());
/// Whether a recording is being started, is under way, or has threads left.
static OCCUPIED: AtomicBool = AtomicBool::new(false);
/// Threads of `stk_capture` that look at `CURRENT` now.
static VISITORS: AtomicUsize = AtomicUsize::new(0);
/// Threads of the recording that still run.
static RUNNING: AtomicU32 = AtomicU32::new(0);
/// Whether the writer has ended the trace (or given up).
static FINISHED: AtomicBool = AtomicBool::new(true);
/// Ids of the recorder's threads; 0 = none.
static OWN_THREADS: [AtomicU32; 6] = [const { AtomicU32::new(0) }; 6];
/// Events, made once per process: wake the sampler, the census, the code thread, the writer, the runtimes thread; the recording has finished
/// (manual reset).
static WAKE_SAMPLER: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static WAKE_CENSUS: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static WAKE_CODE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static WAKE_WRITER: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static WAKE_RUNTIMES: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static ENDED: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Starts a recording as `config` says; see `stk_schema::control`.
pub fn start(config: &mut AgentConfig, own_module: HANDLE) -> StartResult {
    config.system_error = 0;
    config.status_address = (&raw const STATUS) as u64;
    let output = OutputFile(config.output as usize as HANDLE);
    let ended_event = config.ended_event as usize as HANDLE;
    let result = try_start(config, output, ended_event, own_module);
    if let Err((result, system_error)) = result {
        config.system_error = system_error;
        close(ended_event);
        return result;
    }
    StartResult::Ok
}

/// Stops the recording and waits until the trace is finalised; false if nothing was recording.
pub fn stop() -> bool {
    if FINISHED.load(Ordering::Acquire) {
        return false;
    }
    SIGNALS.request_stop(EndReason::Stopped);
    wake_all();
    // SAFETY: the event lives as long as the process.
    unsafe { WaitForSingleObject(ENDED.load(Ordering::Acquire), (TABLES_MS + PATIENCE_MS) as u32) };
    true
}

/// DLL_THREAD_ATTACH: has the tables thread look for the new thread. Does nothing that can wait.
pub fn thread_started() {
    if !FINISHED.load(Ordering::Relaxed) && hints::thread_started() {
        signal(&WAKE_CENSUS);
    }
}

/// Where `stk_capture` arrives with its caller's context. 0 = recorded, 1 = nothing is recording, 2 = dropped.
pub extern "system" fn captured(context: *const Context, return_at: usize, tag: u64) -> u32 {
    VISITORS.fetch_add(1, Ordering::AcqRel);
    // SAFETY: while a visitor is counted, the session behind a non-null pointer is not freed.
    let result = match unsafe { CURRENT.load(Ordering::Acquire).as_ref() } {
        Some(session) if !SIGNALS.stopping() => {
            // SAFETY: `stk_capture` hands over the calling thread's context and the place of its return address.
            if unsafe { session.triggers.capture(&*context, return_at, tag) } {
                signal(&WAKE_SAMPLER);
                0
            } else {
                session.counters.lose(DropReason::BuffersFull, 1);
                2
            }
        }
        _ => 1,
    };
    VISITORS.fetch_sub(1, Ordering::AcqRel);
    result
}

/// DLL_PROCESS_DETACH at process exit: the other threads are gone. Writes what is whole, without waiting, locks or the heap.
pub fn process_exit() {
    // SAFETY: the session's threads hold it and are gone without letting it go.
    let Some(session) = (unsafe { CURRENT.load(Ordering::Acquire).as_ref() }) else { return };
    if FINISHED.load(Ordering::Acquire) {
        return;
    }
    heap::leave_heap();
    SIGNALS.request_stop(EndReason::ProcessExit);
    // Who was terminated in the middle of its work stays "busy" for ever, and what it was at is lost.
    session.writer.enter(|writer| {
        let Some(writer) = writer else { return };
        session.write_waiting(writer);
        session.census.enter(Census::flush);
        session.code.enter(CodeRecorder::flush);
        session.runtimes.enter(Runtimes::flush);
        if session.sampler.enter(Sampler::finish).is_none() && SIGNALS.sampler_whole.load(Ordering::Acquire) {
            // SAFETY: the sampler was terminated, as all threads but this, where its state was whole by its own word.
            unsafe { session.sampler.enter_for_the_dead(Sampler::finish) };
        }
        session.write_waiting(writer);
        session.end(writer, EndReason::ProcessExit, "");
    });
    session.report_end(EndReason::ProcessExit);
}

fn try_start(
    config: &AgentConfig,
    output: OutputFile,
    ended_event: HANDLE,
    own_module: HANDLE,
) -> Result<(), (StartResult, u32)> {
    let fail = |result| (result, 0);
    check(config).map_err(fail)?;
    if panic::happened() {
        return Err(fail(StartResult::Disabled));
    }
    let api = api::api().ok_or(fail(StartResult::WrongArchitecture))?;
    if is_emulated(api) {
        return Err(fail(StartResult::WrongArchitecture));
    }
    occupy().map_err(fail)?;
    let result = prepare(config, output, ended_event, own_module, api);
    if result.is_err() {
        OCCUPIED.store(false, Ordering::Release);
    }
    result
}

/// Takes the one place for a recording. Threads of one that has ended may still be on their way out: waits for them.
fn occupy() -> Result<(), StartResult> {
    for _ in 0..LEAVE_MS {
        if !OCCUPIED.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if !FINISHED.load(Ordering::Acquire) {
            return Err(StartResult::AlreadyRecording);
        }
        // SAFETY: no preconditions.
        unsafe { Sleep(1) };
    }
    STATUS.set_message("a thread of the last recording is stuck");
    Err(StartResult::Disabled)
}

fn check(config: &AgentConfig) -> Result<(), StartResult> {
    if config.flags & FLAG_CHECK_WALKS != 0 && !walk::SUPPORTED {
        STATUS.set_message("walks are checked by the x64 agent only");
        return Err(StartResult::BadConfig);
    }
    let good = config.version == CONTROL_VERSION
        && config.size as usize >= size_of::<AgentConfig>()
        && (1..=20_000_000).contains(&config.rate_mhz)
        && config.embed <= EMBED_FULL
        && config.flags & !(FLAG_ONCE | FLAG_CHECK_WALKS | FLAG_TEST_PANIC) == 0
        && config.metadata_len as usize <= 1 << 20
        && config.output != 0
        && config.reserved == 0
        && config.reserved2 == 0;
    if good { Ok(()) } else { Err(StartResult::BadConfig) }
}

/// Whether this process is emulated on a processor of another kind: contexts would be the emulator's.
fn is_emulated(api: &Api) -> bool {
    const ARM64: u16 = stk_schema::windows::MACHINE_ARM64;
    let (mut process, mut native) = (0, 0);
    let Some(query) = api.is_wow64 else { return false };
    // SAFETY: two results of 16 bits each.
    let known = unsafe {
        query(windows_sys::Win32::System::Threading::GetCurrentProcess(), &mut process, &mut native) != 0
    };
    known && native == ARM64 && context::ARCH != stk_schema::Arch::Arm64
}

/// Makes everything that the recording needs, then its threads.
fn prepare(
    config: &AgentConfig,
    output: OutputFile,
    ended_event: HANDLE,
    own_module: HANDLE,
    api: &'static Api,
) -> Result<(), (StartResult, u32)> {
    let word = size_of::<usize>();
    let max_stack = match config.max_stack_bytes as usize {
        0 => limits::MAX_SAMPLE_WORDS * word,
        bytes => bytes.clamp(1024, limits::MAX_SAMPLE_WORDS * word) & !(word - 1),
    };
    // The largest sample that is not to be dropped: all of its words changed, its runs and registers.
    let capacity = (limits::CUT_RAW + max_stack + max_stack / 16 + (64 << 10)).min(limits::MAX_BLOCK_RAW);
    let journals = (CENSUS_BUFFERS + CODE_BUFFERS + RUNTIMES_BUFFERS) * journal::CAPACITY;
    let needed = SAMPLER_BUFFERS * capacity + journals + 2 * capacity + (24 << 20);
    if !heap::can_allocate(needed) {
        return Err((StartResult::NoMemory, 0));
    }
    make_events()?;
    pin(own_module);
    hints::prepare();
    reset_signals();

    let has_cycles = counts_cycles(api);
    let mut header = FileHeader::new(context::ARCH, Os::Windows, config.uuid, api.frequency);
    header.clock_start = ticks();
    header.utc_start = utc(api);
    header.process_created = host::process_created();
    // SAFETY: no preconditions.
    header.pid = unsafe { GetCurrentProcessId() };
    header.rate_mhz = config.rate_mhz;
    header.boot_id = host::boot_id(api);
    header.cpu_unit = if has_cycles { CpuUnit::Cycles } else { CpuUnit::Time100ns };

    let no_memory = (StartResult::NoMemory, 0);
    let counters = Arc::new(Counters::default());
    let sampler_lane = Arc::new(Lane::new(SAMPLER_BUFFERS, capacity, &header).ok_or(no_memory)?);
    let census_lane = Arc::new(Lane::new(CENSUS_BUFFERS, journal::CAPACITY, &header).ok_or(no_memory)?);
    let code_lane = Arc::new(Lane::new(CODE_BUFFERS, journal::CAPACITY, &header).ok_or(no_memory)?);
    let runtimes_lane = Arc::new(Lane::new(RUNTIMES_BUFFERS, journal::CAPACITY, &header).ok_or(no_memory)?);
    let last_block = Box::new(BlockBuffer::new(64 << 10, &header).map_err(|_| no_memory)?);
    let commands = Arc::new(Queue::new(COMMANDS));
    let ticks_per_ms = (api.frequency / 1000).max(1);

    let writer =
        Writer::new(&header, capacity.max(journal::CAPACITY), output).map_err(|error| match error {
            WriteError::System(code) => (StartResult::BadOutput, code),
            WriteError::Seal(_) => no_memory,
        })?;
    let settings = Settings {
        embed: config.embed,
        // SAFETY: the host promises that many readable bytes at that address for the length of the start.
        metadata: unsafe { bytes_at(config.metadata, config.metadata_len as usize) },
        folder: (config.tables_dir != 0).then(|| {
            // SAFETY: the host promises a zero-terminated text.
            TablesFolder::new(unsafe { text::units(config.tables_dir as usize as *const u16, 32_768) })
        }),
        own_base: own_module as u64,
        check_walks: config.flags & FLAG_CHECK_WALKS != 0,
        ticks_per_ms,
    };
    let journal = |lane: &Arc<Lane>| {
        let pace = CensusPace { writer_alive: || !FINISHED.load(Ordering::Acquire) };
        Journal::new(lane.clone(), counters.clone(), pace)
    };
    let dotnet = Arc::new(Shared::new());
    let runtimes = RuntimesLink { shared: dotnet.clone(), wake: || signal(&WAKE_RUNTIMES) };
    let (counted, own) = (counters.clone(), own_threads);
    let census = Census::new(api, settings, journal(&census_lane), counted, commands.clone(), own, runtimes);
    let seen = dynamic::Shared::new();
    let functions = CodeFunctions::new(context::ARCH, census.ids(), seen.clone(), ticks_per_ms);
    let code = CodeRecorder::new(api, functions, journal(&code_lane), seen.clone(), ticks_per_ms);
    let runtimes = Runtimes::new(journal(&runtimes_lane));
    let wiring: Wiring<Sampled> =
        Wiring { lane: sampler_lane.clone(), counters: counters.clone(), signals: &SIGNALS, commands };
    let check_walks = config.flags & FLAG_CHECK_WALKS != 0;
    let unwinder = check_walks.then(|| SystemUnwinder::new(api).ok_or(no_memory)).transpose()?;
    let target = OwnProcess::new(api, counters.clone(), has_cycles, unwinder, dotnet.clone());
    let mut sampler = Sampler::new(target, wiring, context::SET, word, api.frequency, max_stack);
    if check_walks {
        sampler.check_walks(walk::MAX_FRAMES);
    }
    sampler.search_code(seen.clone());
    let period = u128::from(api.frequency) * 1000 / u128::from(config.rate_mhz);

    STATUS.samples.store(0, Ordering::Relaxed);
    STATUS.dropped.store(0, Ordering::Relaxed);
    STATUS.passes.store(0, Ordering::Relaxed);
    STATUS.bytes.store(writer.bytes(), Ordering::Relaxed);
    STATUS.elapsed_ms.store(0, Ordering::Relaxed);
    STATUS.system_error.store(0, Ordering::Relaxed);
    STATUS.set_message("");
    MAILBOX.open();
    STATUS.names.store((&raw const MAILBOX) as u64, Ordering::Release);
    let session = Arc::new(Session {
        api,
        counters,
        sampler_lane,
        census_lane,
        code_lane,
        runtimes_lane,
        dotnet,
        dynamic_code: seen,
        triggers: Triggers::new(max_stack.min(TRIGGERED_BYTES)),
        sampler: Exclusive::new(sampler),
        census: Exclusive::new(census),
        code: Exclusive::new(code),
        runtimes: Exclusive::new(runtimes),
        writer: Exclusive::new(Some(writer)),
        last_block: Exclusive::new(last_block),
        ticks_per_ms,
        started: header.clock_start,
        period: (period as u64).max(1),
        delay_ms: config.delay_ms,
        duration_ms: config.duration_ms,
        once: config.flags & FLAG_ONCE != 0,
        check_walks,
        test_panic: config.flags & FLAG_TEST_PANIC != 0,
        ended_event,
        sampler_done: AtomicBool::new(false),
        census_done: AtomicBool::new(false),
        code_done: AtomicBool::new(false),
        runtimes_done: AtomicBool::new(false),
        bytes_since_state: AtomicU64::new(0),
    });
    launch(session)
}

/// Starts the threads; all or none of them.
fn launch(session: Arc<Session>) -> Result<(), (StartResult, u32)> {
    // SAFETY: the event lives as long as the process.
    unsafe { windows_sys::Win32::System::Threading::ResetEvent(ENDED.load(Ordering::Acquire)) };
    let mut threads = Vec::new();
    let roles = [Role::Writer, Role::Watchdog, Role::Census, Role::Code, Role::Runtimes, Role::Sampler];
    for (index, role) in roles.into_iter().enumerate() {
        let seat = Box::into_raw(Box::new(Seat { role, session: session.clone() }));
        let mut tid = 0;
        // SAFETY: `entry` takes the seat; the thread is made suspended, so that none runs before all exist.
        let handle = unsafe {
            CreateThread(
                null(),
                THREAD_STACK,
                Some(entry),
                seat.cast(),
                CREATE_SUSPENDED | STACK_IS_RESERVE,
                &mut tid,
            )
        };
        if handle.is_null() {
            // SAFETY: no thread took the seat.
            drop(unsafe { Box::from_raw(seat) });
            // SAFETY: no preconditions.
            let error = unsafe { GetLastError() };
            // Those that exist find that the session is over before it began.
            session.sampler_done.store(true, Ordering::Release);
            ABANDONED.store(true, Ordering::Release);
            resume(threads);
            forget_own_threads();
            return Err((StartResult::NoThread, error));
        }
        if let Some(own) = OWN_THREADS.get(index) {
            own.store(tid, Ordering::Release);
        }
        threads.push(handle);
    }
    ABANDONED.store(false, Ordering::Release);
    STATUS.state.store(STATE_RECORDING, Ordering::Release);
    FINISHED.store(false, Ordering::Release);
    RUNNING.store(threads.len() as u32, Ordering::Release);
    CURRENT.store(Arc::as_ptr(&session).cast_mut(), Ordering::Release);
    resume(threads);
    Ok(())
}

/// CREATE_SUSPENDED.
const CREATE_SUSPENDED: u32 = 4;
/// STACK_SIZE_PARAM_IS_A_RESERVATION.
const STACK_IS_RESERVE: u32 = 0x0001_0000;
/// Tells threads that were made for a session that did not start to leave.
static ABANDONED: AtomicBool = AtomicBool::new(false);

fn resume(threads: Vec<HANDLE>) {
    for thread in threads {
        // SAFETY: handles from CreateThread, owned here.
        unsafe {
            windows_sys::Win32::System::Threading::ResumeThread(thread);
            CloseHandle(thread);
        }
    }
}

#[derive(Clone, Copy)]
enum Role {
    Writer,
    Watchdog,
    Census,
    Code,
    Runtimes,
    Sampler,
}

struct Seat {
    role: Role,
    session: Arc<Session>,
}

unsafe extern "system" fn entry(seat: *mut c_void) -> u32 {
    // SAFETY: `launch` made the box and gave it to this thread alone.
    let seat = unsafe { Box::from_raw(seat.cast::<Seat>()) };
    if ABANDONED.load(Ordering::Acquire) {
        return 0;
    }
    let session = &seat.session;
    match seat.role {
        Role::Writer => session.run_writer(),
        Role::Watchdog => session.run_watchdog(),
        Role::Census => session.run_census(),
        Role::Code => session.run_code(),
        Role::Runtimes => session.run_runtimes(),
        Role::Sampler => session.run_sampler(),
    }
    if RUNNING.fetch_sub(1, Ordering::AcqRel) == 1 {
        // The last one out: nobody may find the session any more, and those who did must have left.
        CURRENT.store(null_mut(), Ordering::Release);
        while VISITORS.load(Ordering::Acquire) != 0 {
            // SAFETY: no preconditions.
            unsafe { Sleep(1) };
        }
        forget_own_threads();
        drop(seat);
        OCCUPIED.store(false, Ordering::Release);
    }
    0
}

impl Session {
    // ---- sampler ----

    fn run_sampler(&self) {
        set_priority(THREAD_PRIORITY_TIME_CRITICAL);
        let timer = Timer::new(self.api);
        if self.delay_ms != 0 {
            self.wait_until(self.started + u64::from(self.delay_ms) * self.ticks_per_ms);
        }
        while !SIGNALS.threads_known.load(Ordering::Acquire) && !SIGNALS.stopping() {
            // SAFETY: no preconditions.
            unsafe { Sleep(1) };
        }
        let begun = ticks();
        let end = match self.duration_ms {
            0 => u64::MAX,
            ms => begun + u64::from(ms) * self.ticks_per_ms,
        };
        let mut due = begun;
        while !SIGNALS.stopping() {
            self.sampler.enter(|sampler| {
                self.take_triggered(sampler);
                sampler.pass();
                if sampler.take_code_found() {
                    signal(&WAKE_CODE);
                }
            });
            self.publish();
            if self.once {
                self.complete_once();
                SIGNALS.request_stop(EndReason::Stopped);
                break;
            }
            let now = ticks();
            if now >= end {
                SIGNALS.request_stop(EndReason::Duration);
                break;
            }
            assert!(
                !(self.test_panic && now >= self.started + 1000 * self.ticks_per_ms),
                "asked for by the test flag"
            );
            due += self.period;
            if now > due {
                let late = (now - due) / self.period + 1;
                due += late * self.period;
                self.counters.lose(DropReason::Late, late);
            }
            while timer.wait_until(due, self.api) == Woken::Early && !SIGNALS.stopping() {
                self.sampler.enter(|sampler| self.take_triggered(sampler));
            }
        }
        self.sampler.enter(|sampler| {
            self.take_triggered(sampler);
            sampler.finish();
        });
        self.sampler_done.store(true, Ordering::Release);
        wake_all();
    }

    /// One sample of every thread: tries those again that could not be sampled, on a loaded machine for instance.
    fn complete_once(&self) {
        for _ in 0..ONCE_TRIES {
            if SIGNALS.stopping() || self.sampler.enter(Sampler::pass_missing) == Some(0) {
                return;
            }
            // SAFETY: no preconditions.
            unsafe { Sleep(5) };
        }
    }

    /// Waits for the first sample's time, in steps, so that a stop is noticed.
    fn wait_until(&self, due: u64) {
        while ticks() < due && !SIGNALS.stopping() {
            // SAFETY: the event lives as long as the process.
            unsafe { WaitForSingleObject(WAKE_SAMPLER.load(Ordering::Acquire), 10) };
            self.sampler.enter(|sampler| self.take_triggered(sampler));
            self.publish();
        }
    }

    fn take_triggered(&self, sampler: &mut Sampler<OwnProcess>) {
        self.triggers.offer(|content| {
            let triggered = Triggered { tid: content.tid, tag: content.tag, capture: &content.capture };
            sampler.triggered(&triggered) == Accepted::Done
        });
    }

    fn publish(&self) {
        let counters = &self.counters;
        STATUS.samples.store(counters.samples.load(Ordering::Relaxed), Ordering::Relaxed);
        STATUS.dropped.store(counters.dropped.load(Ordering::Relaxed), Ordering::Relaxed);
        STATUS.passes.store(counters.passes.load(Ordering::Relaxed), Ordering::Relaxed);
        STATUS.elapsed_ms.store((ticks() - self.started) / self.ticks_per_ms, Ordering::Relaxed);
    }

    // ---- tables thread ----

    fn run_census(&self) {
        set_priority(THREAD_PRIORITY_BELOW_NORMAL);
        self.census.enter(Census::begin);
        while !SIGNALS.stopping() {
            let since_state = self.bytes_since_state.load(Ordering::Relaxed);
            let more = self.census.enter(|census| census.step(since_state)).unwrap_or(false);
            if !more {
                // SAFETY: the event lives as long as the process.
                unsafe { WaitForSingleObject(WAKE_CENSUS.load(Ordering::Acquire), CENSUS_MS) };
            }
        }
        let deadline = ticks() + TABLES_MS * self.ticks_per_ms;
        self.census.enter(|census| census.finish(deadline));
        self.census_done.store(true, Ordering::Release);
        wake_all();
    }

    // ---- dynamic code ----

    fn run_code(&self) {
        set_priority(THREAD_PRIORITY_BELOW_NORMAL);
        while !SIGNALS.stopping() {
            if !self.code.enter(CodeRecorder::step).unwrap_or(false) {
                // SAFETY: the event lives as long as the process.
                unsafe { WaitForSingleObject(WAKE_CODE.load(Ordering::Acquire), CODE_MS) };
            }
        }
        let deadline = ticks() + CODE_PATIENCE_MS * self.ticks_per_ms;
        // The last pass may have shown code that was never seen before.
        while !self.sampler_done.load(Ordering::Acquire) && ticks() < deadline {
            // SAFETY: no preconditions.
            unsafe { Sleep(1) };
        }
        self.code.enter(|code| code.finish(deadline));
        self.code_done.store(true, Ordering::Release);
        wake_all();
    }

    // ---- runtimes thread ----

    fn run_runtimes(&self) {
        set_priority(THREAD_PRIORITY_BELOW_NORMAL);
        let wake = WAKE_RUNTIMES.load(Ordering::Acquire);
        let (dotnet, state, code) = (&*self.dotnet, &self.runtimes, &*self.dynamic_code);
        Speaker::new(self.api, dotnet, state, code, wake, self.ticks_per_ms)
            .run(&self.census_done, &self.code_done);
        self.runtimes_done.store(true, Ordering::Release);
        wake_all();
    }

    // ---- watchdog ----

    fn run_watchdog(&self) {
        set_priority(THREAD_PRIORITY_HIGHEST);
        let mut watch = Watch::default();
        let mut rescued = 0;
        while !FINISHED.load(Ordering::Acquire) {
            let passes = self.counters.passes.load(Ordering::Relaxed);
            match watch.look(SUSPENDED_MS * self.ticks_per_ms, WALKED_MS * self.ticks_per_ms) {
                Rescue::None => {}
                Rescue::WhileAsked | Rescue::WhileWalking => rescued = passes + 1,
                Rescue::WhileStopped => SIGNALS.request_stop(EndReason::Watchdog),
            }
            // The pass in which a thread was resumed has not come to its end since: the sampler hangs.
            if rescued == passes + 1 && watch.idle_for(STUCK_MS * self.ticks_per_ms) {
                SIGNALS.request_stop(EndReason::Watchdog);
            }
            if panic::happened() {
                SIGNALS.request_stop(EndReason::Panic);
                self.finish_for_panicked_writer();
            }
            if SIGNALS.stopping() {
                wake_all();
            }
            let pause = if self.check_walks { WATCH_WALKS_MS } else { WATCH_MS };
            // SAFETY: the event lives as long as the process.
            unsafe { WaitForSingleObject(ENDED.load(Ordering::Acquire), pause) };
        }
    }

    /// Where the writer itself panicked nobody else will tell of it: the trace stays truncated, the status says why.
    fn finish_for_panicked_writer(&self) {
        // SAFETY: no preconditions; time for a writer that is well to do it itself.
        unsafe { Sleep(PATIENCE_MS as u32 / 4) };
        if !FINISHED.load(Ordering::Acquire) && self.writer.busy.load(Ordering::Acquire) {
            self.report_end(EndReason::Panic);
        }
    }

    // ---- writer ----

    fn run_writer(&self) {
        set_priority(THREAD_PRIORITY_LOWEST);
        let mut stop_seen = None;
        loop {
            let failed = self.writer.enter(|writer| {
                let Some(writer) = writer else { return false };
                self.write_waiting(writer);
                writer.failure().is_some()
            });
            if failed.unwrap_or(false) {
                SIGNALS.request_stop(EndReason::WriteError);
            }
            if panic::happened() {
                SIGNALS.request_stop(EndReason::Panic);
            }
            if SIGNALS.stopping() {
                STATUS.state.store(STATE_STOPPING, Ordering::Release);
                let since = *stop_seen.get_or_insert_with(ticks);
                let others_done = [&self.sampler_done, &self.census_done, &self.runtimes_done]
                    .iter()
                    .all(|done| done.load(Ordering::Acquire));
                let waited = ticks().saturating_sub(since) / self.ticks_per_ms;
                // A parked thread never comes back; the other ones get the time to hand over what they have.
                let patience = if panic::happened() { 500 } else { TABLES_MS + PATIENCE_MS / 2 };
                let code_done = self.code_done.load(Ordering::Acquire) || waited >= 2 * CODE_PATIENCE_MS;
                if others_done && code_done || waited >= patience {
                    break;
                }
            }
            // SAFETY: the event lives as long as the process.
            unsafe { WaitForSingleObject(WAKE_WRITER.load(Ordering::Acquire), WRITE_MS) };
        }
        let reason = end_reason();
        self.writer.enter(|writer| {
            let Some(mut writer) = writer.take() else { return };
            // What a thread that parked or hangs has not handed over, unless it stopped in the middle of it.
            self.census.enter(Census::flush);
            self.code.enter(CodeRecorder::flush);
            self.runtimes.enter(Runtimes::flush);
            self.sampler.enter(Sampler::finish);
            self.write_waiting(&mut writer);
            let detail = match reason {
                EndReason::Panic => panic::message().unwrap_or("the recorder panicked"),
                EndReason::Watchdog => "a thread stayed suspended too long and was resumed",
                _ => "",
            };
            self.end(&mut writer, reason, detail);
            // Here the output is closed, before anybody hears of the end.
            drop(writer);
        });
        self.report_end(reason);
    }

    /// Appends the blocks that wait: module and thread events first, as samples refer to them.
    fn write_waiting(&self, writer: &mut Writer<OutputFile>) {
        loop {
            let lanes = [&self.census_lane, &self.code_lane, &self.runtimes_lane, &self.sampler_lane];
            let Some((lane, block)) = lanes.into_iter().find_map(|lane| Some((lane, lane.take_full()?)))
            else {
                break;
            };
            let result = writer.block(&block);
            lane.put_back(block);
            if let Err(error) = result {
                self.note_write_error(error);
            }
        }
        STATUS.bytes.store(writer.bytes(), Ordering::Relaxed);
        self.bytes_since_state.store(writer.since_state(), Ordering::Relaxed);
    }

    fn end(&self, writer: &mut Writer<OutputFile>, reason: EndReason, detail: &str) {
        let end = End {
            time: ticks(),
            reason: reason as u64,
            samples: self.counters.samples.load(Ordering::Relaxed),
            dropped: self.counters.dropped.load(Ordering::Relaxed),
            detail: detail.as_bytes(),
        };
        let result = self.last_block.enter(|block| writer.end(block, end));
        if let Some(Err(error)) = result {
            self.note_write_error(error);
        }
        STATUS.bytes.store(writer.bytes(), Ordering::Relaxed);
    }

    fn note_write_error(&self, error: WriteError) {
        match error {
            WriteError::System(code) => {
                STATUS.system_error.store(code, Ordering::Relaxed);
                STATUS.set_message("the trace could not be written to");
            }
            WriteError::Seal(_) => STATUS.set_message("a block of the trace could not be compressed"),
        }
    }

    /// Publishes that the recording is over, last of all.
    fn report_end(&self, reason: EndReason) {
        self.publish();
        if let Some(message) = panic::message() {
            STATUS.set_message(message);
        }
        STATUS.end_reason.store(reason as u32, Ordering::Release);
        let failed = matches!(reason, EndReason::Panic);
        STATUS.state.store(if failed { STATE_FAILED } else { STATE_STOPPED }, Ordering::Release);
        if FINISHED.swap(true, Ordering::AcqRel) {
            return;
        }
        signal(&ENDED);
        if !self.ended_event.is_null() {
            // SAFETY: the host's event, which the agent owns since the start and closes here.
            unsafe {
                SetEvent(self.ended_event);
            }
            close(self.ended_event);
        }
    }
}

/// The timer of the sampler.
struct Timer {
    handle: HANDLE,
}

#[derive(PartialEq, Eq)]
enum Woken {
    /// The time has come.
    Due,
    /// Somebody else woke the sampler.
    Early,
}

impl Timer {
    fn new(api: &Api) -> Timer {
        // SAFETY: plain calls; the handle is owned by the result.
        unsafe {
            let mut handle = CreateWaitableTimerExW(
                null(),
                null(),
                CREATE_WAITABLE_TIMER_HIGH_RESOLUTION,
                TIMER_ALL_ACCESS,
            );
            if handle.is_null() {
                // Before Windows 10 1803: an ordinary timer, as fine as the system's clock interrupt can be made.
                if let Some(set_resolution) = api.set_timer_resolution {
                    let mut actual = 0;
                    set_resolution(10_000, 1, &mut actual);
                }
                handle = CreateWaitableTimerExW(null(), null(), 0, TIMER_ALL_ACCESS);
            }
            Timer { handle }
        }
    }

    /// Waits until `due` (ticks), or until the sampler is woken.
    fn wait_until(&self, due: u64, api: &Api) -> Woken {
        let now = ticks();
        if now >= due {
            return Woken::Due;
        }
        let units = ((due - now) as u128 * 10_000_000 / u128::from(api.frequency)) as i64;
        let wake = WAKE_SAMPLER.load(Ordering::Acquire);
        // SAFETY: both handles are open for the length of the call; the due time is relative, hence negative.
        let result = unsafe {
            if self.handle.is_null()
                || SetWaitableTimer(self.handle, &(-units.max(1)), 0, None, null(), 0) == 0
            {
                WaitForSingleObject(wake, (units / 10_000).max(1) as u32)
            } else {
                match WaitForMultipleObjects(2, [wake, self.handle].as_ptr(), 0, INFINITE) {
                    WAIT_OBJECT_0 => WAIT_OBJECT_0,
                    _ => u32::MAX,
                }
            }
        };
        if result == WAIT_OBJECT_0 { Woken::Early } else { Woken::Due }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        close(self.handle);
    }
}

fn end_reason() -> EndReason {
    match SIGNALS.stop.load(Ordering::Acquire) {
        2 => EndReason::ProcessExit,
        3 => EndReason::Duration,
        4 => EndReason::Watchdog,
        5 => EndReason::Panic,
        6 => EndReason::WriteError,
        7 => EndReason::SizeLimit,
        _ => EndReason::Stopped,
    }
}

/// Whether the system counts threads' cycles (Wine 8 does not).
fn counts_cycles(api: &Api) -> bool {
    let mut cycles = 0;
    // SAFETY: the calling thread's pseudo handle; the result is one u64.
    api.thread_cycles
        .is_some_and(|query| unsafe { query(GetCurrentThread(), &mut cycles) } != 0 && cycles != 0)
}

fn forget_own_threads() {
    for own in &OWN_THREADS {
        own.store(0, Ordering::Release);
    }
}

/// Ids of the recorder's threads.
fn own_threads() -> Vec<u32> {
    OWN_THREADS.iter().map(|tid| tid.load(Ordering::Acquire)).filter(|&tid| tid != 0).collect()
}

/// Makes the events that last as long as the process.
fn make_events() -> Result<(), (StartResult, u32)> {
    let wakes = [&WAKE_SAMPLER, &WAKE_CENSUS, &WAKE_CODE, &WAKE_WRITER, &WAKE_RUNTIMES];
    for (event, manual) in wakes.into_iter().map(|event| (event, 0)).chain([(&ENDED, 1)]) {
        if event.load(Ordering::Acquire).is_null() {
            // SAFETY: an unnamed event without special security.
            let made = unsafe { CreateEventW(null(), manual, 0, null()) };
            if made.is_null() {
                // SAFETY: no preconditions.
                return Err((StartResult::NoThread, unsafe { GetLastError() }));
            }
            event.store(made, Ordering::Release);
        }
    }
    Ok(())
}

/// Keeps the agent mapped for good: the loader calls it, and its threads run in it.
fn pin(own_module: HANDLE) {
    use windows_sys::Win32::System::LibraryLoader::{
        GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GET_MODULE_HANDLE_EX_FLAG_PIN, GetModuleHandleExW,
    };
    let mut module = null_mut();
    // SAFETY: an address inside the agent stands for its name.
    unsafe {
        GetModuleHandleExW(
            GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN,
            own_module.cast(),
            &mut module,
        );
    }
}

/// Copies `len` bytes at `address`.
///
/// # Safety
/// They must be readable.
unsafe fn bytes_at(address: u64, len: usize) -> Vec<u8> {
    if address == 0 || len == 0 {
        return Vec::new();
    }
    // SAFETY: by the caller's promise.
    unsafe { core::slice::from_raw_parts(address as usize as *const u8, len) }.to_vec()
}

fn set_priority(priority: i32) {
    // SAFETY: the calling thread's pseudo handle.
    unsafe { SetThreadPriority(GetCurrentThread(), priority) };
}

fn wake_all() {
    signal(&WAKE_SAMPLER);
    signal(&WAKE_CENSUS);
    signal(&WAKE_CODE);
    signal(&WAKE_WRITER);
    signal(&WAKE_RUNTIMES);
}

fn signal(event: &AtomicPtr<c_void>) {
    let event = event.load(Ordering::Acquire);
    if !event.is_null() {
        // SAFETY: the events live as long as the process.
        unsafe { SetEvent(event) };
    }
}

fn close(handle: HANDLE) {
    if !handle.is_null() {
        // SAFETY: the caller owns it.
        unsafe { CloseHandle(handle) };
    }
}

const _: () = assert!(STATE_IDLE == 0, "the status starts idle");
