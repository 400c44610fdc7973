//! The beginning: checks what the host asks for, makes everything that the recording needs, and
//! hands it to its threads.
//!
//! What can fail fails here, before any thread of the target is touched; from then on nothing more
//! of this size is allocated.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use stk_format::{BlockBuffer, CpuUnit, FileHeader};
use stk_schema::control::{
    AgentConfig, CONTROL_VERSION, EMBED_FULL, FLAG_CHECK_WALKS, FLAG_NO_COMMAND_LINE, FLAG_ONCE,
    FLAG_TEST_FREEZE, FLAG_TEST_PANIC, FLAG_UNGUARDED, StartResult, TEST_FREEZE_SHIFT,
};
use stk_schema::guard::SAMPLERS;
use stk_schema::windows::walks_allowed;
use stk_schema::{Os, limits};
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Threading::{GetCurrentProcessId, GetCurrentThread, Sleep};

use super::{FINISHED, OCCUPIED, Session, threads};
use crate::record::dynamic::{self, CodeFunctions};
use crate::record::journal::{self, Journal};
use crate::record::queue::Queue;
use crate::record::sampler::{Sampler, Wiring};
use crate::record::shared::{Counters, Lane};
use crate::record::writer::{WriteError, Writer};
use crate::windows::code::CodeRecorder;
use crate::windows::runtimes::{Runtimes, Shared};
use crate::windows::sampler::process::{OwnProcess, Sampled};
use crate::windows::sampler::suspend::SUSPENSIONS;
use crate::windows::sampler::triggers::Triggers;
use crate::windows::sampler::walk::{self, SystemUnwinder};
use crate::windows::shared::events::{WAKE_RUNTIMES, make_events, signal};
use crate::windows::shared::exclusive::Exclusive;
use crate::windows::shared::pace::JournalPace;
use crate::windows::shared::state::{MAILBOX, SIGNALS, STATUS, reset_signals};
use crate::windows::system::api::{self, Api, ticks, utc};
use crate::windows::system::context;
use crate::windows::system::files::{OutputFile, TablesFolder};
use crate::windows::system::{heap, host, panic, random, text};
use crate::windows::tables::{Census, RuntimesLink, Settings, hints};

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
/// Least [`AgentConfig::max_bytes`]: the beginning and the end of a trace.
const LEAST_BYTES: u64 = 64 << 10;
/// Milliseconds that a start waits for the threads of the recording before to leave.
const LEAVE_MS: u32 = 10_000;

pub fn try_start(
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
    if config.flags & FLAG_CHECK_WALKS != 0 && !walks_allowed(shadow_stack_policy(api)) {
        STATUS.set_message("walks cannot be checked: the process has user shadow stacks in strict mode");
        return Err(fail(StartResult::BadConfig));
    }
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

/// Takes the one place for a recording. Threads of one that has ended may still be on their way
/// out: waits for them.
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
        && config.flags
            & !(FLAG_ONCE
                | FLAG_CHECK_WALKS
                | FLAG_UNGUARDED
                | FLAG_NO_COMMAND_LINE
                | FLAG_TEST_FREEZE
                | FLAG_TEST_PANIC)
            == 0
        && config.metadata_len as usize <= 1 << 20
        && (config.max_bytes == 0 || config.max_bytes >= LEAST_BYTES)
        && config.output != 0
        && config.reserved == 0
        && config.reserved2 == 0;
    if !good {
        return Err(StartResult::BadConfig);
    }
    if config.guard == 0 && config.flags & FLAG_UNGUARDED == 0 {
        STATUS.set_message("neither a guard process nor STK_FLAG_UNGUARDED was given");
        return Err(StartResult::NoGuard);
    }
    Ok(())
}

/// Flags of this process's PROCESS_MITIGATION_USER_SHADOW_STACK_POLICY; 0 where the system has
/// none.
fn shadow_stack_policy(api: &Api) -> u32 {
    /// ProcessUserShadowStackPolicy.
    const SHADOW_STACK: i32 = 15;
    let mut flags = 0u32;
    let Some(query) = api.mitigation_policy else { return 0 };
    // SAFETY: the policy is one u32 of flags.
    let known = unsafe {
        query(
            windows_sys::Win32::System::Threading::GetCurrentProcess(),
            SHADOW_STACK,
            (&raw mut flags).cast(),
            size_of::<u32>(),
        )
    };
    if known != 0 { flags } else { 0 }
}

