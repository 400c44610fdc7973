//! The system's functions that wait, and what a wait in them is for.
//!
//! The names are those of Windows' documented functions, and those of ntdll that they call. The
//! outermost one of a stack says best what the thread waits for: `SleepConditionVariableSRW` says
//! more than the `NtWaitForAlertByThreadId` in which it ends.

/// Why a thread that waits does not run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum WaitClass {
    /// It has nothing to do: it sleeps, or waits for work.
    Idle,
    /// It has something to do, and another thread or a device keeps it from it.
    Blocked,
    /// The function is used for both.
    Unknown,
}

impl WaitClass {
    /// Short stable name.
    pub fn as_str(self) -> &'static str {
        match self {
            WaitClass::Idle => "idle",
            WaitClass::Blocked => "blocked",
            WaitClass::Unknown => "unknown",
        }
    }
}

use WaitClass::{Blocked, Idle, Unknown};

/// Reasons with their classes. The order is that of [`Wait::number`].
const REASONS: [(&str, WaitClass); 15] = [
    ("wait", Unknown),
    ("sleep", Idle),
    ("completion port", Idle),
    ("thread pool work", Idle),
    ("condition variable", Idle),
    ("window message", Idle),
    ("critical section", Blocked),
    ("SRW lock", Blocked),
    ("address", Unknown),
    ("single object", Unknown),
    ("multiple objects", Unknown),
    ("network", Unknown),
    ("garbage collection", Blocked),
    ("port", Unknown),
    ("once-only initialisation", Blocked),
];

/// Functions, in the order of their names, with the index of their reason.
const FUNCTIONS: [(&str, u8); 67] = [
    ("AcquireSRWLockExclusive", 7),
    ("AcquireSRWLockShared", 7),
    ("EnterCriticalSection", 6),
    ("GetMessageA", 5),
    ("GetMessageW", 5),
    ("GetQueuedCompletionStatus", 2),
    ("GetQueuedCompletionStatusEx", 2),
    ("InitOnceBeginInitialize", 14),
    ("InitOnceExecuteOnce", 14),
    ("MsgWaitForMultipleObjects", 5),
    ("MsgWaitForMultipleObjectsEx", 5),
    ("NtAlpcSendWaitReceivePort", 13),
    ("NtDelayExecution", 1),
    ("NtRemoveIoCompletion", 2),
    ("NtRemoveIoCompletionEx", 2),
    ("NtReplyWaitReceivePort", 13),
    ("NtReplyWaitReceivePortEx", 13),
    ("NtSignalAndWaitForSingleObject", 9),
    ("NtUserGetMessage", 5),
    ("NtUserMsgWaitForMultipleObjectsEx", 5),
    ("NtUserWaitMessage", 5),
    ("NtWaitForAlertByThreadId", 8),
    ("NtWaitForDebugEvent", 13),
    ("NtWaitForKeyedEvent", 8),
    ("NtWaitForMultipleObjects", 10),
    ("NtWaitForMultipleObjects32", 10),
    ("NtWaitForSingleObject", 9),
    ("NtWaitForWorkViaWorkerFactory", 3),
    ("RtlAcquirePebLock", 6),
    ("RtlAcquireSRWLockExclusive", 7),
    ("RtlAcquireSRWLockShared", 7),
    ("RtlEnterCriticalSection", 6),
    ("RtlRunOnceBeginInitialize", 14),
    ("RtlRunOnceExecuteOnce", 14),
    ("RtlSleepConditionVariableCS", 4),
    ("RtlSleepConditionVariableSRW", 4),
    ("RtlWaitOnAddress", 8),
    ("SignalObjectAndWait", 9),
    ("Sleep", 1),
    ("SleepConditionVariableCS", 4),
    ("SleepConditionVariableSRW", 4),
    ("SleepEx", 1),
    ("TppWorkerThread", 3),
    ("WSAPoll", 11),
    ("WSARecv", 11),
    ("WSARecvFrom", 11),
    ("WSAWaitForMultipleEvents", 11),
    ("WaitForDebugEvent", 13),
    ("WaitForDebugEventEx", 13),
    ("WaitForInputIdle", 9),
    ("WaitForMultipleObjects", 10),
    ("WaitForMultipleObjectsEx", 10),
    ("WaitForSingleObject", 9),
    ("WaitForSingleObjectEx", 9),
    ("WaitForThreadpoolIoCallbacks", 3),
    ("WaitForThreadpoolTimerCallbacks", 3),
    ("WaitForThreadpoolWaitCallbacks", 3),
    ("WaitForThreadpoolWorkCallbacks", 3),
    ("WaitMessage", 5),
    ("WaitOnAddress", 8),
    ("accept", 11),
    ("connect", 11),
    ("recv", 11),
    ("recvfrom", 11),
    ("select", 11),
    ("send", 11),
    ("sendto", 11),
];

