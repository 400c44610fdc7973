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

/// The target loads every DLL that the agent imports.
#[test]
fn it_imports_only_dlls_that_every_windows_has() {
    for agent in agents() {
        assert_eq!(agent.unwelcome_imports(), [""; 0]);
        assert!(agent.imports.contains("kernel32.dll"), "no imports were found: {:?}", agent.imports);
        assert!(!agent.delays, "delayed imports");
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
        let mut names = agent.exports;
        // GNU ld exports every unmangled name, so these two are always there.
        names.retain(|name| name != "DllMain" && name != "rust_eh_personality");
        assert_eq!(names, documented.map(str::to_owned).into());
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
