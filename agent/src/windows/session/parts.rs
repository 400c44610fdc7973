//! Makes and connects the parts of a session. After that, nothing of this size is allocated.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;

use stk_format::{BlockBuffer, CpuUnit, FileHeader};
use stk_schema::control::{
    AgentConfig, FLAG_CHECK_WALKS, FLAG_FLIGHT, FLAG_NO_COMMAND_LINE, FLAG_ONCE, FLAG_OPTIONS, FLAG_PAUSED,
    FLAG_POINTERS_ONLY, FLAG_ROTATES, FLAG_TEST_FREEZE, FLAG_TEST_PANIC, ROTATION_NONE, StartResult,
    TEST_FREEZE_SHIFT,
};
use stk_schema::{Os, Ticks, limits};
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Threading::{GetCurrentProcessId, GetCurrentThread};

use super::triggers::EventTriggers;
use super::{Session, threads};
use crate::record::dynamic::{self, CodeFunctions};
use crate::record::event_writer::{self, EventWriter};
use crate::record::files::Files;
use crate::record::held_times::HeldSummary;
use crate::record::options::{OptionError, Options};
use crate::record::queue::Queue;
use crate::record::sampler::{Sampler, SamplerLinks, ThreadCommand};
use crate::record::shared::{Counters, Lane};
use crate::record::writer::{WriteError, Writer};
use crate::windows::code::{CodeRecorder, CodeThread};
use crate::windows::runtimes::{RuntimesRecorder, RuntimesState, RuntimesThread};
use crate::windows::sampler::process::{OwnProcess, SampledThread};
use crate::windows::sampler::suspend::{SUSPENSIONS, Suspender};
use crate::windows::sampler::triggers::Triggers;
use crate::windows::sampler::walk::{self, SystemUnwinder};
use crate::windows::sampler::{SamplerThread, SamplingPlan};
use crate::windows::shared::clock::SessionClock;
use crate::windows::shared::events::{
    HOSTS, NAMING_HOST, WAKE_CODE, WAKE_RUNTIMES, WAKE_SAMPLER, WAKE_TABLES, make_events,
};
use crate::windows::shared::next_file::FileOffer;
use crate::windows::shared::pace::JournalPace;
use crate::windows::shared::state::{
    FINISHED, FLIGHT_DESK, MAILBOX, MAIN_THREAD, REQUESTS, SIGNALS, STATUS, reset_signals,
};
use crate::windows::shared::worker::Worker;
use crate::windows::system::api::{SystemApi, ticks, utc};
use crate::windows::system::files::{OutputFile, TablesFolder};
use crate::windows::system::peb::Peb;
use crate::windows::system::{context, heap, host, own_module, panic, random, text};
use crate::windows::tables::{TablesRecorder, TablesSettings, TablesThread, exceptions, hints, marks};
use crate::windows::watchdog::WatchdogThread;
use crate::windows::workers::Workers;
use crate::windows::writer::{WriterSettings, WriterThread};

/// Buffers of the sampler: one is being filled, the others are with the writer.
const SAMPLER_BUFFERS: usize = 4;
/// Buffers of the tables thread.
const TABLES_BUFFERS: usize = 4;
/// Buffers of the code thread.
const CODE_BUFFERS: usize = 2;
/// Buffers of the runtimes thread.
const RUNTIMES_BUFFERS: usize = 2;
/// Most thread additions and removals that wait for the sampler.
const COMMANDS: usize = 4096;
/// Largest stack of a triggered sample.
const TRIGGERED_BYTES: usize = 1 << 20;
/// Bytes of a word of the target.
const WORD: usize = size_of::<usize>();

/// The result that the host gets for a failed start, and the system's error code.
type Failure = (StartResult, u32);

const NO_MEMORY: Failure = (StartResult::NoMemory, 0);

/// The host's options that are texts.
pub(super) fn options(config: &AgentConfig) -> Result<Options, OptionError> {
    if config.flags & FLAG_OPTIONS == 0 {
        return Ok(Options::default());
    }
    // SAFETY: the host promises that so many bytes at that address are readable during the start.
    Options::read(&unsafe { bytes_at(config.options, config.options_len as usize) })
}

