//! The agent's self-test for `inject doctor`: inject loads agent.dll into itself, calls
//! [`EXPORT_SELFTEST`], and judges the agent's findings about the process.
//!
//! Like the structs of [`crate::control`]: size and version first, fixed-width fields, no padding.

/// Version of [`SelfTest`].
pub const SELFTEST_VERSION: u32 = 1;

/// Export: `u32 stk_agent_selftest(SelfTest*)`, returns 0, or 1 if the struct's size or version
/// does not fit. Takes the PEB lock of the calling process for a moment and loads
/// [`SelfTest::probe_path`], so call it only in a process of inject's own, never in a target.
pub const EXPORT_SELFTEST: &str = "stk_agent_selftest";

/// UTF-16 units of a path in a [`SelfTest`].
pub const SELFTEST_PATH: usize = 520;

/// [`SelfTest::features`]: NtGetNextThread.
pub const FEATURE_NEXT_THREAD: u32 = 1;
/// [`SelfTest::features`]: LdrRegisterDllNotification.
pub const FEATURE_NOTIFICATION: u32 = 1 << 1;
/// [`SelfTest::features`]: QueryThreadCycleTime is exported (it may still fail).
pub const FEATURE_CYCLES: u32 = 1 << 2;
/// [`SelfTest::features`]: GetSystemTimePreciseAsFileTime.
pub const FEATURE_PRECISE_TIME: u32 = 1 << 3;
/// [`SelfTest::features`]: IsWow64Process2.
pub const FEATURE_WOW64_2: u32 = 1 << 4;
/// [`SelfTest::features`]: NtSetTimerResolution.
pub const FEATURE_TIMER_RESOLUTION: u32 = 1 << 5;
/// [`SelfTest::features`]: wine_get_version, which only Wine has.
pub const FEATURE_WINE: u32 = 1 << 6;
/// [`SelfTest::features`]: RtlAcquirePebLock and RtlReleasePebLock, which only this test uses.
pub const FEATURE_PEB_LOCK: u32 = 1 << 7;

/// The findings. An address or number of 0 is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct SelfTest {
    /// Size of this struct in bytes.
    pub size: u32,
    /// [`SELFTEST_VERSION`].
    pub version: u32,
    /// `FEATURE_*`: the functions that the agent found by name.
    pub features: u32,
    /// Id of the thread that ran the test.
    pub tid: u32,
    /// Address of the critical section in PEB.FastPebLock.
    pub peb_lock: u64,
    /// Address of the critical section in PEB.LoaderLock.
    pub loader_lock: u64,
    /// OwningThread of the PEB lock before it was taken.
    pub peb_owner_before: u64,
    /// OwningThread of the PEB lock while this thread held it.
    pub peb_owner_held: u64,
    /// OwningThread of the PEB lock after it was released.
    pub peb_owner_after: u64,
    /// LockCount and, in the high half, RecursionCount of the PEB lock while this thread held it.
    pub peb_lock_words: u64,
    /// OwningThread of the loader lock, read in the notification of the probe's load.
    pub loader_owner_notified: u64,
    /// Load address of the first module in the loader's list.
    pub first_base: u64,
    /// PEB.ImageBaseAddress.
    pub image_base: u64,
    /// Modules in the loader's list; 0 if it could not be read.
    pub modules: u32,
    /// Notifications of loads that arrived while the probe was loaded.
    pub notified: u32,
    /// Load address of the probe, as the loader returned it, as the notification gave it, and as
    /// the list has it.
    pub probe_base: [u64; 3],
    /// Size of the probe's image, as the notification gave it and as the list has it.
    pub probe_size: [u32; 2],
    /// StackLimit of the calling thread, from its TEB as the agent finds it.
    pub stack_limit: u64,
    /// StackBase of the calling thread, likewise.
    pub stack_base: u64,
    /// TEB of the calling thread by the processor's register.
    pub teb: u64,
    /// TEB of the calling thread by NtQueryInformationThread, as the agent finds other threads'
    /// TEBs.
    pub teb_queried: u64,
    /// Threads of the process by the agent's own enumeration.
    pub threads: u32,
    /// Bytes of the calling thread's name as the agent read it; `u32::MAX` if the system did not
    /// give it.
    pub thread_name_len: u32,
    /// The first of those bytes, UTF-8.
    pub thread_name: [u8; 64],
    /// Input: the DLL to load as a probe, zero-terminated UTF-16. It must not be loaded.
    pub probe_path: [u16; SELFTEST_PATH],
    /// The path that the notification gave, UTF-16.
    pub notified_path: [u16; SELFTEST_PATH],
    /// The path in the loader's list, UTF-16.
    pub listed_path: [u16; SELFTEST_PATH],
}

impl SelfTest {
    /// A blank one with `probe_path`, cut to [`SELFTEST_PATH`] units.
    pub fn new(probe_path: &[u16]) -> SelfTest {
        let mut path = [0; SELFTEST_PATH];
        for (to, &unit) in path[..SELFTEST_PATH - 1].iter_mut().zip(probe_path) {
            *to = unit;
        }
        SelfTest {
            size: size_of::<SelfTest>() as u32,
            version: SELFTEST_VERSION,
            features: 0,
            tid: 0,
            peb_lock: 0,
            loader_lock: 0,
            peb_owner_before: 0,
            peb_owner_held: 0,
            peb_owner_after: 0,
            peb_lock_words: 0,
            loader_owner_notified: 0,
            first_base: 0,
            image_base: 0,
            modules: 0,
            notified: 0,
            probe_base: [0; 3],
            probe_size: [0; 2],
            stack_limit: 0,
            stack_base: 0,
            teb: 0,
            teb_queried: 0,
            threads: 0,
            thread_name_len: 0,
            thread_name: [0; 64],
            probe_path: path,
            notified_path: [0; SELFTEST_PATH],
            listed_path: [0; SELFTEST_PATH],
        }
    }
}

// Without padding the layout is the same for every compiler.
const _: () = assert!(
    size_of::<SelfTest>()
        == 4 * 4 + 9 * 8 + 2 * 4 + 3 * 8 + 2 * 4 + 4 * 8 + 2 * 4 + 64 + 3 * 2 * SELFTEST_PATH
);
