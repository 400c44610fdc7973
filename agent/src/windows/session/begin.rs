//! The start of a recording: checks the host's configuration and this process.
//!
//! Anything that can fail, fails here or in `parts`, before any thread of the target is touched.

use core::sync::atomic::Ordering;

use stk_schema::control::{
    AgentConfig, CONTROL_VERSION, EMBED_FULL, FIRST_CONFIG_SIZE, FLAG_CHECK_WALKS, FLAG_FLIGHT, FLAG_LOADED,
    FLAG_NO_COMMAND_LINE, FLAG_ONCE, FLAG_OPTIONS, FLAG_PAUSED, FLAG_POINTERS_ONLY, FLAG_ROTATES,
    FLAG_TEST_FREEZE, FLAG_TEST_PANIC, FLAG_UNGUARDED, StartResult,
};
use stk_schema::options::MAX_BYTES as MAX_OPTIONS;
use stk_schema::windows::walks_allowed;
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Threading::GetCurrentProcess;

use super::{OCCUPIED, parts};
use crate::record::patience;
use crate::windows::sampler::walk;
use crate::windows::shared::state::{FINISHED, STATUS};
use crate::windows::system::api::{self, SystemApi};
use crate::windows::system::clock::SystemClock;
use crate::windows::system::files::OutputFile;
use crate::windows::system::{context, panic};

/// Smallest [`AgentConfig::max_bytes`]: the beginning and the end of a trace.
const LEAST_BYTES: u64 = 64 << 10;
/// Milliseconds that a start waits until the previous recording's threads have ended.
pub(super) const LEAVE_MS: u32 = 10_000;

/// Starts a recording. The error is the result for the host and the system's error code.
pub(super) fn try_start(
    config: &AgentConfig,
    output: OutputFile,
    ended_event: HANDLE,
    own_base: HANDLE,
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
    let options = parts::options(config).map_err(|error| {
        STATUS.set_message(error.0);
        fail(StartResult::BadConfig)
    })?;
    occupy().map_err(fail)?;
    let result = parts::prepare(config, options, output, ended_event, own_base, api);
    if result.is_err() {
        OCCUPIED.store(false, Ordering::Release);
    }
    result
}

/// Reserves the process's only recording. Waits for threads of a finished recording that have not
/// ended yet.
pub(super) fn occupy() -> Result<(), StartResult> {
    let api = api::api().ok_or(StartResult::WrongArchitecture)?;
    let occupied = patience::wait_for(&mut SystemClock, api.milliseconds(LEAVE_MS), 1, || {
        if !OCCUPIED.swap(true, Ordering::AcqRel) {
            return Some(Ok(()));
        }
        (!FINISHED.load(Ordering::Acquire)).then_some(Err(StartResult::AlreadyRecording))
    });
    occupied.unwrap_or_else(|| {
        STATUS.set_message("a thread of the last recording is stuck");
        Err(StartResult::Disabled)
    })
}

fn check(config: &AgentConfig) -> Result<(), StartResult> {
    if config.flags & FLAG_CHECK_WALKS != 0 && !walk::SUPPORTED {
        STATUS.set_message("walks are checked by the x64 agent only");
        return Err(StartResult::BadConfig);
    }
    let good = config.version == CONTROL_VERSION
        && config.size as usize >= FIRST_CONFIG_SIZE
        && has_room_for_options(config)
        && (1..=20_000_000).contains(&config.rate_mhz)
        && config.embed <= EMBED_FULL
        && config.flags
            & !(FLAG_ONCE
                | FLAG_CHECK_WALKS
                | FLAG_UNGUARDED
                | FLAG_NO_COMMAND_LINE
                | FLAG_POINTERS_ONLY
                | FLAG_OPTIONS
                | FLAG_FLIGHT
                | FLAG_PAUSED
                | FLAG_LOADED
                | FLAG_ROTATES
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

/// Whether a config that says it has options is large enough to, and they are not too large.
fn has_room_for_options(config: &AgentConfig) -> bool {
    config.flags & FLAG_OPTIONS == 0
        || config.size as usize >= size_of::<AgentConfig>()
            && config.options_len as usize <= MAX_OPTIONS
            && config.reserved3 == 0
}

/// Flags of this process's PROCESS_MITIGATION_USER_SHADOW_STACK_POLICY; 0 if the system has none.
fn shadow_stack_policy(api: &SystemApi) -> u32 {
    /// ProcessUserShadowStackPolicy.
    const SHADOW_STACK: i32 = 15;
    let mut flags = 0u32;
    let Some(query) = api.mitigation_policy else { return 0 };
    // SAFETY: the policy is one u32 of flags.
    let known =
        unsafe { query(GetCurrentProcess(), SHADOW_STACK, (&raw mut flags).cast(), size_of::<u32>()) };
    if known != 0 { flags } else { 0 }
}

/// Whether this process is emulated on another kind of processor: then contexts would be the
/// emulator's.
fn is_emulated(api: &SystemApi) -> bool {
    const ARM64: u16 = stk_schema::windows::MACHINE_ARM64;
    let (mut process, mut native) = (0, 0);
    let Some(query) = api.is_wow64 else { return false };
    // SAFETY: two results of 16 bits each.
    let known = unsafe { query(GetCurrentProcess(), &mut process, &mut native) != 0 };
    known && native == ARM64 && context::ARCH != stk_schema::Arch::Arm64
}