/// Makes all data that the recording needs, then its threads.
pub(super) fn prepare(
    config: &AgentConfig,
    options: Options,
    output: OutputFile,
    ended_event: HANDLE,
    own_base: HANDLE,
    api: &'static SystemApi,
) -> Result<(), Failure> {
    let sizes = Sizes::of(config);
    if !heap::can_allocate(sizes.needed()) {
        return Err(NO_MEMORY);
    }
    make_events()?;
    own_module::hold();
    hints::prepare();
    marks::prepare();
    exceptions::prepare();
    reset_signals(config.flags & FLAG_PAUSED != 0);
    if STATUS.rotation.load(Ordering::Acquire) == ROTATION_NONE {
        // Else this is the next file of a recording.
        MAIN_THREAD.forget();
    }

    let has_cycles = counts_cycles(api);
    let header = header(config, api, has_cycles);
    let files = Arc::new(Files::new(&header));
    let lanes = Lanes::new(&sizes, &files)?;
    let capacity = sizes.buffer.max(event_writer::CAPACITY);
    let offer = Arc::new(FileOffer::new(files, api, header, capacity));
    let last_block = Box::new(BlockBuffer::new(64 << 10, &header).map_err(|_| NO_MEMORY)?);
    let clock = SessionClock { started: header.clock_start, ticks_per_ms: (api.frequency / 1000).max(1) };
    let writer = open(&header, &sizes, output, config.max_bytes)?;
    let parts = ThreadParts {
        offer: offer.clone(),
        config,
        options,
        api,
        own_base,
        sizes,
        clock,
        has_cycles,
        lanes,
        counters: Arc::default(),
        commands: Arc::new(Queue::new(COMMANDS)),
        code_seen: dynamic::Shared::new(),
        runtimes_shared: Arc::new(RuntimesState::new()),
    };
    let tables = parts.tables();
    let code = parts.code(&tables);
    let runtimes = RuntimesRecorder::new(parts.keeping(&parts.lanes.runtimes));
    let sampler = parts.sampler()?;
    reset_status(writer.bytes());
    if config.flags & FLAG_FLIGHT != 0 {
        FLIGHT_DESK.begin();
        STATUS.flight.store(&raw const FLIGHT_DESK as u64, Ordering::Release);
    }
    let triggers = EventTriggers::install(&parts.options, api.frequency).ok_or(NO_MEMORY)?;
    let test_freeze = ((config.flags & FLAG_TEST_FREEZE) >> TEST_FREEZE_SHIFT) as u8;
    panic::request(test_freeze);
    let (counters, guard) = (&parts.counters, config.guard as usize as HANDLE);
    threads::launch(Arc::new(Session {
        workers: parts.workers(sampler, tables, code, runtimes),
        writer: WriterThread::new(
            writer,
            offer,
            last_block,
            clock,
            counters.clone(),
            WriterSettings {
                ended_event,
                test_freeze,
                measured: parts.options.max_overhead.map(|_| has_cycles),
            },
        ),
        watchdog: WatchdogThread::new(clock, counters.clone(), guard, parts.checks_walks(), test_freeze),
        triggers,
    }))
}

/// Sizes of the recording's memory, in bytes.
struct Sizes {
    /// Largest stack of a sample.
    max_stack: usize,
    /// A buffer of samples.
    buffer: usize,
}

impl Sizes {
    fn of(config: &AgentConfig) -> Sizes {
        let max_stack = match config.max_stack_bytes as usize {
            0 => limits::MAX_SAMPLE_WORDS * WORD,
            bytes => bytes.clamp(1024, limits::MAX_SAMPLE_WORDS * WORD) & !(WORD - 1),
        };
        // The largest sample that must not be dropped: all its words changed, its runs and its
        // registers.
        let buffer = limits::CUT_RAW + max_stack + max_stack / 16 + (64 << 10);
        Sizes { max_stack, buffer: buffer.min(limits::MAX_BLOCK_RAW) }
    }

    /// All memory that the recording needs.
    fn needed(&self) -> usize {
        let journals = (TABLES_BUFFERS + CODE_BUFFERS + RUNTIMES_BUFFERS) * event_writer::CAPACITY;
        SAMPLER_BUFFERS * self.buffer + journals + 2 * self.buffer + (24 << 20)
    }
}

fn header(config: &AgentConfig, api: &SystemApi, has_cycles: bool) -> FileHeader {
    let mut header = FileHeader::new(context::ARCH, Os::Windows, config.uuid, api.frequency);
    header.clock_start = ticks();
    header.utc_start = utc(api);
    header.process_created = host::process_created();
    // SAFETY: no preconditions.
    header.pid = unsafe { GetCurrentProcessId() };
    header.rate_mhz = config.rate_mhz;
    header.boot_id = host::boot_id(api);
    header.cpu_unit = if has_cycles { CpuUnit::Cycles } else { CpuUnit::Time100ns };
    header
}