/// Whether this process is emulated on a processor of another kind: contexts would be the
/// emulator's.
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
    // The largest sample that is not to be dropped: all of its words changed, its runs and
    // registers.
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

    let mut writer =
        Writer::new(&header, capacity.max(journal::CAPACITY), output).map_err(|error| match error {
            WriteError::System(code) => (StartResult::BadOutput, code),
            WriteError::Seal(_) | WriteError::Interrupted | WriteError::Full => no_memory,
        })?;
    writer.set_limit(config.max_bytes);
    let seen = dynamic::Shared::new();
    let settings = Settings {
        embed: config.embed,
        // SAFETY: the host promises that many readable bytes at that address for the length of the
        // start.
        metadata: unsafe { bytes_at(config.metadata, config.metadata_len as usize) },
        folder: (config.tables_dir != 0).then(|| {
            // SAFETY: the host promises a zero-terminated text.
            let path = unsafe { text::units(config.tables_dir as usize as *const u16, 32_768) };
            TablesFolder::new(path, &random::secret(&config.uuid))
        }),
        own_base: own_module as u64,
        check_walks: config.flags & FLAG_CHECK_WALKS != 0,
        unguarded: config.guard == 0,
        command_line: config.flags & FLAG_NO_COMMAND_LINE == 0,
        ticks_per_ms,
        rate_mhz: config.rate_mhz,
        code_seen: seen.clone(),
    };
    let journal = |lane: &Arc<Lane>| {
        let pace = JournalPace { writer_alive: || !FINISHED.load(Ordering::Acquire) };
        Journal::new(lane.clone(), counters.clone(), pace)
    };
    let dotnet = Arc::new(Shared::new());
    let runtimes = RuntimesLink { shared: dotnet.clone(), wake: || signal(&WAKE_RUNTIMES) };
    let (counted, own) = (counters.clone(), threads::own_threads);
    let census = Census::new(api, settings, journal(&census_lane), counted, commands.clone(), own, runtimes);
    let module_ids = census.ids();
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
    let period = (u128::from(api.frequency) * 1000 / u128::from(config.rate_mhz)).max(1) as u64;
    sampler.limit_duty(period);

    STATUS.samples.store(0, Ordering::Relaxed);
    STATUS.dropped.store(0, Ordering::Relaxed);
    STATUS.passes.store(0, Ordering::Relaxed);
    STATUS.bytes.store(writer.bytes(), Ordering::Relaxed);
    STATUS.elapsed_ms.store(0, Ordering::Relaxed);
    STATUS.system_error.store(0, Ordering::Relaxed);
    STATUS.set_message("");
    SUSPENSIONS.reset();
    STATUS.guard_board.store(SUSPENSIONS.board_address(), Ordering::Release);
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
        module_ids,
        triggers: Triggers::new(max_stack.min(TRIGGERED_BYTES)),
        sampler: Exclusive::new(sampler),
        census: Exclusive::new(census),
        code: Exclusive::new(code),
        runtimes: Exclusive::new(runtimes),
        writer: Exclusive::new(Some(writer)),
        in_flight: AtomicPtr::new(null_mut()),
        ending: AtomicBool::new(false),
        last_block: Exclusive::new(last_block),
        ticks_per_ms,
        started: header.clock_start,
        period,
        delay_ms: config.delay_ms,
        duration_ms: config.duration_ms,
        once: config.flags & FLAG_ONCE != 0,
        check_walks,
        test_panic: config.flags & FLAG_TEST_PANIC != 0,
        test_freeze: ((config.flags & FLAG_TEST_FREEZE) >> TEST_FREEZE_SHIFT) as u8,
        due: AtomicU64::new(0),
        sampling_ends: AtomicU64::new(u64::MAX),
        spares: AtomicU32::new(SAMPLERS as u32 - 1),
        takeover: AtomicBool::new(false),
        ended_event,
        has_cycles,
        parked: AtomicU32::new(0),
        calibrated: AtomicBool::new(false),
        guard: config.guard as usize as HANDLE,
        sampler_done: AtomicBool::new(false),
        census_done: AtomicBool::new(false),
        code_done: AtomicBool::new(false),
        runtimes_done: AtomicBool::new(false),
        bytes_since_state: AtomicU64::new(0),
    });
    threads::launch(session)
}

/// Whether the system counts threads' cycles (Wine 8 does not).
fn counts_cycles(api: &Api) -> bool {
    let mut cycles = 0;
    // SAFETY: the calling thread's pseudo handle; the result is one u64.
    api.thread_cycles
        .is_some_and(|query| unsafe { query(GetCurrentThread(), &mut cycles) } != 0 && cycles != 0)
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