/// What a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Wait(u8);

impl Wait {
    /// All reasons.
    pub const COUNT: usize = REASONS.len();

    /// What a function of the system waits for; `None` if it does not wait.
    pub(super) fn of(function: &str) -> Option<Wait> {
        let function = native(function);
        let at = FUNCTIONS.binary_search_by_key(&&*function, |(name, _)| name).ok()?;
        Some(Wait(FUNCTIONS[at].1))
    }

    /// The reason, in words for users.
    pub fn reason(self) -> &'static str {
        REASONS[usize::from(self.0)].0
    }

    pub fn class(self) -> WaitClass {
        REASONS[usize::from(self.0)].1
    }

    /// Number of the reason, below [`Wait::COUNT`].
    pub fn number(self) -> u16 {
        self.0.into()
    }

    /// All reasons, by their numbers.
    pub fn all() -> Vec<Wait> {
        (0..REASONS.len() as u8).map(Wait).collect()
    }

    /// The wait with this reason; one for something else if no version of stk has that reason.
    pub fn of_reason(reason: &str) -> Wait {
        Wait(REASONS.iter().position(|known| known.0 == reason).unwrap_or(0) as u8)
    }

    /// The reason with this number.
    pub fn from_number(number: u16) -> Option<Wait> {
        (usize::from(number) < REASONS.len()).then_some(Wait(number as u8))
    }
}

/// Functions of .NET's runtime in which its threads wait for a garbage collection, without the
/// namespaces of its two collectors.
const GARBAGE_COLLECTION: [&str; 6] = [
    "GCHeap::WaitUntilGCComplete",
    "JIT_RareDisableHelper",
    "Thread::RareDisablePreemptiveGC",
    "Thread::WaitSuspendEvents",
    "gc_heap::wait_for_gc_done",
    "gc_heap::wait_to_proceed",
];

/// What a function of a language runtime waits for; `None` if it does not wait.
pub(super) fn runtime_wait(function: &str) -> Option<Wait> {
    let name = function.strip_prefix("WKS::").or(function.strip_prefix("SVR::")).unwrap_or(function);
    GARBAGE_COLLECTION.binary_search(&name).is_ok().then_some(Wait(12))
}

/// What a system call does with its thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SystemCall {
    /// It waits.
    Waits,
    /// It reads, writes or controls a device: it works, or waits for the device.
    MayWait,
    /// It works.
    Works,
}

/// System calls that may wait for a device or another process.
const MAY_WAIT: [&str; 10] = [
    "NtCancelIoFile",
    "NtDeviceIoControlFile",
    "NtFlushBuffersFile",
    "NtFsControlFile",
    "NtNotifyChangeDirectoryFile",
    "NtReadFile",
    "NtReadFileScatter",
    "NtRequestWaitReplyPort",
    "NtWriteFile",
    "NtWriteFileGather",
];