/// Writes the header to the trace.
fn open(
    header: &FileHeader,
    sizes: &Sizes,
    output: OutputFile,
    max_bytes: u64,
) -> Result<Writer<OutputFile>, Failure> {
    let mut writer = Writer::new(header, sizes.buffer.max(event_writer::CAPACITY), output).map_err(
        |error| match error {
            WriteError::System(code) => (StartResult::BadOutput, code),
            WriteError::Seal(_) | WriteError::Interrupted | WriteError::Full => NO_MEMORY,
        },
    )?;
    writer.set_limit(max_bytes);
    Ok(writer)
}

/// A lane for each of the workers.
struct Lanes {
    sampler: Arc<Lane>,
    tables: Arc<Lane>,
    code: Arc<Lane>,
    runtimes: Arc<Lane>,
}

impl Lanes {
    fn new(sizes: &Sizes, files: &Arc<Files>) -> Result<Lanes, Failure> {
        let lane = |count, bytes| Lane::new(count, bytes, files).map(Arc::new).ok_or(NO_MEMORY);
        Ok(Lanes {
            sampler: lane(SAMPLER_BUFFERS, sizes.buffer)?,
            tables: lane(TABLES_BUFFERS, event_writer::CAPACITY)?,
            code: lane(CODE_BUFFERS, event_writer::CAPACITY)?,
            runtimes: lane(RUNTIMES_BUFFERS, event_writer::CAPACITY)?,
        })
    }
}

/// The parts from which the threads' states are made.
struct ThreadParts<'a> {
    offer: Arc<FileOffer>,
    config: &'a AgentConfig,
    options: Options,
    api: &'static SystemApi,
    own_base: HANDLE,
    sizes: Sizes,
    clock: SessionClock,
    has_cycles: bool,
    lanes: Lanes,
    counters: Arc<Counters>,
    commands: Arc<Queue<ThreadCommand<SampledThread>>>,
    code_seen: Arc<dynamic::Shared>,
    runtimes_shared: Arc<RuntimesState>,
}

