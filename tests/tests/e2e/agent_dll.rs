//! Checks the imports, exports and resources of the built agent.dll.

use stk_schema::Arch;
use stk_tests::pe::{self, Built};
use stk_tests::wine::{self, Machine};

const VERSION: u16 = 16;
const MANIFEST: u16 = 24;

fn built(folder: &str, name: &str) -> Built {
    let path = wine::path(folder).join(name);
    pe::read(&std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// Folder variable and suffix of each recorder that this machine has.
fn recorders() -> &'static [(&'static str, &'static str)] {
    const BOTH: &[(&str, &str)] = &[("STK_WINDOWS_BIN", ""), ("STK_WINDOWS32_BIN", "32")];
    if Machine::current().arch() == Arch::Arm64 { &BOTH[..1] } else { BOTH }
}

fn agents() -> impl Iterator<Item = Built> {
    recorders().iter().map(|(folder, suffix)| built(folder, &format!("agent{suffix}.dll")))
}

/// The target loads every DLL that the agent imports. These two are in every process.
#[test]
fn it_imports_kernel32_and_ntdll_alone() {
    for agent in agents() {
        // The 32-bit agent of GNU's linker needs nothing of ntdll by name.
        let mut imports: Vec<_> = agent.imports.iter().map(String::as_str).collect();
        imports.retain(|name| *name != "ntdll.dll");
        assert_eq!(imports, ["kernel32.dll"]);
        assert!(!agent.delays, "delayed imports");
    }
}

/// Thread-local storage would be a block of the target's heap for each of its threads.
#[test]
fn it_has_no_thread_local_storage() {
    for agent in agents() {
        assert!(!agent.thread_local);
    }
}

/// A console program that has loaded user32 gets no CTRL_LOGOFF_EVENT. shell32 and ole32 load it;
/// these do not. userenv and ws2_32 are Rust's std's.
#[test]
fn inject_imports_nothing_that_loads_user32() {
    for (folder, suffix) in recorders() {
        let inject = built(folder, &format!("inject{suffix}.exe"));
        const KNOWN: [&str; 7] =
            ["advapi32", "bcryptprimitives", "kernel32", "msvcrt", "ntdll", "userenv", "ws2_32"];
        let is_known = |name: &str| KNOWN.contains(&name.trim_end_matches(".dll"));
        // Of arm64, the C runtime is a part of Windows in modules of their own.
        let is_core = |name: &str| {
            ["api-ms-win-core-", "api-ms-win-crt-"].iter().any(|beginning| name.starts_with(beginning))
        };
        let apart = |name: &&String| !is_known(name) && !is_core(name);
        assert_eq!(inject.imports.iter().find(apart), None, "{:?}", inject.imports);
        assert!(!inject.delays, "delayed imports");
    }
}

/// The target's threads keep their priorities and their boosts, and run where they would without
/// it.
#[test]
fn it_imports_nothing_that_steers_the_targets_threads() {
    for agent in agents() {
        assert!(agent.functions.contains("SuspendThread"), "{:?}", agent.functions);
        let steering = |name: &&String| {
            let name = name.as_str();
            ["Boost", "Affinity", "CpuSet", "PriorityClass", "IdealProcessor"]
                .iter()
                .any(|one| name.contains(one))
                && name.starts_with("Set")
        };
        assert_eq!(agent.functions.iter().find(steering), None);
    }
}

#[test]
fn it_exports_only_documented_functions() {
    let documented = [
        "stk_agent_leave",
        "stk_agent_start",
        "stk_agent_status",
        "stk_agent_status_block",
        "stk_agent_stop",
        "stk_backtrace",
        "stk_capture",
        "stk_capture_context",
        "stk_mark",
        "stk_thread_name",
    ];
    for agent in agents() {
        // rustc exports DllMain as any unmangled name.
        let expected = documented.into_iter().chain(["DllMain"]).map(str::to_owned).collect();
        assert_eq!(agent.exports, expected);
    }
}

#[test]
fn each_is_built_for_the_programs_that_it_is_loaded_into() {
    let machines: Vec<u16> = agents().map(|agent| agent.machine).collect();
    let expected: &[u16] = match Machine::current().arch() {
        Arch::Arm64 => &[object::pe::IMAGE_FILE_MACHINE_ARM64],
        _ => &[object::pe::IMAGE_FILE_MACHINE_AMD64, object::pe::IMAGE_FILE_MACHINE_I386],
    };
    assert_eq!(machines, expected);
}

#[test]
fn agents_have_version_information_and_injects_a_manifest_too() {
    for agent in agents() {
        assert_eq!(agent.resources, [VERSION].into());
    }
    for (folder, suffix) in recorders() {
        let inject = built(folder, &format!("inject{suffix}.exe"));
        assert_eq!(inject.resources, [VERSION, MANIFEST].into(), "{folder}");
    }
}