/// The system call that a function is; `None` if it is none.
pub(super) fn system_call(module: &str, function: &str) -> Option<SystemCall> {
    let function = native(function);
    let library = ["ntdll.dll", "win32u.dll"].iter().any(|name| module.eq_ignore_ascii_case(name));
    let second = function.as_bytes().get(2).copied().unwrap_or(0);
    if !library || !function.starts_with("Nt") || !second.is_ascii_uppercase() {
        return None;
    }
    let waits = Wait::of(&function).is_some();
    let may_wait = MAY_WAIT.binary_search(&&*function).is_ok();
    Some(match (waits, may_wait) {
        (true, _) => SystemCall::Waits,
        (_, true) => SystemCall::MayWait,
        _ => SystemCall::Works,
    })
}

/// A name of ntdll's functions: each system call has a second one, with Zw.
fn native(function: &str) -> std::borrow::Cow<'_, str> {
    match function.strip_prefix("Zw") {
        Some(rest) => format!("Nt{rest}").into(),
        None => function.into(),
    }
}

/// The system's libraries whose functions lead to a wait.
const LIBRARIES: [&str; 16] = [
    "combase.dll",
    "gdi32.dll",
    "kernel32.dll",
    "kernelbase.dll",
    "msvcp140.dll",
    "msvcrt.dll",
    "mswsock.dll",
    "ntdll.dll",
    "ole32.dll",
    "rpcrt4.dll",
    "sechost.dll",
    "ucrtbase.dll",
    "user32.dll",
    "vcruntime140.dll",
    "win32u.dll",
    "ws2_32.dll",
];

/// Whether a module is one of the system's libraries, by its file name.
pub fn is_system_library(module: &str) -> bool {
    let module = || module.bytes().map(|byte| byte.to_ascii_lowercase());
    LIBRARIES.binary_search_by(|library| library.bytes().cmp(module())).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_and_refer_to_reasons() {
        assert!(FUNCTIONS.is_sorted_by(|a, b| a.0 < b.0));
        assert!(MAY_WAIT.is_sorted_by(|a, b| a < b));
        assert!(GARBAGE_COLLECTION.is_sorted_by(|a, b| a < b));
        assert!(LIBRARIES.is_sorted_by(|a, b| a < b));
        for (name, reason) in FUNCTIONS {
            assert!(usize::from(reason) < Wait::COUNT, "{name}");
        }
    }

    #[test]
    fn functions_have_reasons_and_classes() {
        let of = |name| Wait::of(name).map(|wait| (wait.reason(), wait.class()));
        assert_eq!(of("SleepEx"), Some(("sleep", Idle)));
        assert_eq!(of("ZwDelayExecution"), Some(("sleep", Idle)));
        assert_eq!(of("RtlEnterCriticalSection"), Some(("critical section", Blocked)));
        assert_eq!(of("WaitForSingleObject"), Some(("single object", Unknown)));
        assert_eq!(of("CreateFileW"), None);
    }

    #[test]
    fn the_runtime_waits_for_its_garbage_collector() {
        let reason = |name| runtime_wait(name).map(Wait::reason);
        assert_eq!(reason("Thread::RareDisablePreemptiveGC"), Some("garbage collection"));
        assert_eq!(reason("WKS::GCHeap::WaitUntilGCComplete"), Some("garbage collection"));
        assert_eq!(reason("WKS::GCHeap::Alloc"), None);
    }

    #[test]
    fn system_calls_are_those_of_two_libraries() {
        assert_eq!(system_call("ntdll.dll", "NtWaitForSingleObject"), Some(SystemCall::Waits));
        assert_eq!(system_call("NTDLL.DLL", "ZwReadFile"), Some(SystemCall::MayWait));
        assert_eq!(system_call("ntdll.dll", "NtClose"), Some(SystemCall::Works));
        assert_eq!(system_call("win32u.dll", "NtUserGetMessage"), Some(SystemCall::Waits));
        assert_eq!(system_call("ntdll.dll", "Ntlm"), None);
        assert_eq!(system_call("app.dll", "NtClose"), None);
    }

    #[test]
    fn numbers_and_reasons_correspond() {
        for number in 0..Wait::COUNT as u16 {
            assert_eq!(Wait::from_number(number).map(Wait::number), Some(number));
        }
        assert_eq!(Wait::from_number(Wait::COUNT as u16), None);
    }
}