impl ThreadParts<'_> {
    fn checks_walks(&self) -> bool {
        self.config.flags & FLAG_CHECK_WALKS != 0
    }

    fn pointers_only(&self) -> bool {
        self.config.flags & FLAG_POINTERS_ONLY != 0
    }

    fn journal(&self, lane: &Arc<Lane>) -> EventWriter<JournalPace> {
        let pace = JournalPace { writer_alive: || !FINISHED.load(Ordering::Acquire) };
        EventWriter::new(lane.clone(), self.counters.clone(), pace)
    }

    /// A journal that restates what it wrote in the next file.
    fn keeping(&self, lane: &Arc<Lane>) -> EventWriter<JournalPace> {
        let mut journal = self.journal(lane);
        if self.config.flags & FLAG_ROTATES != 0 {
            journal.keep();
        }
        journal
    }

    fn tables(&self) -> TablesRecorder {
        let config = self.config;
        let settings = TablesSettings {
            embed: config.embed,
            // SAFETY: the host promises that so many bytes at that address are readable during the
            // start.
            metadata: unsafe { bytes_at(config.metadata, config.metadata_len as usize) },
            folder: (config.tables_dir != 0).then(|| {
                // SAFETY: the host promises a zero-terminated text.
                let path = unsafe { text::units(config.tables_dir as usize as *const u16, 32_768) };
                TablesFolder::new(path, &random::secret(&config.uuid))
            }),
            own_base: self.own_base as u64,
            check_walks: self.checks_walks(),
            unguarded: config.guard == 0,
            command_line: config.flags & FLAG_NO_COMMAND_LINE == 0,
            pointers_only: self.pointers_only(),
            own_threads: threads::own_threads,
            ticks_per_ms: self.clock.ticks_per_ms,
            rate_mhz: config.rate_mhz,
            options: self.options.clone(),
            code_seen: self.code_seen.clone(),
        };
        TablesRecorder::new(
            self.api,
            settings,
            self.journal(&self.lanes.tables),
            self.counters.clone(),
            self.commands.clone(),
            self.runtimes_shared.clone(),
            self.offer.clone(),
        )
    }

    fn code(&self, tables: &TablesRecorder) -> CodeRecorder {
        let (seen, ticks_per_ms) = (&self.code_seen, self.clock.ticks_per_ms);
        let functions = CodeFunctions::new(context::ARCH, tables.ids(), seen.clone(), ticks_per_ms);
        CodeRecorder::new(
            self.api,
            functions,
            self.keeping(&self.lanes.code),
            seen.clone(),
            self.runtimes_shared.clone(),
            ticks_per_ms,
        )
    }

    fn sampler(&self) -> Result<Sampler<OwnProcess>, Failure> {
        let api = self.api;
        let links = SamplerLinks {
            lane: self.lanes.sampler.clone(),
            counters: self.counters.clone(),
            signals: &SIGNALS,
            commands: self.commands.clone(),
        };
        let unwinder = self.checks_walks().then(|| SystemUnwinder::new(api).ok_or(NO_MEMORY)).transpose()?;
        let peb = Peb::current(api);
        let suspender = Suspender { api, peb, unwinder, leave_deposed: threads::leave_deposed };
        let target =
            OwnProcess::new(suspender, self.counters.clone(), self.has_cycles, self.runtimes_shared.clone());
        let max_stack = self.sizes.max_stack;
        let mut sampler = Sampler::new(target, links, context::SET, WORD, api.frequency, max_stack);
        if self.checks_walks() {
            sampler.check_walks(walk::MAX_FRAMES);
        }
        if self.pointers_only() {
            sampler.keep_pointers_only(context::ARCH);
        }
        sampler.search_code(self.code_seen.clone());
        sampler.limit_cpu(self.period(), self.options.max_overhead);
        Ok(sampler)
    }

    /// From pass to pass.
    fn period(&self) -> Ticks {
        let ticks = u128::from(self.api.frequency) * 1000 / u128::from(self.config.rate_mhz);
        Ticks(ticks.max(1) as u64)
    }

    fn workers(
        &self,
        sampler: Sampler<OwnProcess>,
        tables: TablesRecorder,
        code: CodeRecorder,
        runtimes: RuntimesRecorder,
    ) -> Workers {
        let (api, clock, lanes) = (self.api, self.clock, &self.lanes);
        let module_ids = tables.ids();
        let (seen, shared) = (self.code_seen.clone(), self.runtimes_shared.clone());
        Workers {
            sampler: SamplerThread::new(
                Worker::new(lanes.sampler.clone(), sampler, &WAKE_SAMPLER),
                api,
                clock,
                self.counters.clone(),
                self.offer.clone(),
                self.plan(),
                Triggers::new(self.sizes.max_stack.min(TRIGGERED_BYTES)),
            ),
            tables: TablesThread::new(
                Worker::new(lanes.tables.clone(), tables, &WAKE_TABLES),
                module_ids,
                clock,
            ),
            code: CodeThread::new(Worker::new(lanes.code.clone(), code, &WAKE_CODE), clock),
            runtimes: RuntimesThread::new(
                Worker::new(lanes.runtimes.clone(), runtimes, &WAKE_RUNTIMES),
                api,
                clock,
                shared,
                seen,
            ),
        }
    }

    fn plan(&self) -> SamplingPlan {
        SamplingPlan {
            period: self.period(),
            delay_ms: self.config.delay_ms,
            duration_ms: self.config.duration_ms,
            once: self.config.flags & FLAG_ONCE != 0,
            has_cycles: self.has_cycles,
            test_panic: self.config.flags & FLAG_TEST_PANIC != 0,
        }
    }
}

/// Resets the status and the board for a new recording; `bytes` is the length of its trace so far.
fn reset_status(bytes: u64) {
    STATUS.samples.store(0, Ordering::Relaxed);
    STATUS.dropped.store(0, Ordering::Relaxed);
    STATUS.passes.store(0, Ordering::Relaxed);
    STATUS.bytes.store(bytes, Ordering::Relaxed);
    STATUS.elapsed_ms.store(0, Ordering::Relaxed);
    STATUS.system_error.store(0, Ordering::Relaxed);
    STATUS.set_message("");
    SUSPENSIONS.reset();
    STATUS.guard_board.store(SUSPENSIONS.board_address(), Ordering::Release);
    STATUS.paused.store(0, Ordering::Relaxed);
    STATUS.set_held(HeldSummary::default());
    REQUESTS.open(HOSTS.handle() as u64, WAKE_TABLES.handle() as u64);
    STATUS.requests.store((&raw const REQUESTS) as u64, Ordering::Release);
    MAILBOX.open(NAMING_HOST.handle() as usize as u32);
    STATUS.names.store((&raw const MAILBOX) as u64, Ordering::Release);
}

/// Whether the system counts threads' cycles (Wine 8 does not).
fn counts_cycles(api: &SystemApi) -> bool {
    let mut cycles = 0;
    // SAFETY: the calling thread's pseudo handle; the result is one u64.
    api.thread_cycles
        .is_some_and(|query| unsafe { query(GetCurrentThread(), &mut cycles) } != 0 && cycles != 0)
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
